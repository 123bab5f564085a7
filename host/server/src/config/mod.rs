//! What the operator wants: one TOML file and the flags that override it, checked.
//!
//! `file` is what may be written, [`Config`] what may be used, `validate` the way from one to the
//! other. Nothing else reads the file, the flags or the environment.
//!
//! # Invariants
//! 1. A [`Config`] in use has passed every check: bounds, names that are there, names that are
//!    there once (`tests/config`).
//! 2. `examples/pointsman.toml` has every key, with its default (`tests/config`).
//!
//! # Not here
//! What stands beside a policy (`reload`), and what a policy makes of its settings.

mod error;
mod file;
mod flags;
pub(crate) mod nearest;
pub(crate) mod settings;
pub(crate) mod source;
pub(crate) mod units;
mod validate;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use pointsman_core as core;
use pointsman_journal::JournalSettings;
use pointsman_policy::Patience;
use serde::Deserialize;

pub use crate::http::{ApiKey, DEFAULT_TENANT};
use crate::reload::settings::LifecycleSettings;
pub use error::{ConfigError, Place, Wrong};
pub(crate) use validate::{SLOTS_MAX, WEIGHTS};

pub use flags::{Flags, ModelFlag, ModelFlagError};
use source::Source;
use validate::Here;

const LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080));
const DRAIN: Duration = Duration::from_secs(30);
/// Watched, if it exists, where no other folder is named.
const POLICIES_FOLDER: &str = "policies.d";

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen. Default 127.0.0.1:8080.
    pub listen: SocketAddr,
    /// HTTP bounds.
    pub http: HttpConfig,
    /// Who may ask; empty: everybody, as the tenant `default`.
    pub keys: Vec<ApiKey>,
    /// Tenants with their rights. Always has those that `keys` name, or `default`.
    pub tenants: Vec<Tenant>,
    /// What clients may say about scheduling.
    pub hints: HintsConfig,
    /// Models served on this machine's processors.
    pub models: Vec<ModelConfig>,
    /// The processors as a device.
    pub cpu: CpuConfig,
    /// Bounds of the machine.
    pub core: core::Config,
    /// The policy folder and what policies may use.
    pub policies: LifecycleSettings,
    /// How often a policy may fail.
    pub patience: Patience,
    /// Who may look inside and give orders.
    pub admin: AdminConfig,
    /// The decision journal.
    pub journal: JournalConfig,
    /// How logs are written.
    pub log: LogConfig,
    /// How long running requests may take once shutdown has begun. Default 30 s.
    pub drain: Duration,
    /// What outlives the server. Absent: nothing does. Where neither file nor flag names one, that
    /// is for whoever starts a server to choose: [`crate::state::default_folder`].
    pub state_folder: Option<PathBuf>,
}

/// HTTP bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Connections at once. Default 4096.
    pub connections_max: u32,
    /// Requests in hand at once: queued, running and being answered. Default 8192.
    pub requests_max: u32,
    /// Bytes of a request's body. Default 4 MiB.
    pub body_bytes_max: usize,
    /// How long a client may take over its request's head, and again over its body. Default 30 s.
    pub read_timeout: Duration,
    /// How long a client may leave bytes unread while more wait. Default 30 s.
    pub write_timeout: Duration,
    /// Whether `/metrics` needs no key. Default true. `/health` and `/ready` never need one.
    pub metrics_public: bool,
}

/// Who may look inside and give orders, at `/admin` and `/monitor`. With neither a key nor a listener
/// of their own they answer on loopback addresses only.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// Where else they answer than at [`Config::listen`], which then has them no more.
    pub listen: Option<SocketAddr>,
    /// The key they need.
    pub key: Option<Secret>,
    /// Requests of which is remembered how they were decided. Default 1024.
    pub decisions_max: u32,
}

/// A text that nothing prints.
#[derive(Clone)]
pub struct Secret(String);

/// Who pays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Relative share; at least 1.
    pub weight: u32,
    /// Absent: unlimited.
    pub tokens_per_minute: Option<u64>,
}

/// What clients may say about scheduling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HintsConfig {
    /// Keys of labels that clients may set. Default none.
    pub label_keys: Vec<String>,
    /// Distinct labels that are remembered. Default 1024.
    pub labels_max: u32,
    /// Priorities run from minus this to this. Default 100.
    pub priority_max: i32,
}

/// A model on this machine's processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// The name clients use.
    pub name: String,
    /// Where its files are.
    pub source: ModelSource,
    /// Sequences at once. Default 8.
    pub slots: u32,
    /// Relative share of the tokens of a step. Default 1.
    pub share_weight: u32,
}

/// Where a model's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// In the binary.
    Embedded,
    /// In a Hugging Face folder.
    Folder(PathBuf),
}

/// The processors as a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Bytes of KV cache, all models together. Default 64 MiB.
    pub kv_bytes: u64,
    /// Tokens in a step, all models together. Default 256.
    pub tokens_per_step: u32,
    /// Compute threads. Default: processors less one, at least one.
    pub threads: usize,
}

/// Settings of a policy, a JSON object.
pub type Settings = serde_json::Map<String, serde_json::Value>;

/// The decision journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// Where it is written.
    pub place: JournalPlace,
    /// Its bounds. Default 8 files of 32 MiB.
    pub settings: JournalSettings,
}

/// Where the decision journal is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JournalPlace {
    /// In the state folder, if there is one and it can be had.
    #[default]
    StateFolder,
    /// In a folder that the operator named.
    Folder(PathBuf),
    /// Nowhere.
    Off,
}

/// How logs are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// For people or for programs.
    pub format: LogFormat,
    /// What is written: `info`, or `warn,pointsman=debug`.
    pub filter: String,
}

/// The format of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    Human,
    /// A JSON object a line.
    Json,
}

// === impl Config ===

impl Config {
    /// What the file that `flags` name says, overridden by them; what neither says is as it is by
    /// default.
    ///
    /// # Errors
    /// The first thing that is wrong, and where.
    pub fn load(flags: &Flags) -> Result<Self, ConfigError> {
        let source = match &flags.config {
            Some(path) => Source::read(path)?,
            None => Source::new(Path::new(""), ""),
        };
        validate::config(&source, source.parse()?, flags, &Here::look())
    }

    /// The same of a file with this text, without flags, on a machine of two processors.
    pub(crate) fn of_text(text: &str) -> Result<Self, ConfigError> {
        let source = Source::new(Path::new("pointsman.toml"), text);
        let here = Here {
            processors: 2,
            policies_folder: None,
        };
        validate::config(&source, source.parse()?, &Flags::default(), &here)
    }
}

impl Here {
    fn look() -> Self {
        let folder = PathBuf::from(POLICIES_FOLDER);
        Self {
            processors: thread::available_parallelism().map_or(1, usize::from),
            policies_folder: folder.is_dir().then_some(folder),
        }
    }
}

// === impl the defaults ===

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            requests_max: 8192,
            body_bytes_max: 4 << 20,
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            metrics_public: true,
        }
    }
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: None,
            key: None,
            decisions_max: 1024,
        }
    }
}

impl Default for HintsConfig {
    fn default() -> Self {
        Self {
            label_keys: Vec::new(),
            labels_max: 1024,
            priority_max: 100,
        }
    }
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            place: JournalPlace::default(),
            settings: JournalSettings {
                file_bytes: 32 << 20,
                files_max: 8,
                ..JournalSettings::default()
            },
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            format: LogFormat::Human,
            filter: "info".to_owned(),
        }
    }
}

impl CpuConfig {
    /// The defaults on a machine with that many processors. One is left to the driver and HTTP.
    #[must_use]
    pub fn with_processors(processors: usize) -> Self {
        Self {
            kv_bytes: 64 << 20,
            tokens_per_step: 256,
            threads: processors.saturating_sub(1).max(1),
        }
    }
}

impl ModelConfig {
    /// A model with the default slots and share.
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

impl Tenant {
    /// A tenant with the default share and no limit.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            weight: 1,
            tokens_per_minute: None,
        }
    }
}

// === impl the secrets ===

impl Secret {
    /// Keeps a text from being printed.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }
}

impl Deref for Secret {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
