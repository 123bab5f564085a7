//! Configurations that cannot be used, and the places that say so.

use std::fmt;
use std::path::PathBuf;

use pointsman_executor::server::ServerUrlError;
use pointsman_local::Cores;
use pointsman_notation::{Location, Time, TomlError, TomlProblem, instead};

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {wrong}")]
pub struct ConfigError {
    /// The place that asks for the configuration.
    pub place: Place,
    /// The reason to refuse the configuration.
    pub wrong: Box<Wrong>,
}

/// A place where something is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A place in the file.
    At(Location),
    /// A flag, such as `--model`.
    Flag(&'static str),
    /// A variable of the environment.
    Variable(&'static str),
    /// The default values, with neither a key in the file nor a flag.
    Defaults,
}

/// A reason to refuse a configuration. A `key` is the path of a key: `http.body-max`,
/// `models[0].slots`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    /// A problem that any TOML file can have.
    #[error(transparent)]
    Toml(#[from] TomlProblem),
    /// A file that is not there or cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Unreadable {
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// A file without certificates to know a server by.
    #[error("{} has no certificates in PEM: {error}", path.display())]
    NoCertificates {
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// A folder that is not there.
    #[error("{key}: there is no folder {}", path.display())]
    NoFolder {
        /// The path of the key.
        key: String,
        path: PathBuf,
    },
    /// Settings of telemetry without anybody who is told.
    #[error("telemetry needs `otlp-endpoint`, the collector's address")]
    NoCollector,
    /// A name that stands for two things.
    #[error("{key}: `{name}` is there already")]
    Twice {
        /// The path of the key.
        key: String,
        name: String,
    },
    /// Another table of a model.
    #[error(
        "{key}: `{model}` is there already; for another executor of that model write a table \
         [[executors]]"
    )]
    SecondModel {
        /// The path of the key.
        key: String,
        model: String,
    },
    /// Terms of an executor in the table of a model that is served by executors with tables of
    /// their own.
    #[error(
        "{key}: a table [[executors]] names `{model}`, so that the terms of its executors are there"
    )]
    TermsElsewhere {
        /// The path of the key.
        key: String,
        model: String,
    },
    /// A model of the hub that is in a folder, too.
    #[error("{key}: a model is at a `path` or on the `hub`: give one of them")]
    TwoPlaces {
        /// The key of the hub's model.
        key: String,
    },
    /// A seed without a configuration to make weights for.
    #[error("{key}: weights are made for a `config.json`: name it, or its folder, with `path`")]
    SeedAlone {
        /// The key of the seed.
        key: String,
    },
    /// A model's name that the configuration does not have.
    #[error("{key}: there is no model `{name}`; {}", instead(name, known))]
    UnknownModel {
        /// The path of the key.
        key: String,
        name: String,
        /// The names of the configured models.
        known: Vec<String>,
    },
    /// A device's name that the configuration does not have.
    #[error("{key}: there is no device `{name}`; {}", instead(name, known))]
    UnknownDevice {
        /// The path of the key.
        key: String,
        name: String,
        /// The names of the configured devices.
        known: Vec<String>,
    },
    /// A tenant's name that the configuration does not have.
    #[error("{key}: there is no tenant `{name}`; {}", instead(name, known))]
    UnknownTenant {
        /// The path of the key.
        key: String,
        name: String,
        /// The names of the configured tenants.
        known: Vec<String>,
    },
    /// An API key given in no way, or in several.
    #[error("{key} needs one of `key`, `sha256` and `file`")]
    KeySource {
        /// The path of the key.
        key: String,
    },
    /// A key for questions where anybody may give orders.
    #[error("admin.read-key needs admin.key too: without it orders need no key")]
    ReadKeyAlone,
    /// A certificate without a key, or the other way round.
    #[error("the certificate for TLS needs `{0}` too")]
    HalfOfTls(&'static str),
    /// An API key that is given a second time.
    #[error("{key} is the same key as {other}")]
    SameKey {
        /// The path of the second key.
        key: String,
        /// The path of the first key.
        other: String,
    },
    /// The address of a server that is none.
    #[error("{key}: the address {error}")]
    ServerUrl {
        /// The path of the key.
        key: String,
        error: ServerUrlError,
    },
    /// A name with several addresses, of which a certificate tells none.
    #[error(
        "{key}: only servers at http:// can be found by their addresses; name each one at https://"
    )]
    ResolveEncrypted {
        /// The path of the key.
        key: String,
    },
    /// A key that is given in two ways.
    #[error("{key}: the key is given twice; leave out `key` or `key-file`")]
    TwoKeys {
        /// The path of the second one.
        key: String,
    },
    /// A path of metrics that have no names.
    #[error(
        "{key}: no metrics of {software} are known; name them, as with `running-metric`, or leave it out"
    )]
    NoMetrics {
        /// The path of the key.
        key: String,
        /// The name of the software.
        software: &'static str,
    },
    /// A metric that tells something beside another one only, which has no name.
    #[error("{key} tells nothing without `{needed}`: name both or neither")]
    MetricAlone {
        /// The path of the key.
        key: String,
        /// The last name of the other one's key.
        needed: &'static str,
    },
    /// More sequences at once than a step has tokens for.
    #[error(
        "{slots} slots, all executors on {device} together, need as many tokens per step, not \
         {tokens_per_step}"
    )]
    SlotsExceedStep {
        /// The name of the device.
        device: String,
        /// Number of slots of all executors there.
        slots: u64,
        /// Number of tokens in a step.
        tokens_per_step: u32,
    },
    /// Threads of a device that has none of this machine's.
    #[error("{key} is for processors, and this device is a CUDA device; leave it out")]
    CudaThreads {
        /// The path of the key.
        key: String,
    },
    /// A list of CUDA devices that has none.
    #[error("{key}: the list is empty; name the CUDA devices that compute together")]
    NoCudaDevice {
        /// The path of the key.
        key: String,
    },
    /// Cores that two devices would have.
    #[error("{key}: {cores} is of {device}; a core is one device's")]
    CoresTwice {
        /// The path of the key.
        key: String,
        cores: Cores,
        /// The name of the other device.
        device: String,
    },
    /// More devices than there may be.
    #[error("there may be {0} devices, with the one of [cpu]")]
    TooManyDevices(usize),
    /// More executors than may be attached.
    #[error("{executors} executors are more than core.executors-max, which is {executors_max}")]
    TooManyExecutors {
        /// Number of executors.
        executors: usize,
        /// The most executors that may be attached.
        executors_max: u32,
    },
    /// Requests could be held for so long that nobody would place them in time.
    #[error(
        "core.held-max ({held_max}) and core.unplaced-max ({unplaced_max}) together must be less \
         than core.wait-max ({wait_max})"
    )]
    NoTimeToPlace {
        /// The longest time of holds on purpose.
        held_max: Time,
        /// The time after which the built-in rule places a request.
        unplaced_max: Time,
        /// The longest time without a place.
        wait_max: Time,
    },
    /// A number of files for the journal, which is bounded by bytes and age.
    #[error(
        "journal.files-max is no longer there: write total-size, the size of all files together, \
         such as \"256MiB\", or age-max"
    )]
    FilesMax,
    /// A number of seconds under a key that is a duration under another name now.
    #[error("{key} is a duration now: write {now} = \"{time}\"")]
    Seconds {
        /// The path of the former key.
        key: String,
        /// The last name of the key now.
        now: String,
        /// The number that was written, as a duration.
        time: Time,
    },
    /// The demo model is asked for, and this build has none.
    #[error(
        "this build has no demo model: name a model's folder or GGUF file, with `path` or --model"
    )]
    NoDemoModel,
}

// === impl ConfigError ===

impl ConfigError {
    pub(crate) fn new(place: Place, wrong: impl Into<Wrong>) -> Self {
        let wrong = Box::new(wrong.into());
        Self { place, wrong }
    }
}

impl From<TomlError> for ConfigError {
    fn from(error: TomlError) -> Self {
        Self::new(Place::At(error.location), *error.problem)
    }
}

// === impl Place ===

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::At(location) => location.fmt(f),
            Place::Flag(name) | Place::Variable(name) => f.write_str(name),
            Place::Defaults => f.write_str("defaults"),
        }
    }
}
