//! The server's configuration: one TOML file and the flags that override it, checked.
//!
//! `file` has the keys of the file, [`Config`] the checked values, and `validate` makes the second
//! of the first. Nothing else reads the file, the flags or the environment.
//!
//! # Invariants
//! 1. A [`Config`] in use has passed every check: bounds, names that are there, names that are
//!    there once (`tests/config`).
//! 2. `examples/pointsman.toml` has every key, with its default (`tests/config`).
//!
//! # Not here
//! Sidecars of policies (`pointsman-sidecar`). Settings of policies are checked by the policies.

#![forbid(unsafe_code)]

mod error;
mod file;
mod flags;
mod fleet;
mod former;
pub mod log_filter;
mod validate;
mod written;

use std::env;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{self, Path, PathBuf};
use std::thread;
use std::time::Duration;

use pointsman_component::Compiler;
use pointsman_core as core;
use pointsman_driver::provider::{ExecutorTerms, ModelSource};
use pointsman_driver::quota::TenantLimits;
use pointsman_executor::server::{ServerConfig, ServerUrl};
use pointsman_journal::JournalSettings;
use pointsman_lifecycle::settings::LifecycleSettings;
use pointsman_local::LocalSettings;
use pointsman_local::hub::HubSettings;
use pointsman_notation::{Secret, TomlText};
use pointsman_policy::Patience;
use serde::Deserialize;

pub use error::{ConfigError, Place, Wrong};
pub use flags::{Flags, ListenError, ModelFlag, ModelFlagError};
pub use pointsman_http::{
    ApiKey, Claims, DEFAULT_TENANT, ModelPattern, PageOrigin, PrefixCache, Rights, TlsSettings,
    UnnamedModel, UsableModels,
};
pub use pointsman_telemetry::TelemetrySettings;
pub use written::WrittenKeys;

use validate::Here;
use validate::telemetry::{self, OtlpVariables};

const LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080));
const DRAIN: Duration = Duration::from_secs(30);
/// The most bytes of the configuration file, and of a file with a key.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The policy folder where no other is named; watched if it exists.
const POLICIES_FOLDER: &str = "policies.d";

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address to listen on. Default 127.0.0.1:8080.
    pub listen: SocketAddr,
    /// The certificate for [`Self::listen`], and for [`AdminConfig::listen`] unless only this machine
    /// can connect there; absent: connections are not secured.
    pub tls: Option<TlsSettings>,
    /// Bounds on HTTP connections, requests and times.
    pub http: HttpConfig,
    /// API keys; empty: no key is needed, and every request is of the tenant `default`.
    pub keys: Vec<ApiKey>,
    /// Tenants with their rights; among them always the tenants of `keys`, or `default`.
    pub tenants: Vec<TenantConfig>,
    /// Bounds of the hints that clients may give.
    pub hints: HintsConfig,
    /// The models of this machine, its devices and the executors there.
    pub local: LocalSettings,
    /// Servers elsewhere, each an executor.
    pub backends: Vec<BackendConfig>,
    /// Bounds of the machine.
    pub core: core::Config,
    /// The policy folder and what policies may use.
    pub policies: LifecycleSettings,
    /// The compiler of policies. The caller chooses the program; with none, policies are compiled
    /// in this process.
    pub compiler: Compiler,
    /// The treatment of policies that fail.
    pub patience: Patience,
    /// Access to `/admin` and `/monitor`.
    pub admin: AdminConfig,
    /// The decision journal.
    pub journal: JournalConfig,
    /// Format and filter of logs.
    pub log: LogConfig,
    /// The collector of spans and metrics; absent: nobody is told anything.
    pub telemetry: Option<TelemetrySettings>,
    /// Executors with models that must be there before the server serves. Default 0.
    pub ready_executors: u32,
    /// The keys of the file, to tell a later edition's changes.
    pub written: WrittenKeys,
    /// The flags, by which the file is read again.
    pub flags: Flags,
    /// The time that running requests have once shutdown has begun. Default `30s`.
    pub drain: Duration,
    /// The folder of everything that outlives the server; absent: nothing outlives it. The caller
    /// chooses one where neither file nor flag does: `pointsman_state::default_folder`.
    pub state_folder: Option<PathBuf>,
    /// The need of that folder.
    pub state: StateNeed,
}

/// The need of a usable state folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateNeed {
    /// Without one, that is logged, and nothing outlives the server.
    #[default]
    Optional,
    /// Without one, the server does not start.
    Required,
}

/// A server elsewhere, to be an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    /// The server.
    pub server: ServerConfig,
    /// The terms of its executor.
    pub terms: ExecutorTerms,
    /// The time between two lookups of its host's name, which then stands for a server at each address;
    /// absent: it is one server.
    pub resolve: Option<Duration>,
}

/// Bounds on HTTP connections and requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Connections at once. Default 4096.
    pub connections_max: u32,
    /// Requests of one connection, which then closes. Default 10,000.
    pub connection_requests_max: u32,
    /// Requests in hand at once: queued, running and being answered. Default 8192.
    pub requests_max: u32,
    /// Bytes of a request's body. Default 32 MiB: a file of 25 MB as a form, or one of 24 MB in base64.
    pub body_bytes_max: usize,
    /// Bytes of all bodies together, beyond the first 16 KiB of one at a time of each connection. Default 512 MiB, or
    /// [`Self::body_bytes_max`] if that is more.
    pub bodies_bytes_max: usize,
    /// Requests of more than 16 KiB that wait to be parsed and tokenised. Default 1024.
    pub reading_queue_max: u32,
    /// The time a client has for its request's head, and again for its body, and a second more for each 256 KiB
    /// of a body that have come. Default `30s`.
    pub read_timeout: Duration,
    /// The time for which a client may leave bytes unread while more wait. Default `30s`.
    pub write_timeout: Duration,
    /// True if `/metrics` needs no key. Default true. `/live`, `/health` and `/ready` never need one.
    pub metrics_public: bool,
    /// Origins of pages that may use the server as clients do. Default none.
    pub cors_origins: Vec<PageOrigin>,
    /// The requests that may use what executors have of each other's prompts. Default shared.
    pub prefix_cache: PrefixCache,
    /// The treatment of requests that name no model. Default refused.
    pub unnamed_model: UnnamedModel,
}

/// Access to `/admin` and `/monitor`, where operators look inside and give orders. With neither a
/// key nor a listener of their own they answer on loopback addresses only.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// The address at which both answer; absent: [`Config::listen`].
    pub listen: Option<SocketAddr>,
    /// The key that both need; absent: none.
    pub key: Option<Secret>,
    /// The key by which both may be asked, and no orders given; absent: none.
    pub read_key: Option<Secret>,
    /// Requests whose decisions are remembered. Default 1024.
    pub decisions_max: u32,
}

/// A tenant: requests are accounted to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantConfig {
    /// The tenant's name.
    pub name: String,
    /// Relative share; at least 1.
    pub weight: u32,
    /// Tokens per minute that it is to have where others want some too, which policies see to; absent:
    /// unlimited.
    pub tokens_per_minute: Option<u64>,
    /// Limits that no policy can lift.
    pub limits: TenantLimits,
    /// The most urgency that its requests may claim.
    pub claims: Claims,
}

/// Bounds of the hints that clients may give about scheduling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HintsConfig {
    /// Keys of labels that clients may set. Default none.
    pub label_keys: Vec<String>,
    /// Distinct labels that are remembered. Default 1024.
    pub labels_max: u32,
    /// Sessions whose executors are remembered. Default 65536.
    pub sessions_max: u32,
    /// The time for which an idle session is remembered. Default `5min`.
    pub session_idle_max: Duration,
    /// The largest priority; the smallest is its negative. Default 100.
    pub priority_max: i32,
}

/// Settings of a policy, a JSON object.
pub type Settings = serde_json::Map<String, serde_json::Value>;

/// The decision journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// The place of the journal's files.
    pub place: JournalPlace,
    /// Bounds of the files. Default 8 files of 32 MiB.
    pub settings: JournalSettings,
}

/// The place of the decision journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JournalPlace {
    /// In the state folder, if there is one and it can be had.
    #[default]
    StateFolder,
    /// In a folder that the operator named.
    Folder(PathBuf),
    /// No journal is written.
    Off,
}

/// Format and filter of logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The format of a line.
    pub format: LogFormat,
    /// Levels that are written: `info`, or `warn,pointsman=debug`.
    pub filter: String,
    /// True if each request has a line, of the level info. Default true.
    pub access: bool,
}

/// The format of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Lines for people.
    Human,
    /// A JSON object a line.
    Json,
}

// === impl Config ===

impl BackendConfig {
    /// The server at `url`, on default terms.
    #[must_use]
    pub fn new(url: ServerUrl) -> Self {
        Self {
            server: ServerConfig::new(url),
            terms: ExecutorTerms::default(),
            resolve: None,
        }
    }
}

impl Config {
    /// Reads the file that `flags` name. Flags override the file; the rest has its default. The policy folder has an
    /// absolute path: the state folder remembers it for a server that starts elsewhere.
    ///
    /// # Errors
    /// The first problem, with its place.
    pub fn load(flags: &Flags) -> Result<Self, ConfigError> {
        let source = match &flags.config {
            Some(path) => read(path)?,
            None => TomlText::new(Path::new(""), ""),
        };
        let file = former::parsed(&source)?;
        let mut config = validate::config(&source, file, flags, &Here::look())?;
        // Where there is no working directory, a relative path leads nowhere.
        let absolute = |folder: PathBuf| path::absolute(&folder).unwrap_or(folder);
        config.policies.folder = config.policies.folder.map(absolute);
        Ok(config)
    }

    /// Reads a file of this text, without flags, on a machine of two processors and an empty environment.
    ///
    /// # Errors
    /// The first problem, with its place.
    pub fn of_text(text: &str) -> Result<Self, ConfigError> {
        let source = TomlText::new(Path::new("pointsman.toml"), text);
        let (file, here) = (former::parsed(&source)?, Here::bare());
        validate::config(&source, file, &Flags::default(), &here)
    }
}

/// The file that `--config` names.
fn read(path: &Path) -> Result<TomlText, ConfigError> {
    let text = pointsman_files::read_text(path, FILE_BYTES_MAX).map_err(|error| {
        let path = path.to_owned();
        ConfigError::new(Place::Flag("--config"), Wrong::Unreadable { path, error })
    })?;
    Ok(TomlText::new(path, text))
}

impl Here {
    fn look() -> Self {
        let folder = PathBuf::from(POLICIES_FOLDER);
        let variable = |name: &str| env::var_os(name)?.into_string().ok();
        let given = |name| variable(name).filter(|value| !value.trim().is_empty());
        Self {
            processors: thread::available_parallelism().map_or(1, usize::from),
            policies_folder: folder.is_dir().then_some(folder),
            otlp: OtlpVariables {
                endpoint: given(telemetry::ENDPOINT),
                headers: given(telemetry::HEADERS),
                service_name: given(telemetry::SERVICE_NAME),
            },
            hub: HubSettings::of_environment(variable),
            demo: demo(),
        }
    }

    /// Two processors, and an empty environment.
    fn bare() -> Self {
        Self {
            processors: 2,
            policies_folder: None,
            otlp: OtlpVariables::default(),
            hub: HubSettings::of_environment(|_none| None),
            demo: demo(),
        }
    }
}

/// The demo model, if this build has it.
fn demo() -> Option<ModelSource> {
    pointsman_local::has_demo_model().then_some(ModelSource::Embedded)
}

// === impl the defaults ===

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            connection_requests_max: 10_000,
            requests_max: 8192,
            body_bytes_max: 32 << 20,
            bodies_bytes_max: 512 << 20,
            reading_queue_max: 1024,
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            metrics_public: true,
            cors_origins: Vec::new(),
            prefix_cache: PrefixCache::default(),
            unnamed_model: UnnamedModel::default(),
        }
    }
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: None,
            key: None,
            read_key: None,
            decisions_max: 1024,
        }
    }
}

impl Default for HintsConfig {
    fn default() -> Self {
        Self {
            label_keys: Vec::new(),
            labels_max: 1024,
            sessions_max: 65_536,
            session_idle_max: Duration::from_secs(300),
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
                total_bytes: 256 << 20,
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
            access: true,
        }
    }
}

impl TenantConfig {
    /// A tenant with the default share and no limit.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            weight: 1,
            tokens_per_minute: None,
            limits: TenantLimits::default(),
            claims: Claims::default(),
        }
    }
}
