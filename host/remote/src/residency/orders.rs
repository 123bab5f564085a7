//! The orders by which servers load and unload models, by their software, and their words about what is loaded.
//!
//! # Ollama
//! It answers an order to load once the model is loaded, and does not list every model: of several names of the same
//! weights the one that was used first, and what runs in its cloud never. Models for embeddings it loads for requests
//! alone, and refuses the order. After these answers a model is ready for requests, listed or not.
//!
//! # llama.cpp
//! Its router tells of models that it is loading, and refuses an order to load one of them.

use std::collections::BTreeSet;

use http::StatusCode;
use memchr::memmem;
use pointsman_executor::server::ServerSoftware;
use serde_json::{Value, json};

use super::LoadState;

/// Ollama's words about a model that it loads for requests alone.
const LOADS_FOR_REQUESTS: &[u8] = b"does not support generate";

/// The orders that a server takes, by its software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orders {
    /// The orders of a router of llama.cpp.
    LlamaCpp,
    /// The orders of Ollama.
    Ollama,
    /// The orders of vLLM in its development mode: its only model sleeps and wakes.
    Vllm,
}

/// The models that a server has loaded or is loading, by its own word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// The names of those that are loaded.
    pub(crate) names: BTreeSet<String>,
    /// The names of those that are being loaded, on whoever's order.
    pub(crate) loading: BTreeSet<String>,
}

/// An order: a path, and a body.
type Order = (&'static str, Option<Value>);

// === impl Loaded ===

impl Loaded {
    /// The state of a model; absent: it is neither loaded nor being loaded.
    pub(super) fn state(&self, model: &str) -> Option<LoadState> {
        if self.names.contains(model) {
            return Some(LoadState::Loaded);
        }
        self.loading.contains(model).then_some(LoadState::Loading)
    }

    /// The names of all of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.names.iter().chain(&self.loading).map(|it| &**it)
    }
}

// === impl Orders ===

impl Orders {
    /// The orders that servers of this software take if they tell what is loaded.
    pub(crate) fn of(software: ServerSoftware) -> Option<Self> {
        match software {
            ServerSoftware::LlamaCpp => Some(Orders::LlamaCpp),
            ServerSoftware::Ollama => Some(Orders::Ollama),
            ServerSoftware::Vllm => Some(Orders::Vllm),
            ServerSoftware::Sglang | ServerSoftware::OpenAi => None,
        }
    }

    pub(super) fn load(self, model: &str) -> Order {
        match self {
            Orders::LlamaCpp => ("/models/load", Some(json!({"model": model}))),
            // Without a prompt it loads, and answers when it has.
            Orders::Ollama => ("/api/generate", Some(json!({"model": model}))),
            Orders::Vllm => ("/wake_up", None),
        }
    }

    pub(super) fn unload(self, model: &str) -> Order {
        match self {
            Orders::LlamaCpp => ("/models/unload", Some(json!({"model": model}))),
            Orders::Ollama => (
                "/api/generate",
                Some(json!({"model": model, "keep_alive": 0})),
            ),
            // Weights go to the processor's memory.
            Orders::Vllm => ("/sleep?level=1", None),
        }
    }

    /// True if a model is ready for requests by this answer to the order to load it, whatever is listed as loaded.
    pub(super) fn is_ready(self, status: StatusCode, answer: &[u8]) -> bool {
        match self {
            Orders::LlamaCpp | Orders::Vllm => false,
            Orders::Ollama => {
                let loads_by_itself = || memmem::find(answer, LOADS_FOR_REQUESTS).is_some();
                status.is_success() || status == StatusCode::BAD_REQUEST && loads_by_itself()
            }
        }
    }

    /// True for a server that has one model, by however many names.
    pub(super) fn has_one_model(self) -> bool {
        match self {
            Orders::Vllm => true,
            Orders::LlamaCpp | Orders::Ollama => false,
        }
    }

    /// The path that tells what is loaded.
    pub(crate) fn look_path(self) -> &'static str {
        match self {
            Orders::LlamaCpp => "/v1/models",
            Orders::Ollama => "/api/ps",
            Orders::Vllm => "/is_sleeping",
        }
    }

    /// The models that are loaded or being loaded, in the answer at that path; absent: it does not tell.
    pub(crate) fn loaded_in(self, answer: &Value, models: &[&str]) -> Option<Loaded> {
        match self {
            Orders::LlamaCpp => loaded_by_router(answer),
            Orders::Ollama => {
                let running = answer.get("models")?.as_array()?.iter();
                let name = |model: &Value| Some(model.get("name")?.as_str()?.to_owned());
                Some(Loaded {
                    names: running.filter_map(name).collect(),
                    ..Loaded::default()
                })
            }
            Orders::Vllm => {
                let is_sleeping = answer.get("is_sleeping")?.as_bool()?;
                let awake = models.iter().filter(|_| !is_sleeping);
                Some(Loaded {
                    names: awake.map(|name| (*name).to_owned()).collect(),
                    ..Loaded::default()
                })
            }
        }
    }
}

/// The models in a router's list that are loaded or being loaded; absent: it is no router's.
pub(crate) fn loaded_by_router(answer: &Value) -> Option<Loaded> {
    let list = answer.get("data")?.as_array()?;
    let told = list
        .iter()
        .filter_map(|model| Some((model.get("id")?.as_str()?, status(model)?)));
    let told: Vec<_> = told.collect();
    let named = |wanted: &[&str]| -> BTreeSet<String> {
        let named = told.iter().filter(|(_, status)| wanted.contains(status));
        named.map(|(name, _)| (*name).to_owned()).collect()
    };
    (!told.is_empty()).then(|| Loaded {
        // One that sleeps wakes by itself.
        names: named(&["loaded", "sleeping"]),
        loading: named(&["loading"]),
    })
}

/// The state of a model in a router's list.
fn status(model: &Value) -> Option<&str> {
    model.get("status")?.get("value")?.as_str()
}

/// A model in a router's list.
fn listed<'a>(answer: &'a Value, model: &str) -> Option<&'a Value> {
    let list = answer.get("data")?.as_array()?;
    list.iter()
        .find(|it| it.get("id").and_then(Value::as_str) == Some(model))
}

/// Refuses a model that a router could not load, by its list.
pub(super) fn refuse_failed(answer: &Value, model: &str) -> Result<(), String> {
    if listed(answer, model).is_some_and(has_failed) {
        return Err(format!("`{model}` could not be loaded"));
    }
    Ok(())
}

/// True for a model in a router's list that it could not load.
pub(crate) fn has_failed(model: &Value) -> bool {
    let failed = model
        .get("status")
        .and_then(|status| status.get("failed")?.as_bool());
    failed.unwrap_or(false)
}
