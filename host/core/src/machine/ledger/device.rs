//! One device: its block pool, its executors, and the first claims on blocks that come free.

use std::collections::BTreeSet;

use crate::rows;
use pointsman_events::changes::Stamp;
use pointsman_events::{DeviceId, DeviceSpec, ExecutorId, KvReport, KvSpec, RequestId};

use super::super::count;
use super::arena::Arena;
use super::assumed::AssumedBlocks;
use super::pool::BlockPool;
use super::prefix::Prefix;
use super::tiers::Tiers;

/// The KV blocks of a device, as far as the machine knows them.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Kv {
    /// The machine keeps the books.
    Owned(BlockPool),
    /// Somebody else does, and reports counts.
    Reported(ReportedKv),
}

/// Counts of blocks that somebody else manages.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct ReportedKv {
    pub(crate) report: Option<KvReport>,
    /// Blocks of what was placed since the report, which it cannot contain yet.
    pub(crate) placed_since: u32,
}

impl ReportedKv {
    /// The number of blocks that could be had; absent where nothing was ever reported.
    fn available(&self) -> Option<u32> {
        let report = self.less_placed()?;
        Some(report.blocks_free.saturating_add(report.blocks_cached))
    }

    /// The report, less what was placed since: it takes free blocks first, then cached ones.
    fn less_placed(&self) -> Option<KvReport> {
        let report = self.report?;
        let evicted = self.placed_since.saturating_sub(report.blocks_free);
        Some(KvReport {
            blocks_free: report.blocks_free.saturating_sub(self.placed_since),
            blocks_cached: report.blocks_cached.saturating_sub(evicted),
            ..report
        })
    }
}

/// Everything the machine keeps about one device.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Device {
    pub(crate) id: DeviceId,
    pub(crate) spec: DeviceSpec,
    pub(crate) kv: Kv,
    /// Host memory for what is swapped out.
    pub(crate) arena: Arena,
    /// Prompt blocks that are held beside the pool.
    pub(super) tiers: Tiers,
    /// Prompt blocks that are assumed to be there, where nobody tells.
    pub(super) assumed: AssumedBlocks,
    /// Attached executors, in attach order.
    pub(crate) executors: Vec<ExecutorId>,
    /// Running sequences that lack a block.
    pub(crate) short: BTreeSet<RequestId>,
    /// Requests to which others gave way, first come first served: room that comes free is theirs.
    pub(crate) claims: Vec<RequestId>,
    pub(crate) stamp: Stamp,
}

impl Device {
    pub(super) fn new(id: DeviceId, spec: DeviceSpec) -> Self {
        let (kv, host_blocks) = match spec.kv {
            KvSpec::Owned {
                block_bytes,
                blocks_total,
                host_blocks,
            } => (
                Kv::Owned(BlockPool::new(block_bytes, blocks_total)),
                host_blocks,
            ),
            KvSpec::Remote | KvSpec::Assumed => (Kv::Reported(ReportedKv::default()), 0),
        };
        Self {
            id,
            spec,
            kv,
            arena: Arena::new(host_blocks),
            tiers: Tiers::default(),
            assumed: AssumedBlocks::default(),
            executors: Vec::new(),
            short: BTreeSet::new(),
            claims: Vec::new(),
            stamp: Stamp::default(),
        }
    }

    /// The pool, where the machine keeps it.
    pub(crate) fn pool(&self) -> Option<&BlockPool> {
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

    /// The length of a request's block table, in blocks.
    pub(crate) fn held(&self, request: RequestId) -> u32 {
        self.pool()
            .map_or(0, |pool| count(pool.lease(request).len()))
    }

    /// Takes up to `blocks` blocks for a request's sequence on `executor`, those that already hold
    /// leading blocks of its prompt first.
    pub(super) fn lease(
        &mut self,
        (request, executor): (RequestId, ExecutorId),
        prefix: Prefix<'_>,
        blocks: u32,
    ) {
        match &mut self.kv {
            Kv::Owned(pool) => {
                pool.open(request, executor, prefix);
                pool.grow(request, blocks);
            }
            Kv::Reported(kv) => {
                kv.placed_since = kv.placed_since.saturating_add(blocks);
            }
        }
    }

    /// Ends a shortage of blocks, and the claim that came of it.
    pub(super) fn settle(&mut self, request: RequestId) {
        self.short.remove(&request);
        self.claims.retain(|claimant| *claimant != request);
    }

    /// The number of blocks that a new placement could have; absent where nobody counts them. While
    /// a running sequence lacks a block, free ones are not for newcomers.
    pub(super) fn available_for(&self, prefix: Prefix<'_>) -> Option<u32> {
        match &self.kv {
            Kv::Owned(_) if !self.short.is_empty() => Some(0),
            Kv::Owned(pool) => Some(pool.available_for(prefix)),
            Kv::Reported(kv) => kv.available(),
        }
    }

    /// The number of all blocks, as far as it is known.
    pub(crate) fn blocks_total(&self) -> Option<u32> {
        match &self.kv {
            Kv::Owned(pool) => Some(pool.total()),
            Kv::Reported(kv) => kv.report.map(|report| report.blocks_total),
        }
    }

    /// The counts that policies are told; absent where nobody ever reported any.
    pub(crate) fn row(&self) -> Option<rows::Device> {
        match &self.kv {
            Kv::Owned(pool) => Some(rows::Device {
                id: self.id,
                block_bytes: pool.block_bytes(),
                blocks_total: pool.total(),
                blocks_free: pool.free(),
                blocks_cached: pool.cached(),
                blocks_evicted_total: pool.evicted_total(),
                host_blocks_total: self.arena.total(),
                host_blocks_free: self.arena.free(),
            }),
            Kv::Reported(kv) => kv.less_placed().map(|report| rows::Device {
                id: self.id,
                block_bytes: report.block_bytes,
                blocks_total: report.blocks_total,
                blocks_free: report.blocks_free,
                blocks_cached: report.blocks_cached,
                blocks_evicted_total: report.blocks_evicted_total,
                host_blocks_total: 0,
                host_blocks_free: 0,
            }),
        }
    }
}
