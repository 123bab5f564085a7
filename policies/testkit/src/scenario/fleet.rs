//! What a scenario's host has: tenants, models, devices and executors.

use std::fmt;

use pointsman_core::rows::{ExecutorKind, Health, Role};
use pointsman_core::{DeviceSpec, KvReport, KvSpec};
use pointsman_sim::EngineProfile;
use serde::Deserialize;

use super::Name;
use super::units::Time;

/// Bytes of a block, where nothing is said.
const BLOCK_BYTES: u64 = 1 << 20;
/// Tokens of a block on a device with blocks, where nothing is said.
pub(crate) const TOKENS_PER_BLOCK: u32 = 16;

/// `[[tenant]]`. The tenant `default` is always there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TenantTable {
    pub(crate) name: Name,
    #[serde(default = "one")]
    pub(crate) weight: u32,
    pub(crate) tokens_per_minute: Option<u64>,
}

/// `[[model]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ModelTable {
    pub(crate) name: Name,
    /// Absent: unlimited.
    pub(crate) running_max: Option<u32>,
}

/// `[[device]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct DeviceTable {
    pub(crate) name: Name,
    /// KV blocks the host hands out; absent: somebody else manages them.
    pub(crate) kv_blocks: Option<u32>,
    pub(crate) block_bytes: Option<u64>,
    pub(crate) tokens_per_step: Option<u32>,
    /// Counts of a device whose blocks somebody else manages.
    pub(crate) report: Option<CountsTable>,
}

/// KV counts that a device reports.
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

/// `[[executor]]`, and the action `attach`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ExecutorTable {
    pub(crate) name: Name,
    /// Absent: a device of its own, with its name, whose blocks are not the host's.
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
    /// Absent: any model.
    pub(crate) serves: Option<Vec<Name>>,
    /// Absent: unlimited.
    pub(crate) models_max: Option<u32>,
    #[serde(default)]
    pub(crate) queue_limit: u32,
    /// Absent: 16 where its device has blocks, else no paged KV.
    pub(crate) tokens_per_block: Option<u32>,
    #[serde(default = "yes")]
    pub(crate) preempts: bool,
    #[serde(default)]
    pub(crate) model_unload_delay: Time,
    #[serde(default)]
    pub(crate) health: HealthName,
    #[serde(default)]
    pub(crate) engine: EngineTable,
}

/// How fast an engine is.
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
                },
                None => KvSpec::Remote,
            },
            tokens_per_step: self.tokens_per_step,
        }
    }

    /// What an executor without a device gets.
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
            step: self.step.map_or(plain.step, |time| time.0),
            token: self.token.map_or(plain.token, |time| time.0),
            leave_steps: self.leave_steps.unwrap_or(plain.leave_steps),
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
