//! The model that a request is for, or all that may answer it where its client leaves that open.
//!
//! A prompt is tokenised before its executor is known. So a request without a model may go to any
//! executor of one model, if all those models read prompts alike; an executor of several models is
//! left out, since nobody would know for which of them it has room.

use std::borrow::Cow;
use std::sync::Arc;

use pointsman_driver::catalog::{Catalog, ExecutorEntry, ModelEntry};
use pointsman_driver::message::Hints;
use pointsman_executor::relay::Rooms;
use pointsman_http::UnnamedModel;
use pointsman_http::error::ApiError;
use pointsman_http::fields::Fields;

use super::models;

/// The field with the model's name.
const NAME: &str = "model";

/// The model of a request.
#[derive(Debug)]
pub(super) struct Target<'c> {
    /// The name that the client gave; absent: none.
    pub(super) name: Option<String>,
    /// The model by which the prompt is read. Without a name, with the shortest context of all.
    pub(super) model: Cow<'c, ModelEntry>,
    /// The executors that the client may name.
    pub(super) executors: Cow<'c, [ExecutorEntry]>,
    /// True if it may go to no others, those that come later included.
    is_narrowed: bool,
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
        let name = take_name(fields)?;
        if name.is_none() && unnamed == UnnamedModel::Refuse {
            return Err(ApiError::Missing(NAME));
        }
        match name {
            Some(name) => Ok(Self {
                model: Cow::Borrowed(models::find(catalog, &name)?),
                name: Some(name),
                executors: Cow::Borrowed(&catalog.executors),
                is_narrowed: false,
            }),
            None => Self::any(catalog),
        }
    }

    /// The model of a request that only servers elsewhere answer; it may name none.
    ///
    /// # Errors
    /// If there is no such model.
    pub(super) fn elsewhere(name: Option<String>, catalog: &'c Catalog) -> Result<Self, ApiError> {
        let model = match &name {
            Some(name) => Cow::Borrowed(models::find(catalog, name)?),
            None => Cow::Owned(ModelEntry {
                name: String::new(),
                text: None,
                context_tokens: None,
                contexts: Arc::default(),
                created: 0,
            }),
        };
        Ok(Self {
            name,
            model,
            executors: Cow::Borrowed(&catalog.executors),
            is_narrowed: false,
        })
    }

    /// Keeps a request whose model could not be read for certain to the executors all of whose models its client may
    /// use: a server may find another model in it than was found here, or take one of its own choice.
    pub(super) fn of_usable(mut self, catalog: &'c Catalog) -> Self {
        let is_usable = |name: &String| catalog.models.iter().any(|it| it.name == *name);
        let serves_no_other = |it: &&ExecutorEntry| it.models.iter().all(is_usable);
        let executors = self.executors.iter().filter(serves_no_other);
        self.executors = executors.cloned().collect();
        self.is_narrowed = true;
        self
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
            if tokenizer(other) != tokenizer(&model) {
                return Err(unclear(catalog, "the models read prompts differently"));
            }
            let both = model.context_tokens.zip(other.context_tokens);
            model.context_tokens = both.map(|(one, other)| one.min(other));
            let others = other.contexts.iter();
            let others = others.map(|(name, tokens)| (name.clone(), *tokens));
            Arc::make_mut(&mut model.contexts).extend(others);
        }
        Ok(Self {
            name: None,
            model: Cow::Owned(model),
            executors: executors.into_iter().cloned().collect(),
            is_narrowed: false,
        })
    }

    /// Names of the servers elsewhere that may answer it, of the `allowed` executors; absent: all are
    /// allowed.
    pub(super) fn remotes(&self, allowed: Option<&[String]>) -> Vec<String> {
        self.serving(allowed, ExecutorEntry::is_remote)
    }

    /// Names of the executors of a kind that may answer it.
    fn serving(
        &self,
        allowed: Option<&[String]>,
        is_one: impl Fn(&ExecutorEntry) -> bool,
    ) -> Vec<String> {
        let serves = |it: &&ExecutorEntry| match &self.name {
            Some(name) => it.models.contains(name),
            None => true,
        };
        let executors = self.executors.iter();
        let ones = executors.filter(|it| is_one(it)).filter(serves);
        let names = ones.map(|it| it.name.clone());
        let is_allowed = |name: &String| allowed.is_none_or(|allowed| allowed.contains(name));
        names.filter(is_allowed).collect()
    }

    /// Names of the engines of this host that may answer it, of the `allowed` executors; absent: all are allowed.
    pub(super) fn engines(&self, allowed: Option<&[String]>) -> Vec<String> {
        self.serving(allowed, |it| !it.is_remote())
    }

    /// Keeps a request that engines cannot serve to the servers elsewhere. Where no engine serves its
    /// model it may go to any server, those that come later included.
    pub(super) fn keep_to(&self, remotes: &[String], hints: Hints) -> Hints {
        if self.name.is_some() && self.model.text.is_none() && !self.is_narrowed {
            return hints;
        }
        Hints {
            allowed: Some(remotes.to_vec()),
            ..hints
        }
    }

    /// Keeps a request of so many tokens, those that it asks for included, to the executors whose context has room for
    /// them, or where none has to those with the longest context: the number may be a guess. One of which no context
    /// is known is taken to have room. Nothing follows from a guess that means nothing. A request that goes on from an
    /// answer goes to who gave that, whatever its length: it is kept to those with room where nobody knows who that is.
    pub(super) fn fit(
        &self,
        tokens: u64,
        means_nothing: impl FnOnce() -> bool,
        hints: Hints,
    ) -> Hints {
        let contexts = &self.model.contexts;
        if contexts.values().all(|it| tokens <= u64::from(*it)) {
            return hints;
        }
        let serving = self.serving(hints.allowed.as_deref(), |_| true);
        let context = |name: &String| contexts.get(name).copied().map(u64::from);
        let longest = serving.iter().filter_map(context).max();
        let enough = tokens.min(longest.unwrap_or(u64::MAX));
        let has_room = |name: &&String| context(name).is_none_or(|it| enough <= it);
        let roomy: Vec<String> = serving.iter().filter(has_room).cloned().collect();
        if roomy.len() == serving.len() || means_nothing() {
            return hints;
        }
        match hints.follows {
            Some(_) => Hints {
                unless_followed: Some(roomy),
                ..hints
            },
            None => Hints {
                allowed: Some(roomy),
                ..hints
            },
        }
    }

    /// The room for a request with these hints on the executors that it may go to. None is told of for one that goes on
    /// from an answer: where that is too long for the executor that gave it, no other one would do.
    pub(super) fn rooms(&self, hints: &Hints) -> Rooms {
        if hints.follows.is_some() {
            return Rooms::default();
        }
        Rooms {
            contexts: Arc::clone(&self.model.contexts),
            allowed: hints.allowed.clone(),
        }
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

/// Takes the name of the model from the fields of a request; absent: it names none.
///
/// # Errors
/// If the name is no text, or there is one more under a name that some servers read as `model`, too.
pub(super) fn take_name(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let name = fields.take_as(NAME, "a text", |_| true)?;
    let mut others = fields.left();
    match others.find(|other| other.eq_ignore_ascii_case(NAME)) {
        Some(other) if name.is_some() => {
            let message = format!("`{other}` is beside `{NAME}`; name the model once");
            Err(ApiError::field(other.to_owned(), message))
        }
        _ => Ok(name),
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

/// The identity of the tokenizer of a model; absent: its prompts are not read here.
fn tokenizer(model: &ModelEntry) -> Option<[u8; 32]> {
    model.text.as_ref().map(|text| text.tokenizer_id())
}
