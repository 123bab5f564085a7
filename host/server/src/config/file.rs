//! The keys of the file, unchecked. `validate` makes a [`super::Config`] of them.
//!
//! Nothing here implements `Debug`: some of it is secret.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use pointsman_core::rows::RequestClass;
use pointsman_engine::cpu::Cores;
use pointsman_notation::{Number, Size, Time};
use pointsman_sidecar::tables::LimitsTable;
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, SeqAccess, Visitor};
use toml::Spanned;

use super::{LogFormat, PrefixCache, StateNeed, UnnamedModel};

/// A value that may be left out, with its place.
pub(super) type Given<T> = Option<Spanned<T>>;

/// Tables that are written `[[like this]]`, each with its place.
pub(super) struct Tables<T>(pub(super) Vec<Spanned<T>>);

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(super) struct File {
    pub(super) listen: Given<String>,
    pub(super) drain: Given<Time>,
    pub(super) ready_executors: Given<Number>,
    pub(super) state_folder: Given<String>,
    pub(super) state: StateNeed,
    pub(super) tls: Tls,
    pub(super) http: Http,
    pub(super) keys: Tables<Key>,
    pub(super) tenants: Tables<Tenant>,
    pub(super) hints: Hints,
    pub(super) models: Tables<ModelTable>,
    pub(super) executors: Tables<ExecutorTable>,
    pub(super) backends: Tables<Backend>,
    pub(super) cpu: Cpu,
    pub(super) devices: Tables<DeviceTable>,
    pub(super) core: Core,
    pub(super) policies: Policies,
    pub(super) admin: Admin,
    pub(super) journal: Journal,
    pub(super) log: Log,
    pub(super) telemetry: Telemetry,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(super) struct Http {
    pub(super) connections_max: Given<Number>,
    pub(super) connection_requests_max: Given<Number>,
    pub(super) requests_max: Given<Number>,
    pub(super) body_max: Given<Size>,
    pub(super) bodies_max: Given<Size>,
    pub(super) reading_queue_max: Given<Number>,
    pub(super) read_timeout: Given<Time>,
    pub(super) write_timeout: Given<Time>,
    pub(super) metrics_public: Option<bool>,
    pub(super) cors_origins: Vec<Spanned<String>>,
    pub(super) prefix_cache: Option<PrefixCacheName>,
    pub(super) unnamed_model: Option<UnnamedModelName>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(super) struct Tls {
    pub(super) certificate: Given<String>,
    pub(super) key: Given<String>,
    pub(super) handshake_timeout: Given<Time>,
    pub(super) poll: Given<Time>,
}

/// The name of a treatment of requests that name no model.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum UnnamedModelName {
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
pub(super) enum PrefixCacheName {
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
pub(super) struct Key {
    pub(super) key: Given<String>,
    pub(super) sha256: Given<String>,
    pub(super) file: Given<String>,
    pub(super) tenant: Given<String>,
    pub(super) models: Given<Vec<Spanned<String>>>,
    pub(super) priority: Given<Number>,
    pub(super) priority_max: Given<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(super) struct Tenant {
    pub(super) name: Spanned<String>,
    pub(super) weight: Given<Number>,
    pub(super) tokens_per_minute: Given<Number>,
    pub(super) requests_per_minute: Given<Number>,
    pub(super) tokens_per_minute_max: Given<Number>,
    pub(super) concurrent_max: Given<Number>,
    pub(super) priority_max: Given<Number>,
    pub(super) class_max: Option<ClassName>,
    pub(super) head_start_max: Given<Time>,
}

/// The name of a class of requests.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ClassName {
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
pub(super) struct Hints {
    pub(super) label_keys: Vec<Spanned<String>>,
    pub(super) labels_max: Given<Number>,
    pub(super) sessions_max: Given<Number>,
    pub(super) session_idle_max: Given<Time>,
    pub(super) priority_max: Given<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(super) struct ModelTable {
    pub(super) name: Spanned<String>,
    pub(super) path: Given<String>,
    pub(super) hub: Given<String>,
    pub(super) dummy_seed: Given<Number>,
    pub(super) running_max: Given<Number>,
    pub(super) executor: Given<String>,
    pub(super) device: Given<String>,
    pub(super) slots: Given<Number>,
    pub(super) share_weight: Given<Number>,
    pub(super) group: Given<Number>,
    pub(super) queue: Given<Number>,
    pub(super) preemptible: Given<bool>,
    pub(super) model_unload_delay: Given<Time>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(super) struct ExecutorTable {
    pub(super) name: Spanned<String>,
    pub(super) models: Spanned<Vec<Spanned<String>>>,
    pub(super) device: Given<String>,
    pub(super) slots: Given<Number>,
    pub(super) share_weight: Given<Number>,
    pub(super) group: Given<Number>,
    pub(super) queue: Given<Number>,
    pub(super) preemptible: Given<bool>,
    pub(super) models_max: Given<Number>,
    pub(super) model_unload_delay: Given<Time>,
}

/// The terms of an executor, as a table has them.
#[derive(Default)]
pub(super) struct Terms {
    pub(super) slots: Given<Number>,
    pub(super) share_weight: Given<Number>,
    pub(super) group: Given<Number>,
    pub(super) queue: Given<Number>,
    pub(super) preemptible: Given<bool>,
    pub(super) models_max: Given<Number>,
    pub(super) model_unload_delay: Given<Time>,
}

/// The part that a server takes in streams that break off, as it is written.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum BrokenStreamsName {
    End,
    GoOn,
}

/// The prompts that a server keeps, as it is written.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PromptCacheName {
    Assumed,
    Off,
}

/// A server elsewhere.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(super) struct Backend {
    pub(super) url: Spanned<String>,
    pub(super) name: Given<String>,
    pub(super) software: Given<String>,
    pub(super) key: Given<String>,
    pub(super) key_file: Given<String>,
    pub(super) ca_file: Given<String>,
    pub(super) headers: Given<Vec<Spanned<String>>>,
    #[serde(default)]
    pub(super) models: Vec<Spanned<String>>,
    pub(super) slots: Given<Number>,
    pub(super) group: Given<Number>,
    pub(super) queue: Given<Number>,
    pub(super) models_max: Given<Number>,
    pub(super) model_unload_delay: Given<Time>,
    pub(super) poll: Given<Time>,
    pub(super) first_byte_timeout: Given<Time>,
    pub(super) stall_timeout: Given<Time>,
    pub(super) load_timeout: Given<Time>,
    pub(super) unload_after: Given<Time>,
    pub(super) broken_streams: Option<BrokenStreamsName>,
    pub(super) prompt_cache: Option<PromptCacheName>,
    pub(super) resolve: Given<Time>,
    pub(super) metrics_path: Option<String>,
    pub(super) running_metric: Option<String>,
    pub(super) waiting_metric: Option<String>,
    pub(super) kv_usage_metric: Option<String>,
    pub(super) kv_info_metric: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(super) struct Cpu {
    pub(super) kv_memory: Given<Size>,
    pub(super) swap_memory: Given<Size>,
    pub(super) tokens_per_step: Given<Number>,
    pub(super) threads: Given<Number>,
    pub(super) cores: Given<Cores>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(super) struct DeviceTable {
    pub(super) name: Spanned<String>,
    pub(super) cuda: Given<CudaNumbers>,
    pub(super) kv_memory: Given<Size>,
    pub(super) swap_memory: Given<Size>,
    pub(super) tokens_per_step: Given<Number>,
    pub(super) threads: Given<Number>,
    pub(super) cores: Given<Cores>,
}

/// The numbers of CUDA devices.
pub(super) enum CudaNumbers {
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
pub(super) struct Core {
    pub(super) queue_max: Given<Number>,
    pub(super) parking_max: Given<Number>,
    pub(super) executors_max: Given<Number>,
    pub(super) batch_max: Given<Number>,
    pub(super) overlaps_max: Given<Number>,
    pub(super) tier_blocks_max: Given<Number>,
    pub(super) attempts_max: Given<Number>,
    pub(super) degraded_after: Given<Number>,
    pub(super) down_after: Given<Number>,
    pub(super) down_for: Given<Time>,
    pub(super) wait_max: Given<Time>,
    pub(super) unserved_max: Given<Time>,
    pub(super) unplaced_max: Given<Time>,
    pub(super) held_max: Given<Time>,
    pub(super) overtaken_max: Given<Number>,
    pub(super) tokenless_steps_max: Given<Number>,
    pub(super) evict_retry: Given<Time>,
    pub(super) change_log_max: Given<Number>,
    pub(super) completions_max: Given<Number>,
    pub(super) retry_after: Given<Time>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(super) struct Policies {
    pub(super) folder: Given<String>,
    pub(super) settle: Given<Time>,
    pub(super) poll: Given<Time>,
    /// The names of policies by those of hooks.
    pub(super) bind: BTreeMap<Spanned<String>, Spanned<String>>,
    pub(super) settings: BTreeMap<String, Spanned<toml::Table>>,
    pub(super) limits: LimitsTable,
    pub(super) compile: LimitsTable,
    pub(super) patience: Patience,
    pub(super) probation: Probation,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(super) struct Patience {
    pub(super) back_off: Given<Time>,
    pub(super) back_off_max: Given<Time>,
    pub(super) faults_max: Given<Number>,
    pub(super) window: Given<Time>,
    pub(super) snapshot_every: Given<Number>,
    pub(super) events_max: Given<Number>,
    pub(super) quarantine_max: Given<Number>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(super) struct Probation {
    pub(super) questions: Given<Number>,
    pub(super) time: Given<Time>,
    pub(super) faults_max: Given<Number>,
    pub(super) refusals_permille: Given<Number>,
    pub(super) fuel_percent: Given<Number>,
    pub(super) fuel_floor: Given<Number>,
    pub(super) fuel_ceiling: Given<Number>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(super) struct Admin {
    pub(super) listen: Given<String>,
    pub(super) key: Given<String>,
    pub(super) read_key: Given<String>,
    pub(super) decisions_max: Given<Number>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(super) struct Journal {
    pub(super) folder: Given<String>,
    pub(super) file_size: Given<Size>,
    pub(super) total_size: Given<Size>,
    pub(super) round_size: Given<Size>,
    pub(super) age_max: Given<Time>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(super) struct Log {
    pub(super) format: Option<LogFormat>,
    pub(super) filter: Given<String>,
    pub(super) access: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table"
)]
pub(super) struct Telemetry {
    pub(super) otlp_endpoint: Given<String>,
    pub(super) headers: Given<Vec<Spanned<String>>>,
    pub(super) service_name: Given<String>,
    pub(super) sample_ratio: Given<f64>,
    pub(super) spans_every: Given<Time>,
    pub(super) metrics_every: Given<Time>,
    pub(super) timeout: Given<Time>,
}

// === impl Telemetry ===

impl Telemetry {
    /// The offset of the first key that is given but the collector's address; absent: none is.
    pub(super) fn first(&self) -> Option<usize> {
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
