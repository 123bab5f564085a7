//! The names that clients may use: models and executors, as they are now.
//!
//! [`Fleet`](crate::fleet::Fleet) replaces a [`Catalog`] as a whole, and a request is understood
//! by one whole catalogue.

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_core::rows::ExecutorKind;
use pointsman_executor::prompt::PromptEncoder;
use pointsman_executor::stats::EngineStats;

/// The models and executors that clients may name.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// The models, in the order of their listing.
    pub models: Vec<ModelEntry>,
    /// The executors, in the order in which they came.
    pub executors: Vec<ExecutorEntry>,
    /// The counters of the executors' engines, each with the name of its executor.
    pub engines: Vec<(String, Arc<EngineStats>)>,
}

/// An executor that clients may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorEntry {
    /// The executor's name.
    pub name: String,
    /// The name of the executor's device.
    pub device: String,
    /// The hardware or server that runs the sequences.
    pub kind: ExecutorKind,
    /// Names of the models that the executor serves.
    pub models: Vec<String>,
    /// Tokens in a block of the executor; absent: no paged KV.
    pub tokens_per_block: Option<u32>,
}

/// A model that clients may name.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    /// The model's name for clients.
    pub name: String,
    /// The model's tokenizer, chat template and defaults; absent: only servers elsewhere serve it.
    pub text: Option<Arc<dyn PromptEncoder>>,
    /// Longest sequence, in tokens, on the executor that can take the longest; absent: not known.
    pub context_tokens: Option<u32>,
    /// Longest sequence on each executor, in tokens, by the executor's name; those of which it is not known are
    /// left out.
    pub contexts: Arc<BTreeMap<String, u32>>,
    /// Time of loading, in seconds since 1970.
    pub created: u64,
}

// === impl Catalog ===

impl Catalog {
    /// Tokens in a block of the first executor that serves `model` and tells; absent: none does.
    #[must_use]
    pub fn tokens_per_block(&self, model: &str) -> Option<u32> {
        let serves = |executor: &&ExecutorEntry| executor.models.iter().any(|name| name == model);
        let mut serving = self.executors.iter().filter(serves);
        serving.find_map(|executor| executor.tokens_per_block)
    }

    /// Lists a model, in the place of another one of its name.
    pub(crate) fn list(&mut self, model: ModelEntry) {
        let mut models = self.models.iter_mut();
        match models.find(|listed| listed.name == model.name) {
            Some(listed) => *listed = model,
            None => self.models.push(model),
        }
    }

    /// The counters of the engine of `executor`; absent: the engine does not run in this process.
    #[must_use]
    pub fn engine(&self, executor: &str) -> Option<&EngineStats> {
        let mut engines = self.engines.iter();
        let engine = engines.find(|(name, _)| name == executor);
        engine.map(|(_, stats)| &**stats)
    }
}

// === impl ExecutorEntry ===

impl ExecutorEntry {
    /// True for a server elsewhere.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.kind == ExecutorKind::Remote
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serves_demo(kind: ExecutorKind, tokens_per_block: Option<u32>) -> ExecutorEntry {
        ExecutorEntry {
            name: kind.as_str().to_owned(),
            device: kind.as_str().to_owned(),
            kind,
            models: vec!["demo".to_owned()],
            tokens_per_block,
        }
    }

    #[test]
    fn a_prompt_has_the_blocks_of_an_engine_that_came_after_a_server_elsewhere() {
        let catalog = Catalog {
            executors: vec![
                serves_demo(ExecutorKind::Remote, None),
                serves_demo(ExecutorKind::Cpu, Some(16)),
            ],
            ..Catalog::default()
        };
        assert_eq!(catalog.tokens_per_block("demo"), Some(16));
        assert_eq!(catalog.tokens_per_block("other"), None);
    }
}
