//! The numbers that clients ask with, as a trace tells them. Texts stay here.

use pointsman_driver::spans::AskedFor;
use pointsman_http::fields::{Fields, read, read_whole};
use serde::de::DeserializeOwned;

use super::passing::BOUND_FIELDS;

/// The numbers in the fields of a request. What is no number is left out.
pub(super) fn asked(fields: &Fields<'_>) -> AskedFor {
    let whole = |name: &str| fields.get(name).and_then(read_whole);
    AskedFor {
        stream: number(fields, "stream"),
        choices: whole("n"),
        tokens_max: BOUND_FIELDS.iter().find_map(|name| whole(name)),
        seed: fields.get("seed").and_then(read_whole),
        temperature: number(fields, "temperature"),
        top_p: number(fields, "top_p"),
        top_k: number(fields, "top_k"),
        frequency_penalty: number(fields, "frequency_penalty"),
        presence_penalty: number(fields, "presence_penalty"),
    }
}

fn number<T: DeserializeOwned>(fields: &Fields<'_>, name: &str) -> Option<T> {
    fields.get(name).and_then(read)
}
