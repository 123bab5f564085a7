//! One device: its block pool, its engines, and who has first claim on blocks that come free.

use std::collections::BTreeSet;

use crate::ids::{BlockHash, DeviceId, ExecutorId, RequestId};
use crate::input::{DeviceSpec, KvReport, KvSpec};
use crate::log::Stamp;
use crate::rows;

use super::pool::BlockPool;
use super::tiers::Tiers;

/// The KV blocks of a device, as far as the machine knows them.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Kv {
    /// The machine keeps the books.
    Owned(BlockPool),
    /// Somebody else does, and reports counts.
    Reported(ReportedKv),
}

/// Counts of blocks that somebody else manages.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct ReportedKv {
    pub(super) report: Option<KvReport>,
    /// Blocks of what was placed since the report, which it cannot contain yet.
    pub(super) placed_since: u32,
}

impl ReportedKv {
    /// Blocks that could be had; absent where nothing was ever reported.
    pub(super) fn available(&self) -> Option<u32> {
        let report = self.report.as_ref()?;
        let idle = report.blocks_free.saturating_add(report.blocks_cached);
        Some(idle.saturating_sub(self.placed_since))
    }
}

/// Everything the machine keeps about one device.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Device {
    pub(super) id: DeviceId,
    pub(super) spec: DeviceSpec,
    pub(super) kv: Kv,
    /// What is held of prompts beside the pool.
    pub(super) tiers: Tiers,
    /// Attached executors, in attach order.
    pub(super) executors: Vec<ExecutorId>,
    /// Running sequences that lack a block.
    pub(super) short: BTreeSet<RequestId>,
    /// Those that others gave way to, first come first served: what comes free is theirs.
    pub(super) claims: Vec<RequestId>,
    pub(super) stamp: Stamp,
}

impl Device {
    pub(super) fn new(id: DeviceId, spec: DeviceSpec) -> Self {
        let kv = match spec.kv {
            KvSpec::Owned {
                block_bytes,
                blocks_total,
            } => Kv::Owned(BlockPool::new(block_bytes, blocks_total)),
            KvSpec::Remote => Kv::Reported(ReportedKv::default()),
        };
        Self {
            id,
            spec,
            kv,
            tiers: Tiers::default(),
            executors: Vec::new(),
            short: BTreeSet::new(),
            claims: Vec::new(),
            stamp: Stamp::default(),
        }
    }

    /// The pool, where the machine keeps it.
    pub(super) fn pool(&self) -> Option<&BlockPool> {
        match &self.kv {
            Kv::Owned(pool) => Some(pool),
            Kv::Reported(_) => None,
        }
    }

    pub(super) fn pool_mut(&mut self) -> Option<&mut BlockPool> {
        match &mut self.kv {
            Kv::Owned(pool) => Some(pool),
            Kv::Reported(_) => None,
        }
    }

    /// Blocks that a new placement could have; absent where nobody counts them. While a running
    /// sequence lacks a block, what is free is not for newcomers.
    pub(super) fn available_for(&self, hashes: &[BlockHash]) -> Option<u32> {
        match &self.kv {
            Kv::Owned(_) if !self.short.is_empty() => Some(0),
            Kv::Owned(pool) => Some(pool.available_for(hashes)),
            Kv::Reported(kv) => kv.available(),
        }
    }

    pub(super) fn drop_claim(&mut self, request: RequestId) {
        self.claims.retain(|claimant| *claimant != request);
    }

    /// Counts for policies; absent where nobody ever reported any.
    pub(super) fn row(&self) -> Option<rows::Device> {
        match &self.kv {
            Kv::Owned(pool) => Some(rows::Device {
                id: self.id,
                block_bytes: pool.block_bytes(),
                blocks_total: pool.total(),
                blocks_free: pool.free(),
                blocks_cached: pool.cached(),
                blocks_evicted_total: pool.evicted_total(),
            }),
            Kv::Reported(kv) => kv.report.map(|report| rows::Device {
                id: self.id,
                block_bytes: report.block_bytes,
                blocks_total: report.blocks_total,
                blocks_free: report.blocks_free,
                blocks_cached: report.blocks_cached,
                blocks_evicted_total: report.blocks_evicted_total,
            }),
        }
    }
}
