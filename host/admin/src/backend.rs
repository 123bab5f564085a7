//! The body of the order to add a server elsewhere: the table `[[backends]]` of the configuration as
//! JSON.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use pointsman_driver::provider::ExecutorTerms;
use pointsman_executor::server::{
    BrokenStreams, HEADERS_MAX, POLLS_MS, PromptCache, SOFTWARE, ServerConfig, ServerKey,
    ServerUrl, WAITS_MS, header_of,
};
use pointsman_http::error::ApiError;
use pointsman_http::fields::{Fields, Properties, integer, mismatched_text, read};
use serde_json::{Value, json};

use super::addition::{
    EXECUTOR, MODELS, SLOTS, SLOTS_RANGE, each_once, take_name, terms, terms_properties,
};

/// The field that tells a server elsewhere from an engine.
pub(super) const URL: &str = "url";
/// Addresses without the parts that none of them may have.
const URL_PATTERN: &str =
    r"^https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~/-]*)?$";
/// Visible ASCII characters.
const KEY_PATTERN: &str = "^[!-~]+$";
/// A header's name and value, as they are written in a message. A few names belong to connections, and are refused.
const HEADER_PATTERN: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+: ?[!-~]([ -~]*[!-~])?$";
const KEY: &str = "key";
const HEADERS: &str = "headers";
/// The field with the file of a server's certificates.
pub(super) const CA_FILE: &str = "ca-file";
/// The most bytes of a file with certificates.
const CA_BYTES_MAX: u64 = 1 << 20;
const POLL: &str = "poll-ms";
const FIRST_BYTE_TIMEOUT: &str = "first-byte-timeout-ms";
const STALL_TIMEOUT: &str = "stall-timeout-ms";
const LOAD_TIMEOUT: &str = "load-timeout-ms";
const UNLOAD_AFTER: &str = "unload-after-ms";
const BROKEN: &str = "broken-streams";
const BROKEN_STREAMS: [(BrokenStreams, &str); 2] =
    [(BrokenStreams::End, "end"), (BrokenStreams::GoOn, "go-on")];
const PROMPT_CACHE: &str = "prompt-cache";
const PROMPT_CACHES: [(PromptCache, &str); 2] =
    [(PromptCache::Assumed, "assumed"), (PromptCache::Off, "off")];

/// A server elsewhere, and the terms of its executor.
pub(super) type Backend = (ServerConfig, ExecutorTerms);

/// The schemas of the fields of a server elsewhere that an engine has not.
pub(super) fn own_properties() -> Properties {
    let software = SOFTWARE.map(|(_, name)| name);
    let url = "The address of a server elsewhere, with a prefix for all paths where it has one.";
    let key = "The key that the server asks for.";
    let broken = "`go-on`: a streamed chat that breaks off there goes on at another such server, and it \
                  goes on with those of others. By default `end`.";
    let broken = json!({
        "description": broken, "type": "string", "enum": BROKEN_STREAMS.map(|(_, name)| name),
    });
    let cache = "`off`: it keeps no prompts for later ones that begin alike. By default it is assumed to \
                 keep those that it was sent last.";
    let cache = json!({
        "description": cache, "type": "string", "enum": PROMPT_CACHES.map(|(_, name)| name),
    });
    vec![
        (
            URL,
            json!({"description": url, "type": "string", "pattern": URL_PATTERN}),
        ),
        (
            "software",
            json!({"description": "By default found by asking.", "type": "string", "enum": software}),
        ),
        (
            KEY,
            json!({"description": key, "type": "string", "pattern": KEY_PATTERN}),
        ),
        (HEADERS, headers_schema()),
        (CA_FILE, ca_schema()),
        (
            POLL,
            integer(
                "Milliseconds between two questions for health and load.",
                &POLLS_MS,
            ),
        ),
        (
            FIRST_BYTE_TIMEOUT,
            integer(
                "Milliseconds to the first byte of a response at most.",
                &WAITS_MS,
            ),
        ),
        (
            STALL_TIMEOUT,
            integer(
                "Milliseconds between two pieces of a response at most.",
                &WAITS_MS,
            ),
        ),
        (
            LOAD_TIMEOUT,
            integer(
                "Milliseconds for loading a model at most, where the server does so on order.",
                &WAITS_MS,
            ),
        ),
        (
            UNLOAD_AFTER,
            integer(
                "Milliseconds after its last request at which a model is unloaded, where the server does so on order. By default never.",
                &WAITS_MS,
            ),
        ),
        (BROKEN, broken),
        (PROMPT_CACHE, cache),
    ]
}

fn headers_schema() -> Value {
    let about = "Headers of each request there, as `name: value`, in the place of the client's of that name. \
                 They are shown nowhere.";
    json!({
        "description": about, "type": "array", "maxItems": HEADERS_MAX,
        "items": {"type": "string", "pattern": HEADER_PATTERN},
    })
}

fn ca_schema() -> Value {
    let about = "The absolute path of a file with the certificates by which the server is known, in PEM. By \
                 default those of the system.";
    json!({"description": about, "type": "string", "pattern": "^/"})
}

/// Reads the server elsewhere to add.
pub(super) fn backend(mut fields: Fields<'_>) -> Result<Backend, ApiError> {
    let text: String = fields.require(URL, "an address")?;
    let url: ServerUrl = text.parse().map_err(|error| {
        mismatched_text(
            URL.to_owned(),
            &format!("an address: this one {error}"),
            &text,
        )
    })?;
    let default = ServerConfig::new(url);
    let software: Option<String> =
        fields.take_as("software", "the name of a software", |name| {
            SOFTWARE.iter().any(|(_, known)| known == name)
        })?;
    let software = software.and_then(|name| SOFTWARE.iter().find(|(_, known)| *known == name));
    let key = secret(&mut fields, KEY, "visible ASCII characters", key_of)?;
    let wanted = format!("a list of at most {HEADERS_MAX} texts as in `x-api-key: secret`");
    let headers = secret(&mut fields, HEADERS, &wanted, headers_of)?;
    let wanted = format!("a list of at most {MODELS} names, each once");
    let models = fields.take_as("models", &wanted, |names: &Vec<String>| {
        names.len() <= MODELS && each_once(names)
    })?;
    let slots = fields.take_integer(SLOTS, &SLOTS_RANGE)?;
    let server = ServerConfig {
        name: take_name(&mut fields, EXECUTOR)?,
        software: software.map(|(software, _)| *software),
        key,
        ca: ca(&mut fields)?,
        headers: headers.unwrap_or_default(),
        models: models.unwrap_or_default(),
        slots,
        poll: time(&mut fields, POLL, &POLLS_MS)?.unwrap_or(default.poll),
        first_byte_timeout: time(&mut fields, FIRST_BYTE_TIMEOUT, &WAITS_MS)?
            .unwrap_or(default.first_byte_timeout),
        stall_timeout: time(&mut fields, STALL_TIMEOUT, &WAITS_MS)?
            .unwrap_or(default.stall_timeout),
        load_timeout: time(&mut fields, LOAD_TIMEOUT, &WAITS_MS)?.unwrap_or(default.load_timeout),
        unload_after: time(&mut fields, UNLOAD_AFTER, &WAITS_MS)?,
        broken_streams: one_of(&mut fields, BROKEN, &BROKEN_STREAMS)?,
        prompt_cache: one_of(&mut fields, PROMPT_CACHE, &PROMPT_CACHES)?,
        ..default
    };
    let terms = terms(&mut fields)?;
    let own = own_properties().into_iter();
    let shared = terms_properties().into_iter();
    let mut known: Vec<&str> = own.chain(shared).map(|(name, _)| name).collect();
    known.extend([EXECUTOR, "models"]);
    fields.none_left(&known)?;
    Ok((server, terms))
}

/// Takes `name`, which is shown nowhere, not even where it is wrong.
fn secret<T>(
    fields: &mut Fields<'_>,
    name: &str,
    wanted: &str,
    understood: impl FnOnce(Value) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let Some(value) = fields.take(name) else {
        return Ok(None);
    };
    match read(value).and_then(understood) {
        Some(secret) => Ok(Some(secret)),
        None => Err(ApiError::field(
            name,
            format!("`{name}` has to be {wanted}"),
        )),
    }
}

fn key_of(value: Value) -> Option<ServerKey> {
    let key = value.as_str()?;
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    is_key.then(|| ServerKey::new(key.to_owned()))
}

fn headers_of(value: Value) -> Option<HeaderMap> {
    let lines = value.as_array()?;
    let headers = lines.iter().map(|line| header_of(line.as_str()?));
    let headers: Option<HeaderMap> = headers.collect();
    headers.filter(|_| lines.len() <= HEADERS_MAX)
}

/// Takes the certificates by which a server is known. Whether they are some is found out where they are used.
fn ca(fields: &mut Fields<'_>) -> Result<Option<Arc<[u8]>>, ApiError> {
    let path: Option<String> = fields.take_as(CA_FILE, "an absolute path", |path: &String| {
        Path::new(path).is_absolute()
    })?;
    let Some(path) = path else { return Ok(None) };
    match pointsman_files::read(Path::new(&path), CA_BYTES_MAX) {
        Ok(pem) => Ok(Some(pem.into())),
        Err(error) => {
            let message = format!("`{CA_FILE}`: {path} cannot be read: {error}");
            Err(ApiError::field(CA_FILE, message))
        }
    }
}

/// Takes the choice `name` among some with a name each.
fn one_of<T: Copy + Default>(
    fields: &mut Fields<'_>,
    name: &str,
    choices: &[(T, &str)],
) -> Result<T, ApiError> {
    let names: Vec<&str> = choices.iter().map(|(_, name)| *name).collect();
    let is_one = |given: &String| names.contains(&given.as_str());
    let given = fields.take_as(name, &names.join(" or "), is_one)?;
    let named = |given: String| choices.iter().find(|(_, known)| **known == given);
    let found = given.and_then(named);
    Ok(found.map_or_else(T::default, |(choice, _)| *choice))
}

/// Takes the time `name`, in milliseconds.
fn time(
    fields: &mut Fields<'_>,
    name: &str,
    range_ms: &RangeInclusive<u32>,
) -> Result<Option<Duration>, ApiError> {
    let millis = fields.take_integer(name, range_ms)?;
    Ok(millis.map(|millis| Duration::from_millis(millis.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_the_bounds_of_the_configuration() {
        let is_taken = |field: &str, millis: u32| {
            let body = format!(r#"{{"url": "http://gpu1:8000", "{field}-ms": {millis}}}"#);
            backend(Fields::parse(body.as_bytes()).unwrap()).is_ok()
        };
        let day = (10, 86_400_000);
        for (field, (least, most)) in [
            ("poll", (50, 3_600_000)),
            ("first-byte-timeout", day),
            ("stall-timeout", day),
            ("load-timeout", day),
            ("unload-after", day),
        ] {
            let taken = [least - 1, least, most, most + 1].map(|millis| is_taken(field, millis));
            assert_eq!(taken, [false, true, true, false], "{field}");
        }
    }
}
