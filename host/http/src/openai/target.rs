//! The model that a request is for, or all that may answer it where its client leaves that open.
//!
//! A prompt is tokenised before its executor is known. So a request without a model may go to any
//! executor of one model, if all those models read prompts alike; an executor of several models is
//! left out, since nobody would know for which of them it has room.

use std::borrow::Cow;

use pointsman_driver::catalog::{Catalog, ExecutorEntry, ModelEntry};
use pointsman_driver::message::Hints;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::settings::UnnamedModel;

use super::models;

/// The model of a request.
#[derive(Debug)]
pub(super) struct Target<'c> {
    /// The name that the client gave; absent: none.
    pub(super) name: Option<String>,
    /// The model by which the prompt is read. Without a name, with the shortest context of all.
    pub(super) model: Cow<'c, ModelEntry>,
    /// The executors that the client may name.
    pub(super) executors: Cow<'c, [ExecutorEntry]>,
}

impl<'c> Target<'c> {
    /// Takes the model from the fields of a request.
    ///
    /// # Errors
    /// If there is no such model, or none is named and one has to be.
    pub(super) fn take(
        fields: &mut Fields<'_>,
        catalog: &'c Catalog,
        unnamed: UnnamedModel,
    ) -> Result<Self, ApiError> {
        let wanted = "a text";
        let name: Option<String> = match unnamed {
            UnnamedModel::Refuse => Some(fields.require("model", wanted)?),
            UnnamedModel::Any => fields.take_as("model", wanted, |_| true)?,
        };
        match name {
            Some(name) => Ok(Self {
                model: Cow::Borrowed(models::find(catalog, &name)?),
                name: Some(name),
                executors: Cow::Borrowed(&catalog.executors),
            }),
            None => Self::any(catalog),
        }
    }

    /// Any model with an executor of its own.
    fn any(catalog: &'c Catalog) -> Result<Self, ApiError> {
        let executors = catalog.executors.iter();
        let executors: Vec<_> = executors.filter(|it| it.models.len() == 1).collect();
        let serves = |name: &String| executors.iter().any(|it| it.models.contains(name));
        let mut candidates = catalog.models.iter().filter(|model| serves(&model.name));
        let Some(first) = candidates.next() else {
            return Err(unclear(catalog, "no executor serves one model alone"));
        };
        let mut model = first.clone();
        for other in candidates {
            if other.text.tokenizer_id() != model.text.tokenizer_id() {
                return Err(unclear(catalog, "the models read prompts differently"));
            }
            model.context_tokens = model.context_tokens.min(other.context_tokens);
        }
        Ok(Self {
            name: None,
            model: Cow::Owned(model),
            executors: executors.into_iter().cloned().collect(),
        })
    }

    /// Keeps a request without a model to the executors that may answer it.
    pub(super) fn narrow(&self, hints: Hints) -> Hints {
        if self.name.is_some() || hints.allowed.is_some() {
            return hints;
        }
        let names = self.executors.iter().map(|it| it.name.clone());
        Hints {
            allowed: Some(names.collect()),
            ..hints
        }
    }
}

/// The refusal of a request that has to name a model after all.
fn unclear(catalog: &Catalog, why: &str) -> ApiError {
    let names: Vec<&str> = catalog.models.iter().map(|model| &*model.name).collect();
    let names = names.join(", ");
    ApiError::field(
        "model",
        format!("`model` is missing, and {why}; name one of: {names}"),
    )
}
