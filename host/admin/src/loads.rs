//! The order that tells the load of a server elsewhere, for those who know it better than the server says
//! when it is asked.

use std::ops::RangeInclusive;
use std::sync::Arc;

use pointsman_driver::operator::ExecutorChange;
use pointsman_executor::server::ServerLoad;
use pointsman_http::Call;
use pointsman_http::answer::Json;
use pointsman_http::error::ApiError;
use pointsman_http::fields::{Fields, Properties, closed_object, integer};
use pointsman_http::openapi::named;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, json};

use super::Desk;
use super::executors::{ExecutorShape, changed};

const ANY: RangeInclusive<u32> = 0..=u32::MAX;
const ANY_BUT_NONE: RangeInclusive<u32> = 1..=u32::MAX;
const RUNNING: &str = "Requests that run there, ours and others'. Without `waiting` none waits.";
const WAITING: &str = "Requests that wait there, ours and others'; not without `running`.";
const BLOCKS: &str = "KV blocks there are; not without `kv-blocks-used`.";
const BLOCKS_USED: &str = "KV blocks that hold something; not without `kv-blocks`.";

/// The fields: each with its range and its description.
const FIELDS: [(&str, RangeInclusive<u32>, &str); 6] = [
    ("slots", ANY_BUT_NONE, "Requests that it runs at once."),
    ("running", ANY, RUNNING),
    ("waiting", ANY, WAITING),
    ("tokens-per-block", ANY_BUT_NONE, "Tokens in a KV block."),
    ("kv-blocks", ANY_BUT_NONE, BLOCKS),
    ("kv-blocks-used", ANY, BLOCKS_USED),
];

/// Fields that tell nothing alone, each with the one that it needs.
const NEEDS: [(&str, &str); 3] = [
    ("waiting", "running"),
    ("kv-blocks", "kv-blocks-used"),
    ("kv-blocks-used", "kv-blocks"),
];

/// Tells the load of a server elsewhere.
pub(crate) async fn load(desk: Arc<Desk>, call: Call<'_>) -> Result<Json<ExecutorShape>, ApiError> {
    let (app, name) = (Arc::clone(call.app), call.parameter.clone());
    let body = call.body().await?;
    let load = told(Fields::parse(&body)?)?;
    changed((&desk, &app), &name, ExecutorChange::Load(load)).await
}

/// The schema of the body of [`load`].
pub(crate) fn load_schema(schemas: &mut SchemaGenerator) -> Schema {
    let properties = FIELDS.map(|(name, range, about)| (name, integer(about, &range)));
    let properties: Properties = properties.into();
    let mut schema = closed_object(&[], properties);
    let needs = NEEDS.map(|(name, needed)| (name.to_owned(), json!([needed])));
    let needs = Map::from_iter(needs);
    schema.insert("dependentRequired".to_owned(), needs.into());
    named(schemas, "LoadRequest", schema)
}

fn told(mut fields: Fields<'_>) -> Result<ServerLoad, ApiError> {
    let mut numbers = FIELDS.map(|_| None);
    for ((name, range, _), number) in FIELDS.iter().zip(&mut numbers) {
        *number = fields.take_integer(name, range)?;
    }
    fields.none_left(&FIELDS.map(|(name, ..)| name))?;
    let is_given = |name: &str| {
        FIELDS
            .iter()
            .zip(&numbers)
            .any(|((field, ..), number)| *field == name && number.is_some())
    };
    for (name, needed) in NEEDS {
        if is_given(name) && !is_given(needed) {
            let message = format!("`{name}` tells nothing without `{needed}`");
            return Err(ApiError::field(name, message));
        }
    }
    let [capacity, running, waiting, tokens_per_block, total, used] = numbers;
    let waits = |running: u32| running.saturating_add(waiting.unwrap_or(0));
    Ok(ServerLoad {
        capacity,
        present: running.map(waits),
        tokens_per_block,
        kv: total
            .zip(used)
            .and_then(|(total, used)| ServerLoad::kv_report(total, used)),
    })
}
