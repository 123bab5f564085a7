//! The tenants, models, devices and executors of a scenario's host.

use std::fmt;

use pointsman_core::rows::{ExecutorKind, Health, Role};
use pointsman_core::{DeviceSpec, KvReport, KvSpec};
use pointsman_notation::Time;
use pointsman_sim::EngineProfile;
use serde::Deserialize;

use super::Name;
use super::units::micros;

/// Bytes of a block, if the scenario says nothing.
const BLOCK_BYTES: u64 = 1 << 20;
/// Tokens of a block on a device with blocks, if the scenario says nothing.
pub(crate) const TOKENS_PER_BLOCK: u32 = 16;

/// A `[[tenant]]` table. The tenant `default` always exists.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TenantTable {
    pub(crate) name: Name,
    #[serde(default = "one")]
    pub(crate) weight: u32,
    pub(crate) tokens_per_minute: Option<u64>,
}

/// A `[[model]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ModelTable {
    pub(crate) name: Name,
    /// Number of requests that may run; absent: unlimited.
    pub(crate) running_max: Option<u32>,
}

/// A `[[device]]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct DeviceTable {
    pub(crate) name: Name,
    /// Number of KV blocks that the host manages; absent: the device manages its own.
    pub(crate) kv_blocks: Option<u32>,
    /// Number of blocks of host memory, to which the host can move what sequences hold.
    #[serde(default)]
    pub(crate) host_blocks: u32,
    pub(crate) block_bytes: Option<u64>,
    pub(crate) tokens_per_step: Option<u32>,
    /// KV counts of a device that manages its own blocks.
    pub(crate) report: Option<CountsTable>,
}

/// The KV counts that a device reports.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct CountsTable {
    blocks_total: u32,
    blocks_free: u32,
    #[serde(default)]
    blocks_cached: u32,
    block_bytes: Option<u64>,
    #[serde(default)]
    blocks_evicted_total: u64,
}

/// An `[[executor]]` table, also of the action `attach`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ExecutorTable {
    pub(crate) name: Name,
    /// Device of the executor; absent: one of the same name, which manages its own blocks.
    pub(crate) device: Option<Name>,
    pub(crate) slots: u32,
    #[serde(default)]
    pub(crate) kind: Kind,
    #[serde(default)]
    pub(crate) role: RoleName,
    #[serde(default)]
    pub(crate) group: u32,
    #[serde(default = "one")]
    pub(crate) share_weight: u32,
    /// Models that it serves; absent: any model.
    pub(crate) serves: Option<Vec<Name>>,
    /// Number of models at a time; absent: unlimited.
    pub(crate) models_max: Option<u32>,
    #[serde(default)]
    pub(crate) queue_limit: u32,
    /// Size of a block; absent: 16 tokens if the device has blocks, else none.
    pub(crate) tokens_per_block: Option<u32>,
    #[serde(default = "yes")]
    pub(crate) preempts: bool,
    #[serde(default)]
    pub(crate) model_unload_delay: Time,
    /// Models that its server tells to be loaded; absent: it does not tell.
    pub(crate) loaded: Option<Vec<Name>>,
    #[serde(default)]
    pub(crate) health: HealthName,
    #[serde(default)]
    pub(crate) engine: EngineTable,
}

/// The speed of an engine.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct EngineTable {
    step: Option<Time>,
    token: Option<Time>,
    leave_steps: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Cuda,
    Cpu,
    Remote,
    #[default]
    Simulated,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RoleName {
    #[default]
    Both,
    Prefill,
    Decode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HealthName {
    #[default]
    Up,
    Degraded,
    Draining,
    Down,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

// === to the core's types ===

impl DeviceTable {
    pub(crate) fn spec(&self) -> DeviceSpec {
        DeviceSpec {
            name: self.name.get_ref().clone(),
            kv: match self.kv_blocks {
                Some(blocks_total) => KvSpec::Owned {
                    block_bytes: self.block_bytes.unwrap_or(BLOCK_BYTES),
                    blocks_total,
                    host_blocks: self.host_blocks,
                },
                None => KvSpec::Remote,
            },
            tokens_per_step: self.tokens_per_step,
        }
    }

    /// The device of an executor that names none.
    pub(crate) fn remote(name: &str) -> DeviceSpec {
        DeviceSpec {
            name: name.to_owned(),
            kv: KvSpec::Remote,
            tokens_per_step: None,
        }
    }
}

impl CountsTable {
    pub(crate) fn report(self) -> KvReport {
        KvReport {
            block_bytes: self.block_bytes.unwrap_or(BLOCK_BYTES),
            blocks_total: self.blocks_total,
            blocks_free: self.blocks_free,
            blocks_cached: self.blocks_cached,
            blocks_evicted_total: self.blocks_evicted_total,
        }
    }
}

impl EngineTable {
    pub(crate) fn profile(self) -> EngineProfile {
        let plain = EngineProfile::default();
        EngineProfile {
            step: self.step.map_or(plain.step, micros),
            token: self.token.map_or(plain.token, micros),
            leave_steps: self.leave_steps.unwrap_or(plain.leave_steps),
            ..plain
        }
    }
}

impl From<Kind> for ExecutorKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Cuda => Self::Cuda,
            Kind::Cpu => Self::Cpu,
            Kind::Remote => Self::Remote,
            Kind::Simulated => Self::Simulated,
        }
    }
}

impl From<RoleName> for Role {
    fn from(role: RoleName) -> Self {
        match role {
            RoleName::Both => Self::Both,
            RoleName::Prefill => Self::Prefill,
            RoleName::Decode => Self::Decode,
        }
    }
}

impl From<HealthName> for Health {
    fn from(health: HealthName) -> Self {
        match health {
            HealthName::Up => Self::Up,
            HealthName::Degraded => Self::Degraded,
            HealthName::Draining => Self::Draining,
            HealthName::Down => Self::Down,
        }
    }
}

/// A kind of named thing, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Thing {
    Tenant,
    Model,
    Device,
    Executor,
    Request,
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tenant => "tenant",
            Self::Model => "model",
            Self::Device => "device",
            Self::Executor => "executor",
            Self::Request => "request",
        })
    }
}
