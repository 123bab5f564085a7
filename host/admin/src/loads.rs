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

use super::Desk;
use super::executors::{ExecutorShape, changed};

const ANY: RangeInclusive<u32> = 0..=u32::MAX;
const ANY_BUT_NONE: RangeInclusive<u32> = 1..=u32::MAX;
const RUNNING: &str = "Requests that run there, ours and others'.";
const WAITING: &str = "Requests that wait there, ours and others'.";

/// The fields: each with its range and its description.
const FIELDS: [(&str, RangeInclusive<u32>, &str); 6] = [
    ("slots", ANY_BUT_NONE, "Requests that it runs at once."),
    ("running", ANY, RUNNING),
    ("waiting", ANY, WAITING),
    ("tokens-per-block", ANY_BUT_NONE, "Tokens in a KV block."),
    ("kv-blocks", ANY_BUT_NONE, "KV blocks there are."),
    ("kv-blocks-used", ANY, "KV blocks that hold something."),
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
    named(schemas, "LoadRequest", closed_object(&[], properties))
}

fn told(mut fields: Fields<'_>) -> Result<ServerLoad, ApiError> {
    let mut numbers = FIELDS.map(|_| None);
    for ((name, range, _), number) in FIELDS.iter().zip(&mut numbers) {
        *number = fields.take_integer(name, range)?;
    }
    fields.none_left(&FIELDS.map(|(name, ..)| name))?;
    let [capacity, running, waiting, tokens_per_block, total, used] = numbers;
    let waits = |running: u32| running.saturating_add(waiting.unwrap_or(0));
    Ok(ServerLoad {
        capacity,
        present: running.map(waits).or(waiting),
        tokens_per_block,
        kv: total
            .zip(used)
            .and_then(|(total, used)| ServerLoad::kv_report(total, used)),
    })
}
