//! The checks that turn written values into usable ones, each with its place.
//!
//! # Invariants
//! 1. Each bound is stated once: the core's and the policies' by themselves, the server's here; and
//!    an error names key, value, range and place (`tests/config`).

mod access;
mod backends;
mod devices;
mod machine;
mod models;
mod policies;
pub(crate) mod telemetry;

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use pointsman_driver::provider::ModelSource;
use pointsman_http::{NoOrigin, PageOrigin, PrefixCache, UnnamedModel};
use pointsman_local::LocalSettings;
use pointsman_local::hub::HubSettings;
use pointsman_notation::{NAME, Number, Secret, Size, Time, TomlProblem, TomlText, is_name};
use toml::Spanned;

use crate::error::{ConfigError, Place, Wrong};
use crate::file::{self, File, Given};
use crate::flags::{Flags, listen_address};
use crate::log_filter::FilterError;
use crate::{
    AdminConfig, Config, HintsConfig, HttpConfig, JournalConfig, JournalPlace, LISTEN, LogConfig,
    WrittenKeys, fleet, log_filter,
};
use telemetry::OtlpVariables;

/// Range of the numbers of connections and of requests, at once and of one connection.
const CLIENTS: RangeInclusive<u32> = 1..=1_000_000;
/// Range of the number of long requests that wait to be read.
const READING_QUEUE: RangeInclusive<u32> = 0..=1_000_000;
/// Range of the number of requests whose decisions are remembered.
const DECISIONS: RangeInclusive<u32> = 0..=1_000_000;
/// Range of the number of executors that must be there first.
const READY: RangeInclusive<u32> = 0..=65_536;
const DRAIN: RangeInclusive<Time> = Time::from_millis(0)..=Time::from_secs(3600);
/// A time for which an idle session may be remembered: a day at most.
const SESSION_IDLE: RangeInclusive<Time> = Time::from_millis(1)..=Time::from_secs(86_400);
const TIMEOUT: RangeInclusive<Time> = Time::from_millis(10)..=Time::from_secs(3600);
const BODY: RangeInclusive<Size> = Size(1 << 10)..=Size(1 << 30);
/// The most bytes that all bodies may have; at least they may have those of one.
const BODIES_MAX: Size = Size(1 << 40);
const JOURNAL_FILE: RangeInclusive<Size> = Size(1 << 20)..=Size(1 << 30);
/// The most bytes that all files of the journal may have; at least they may have those of two.
const JOURNAL_MAX: Size = Size(1 << 40);
const JOURNAL_ROUND: RangeInclusive<Size> = Size(64 << 10)..=Size(1 << 30);
const JOURNAL_AGE: RangeInclusive<Time> = Time::from_secs(3600)..=Time::from_secs(87_600 * 3600);
/// The value, in place of a folder, that turns the journal off.
const JOURNAL_OFF: &str = "off";

/// The part of a configuration that comes from the process and its machine.
#[derive(Clone, Debug)]
pub(crate) struct Here {
    /// Processors this process may use.
    pub(crate) processors: usize,
    /// `./policies.d`, if that is a folder.
    pub(crate) policies_folder: Option<PathBuf>,
    /// OpenTelemetry's variables of the environment.
    pub(crate) otlp: OtlpVariables,
    /// The hub of models, by variables of the environment.
    pub(crate) hub: HubSettings,
    /// The demo model; absent: this build has none.
    pub(crate) demo: Option<ModelSource>,
}

/// Checks values of one file.
#[derive(Clone, Copy)]
struct Check<'a> {
    source: &'a TomlText,
    here: &'a Here,
}

/// The configuration that `file`, overridden by `flags`, asks for.
pub(crate) fn config(
    source: &TomlText,
    mut file: File,
    flags: &Flags,
    here: &Here,
) -> Result<Config, ConfigError> {
    let check = Check { source, here };
    if flags.fleet.is_some() {
        (file.models, file.executors) = Default::default();
        (file.backends, file.devices, file.cpu) = Default::default();
    }
    let patience = std::mem::take(&mut file.policies.patience);
    let compile = std::mem::take(&mut file.policies.compile);
    let executors = file
        .core
        .executors_max
        .as_ref()
        .map(|given| given.span().start);
    let models = file.models.0.first().map(|given| given.span().start);
    let models = models.filter(|_| flags.models.is_empty());
    let steps = devices::steps(&file);
    let devices = match flags.fleet {
        Some(size) => fleet::devices(size, here.processors),
        None => check.devices(file.cpu, file.devices.0)?,
    };
    let elsewhere = match file.backends.0.len() + flags.backends.len() {
        0 => models::Elsewhere::None,
        1.. => models::Elsewhere::Some,
    };
    let asked = (flags, elsewhere);
    let served = check.served(file.models.0, file.executors.0, &devices, asked)?;
    let taken = served.executor_names();
    let backends = check.backends(file.backends.0, &taken, flags)?;
    let hints = check.hints(file.hints)?;
    let access::Access { keys, tenants } = check.access(file.keys.0, file.tenants.0, &hints)?;
    let config = Config {
        listen: check.listen(file.listen, flags)?,
        tls: check.tls(file.tls)?,
        http: check.http(file.http)?,
        keys,
        tenants,
        hints,
        local: LocalSettings {
            models: served.models,
            hub: here.hub.clone(),
            executors: served.executors,
            devices,
        },
        backends,
        core: check.core(file.core)?,
        policies: check.policies(file.policies, flags)?,
        compiler: check.compiler(compile)?,
        patience: check.patience(patience)?,
        admin: check.admin(file.admin)?,
        journal: check.journal(file.journal)?,
        log: check.log(file.log, flags)?,
        telemetry: check.telemetry(file.telemetry)?,
        ready_executors: check.number("ready-executors", file.ready_executors, READY, 0)?,
        written: WrittenKeys::of(source)?,
        flags: flags.clone(),
        drain: check.time("drain", file.drain, DRAIN, crate::DRAIN)?,
        state_folder: check.state_folder(file.state_folder, flags),
        state: file.state,
    };
    let at = |offset: Option<usize>, wrong| match offset.or(models) {
        Some(offset) => ConfigError::new(Place::At(source.location(offset)), wrong),
        None => ConfigError::new(Place::Flag("--model"), wrong),
    };
    for (device, step) in config.local.devices.iter().zip(steps) {
        devices::slots_fit_step(&config.local, device).map_err(|wrong| at(step, wrong))?;
    }
    executors_fit(&config).map_err(|wrong| at(executors, wrong))?;
    Ok(config)
}

/// Checks that each executor can be attached.
fn executors_fit(config: &Config) -> Result<(), Wrong> {
    let executors = config.local.executors.len() + config.backends.len();
    let executors_max = config.core.executors_max;
    if u32::try_from(executors).is_ok_and(|executors| executors <= executors_max) {
        return Ok(());
    }
    Err(Wrong::TooManyExecutors {
        executors,
        executors_max,
    })
}

// === impl Check: tables ===

impl Check<'_> {
    /// The state folder, which need not be there yet.
    fn state_folder(self, given: Given<String>, flags: &Flags) -> Option<PathBuf> {
        let given = given.map(|given| self.source.resolve(given.get_ref()));
        flags.state.clone().or(given)
    }

    fn listen(self, given: Given<String>, flags: &Flags) -> Result<SocketAddr, ConfigError> {
        let address = self.address("listen", given)?;
        Ok(flags.listen.or(address).unwrap_or(LISTEN))
    }

    fn address(self, key: &str, given: Given<String>) -> Result<Option<SocketAddr>, ConfigError> {
        let address = given.map(|given| {
            listen_address(given.get_ref()).map_err(|error| {
                let wrong = TomlProblem::Value {
                    key: key.to_owned(),
                    message: error.to_string(),
                };
                self.at(&given, wrong)
            })
        });
        address.transpose()
    }

    fn http(self, given: file::Http) -> Result<HttpConfig, ConfigError> {
        let default = HttpConfig::default();
        let bytes = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        let body = bytes(default.body_bytes_max);
        let body = self.size("http.body-max", given.body_max, BODY, body)?;
        let bodies = bytes(default.bodies_bytes_max).max(body);
        let range = Size(body)..=BODIES_MAX;
        let bodies = self.size("http.bodies-max", given.bodies_max, range, bodies)?;
        Ok(HttpConfig {
            connections_max: self.number(
                "http.connections-max",
                given.connections_max,
                CLIENTS,
                default.connections_max,
            )?,
            connection_requests_max: self.number(
                "http.connection-requests-max",
                given.connection_requests_max,
                CLIENTS,
                default.connection_requests_max,
            )?,
            requests_max: self.number(
                "http.requests-max",
                given.requests_max,
                CLIENTS,
                default.requests_max,
            )?,
            body_bytes_max: usize::try_from(body).unwrap_or(usize::MAX),
            bodies_bytes_max: usize::try_from(bodies).unwrap_or(usize::MAX),
            reading_queue_max: self.number(
                "http.reading-queue-max",
                given.reading_queue_max,
                READING_QUEUE,
                default.reading_queue_max,
            )?,
            read_timeout: self.time(
                "http.read-timeout",
                given.read_timeout,
                TIMEOUT,
                default.read_timeout,
            )?,
            write_timeout: self.time(
                "http.write-timeout",
                given.write_timeout,
                TIMEOUT,
                default.write_timeout,
            )?,
            metrics_public: given.metrics_public.unwrap_or(default.metrics_public),
            cors_origins: self.origins("http.cors-origins", &given.cors_origins)?,
            prefix_cache: given
                .prefix_cache
                .map_or(default.prefix_cache, PrefixCache::from),
            unnamed_model: given
                .unnamed_model
                .map_or(default.unnamed_model, UnnamedModel::from),
        })
    }

    fn hints(self, given: file::Hints) -> Result<HintsConfig, ConfigError> {
        let default = HintsConfig::default();
        let mut label_keys: Vec<String> = Vec::new();
        for key in given.label_keys {
            if key.get_ref().contains('=') {
                return Err(self.value("hints.label-keys", &key, "a name without `=`"));
            }
            label_keys.push(self.new_name("hints.label-keys", key, &label_keys)?);
        }
        Ok(HintsConfig {
            label_keys,
            labels_max: self.number(
                "hints.labels-max",
                given.labels_max,
                0..=1 << 16,
                default.labels_max,
            )?,
            sessions_max: self.number(
                "hints.sessions-max",
                given.sessions_max,
                0..=1 << 24,
                default.sessions_max,
            )?,
            session_idle_max: self.time(
                "hints.session-idle-max",
                given.session_idle_max,
                SESSION_IDLE,
                default.session_idle_max,
            )?,
            priority_max: self.number(
                "hints.priority-max",
                given.priority_max,
                0..=1_000_000,
                default.priority_max,
            )?,
        })
    }

    fn admin(self, given: file::Admin) -> Result<AdminConfig, ConfigError> {
        let default = AdminConfig::default();
        if let (Some(read_key), None) = (&given.read_key, &given.key) {
            return Err(self.at(read_key, Wrong::ReadKeyAlone));
        }
        let key = given.key.map(|key| self.key_text("admin.key", &key));
        let read_key = given.read_key;
        let read_key = read_key.map(|key| self.key_text("admin.read-key", &key));
        Ok(AdminConfig {
            listen: self.address("admin.listen", given.listen)?,
            key: key.transpose()?.map(Secret::new),
            read_key: read_key.transpose()?.map(Secret::new),
            decisions_max: self.number(
                "admin.decisions-max",
                given.decisions_max,
                DECISIONS,
                default.decisions_max,
            )?,
        })
    }

    fn journal(self, given: file::Journal) -> Result<JournalConfig, ConfigError> {
        let place = match given.folder {
            None => JournalPlace::StateFolder,
            Some(folder) if folder.get_ref() == JOURNAL_OFF => JournalPlace::Off,
            Some(folder) => JournalPlace::Folder(self.source.resolve(folder.get_ref())),
        };
        let mut settings = JournalConfig::default().settings;
        settings.file_bytes = self.size(
            "journal.file-size",
            given.file_size,
            JOURNAL_FILE,
            settings.file_bytes,
        )?;
        let files_min = Size(settings.file_bytes.saturating_mul(2));
        settings.total_bytes = self.size(
            "journal.total-size",
            given.total_size,
            files_min..=JOURNAL_MAX,
            settings.total_bytes.max(files_min.0),
        )?;
        settings.round_bytes = self.size(
            "journal.round-size",
            given.round_size,
            JOURNAL_ROUND,
            settings.round_bytes,
        )?;
        settings.age_max = self.time(
            "journal.age-max",
            given.age_max,
            JOURNAL_AGE,
            settings.age_max,
        )?;
        Ok(JournalConfig { place, settings })
    }

    fn log(self, given: file::Log, flags: &Flags) -> Result<LogConfig, ConfigError> {
        let default = LogConfig::default();
        let wrong = |error: FilterError| TomlProblem::Value {
            key: "log.filter".to_owned(),
            message: error.to_string(),
        };
        if let Some(filter) = &given.filter {
            log_filter::targets(filter.get_ref()).map_err(|error| self.at(filter, wrong(error)))?;
        }
        if let Some(filter) = &flags.log {
            log_filter::targets(filter)
                .map_err(|error| ConfigError::new(Place::Flag("--log"), wrong(error)))?;
        }
        let filter = given.filter.map(Spanned::into_inner);
        Ok(LogConfig {
            format: flags.log_format.or(given.format).unwrap_or(default.format),
            filter: flags.log.clone().or(filter).unwrap_or(default.filter),
            access: given.access.unwrap_or(default.access),
        })
    }
}

// === impl Check: values ===

impl Check<'_> {
    fn number<T>(
        self,
        key: &str,
        given: Given<Number>,
        range: RangeInclusive<T>,
        default: T,
    ) -> Result<T, ConfigError>
    where
        T: PartialOrd + Display + TryFrom<i64>,
    {
        let Some(given) = given else {
            return Ok(default);
        };
        let number = T::try_from(given.get_ref().0).ok();
        let number = number.filter(|number| range.contains(number));
        number.ok_or_else(|| self.out_of(key, &given, &range))
    }

    /// A number that has no default.
    fn number_if<T>(
        self,
        key: &str,
        given: Option<&Spanned<Number>>,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, ConfigError>
    where
        T: PartialOrd + Display + TryFrom<i64> + Copy,
    {
        let Some(given) = given else { return Ok(None) };
        let default = *range.start();
        let given = Spanned::new(given.span(), *given.get_ref());
        self.number(key, Some(given), range, default).map(Some)
    }

    fn time(
        self,
        key: &str,
        given: Given<Time>,
        range: RangeInclusive<Time>,
        default: Duration,
    ) -> Result<Duration, ConfigError> {
        let time = self.within(key, given, range)?;
        Ok(time.map_or(default, |time| time.0))
    }

    fn size(
        self,
        key: &str,
        given: Given<Size>,
        range: RangeInclusive<Size>,
        default: u64,
    ) -> Result<u64, ConfigError> {
        let size = self.within(key, given, range)?;
        Ok(size.map_or(default, |size| size.0))
    }

    fn within<T: PartialOrd + Display + Copy>(
        self,
        key: &str,
        given: Given<T>,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, ConfigError> {
        match given {
            Some(given) if !range.contains(given.get_ref()) => {
                Err(self.out_of(key, &given, &range))
            }
            given => Ok(given.map(Spanned::into_inner)),
        }
    }

    fn origins(self, key: &str, given: &[Spanned<String>]) -> Result<Vec<PageOrigin>, ConfigError> {
        let origins = given.iter().map(|given| {
            let origin = given.get_ref().parse();
            origin.map_err(|error: NoOrigin| self.value(key, given, &error.to_string()))
        });
        origins.collect()
    }

    /// A name that differs from all `others`.
    fn new_name(
        self,
        key: &str,
        given: Spanned<String>,
        others: &[String],
    ) -> Result<String, ConfigError> {
        let name = self.name(key, &given)?;
        if others.contains(&name) {
            let key = key.to_owned();
            return Err(self.at(&given, Wrong::Twice { key, name }));
        }
        Ok(name)
    }

    fn name(self, key: &str, given: &Spanned<String>) -> Result<String, ConfigError> {
        let name = given.get_ref();
        if !is_name(name) {
            return Err(self.value(key, given, NAME));
        }
        Ok(name.clone())
    }

    // === Errors ===

    fn at<T>(self, given: &Spanned<T>, wrong: impl Into<Wrong>) -> ConfigError {
        let location = self.source.location(given.span().start);
        ConfigError::new(Place::At(location), wrong)
    }

    fn value(self, key: &str, given: &Spanned<String>, expected: &str) -> ConfigError {
        let wrong = TomlProblem::Value {
            key: key.to_owned(),
            message: format!("expected {expected}, not {:?}", given.get_ref()),
        };
        self.at(given, wrong)
    }

    fn out_of<T: Display, R: Display>(
        self,
        key: &str,
        given: &Spanned<T>,
        range: &RangeInclusive<R>,
    ) -> ConfigError {
        let wrong = TomlProblem::OutOfRange {
            key: key.to_owned(),
            value: given.get_ref().to_string(),
            min: range.start().to_string(),
            max: range.end().to_string(),
        };
        self.at(given, wrong)
    }
}
