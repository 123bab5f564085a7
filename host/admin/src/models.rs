//! Models as operators see them: their requests, and the limit of those that run.

use std::sync::Arc;

use pointsman_driver::catalog::Catalog;
use pointsman_driver::operator::{ModelRow, Operator};
use pointsman_driver::provider::RUNNING;
use pointsman_http::Call;
use pointsman_http::answer::Json;
use pointsman_http::error::{ApiError, quoted};
use pointsman_http::fields::{Fields, closed_object, integer};
use pointsman_http::openapi::named;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::json;

use super::in_time;

/// The models that are served.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ServedModels {
    models: Vec<ServedModel>,
}

/// A model that is served.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ServedModel {
    name: String,
    /// Names of the executors that serve it.
    executors: Vec<String>,
    /// Requests that may run at once; null: unlimited.
    running_max: Option<u32>,
    /// Requests that run, or wait at an executor.
    running: u32,
    /// Requests that wait in the host.
    waiting: u32,
}

const RUNNING_MAX: &str = "running-max";

pub(crate) async fn list(call: Call<'_>) -> Result<Json<ServedModels>, ApiError> {
    let overview = in_time(call.app.driver.operate(Operator::Overview)).await?;
    let catalog = call.app.catalog();
    let models = catalog.models.iter().map(|entry| {
        let mut rows = overview.models.iter();
        ServedModel::new(
            &catalog,
            &entry.name,
            rows.find(|row| row.name == entry.name),
        )
    });
    Ok(Json(ServedModels {
        models: models.collect(),
    }))
}

/// Sets how many requests of a model may run at once.
pub(crate) async fn running_max(call: Call<'_>) -> Result<Json<ServedModel>, ApiError> {
    let (app, name) = (Arc::clone(call.app), call.parameter.clone());
    let body = call.body().await?;
    let mut fields = Fields::parse(&body)?;
    if !fields.left().any(|field| field == RUNNING_MAX) {
        return Err(ApiError::Missing(RUNNING_MAX));
    }
    let (fewest, most) = RUNNING.into_inner();
    let wanted = format!("an integer from {fewest} to {most}, or null");
    let max = fields.take_as(RUNNING_MAX, &wanted, |max| RUNNING.contains(max))?;
    fields.none_left(&[RUNNING_MAX])?;
    let catalog = app.catalog();
    if !catalog.models.iter().any(|entry| entry.name == name) {
        let name = quoted(&name);
        let message = format!("there is no model `{name}`; GET /admin/models lists them");
        return Err(ApiError::Absent(message));
    }
    let order = |answer| Operator::RunningMax(name.clone(), max, answer);
    let row = in_time(app.driver.operate(order)).await?;
    Ok(Json(ServedModel::new(&catalog, &name, Some(&row))))
}

/// The schema of the body of [`running_max`].
pub(crate) fn running_max_schema(schemas: &mut SchemaGenerator) -> Schema {
    let mut max = integer("Null: unlimited. Those that run go on.", &RUNNING);
    max["type"] = json!(["integer", "null"]);
    let body = closed_object(&[RUNNING_MAX], vec![(RUNNING_MAX, max)]);
    named(schemas, "RunningMaxRequest", body)
}

impl ServedModel {
    fn new(catalog: &Catalog, name: &str, row: Option<&ModelRow>) -> Self {
        let executors = catalog.executors.iter();
        let serving = executors.filter(|executor| executor.models.iter().any(|it| it == name));
        Self {
            name: name.to_owned(),
            executors: serving.map(|executor| executor.name.clone()).collect(),
            running_max: row.and_then(|row| row.running_max),
            running: row.map_or(0, |row| row.running),
            waiting: row.map_or(0, |row| row.waiting),
        }
    }
}
