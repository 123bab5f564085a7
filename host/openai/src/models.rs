//! The models, as OpenAI's API lists them.

use pointsman_driver::catalog::{Catalog, ModelEntry};
use pointsman_http::Call;
use pointsman_http::answer::Json;
use pointsman_http::error::{ApiError, quoted};
use schemars::JsonSchema;
use serde::Serialize;

/// The models there are.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

/// A model.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Model {
    id: String,
    object: &'static str,
    /// Time of loading, in seconds since 1970.
    created: u64,
    owned_by: &'static str,
    /// Longest sequence, in tokens: vLLM's addition. Absent where no executor tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u32>,
}

pub(crate) async fn list(call: Call<'_>) -> Result<Json<ModelList>, ApiError> {
    let catalog = call.catalog();
    Ok(Json(ModelList {
        object: "list",
        data: catalog.models.iter().map(Model::from).collect(),
    }))
}

pub(crate) async fn one(call: Call<'_>) -> Result<Json<Model>, ApiError> {
    let catalog = call.catalog();
    find(&catalog, &call.parameter).map(|entry| Json(Model::from(entry)))
}

/// The model that a client names.
pub(super) fn find<'c>(catalog: &'c Catalog, name: &str) -> Result<&'c ModelEntry, ApiError> {
    let entry = catalog.models.iter().find(|entry| entry.name == name);
    entry.ok_or_else(|| {
        let names: Vec<&str> = catalog.models.iter().map(|model| &*model.name).collect();
        ApiError::UnknownModel {
            name: quoted(name),
            known: names.join(", "),
        }
    })
}

impl From<&ModelEntry> for Model {
    fn from(entry: &ModelEntry) -> Self {
        Self {
            id: entry.name.clone(),
            object: "model",
            created: entry.created,
            owned_by: "pointsman",
            max_model_len: entry.context_tokens,
        }
    }
}
