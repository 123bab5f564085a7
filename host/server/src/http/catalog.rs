//! What clients may name: models and executors, as they are now.
//!
//! Read as a whole whenever a request is understood; `fleet` replaces it as a whole.

use std::sync::Arc;

use pointsman_engine::text::ModelText;
use pointsman_executor::stats::EngineStats;
use serde::Serialize;

use super::error::{ApiError, quoted};

/// What clients may name.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// In the order they are listed in.
    pub models: Vec<ModelEntry>,
    /// Names of the executors there are.
    pub executors: Vec<String>,
    /// What the engines among them count, each by its executor's name.
    pub engines: Vec<(String, Arc<EngineStats>)>,
}

/// One model.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    /// The name clients use.
    pub name: String,
    /// Its text side.
    pub text: Arc<ModelText>,
    /// Longest sequence, in tokens.
    pub context_tokens: u32,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
}

/// The answer of `GET /v1/models`.
#[derive(Serialize)]
pub(super) struct ModelList<'a> {
    object: &'static str,
    data: Vec<ModelObject<'a>>,
}

/// One model as OpenAI tells it; `max_model_len` is vLLM's addition.
#[derive(Serialize)]
pub(super) struct ModelObject<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    max_model_len: u32,
}

// === impl Catalog ===

impl Catalog {
    /// The model of that name.
    pub(super) fn model(&self, name: &str) -> Result<&ModelEntry, ApiError> {
        let entry = self.models.iter().find(|entry| entry.name == name);
        entry.ok_or_else(|| {
            let names: Vec<&str> = self.models.iter().map(|model| &*model.name).collect();
            ApiError::UnknownModel {
                name: quoted(name),
                known: names.join(", "),
            }
        })
    }

    pub(super) fn list(&self) -> ModelList<'_> {
        ModelList {
            object: "list",
            data: self.models.iter().map(ModelEntry::object).collect(),
        }
    }
}

// === impl ModelEntry ===

impl ModelEntry {
    pub(super) fn object(&self) -> ModelObject<'_> {
        ModelObject {
            id: &self.name,
            object: "model",
            created: self.created,
            owned_by: "pointsman",
            max_model_len: self.context_tokens,
        }
    }
}
