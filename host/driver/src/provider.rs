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

use pointsman_core::{ExecutorId, ExecutorSpec};
use pointsman_executor::handle::EngineHandle;

use crate::catalog::ModelEntry;

/// The most sequences that an executor may run at once.
pub const SLOTS_MAX: u32 = 1024;
/// The range of relative shares that can be given to executors and tenants.
pub const WEIGHTS: RangeInclusive<u32> = 1..=1_000_000;

/// A model to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// The model's name for clients.
    pub name: String,
    /// The place of the model's files.
    pub source: ModelSource,
    /// The number of sequences at once. Default 8.
    pub slots: u32,
    /// Relative share of the tokens of a step. Default 1.
    pub share_weight: u32,
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

    /// The executor that the settings ask for, with the default name. The driver fills in
    /// [`ExecutorSpec::serves`].
    fn executor(&self) -> ExecutorSpec;

    /// Starts the engine of `executor`, with this number of slots.
    ///
    /// # Errors
    /// If there is no thread for the engine.
    fn spawn(&self, executor: ExecutorId, slots: u32) -> io::Result<EngineHandle>;
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
    /// The model `name` with default settings.
    #[must_use]
    pub fn new(name: &str, source: ModelSource) -> Self {
        Self {
            name: name.to_owned(),
            source,
            slots: 8,
            share_weight: 1,
        }
    }
}
