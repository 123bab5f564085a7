//! Servers elsewhere: those of the flags, else those of the file.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use pointsman_driver::provider::SLOTS_MAX;
use pointsman_executor::server::{
    BrokenStreams, MetricNames, POLLS_MS, PromptCache, SOFTWARE, ServerConfig, ServerKey,
    ServerSoftware, ServerUrl, WAITS_MS,
};
use pointsman_notation::Time;
use pointsman_remote::client::{Connections, Trust};
use toml::Spanned;

use super::Check;
use crate::error::{ConfigError, Place, Wrong};
use crate::file::{self, Given};
use crate::flags::Flags;
use crate::{BackendConfig, FILE_BYTES_MAX};

const POLL: RangeInclusive<Time> = times(&POLLS_MS);
const RESOLVE: RangeInclusive<Time> = Time::from_millis(100)..=Time::from_secs(3600);
const PATIENCE: RangeInclusive<Time> = times(&WAITS_MS);

impl Check<'_> {
    /// The servers elsewhere, each to be an executor. `taken` are the names of other executors.
    pub(super) fn backends(
        self,
        tables: Vec<Spanned<file::Backend>>,
        taken: &[String],
        flags: &Flags,
    ) -> Result<Vec<BackendConfig>, ConfigError> {
        let mut backends: Vec<BackendConfig> = Vec::new();
        if !flags.backends.is_empty() {
            for url in &flags.backends {
                let backend = BackendConfig::new(url.clone());
                check_new(&backend, taken, &backends, || Place::Flag("--backend"))?;
                backends.push(backend);
            }
            return Ok(backends);
        }
        for (index, table) in tables.into_iter().enumerate() {
            let path = |key: &str| format!("backends[{index}].{key}");
            let start = table.span().start;
            let backend = self.backend(&path, table.into_inner())?;
            let place = || Place::At(self.source.location(start));
            check_new(&backend, taken, &backends, place)?;
            backends.push(backend);
        }
        Ok(backends)
    }

    fn backend(
        self,
        path: &dyn Fn(&str) -> String,
        table: file::Backend,
    ) -> Result<BackendConfig, ConfigError> {
        let url = self.url(&path("url"), &table.url)?;
        let default = ServerConfig::new(url);
        let name = table.name.as_ref();
        let name = name.map(|name| self.name(&path("name"), name));
        let mut models: Vec<String> = Vec::new();
        for model in table.models.clone() {
            models.push(self.new_name(&path("models"), model, &models)?);
        }
        let key = self.backend_key(path, &table)?;
        let ca = table.ca_file.as_ref().map(|file| self.ca(file));
        let headers = table.headers.as_ref();
        let headers = headers.map(|given| self.headers(&path("headers"), given));
        let software = table.software.as_ref();
        let software = software.map(|given| self.software(&path("software"), given));
        let software = software.transpose()?;
        let time = |key: &str, given, range, default| self.time(&path(key), given, range, default);
        let metrics = self.metrics(path, &table, software)?;
        let unload_after = self.within(&path("unload-after"), table.unload_after, PATIENCE)?;
        let unload_after = unload_after.map(|time| time.0);
        let server = ServerConfig {
            name: name.transpose()?,
            software,
            key,
            ca: ca.transpose()?,
            headers: headers.transpose()?.unwrap_or_default(),
            models,
            slots: self.number_if(&path("slots"), table.slots.as_ref(), 1..=SLOTS_MAX)?,
            metrics,
            poll: time("poll", table.poll, POLL, default.poll)?,
            first_byte_timeout: time(
                "first-byte-timeout",
                table.first_byte_timeout,
                PATIENCE,
                default.first_byte_timeout,
            )?,
            stall_timeout: time(
                "stall-timeout",
                table.stall_timeout,
                PATIENCE,
                default.stall_timeout,
            )?,
            load_timeout: time(
                "load-timeout",
                table.load_timeout,
                PATIENCE,
                default.load_timeout,
            )?,
            unload_after,
            broken_streams: table
                .broken_streams
                .map_or(default.broken_streams, BrokenStreams::from),
            prompt_cache: table
                .prompt_cache
                .map_or(default.prompt_cache, PromptCache::from),
            ..default
        };
        let terms = file::Terms {
            group: table.group,
            queue: table.queue,
            models_max: table.models_max,
            model_unload_delay: table.model_unload_delay,
            ..file::Terms::default()
        };
        Ok(BackendConfig {
            resolve: self.resolve(&path("resolve"), table.resolve, &server.url)?,
            server,
            terms: self.terms(path, terms)?,
        })
    }

    /// The time between two lookups. A certificate is for a name, so an encrypted server is one.
    fn resolve(
        self,
        key: &str,
        given: Given<Time>,
        url: &ServerUrl,
    ) -> Result<Option<Duration>, ConfigError> {
        if let Some(given) = given.as_ref().filter(|_| url.is_encrypted()) {
            let key = key.to_owned();
            return Err(self.at(given, Wrong::ResolveEncrypted { key }));
        }
        let every = self.within(key, given, RESOLVE)?;
        Ok(every.map(|every| every.0))
    }

    pub(super) fn url(self, key: &str, given: &Spanned<String>) -> Result<ServerUrl, ConfigError> {
        given.get_ref().parse().map_err(|error| {
            let key = key.to_owned();
            self.at(given, Wrong::ServerUrl { key, error })
        })
    }

    fn software(self, key: &str, given: &Spanned<String>) -> Result<ServerSoftware, ConfigError> {
        let found = SOFTWARE.iter().find(|(_, name)| name == given.get_ref());
        let known = SOFTWARE.map(|(_, name)| name).join(", ");
        let wanted = format!("one of {known}");
        found
            .map(|(software, _)| *software)
            .ok_or_else(|| self.value(key, given, &wanted))
    }

    /// The certificates in a file.
    fn ca(self, file: &Spanned<String>) -> Result<Arc<[u8]>, ConfigError> {
        let path = self.source.resolve(file.get_ref());
        let pem = match pointsman_files::read_text(&path, FILE_BYTES_MAX) {
            Ok(text) => text.into_bytes(),
            Err(error) => return Err(self.at(file, Wrong::Unreadable { path, error })),
        };
        match Connections::trusting(Trust::Pem(&pem)) {
            Ok(_) => Ok(Arc::from(pem)),
            Err(error) => Err(self.at(file, Wrong::NoCertificates { path, error })),
        }
    }

    /// The names of a server's metrics. A path alone, and a metric without the one beside which it is read, are for a software
    /// whose own metrics have names, as one that is to be found out may be.
    fn metrics(
        self,
        path: &dyn Fn(&str) -> String,
        table: &file::Backend,
        software: Option<ServerSoftware>,
    ) -> Result<MetricNames, ConfigError> {
        let text = |given: &Given<String>| given.as_ref().map(|given| given.get_ref().clone());
        let names = MetricNames {
            path: text(&table.metrics_path),
            running: table.running_metric.clone(),
            waiting: text(&table.waiting_metric),
            kv_usage: text(&table.kv_usage_metric),
            kv_info: table.kv_info_metric.clone(),
        };
        let Some(software) = software else {
            return Ok(names);
        };
        let all = names.clone().or(software.metric_names());
        if let Some(given) = &table.metrics_path
            && !all.has_any()
        {
            let (key, software) = (path("metrics-path"), software.as_str());
            return Err(self.at(given, Wrong::NoMetrics { key, software }));
        }
        if let Some(given) = &table.waiting_metric
            && all.running.is_none()
        {
            let (key, needed) = (path("waiting-metric"), "running-metric");
            return Err(self.at(given, Wrong::MetricAlone { key, needed }));
        }
        if let Some(given) = &table.kv_usage_metric
            && all.kv_info.is_none()
        {
            let (key, needed) = (path("kv-usage-metric"), "kv-info-metric");
            return Err(self.at(given, Wrong::MetricAlone { key, needed }));
        }
        Ok(names)
    }

    /// The key of a server, which is given as it is or in a file.
    fn backend_key(
        self,
        path: &dyn Fn(&str) -> String,
        table: &file::Backend,
    ) -> Result<Option<ServerKey>, ConfigError> {
        let text = match (&table.key, &table.key_file) {
            (None, None) => return Ok(None),
            (Some(key), None) => self.key_text(&path("key"), key)?,
            (None, Some(file)) => {
                let place = self.source.resolve(file.get_ref());
                let text = pointsman_files::read_text(&place, FILE_BYTES_MAX);
                let text =
                    text.map_err(|error| self.at(file, Wrong::Unreadable { path: place, error }))?;
                let text = Spanned::new(file.span(), text.trim().to_owned());
                self.key_text(&path("key-file"), &text)?
            }
            (Some(_), Some(file)) => {
                let key = path("key-file");
                return Err(self.at(file, Wrong::TwoKeys { key }));
            }
        };
        Ok(Some(ServerKey::new(text)))
    }
}

/// Times in milliseconds as the configuration has them.
const fn times(range_ms: &RangeInclusive<u32>) -> RangeInclusive<Time> {
    Time::from_millis(*range_ms.start() as u64)..=Time::from_millis(*range_ms.end() as u64)
}

/// Checks that no other executor has the name of a server elsewhere.
fn check_new(
    backend: &BackendConfig,
    taken: &[String],
    others: &[BackendConfig],
    place: impl FnOnce() -> Place,
) -> Result<(), ConfigError> {
    let name = backend.server.executor_name();
    let is_theirs = |other: &BackendConfig| other.server.executor_name() == name;
    if !taken.contains(&name) && !others.iter().any(is_theirs) {
        return Ok(());
    }
    let key = "backends".to_owned();
    Err(ConfigError::new(place(), Wrong::Twice { key, name }))
}

impl From<file::BrokenStreamsName> for BrokenStreams {
    fn from(name: file::BrokenStreamsName) -> Self {
        match name {
            file::BrokenStreamsName::GoOn => Self::GoOn,
            file::BrokenStreamsName::End => Self::End,
        }
    }
}

impl From<file::PromptCacheName> for PromptCache {
    fn from(name: file::PromptCacheName) -> Self {
        match name {
            file::PromptCacheName::Off => Self::Off,
            file::PromptCacheName::Assumed => Self::Assumed,
        }
    }
}
