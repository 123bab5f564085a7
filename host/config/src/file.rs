//! The keys of the file, unchecked. `validate` makes a [`crate::Config`] of them.
//!
//! Nothing here implements `Debug`: some of it is secret.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use pointsman_core::rows::RequestClass;
use pointsman_local::Cores;
use pointsman_notation::{Number, Size, Time};
use pointsman_sidecar::tables::LimitsTable;
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, SeqAccess, Visitor};
use toml::Spanned;

use crate::{LogFormat, PrefixCache, StateNeed, UnnamedModel};

/// A value that may be left out, with its place.
pub(crate) type Given<T> = Option<Spanned<T>>;

/// Tables that are written `[[like this]]`, each with its place.
pub(crate) struct Tables<T>(pub(crate) Vec<Spanned<T>>);

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct File {
    pub(crate) listen: Given<String>,
    pub(crate) drain: Given<Time>,
    pub(crate) ready_executors: Given<Number>,
    pub(crate) state_folder: Given<String>,
    pub(crate) state: StateNeed,
    pub(crate) tls: Tls,
    pub(crate) http: Http,
    pub(crate) keys: Tables<Key>,
    pub(crate) tenants: Tables<Tenant>,
    pub(crate) hints: Hints,
    pub(crate) models: Tables<ModelTable>,
    pub(crate) executors: Tables<ExecutorTable>,
    pub(crate) backends: Tables<Backend>,
    pub(crate) cpu: Cpu,
    pub(crate) devices: Tables<DeviceTable>,
    pub(crate) core: Core,
    pub(crate) policies: Policies,
    pub(crate) admin: Admin,
    pub(crate) journal: Journal,
    pub(crate) log: Log,
    pub(crate) telemetry: Telemetry,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Http {
    pub(crate) connections_max: Given<Number>,
    pub(crate) connection_requests_max: Given<Number>,
    pub(crate) requests_max: Given<Number>,
    pub(crate) body_max: Given<Size>,
    pub(crate) bodies_max: Given<Size>,
    pub(crate) reading_queue_max: Given<Number>,
    pub(crate) read_timeout: Given<Time>,
    pub(crate) write_timeout: Given<Time>,
    pub(crate) metrics_public: Option<bool>,
    pub(crate) cors_origins: Vec<Spanned<String>>,
    pub(crate) prefix_cache: Option<PrefixCacheName>,
    pub(crate) unnamed_model: Option<UnnamedModelName>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Tls {
    pub(crate) certificate: Given<String>,
    pub(crate) key: Given<String>,
    pub(crate) handshake_timeout: Given<Time>,
    pub(crate) poll: Given<Time>,
}

/// The name of a treatment of requests that name no model.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum UnnamedModelName {
    Refuse,
    Any,
}

impl From<UnnamedModelName> for UnnamedModel {
    fn from(name: UnnamedModelName) -> Self {
        match name {
            UnnamedModelName::Refuse => UnnamedModel::Refuse,
            UnnamedModelName::Any => UnnamedModel::Any,
        }
    }
}

/// The name of a choice of requests that share a cache.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PrefixCacheName {
    Shared,
    Tenant,
    Off,
}

impl From<PrefixCacheName> for PrefixCache {
    fn from(name: PrefixCacheName) -> Self {
        match name {
            PrefixCacheName::Shared => PrefixCache::Shared,
            PrefixCacheName::Tenant => PrefixCache::Tenant,
            PrefixCacheName::Off => PrefixCache::Off,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Key {
    pub(crate) key: Given<String>,
    pub(crate) sha256: Given<String>,
    pub(crate) file: Given<String>,
    pub(crate) tenant: Given<String>,
    pub(crate) models: Given<Vec<Spanned<String>>>,
    pub(crate) priority: Given<Number>,
    pub(crate) priority_max: Given<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(crate) struct Tenant {
    pub(crate) name: Spanned<String>,
    pub(crate) weight: Given<Number>,
    pub(crate) tokens_per_minute: Given<Number>,
    pub(crate) requests_per_minute: Given<Number>,
    pub(crate) tokens_per_minute_max: Given<Number>,
    pub(crate) concurrent_max: Given<Number>,
    pub(crate) priority_max: Given<Number>,
    pub(crate) class_max: Option<ClassName>,
    pub(crate) head_start_max: Given<Time>,
}

/// The name of a class of requests.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ClassName {
    LatencyCritical,
    Throughput,
}

impl From<ClassName> for RequestClass {
    fn from(name: ClassName) -> Self {
        match name {
            ClassName::LatencyCritical => RequestClass::LatencyCritical,
            ClassName::Throughput => RequestClass::Throughput,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Hints {
    pub(crate) label_keys: Vec<Spanned<String>>,
    pub(crate) labels_max: Given<Number>,
    pub(crate) sessions_max: Given<Number>,
    pub(crate) session_idle_max: Given<Time>,
    pub(crate) priority_max: Given<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(crate) struct ModelTable {
    pub(crate) name: Spanned<String>,
    pub(crate) path: Given<String>,
    pub(crate) hub: Given<String>,
    pub(crate) dummy_seed: Given<Number>,
    pub(crate) running_max: Given<Number>,
    pub(crate) executor: Given<String>,
    pub(crate) device: Given<String>,
    pub(crate) slots: Given<Number>,
    pub(crate) share_weight: Given<Number>,
    pub(crate) group: Given<Number>,
    pub(crate) queue: Given<Number>,
    pub(crate) preemptible: Given<bool>,
    pub(crate) model_unload_delay: Given<Time>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(crate) struct ExecutorTable {
    pub(crate) name: Spanned<String>,
    pub(crate) models: Spanned<Vec<Spanned<String>>>,
    pub(crate) device: Given<String>,
    pub(crate) slots: Given<Number>,
    pub(crate) share_weight: Given<Number>,
    pub(crate) group: Given<Number>,
    pub(crate) queue: Given<Number>,
    pub(crate) preemptible: Given<bool>,
    pub(crate) models_max: Given<Number>,
    pub(crate) model_unload_delay: Given<Time>,
}

/// The terms of an executor, as a table has them.
#[derive(Default)]
pub(crate) struct Terms {
    pub(crate) slots: Given<Number>,
    pub(crate) share_weight: Given<Number>,
    pub(crate) group: Given<Number>,
    pub(crate) queue: Given<Number>,
    pub(crate) preemptible: Given<bool>,
    pub(crate) models_max: Given<Number>,
    pub(crate) model_unload_delay: Given<Time>,
}

/// The part that a server takes in streams that break off, as it is written.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BrokenStreamsName {
    End,
    GoOn,
}

/// The prompts that a server keeps, as it is written.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PromptCacheName {
    Assumed,
    Off,
}

/// A server elsewhere.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(crate) struct Backend {
    pub(crate) url: Spanned<String>,
    pub(crate) name: Given<String>,
    pub(crate) software: Given<String>,
    pub(crate) key: Given<String>,
    pub(crate) key_file: Given<String>,
    pub(crate) ca_file: Given<String>,
    pub(crate) headers: Given<Vec<Spanned<String>>>,
    #[serde(default)]
    pub(crate) models: Vec<Spanned<String>>,
    pub(crate) slots: Given<Number>,
    pub(crate) group: Given<Number>,
    pub(crate) queue: Given<Number>,
    pub(crate) models_max: Given<Number>,
    pub(crate) model_unload_delay: Given<Time>,
    pub(crate) poll: Given<Time>,
    pub(crate) first_byte_timeout: Given<Time>,
    pub(crate) stall_timeout: Given<Time>,
    pub(crate) load_timeout: Given<Time>,
    pub(crate) unload_after: Given<Time>,
    pub(crate) broken_streams: Option<BrokenStreamsName>,
    pub(crate) prompt_cache: Option<PromptCacheName>,
    pub(crate) resolve: Given<Time>,
    pub(crate) metrics_path: Given<String>,
    pub(crate) running_metric: Option<String>,
    pub(crate) waiting_metric: Given<String>,
    pub(crate) kv_usage_metric: Given<String>,
    pub(crate) kv_info_metric: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Cpu {
    pub(crate) kv_memory: Given<Size>,
    pub(crate) swap_memory: Given<Size>,
    pub(crate) tokens_per_step: Given<Number>,
    pub(crate) threads: Given<Number>,
    pub(crate) cores: Given<Cores>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(crate) struct DeviceTable {
    pub(crate) name: Spanned<String>,
    pub(crate) cuda: Given<CudaNumbers>,
    pub(crate) kv_memory: Given<Size>,
    pub(crate) swap_memory: Given<Size>,
    pub(crate) tokens_per_step: Given<Number>,
    pub(crate) threads: Given<Number>,
    pub(crate) cores: Given<Cores>,
}

/// The numbers of CUDA devices.
pub(crate) enum CudaNumbers {
    /// The number of the only one.
    One(Number),
    /// Numbers of devices that compute models together, each with its place.
    Several(Vec<Spanned<Number>>),
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Core {
    pub(crate) queue_max: Given<Number>,
    pub(crate) parking_max: Given<Number>,
    pub(crate) executors_max: Given<Number>,
    pub(crate) batch_max: Given<Number>,
    pub(crate) overlaps_max: Given<Number>,
    pub(crate) tier_blocks_max: Given<Number>,
    pub(crate) attempts_max: Given<Number>,
    pub(crate) degraded_after: Given<Number>,
    pub(crate) down_after: Given<Number>,
    pub(crate) down_for: Given<Time>,
    pub(crate) wait_max: Given<Time>,
    pub(crate) unserved_max: Given<Time>,
    pub(crate) unplaced_max: Given<Time>,
    pub(crate) held_max: Given<Time>,
    pub(crate) overtaken_max: Given<Number>,
    pub(crate) tokenless_steps_max: Given<Number>,
    pub(crate) evict_retry: Given<Time>,
    pub(crate) change_log_max: Given<Number>,
    pub(crate) completions_max: Given<Number>,
    pub(crate) retry_after: Given<Time>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Policies {
    pub(crate) folder: Given<String>,
    pub(crate) settle: Given<Time>,
    pub(crate) poll: Given<Time>,
    /// The names of policies by those of hooks.
    pub(crate) bind: BTreeMap<Spanned<String>, Spanned<String>>,
    pub(crate) settings: BTreeMap<String, Spanned<toml::Table>>,
    pub(crate) limits: LimitsTable,
    pub(crate) compile: LimitsTable,
    pub(crate) patience: Patience,
    pub(crate) probation: Probation,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Patience {
    pub(crate) back_off: Given<Time>,
    pub(crate) back_off_max: Given<Time>,
    pub(crate) faults_max: Given<Number>,
    pub(crate) window: Given<Time>,
    pub(crate) snapshot_every: Given<Number>,
    pub(crate) events_max: Given<Number>,
    pub(crate) quarantine_max: Given<Number>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Probation {
    pub(crate) questions: Given<Number>,
    pub(crate) time: Given<Time>,
    pub(crate) faults_max: Given<Number>,
    pub(crate) refusals_permille: Given<Number>,
    pub(crate) fuel_percent: Given<Number>,
    pub(crate) fuel_floor: Given<Number>,
    pub(crate) fuel_ceiling: Given<Number>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Admin {
    pub(crate) listen: Given<String>,
    pub(crate) key: Given<String>,
    pub(crate) read_key: Given<String>,
    pub(crate) decisions_max: Given<Number>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Journal {
    pub(crate) folder: Given<String>,
    pub(crate) file_size: Given<Size>,
    pub(crate) total_size: Given<Size>,
    pub(crate) round_size: Given<Size>,
    pub(crate) age_max: Given<Time>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Log {
    pub(crate) format: Option<LogFormat>,
    pub(crate) filter: Given<String>,
    pub(crate) access: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(crate) struct Telemetry {
    pub(crate) otlp_endpoint: Given<String>,
    pub(crate) headers: Given<Vec<Spanned<String>>>,
    pub(crate) service_name: Given<String>,
    pub(crate) sample_ratio: Given<f64>,
    pub(crate) spans_every: Given<Time>,
    pub(crate) metrics_every: Given<Time>,
    pub(crate) timeout: Given<Time>,
}

// === impl Telemetry ===

impl Telemetry {
    /// The offset of the first key that is given but the collector's address; absent: none is.
    pub(crate) fn first(&self) -> Option<usize> {
        let times = [&self.spans_every, &self.metrics_every, &self.timeout];
        let times = times.into_iter().flatten().map(|given| given.span().start);
        let headers = self.headers.iter().map(|given| given.span().start);
        let name = self.service_name.iter().map(|given| given.span().start);
        let ratio = self.sample_ratio.iter().map(|given| given.span().start);
        times.chain(headers).chain(name).chain(ratio).min()
    }
}

// === impl Tables ===

impl<T> Default for Tables<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Tables<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Each<T> {
            type Value = Tables<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tables, each in two brackets: [[...]]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, tables: A) -> Result<Tables<T>, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(tables)).map(Tables)
            }
        }
        deserializer.deserialize_seq(Each(PhantomData))
    }
}

// === impl CudaNumbers ===

impl<'de> Deserialize<'de> for CudaNumbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = CudaNumbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a CUDA device, or a list of such numbers")
            }

            fn visit_i64<E>(self, number: i64) -> Result<CudaNumbers, E> {
                Ok(CudaNumbers::One(Number(number)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, numbers: A) -> Result<CudaNumbers, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(numbers)).map(CudaNumbers::Several)
            }
        }
        deserializer.deserialize_any(OneOrSeveral)
    }
}
