//! The makers of executors: a [`Provider`] for each kind.
//!
//! A provider loads models, describes their executors for the machine, and starts the engines.
//! [`Fleet`](crate::fleet::Fleet) asks the provider when an operator adds an executor.
//!
//! # Not here
//! Engines (`pointsman-engine`); the attachment of executors to the machine
//! ([`Driver`](crate::Driver)).

use std::fmt::Debug;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use pointsman_core::{ExecutorId, ExecutorSpec, ModelId};
use pointsman_executor::handle::EngineHandle;

use crate::catalog::ModelEntry;

/// The most sequences that an executor may run at once.
pub const SLOTS_MAX: u32 = 1024;
/// The range of relative shares that can be given to executors and tenants.
pub const WEIGHTS: RangeInclusive<u32> = 1..=1_000_000;

/// The most requests of a class in the queue of an executor.
pub const EXECUTOR_QUEUE_MAX: u32 = 65_536;

/// A model to serve, on an executor of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// The model's name for clients.
    pub name: String,
    /// The place of the model's files.
    pub source: ModelSource,
    /// The executor's name; absent: a name made of the device's and the model's.
    pub executor: Option<String>,
    /// The terms of the executor.
    pub terms: ExecutorTerms,
}

/// The terms on which an executor takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorTerms {
    /// The number of sequences at once. Default 8.
    pub slots: u32,
    /// Relative share of the tokens of a step. Default 1.
    pub share_weight: u32,
    /// The topology group, which clients can ask for. Default 0.
    pub group: u32,
    /// Requests of each class that may be placed there and wait for a slot. Default 0: requests wait
    /// in the host's queue, and go where a slot becomes free.
    pub queue: u32,
    /// True if a sequence may be taken off it for a more urgent one. Default true.
    pub preemptible: bool,
}

/// The place of a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The files are in the binary.
    Embedded,
    /// The files are in this Hugging Face folder.
    Folder(PathBuf),
}

/// A maker of executors for models.
pub trait Provider: Debug + Send + Sync {
    /// Loads a model. Slow: the weights may be gigabytes.
    ///
    /// # Errors
    /// If the files are not those of a model that can be served here.
    fn load(&self, model: &ModelConfig) -> Result<Arc<dyn ServedModel>, ServeModelError>;
}

/// A model that a [`Provider`] has loaded.
pub trait ServedModel: Debug + Send + Sync {
    /// The settings with which the model was loaded.
    fn config(&self) -> &ModelConfig;

    /// The model as clients see it.
    fn entry(&self) -> ModelEntry;

    /// An executor of the model on these terms, with the default name. The driver fills in
    /// [`ExecutorSpec::serves`].
    fn executor(&self, terms: &ExecutorTerms) -> ExecutorSpec;

    /// Starts the engine of `executor`, with this number of slots; the machine knows the model as
    /// `model`.
    ///
    /// # Errors
    /// If there is no thread for the engine.
    fn spawn(&self, executor: ExecutorId, model: ModelId, slots: u32) -> io::Result<EngineHandle>;
}

/// The reason why a model was not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeModelError {
    /// The files are missing or damaged, or of a kind that cannot be served.
    #[error("{0}")]
    Files(String),
    /// The model does not fit the device.
    #[error("{0}")]
    DoesNotFit(String),
}

impl ModelConfig {
    /// The model `name` with default terms.
    #[must_use]
    pub fn new(name: &str, source: ModelSource) -> Self {
        Self {
            name: name.to_owned(),
            source,
            executor: None,
            terms: ExecutorTerms::default(),
        }
    }
}

impl Default for ExecutorTerms {
    fn default() -> Self {
        Self {
            slots: 8,
            share_weight: 1,
            group: 0,
            queue: 0,
            preemptible: true,
        }
    }
}
