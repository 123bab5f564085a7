//! The order that tells the load of a server elsewhere, for those who know it better than the server says
//! when it is asked.

use std::sync::Arc;

use pointsman_driver::operator::ExecutorChange;
use pointsman_driver::provider::SLOTS_MAX;
use pointsman_executor::server::ServerLoad;
use schemars::{Schema, SchemaGenerator};
use serde_json::json;

use super::super::answer::Json;
use super::super::error::ApiError;
use super::super::fields::{Fields, Properties, closed_object};
use super::super::openapi::named;
use super::super::router::Call;
use super::executors::{Executor, changed};

/// The fields: each with its least value, its largest and its description.
const FIELDS: [(&str, u32, u32, &str); 6] = [
    ("slots", 1, SLOTS_MAX, "Requests that it runs at once."),
    (
        "running",
        0,
        u32::MAX,
        "Requests that run there, ours and others'.",
    ),
    (
        "waiting",
        0,
        u32::MAX,
        "Requests that wait there, ours and others'.",
    ),
    ("tokens-per-block", 1, u32::MAX, "Tokens in a KV block."),
    ("kv-blocks", 1, u32::MAX, "KV blocks there are."),
    (
        "kv-blocks-used",
        0,
        u32::MAX,
        "KV blocks that hold something.",
    ),
];

/// Tells the load of a server elsewhere.
pub(crate) async fn load(call: Call<'_>) -> Result<Json<Executor>, ApiError> {
    let (app, name) = (Arc::clone(call.app), call.parameter.clone());
    let body = call.body().await?;
    let load = told(Fields::parse(&body)?)?;
    changed(&app, &name, ExecutorChange::Load(load)).await
}

/// The schema of the body of [`load`].
pub(crate) fn load_schema(schemas: &mut SchemaGenerator) -> Schema {
    let properties = FIELDS.map(|(name, least, most, about)| {
        let schema = json!({
            "description": about, "type": "integer", "minimum": least, "maximum": most,
        });
        (name, schema)
    });
    let properties: Properties = properties.into();
    named(schemas, "LoadRequest", closed_object(&[], properties))
}

fn told(mut fields: Fields<'_>) -> Result<ServerLoad, ApiError> {
    let mut numbers = FIELDS.map(|_| None);
    for ((name, least, most, _), number) in FIELDS.into_iter().zip(&mut numbers) {
        let wanted = format!("an integer from {least} to {most}");
        *number = fields.take_as(name, &wanted, |number| (least..=most).contains(number))?;
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
