//! The makers of executors: a [`Provider`] for each kind.
//!
//! A provider loads models, describes executors of them for the machine, and starts the engines.
//! [`Fleet`](crate::fleet::Fleet) asks the provider when an operator adds an executor.
//!
//! # Not here
//! Engines (`pointsman-engine`); the attachment of executors to the machine
//! ([`Driver`](crate::Driver)).

use std::any::Any;
use std::fmt::{self, Debug, Formatter};
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use pointsman_core::{DeviceSpec, ExecutorId, ExecutorSpec, Micros, ModelId};
use pointsman_executor::handle::EngineHandle;

use crate::catalog::ModelEntry;
use pointsman_executor::server::{ServerConfig, ServerUrl};
use pointsman_notation::HubModel;

/// The most sequences that an executor may be given to run at once: more is a slip of the pen. Servers elsewhere may
/// say more of themselves, and what an engine can run is its device's to say, by the tokens of a step.
pub const SLOTS_MAX: u32 = 65_536;
/// The range of relative shares that can be given to executors and tenants.
pub const WEIGHTS: RangeInclusive<u32> = 1..=1_000_000;

/// The most requests of a class in the queue of an executor.
pub const EXECUTOR_QUEUE_MAX: u32 = 65_536;

/// The range of the number of models that an executor runs at once, and of requests of a model that
/// the host runs at once.
pub const RUNNING: RangeInclusive<u32> = 1..=1_000_000;

/// The range of the tokens that the engines of a device may schedule in a step.
pub const TOKENS_PER_STEP: RangeInclusive<u32> = 1..=65_536;

/// The longest time for which a model stays loaded after its last sequence: an hour.
pub const UNLOAD_DELAY_MAX: Micros = Micros(UNLOAD_DELAY_MAX_MS as u64 * 1000);
/// The same in milliseconds.
pub const UNLOAD_DELAY_MAX_MS: u32 = 3_600_000;
/// The time for which a model stays loaded after its last sequence where nobody says, and models displace each other.
const UNLOAD_DELAY: Micros = Micros(3_000_000);

/// A model to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// The model's name for clients.
    pub name: String,
    /// The place of the model's files.
    pub source: ModelSource,
    /// Requests of the model that run at once, on all executors together; absent: unlimited.
    pub running_max: Option<u32>,
}

/// An executor to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// The executor's name; absent: a name made of the device's and the first model's.
    pub name: Option<String>,
    /// Names of the models that the executor serves, at least one.
    pub models: Vec<String>,
    /// The name of the executor's device; absent: the first device.
    pub device: Option<String>,
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
    /// The number of distinct models of which sequences may be there at once; absent, the default:
    /// unlimited.
    pub models_max: Option<u32>,
    /// The time for which a model stays loaded after its last sequence there. Default [`Self::unload_delay`].
    pub model_unload_delay: Micros,
}

/// The place of a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The files are in the binary.
    Embedded,
    /// The files are in this Hugging Face folder, or all of them are this GGUF file.
    Path(PathBuf),
    /// The files are on a Hugging Face hub, or in the cache for them.
    Hub(HubModel),
    /// Weights are random, for this `config.json` or the one in this folder.
    Dummy {
        /// The path of the file or folder.
        config: PathBuf,
        /// The number from which the weights follow.
        seed: u64,
    },
}

/// A maker of executors for models.
pub trait Provider: Debug + Send + Sync {
    /// Loads a model: all of it but what a device reads by itself. Slow: files are read.
    ///
    /// # Errors
    /// If the files are not those of a model that can be served here.
    fn load(&self, model: &ModelConfig) -> Result<ServedModel, ServeModelError>;

    /// Prepares an executor of these models, which are those that `config` names, in its order. Slow: the weights
    /// may be gigabytes.
    ///
    /// # Errors
    /// If there is no such device, or a model does not fit it.
    fn executor(
        &self,
        models: &[ServedModel],
        config: &ExecutorConfig,
    ) -> Result<PreparedExecutor, ServeModelError>;

    /// Prepares an executor that is a server elsewhere. It is asked for its models once it is attached.
    ///
    /// # Errors
    /// If no client for it can be made.
    fn server(
        &self,
        config: &ServerConfig,
        terms: ExecutorTerms,
    ) -> Result<PreparedExecutor, ServeModelError>;
}

/// A model that a [`Provider`] has loaded.
#[derive(Clone)]
pub struct ServedModel {
    /// The place of the model's files.
    pub source: ModelSource,
    /// The model as clients see it.
    pub entry: ModelEntry,
    /// The provider's own part of the model, which nobody else looks at.
    pub weights: Arc<dyn Any + Send + Sync>,
}

/// An executor that could be attached.
pub struct PreparedExecutor {
    /// The executor for the machine. The driver fills in [`ExecutorSpec::serves`].
    pub spec: ExecutorSpec,
    /// The device that comes with the executor, of which the machine may know already; absent: it is
    /// on the device that `spec` names.
    pub device: Option<DeviceSpec>,
    /// The models that the executor serves.
    pub models: Vec<PreparedModel>,
    /// The address of a server elsewhere; absent: it is an engine in this process.
    pub server: Option<ServerUrl>,
    /// Starts the executor's engine.
    pub spawn: SpawnEngine,
}

/// A model of an executor that could be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedModel {
    /// The model's name for clients.
    pub name: String,
    /// The longest sequence of the model on this executor, in tokens.
    pub context_tokens: u32,
}

/// A function that starts the engine of an executor. It is told the ids of the executor's models.
pub type SpawnEngine = Box<dyn FnOnce(ExecutorId, &[ModelId]) -> io::Result<EngineHandle> + Send>;

/// The reason why a model was not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeModelError {
    /// The files are missing or damaged, or of a kind that cannot be served.
    #[error("{0}")]
    Files(String),
    /// The model does not fit the device.
    #[error("{0}")]
    DoesNotFit(String),
    /// The certificates by which a server elsewhere is to be known are none.
    #[error("its certificates cannot be used: {0}")]
    NoCertificates(String),
    /// A device that is not there.
    #[error("there is no device `{name}`; there are: {known}")]
    NoDevice {
        name: String,
        /// The names of the devices that there are.
        known: String,
    },
}

// === impl the settings ===

impl ModelConfig {
    /// The model `name` without a limit.
    #[must_use]
    pub fn new(name: &str, source: ModelSource) -> Self {
        Self {
            name: name.to_owned(),
            source,
            running_max: None,
        }
    }
}

impl ExecutorConfig {
    /// An executor for one model on default terms, on the first device.
    #[must_use]
    pub fn new(model: &str) -> Self {
        Self {
            name: None,
            models: vec![model.to_owned()],
            device: None,
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
            models_max: None,
            model_unload_delay: Self::unload_delay(None, None),
        }
    }
}

impl ExecutorTerms {
    /// The time for which a model stays loaded after its last sequence: what is given, or else 3 s where `models_max` is, and 0
    /// elsewhere. Meanwhile no other model is started there, which is of use only where it would displace the one that is loaded.
    #[must_use]
    pub fn unload_delay(given: Option<Micros>, models_max: Option<u32>) -> Micros {
        match (given, models_max) {
            (Some(given), _) => given,
            (None, Some(_)) => UNLOAD_DELAY,
            (None, None) => Micros(0),
        }
    }
}

// === impl what is loaded and prepared ===

impl Debug for ServedModel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedModel")
            .field("source", &self.source)
            .field("entry", &self.entry)
            .finish_non_exhaustive()
    }
}

impl Debug for PreparedExecutor {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedExecutor")
            .field("spec", &self.spec)
            .field("models", &self.models)
            .finish_non_exhaustive()
    }
}
