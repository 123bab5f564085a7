//! The KV blocks of one device.

use std::collections::BTreeMap;

use pointsman_events::rows;
use pointsman_events::{DeviceId, ExecutorId, KvReport, KvSpec, PrefixEvent, RequestId};

use crate::arena::HostArena;
use crate::assumed::{AssumedBlocks, TOKENS_UNTOLD};
use crate::count;
use crate::pool::BlockPool;
use crate::prefix::Prefix;
use crate::tiers::{Hits, Tiers};

/// The blocks in a device's memory, as far as the machine knows them.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
enum Kv {
    /// The machine keeps the books.
    Owned(BlockPool),
    /// Somebody else does, and reports counts.
    Reported(ReportedKv),
}

/// Counts of blocks that somebody else manages.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReportedKv {
    /// The last report; all 0: nobody tells any more.
    report: Option<KvReport>,
    /// Blocks of each request that was placed since the report, which cannot contain them yet, and has not ended.
    placed_since: BTreeMap<RequestId, u32>,
    /// The sum of these.
    placed_total: u64,
}

/// The KV blocks of one device: in its memory, in its host memory, and on its disk.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceKv {
    kv: Kv,
    /// Host memory for what is swapped out.
    pub(crate) arena: HostArena,
    /// Prompt blocks that are held beside the pool.
    pub(crate) tiers: Tiers,
    /// Prompt blocks that are assumed to be there, where nobody tells.
    pub(crate) assumed: AssumedBlocks,
}

// === impl ReportedKv ===

impl ReportedKv {
    /// The counts of the last report; absent where nobody tells.
    fn counts(&self) -> Option<KvReport> {
        self.report.filter(|report| *report != KvReport::default())
    }

    /// The number of all blocks; absent where nobody tells.
    #[inline]
    #[must_use]
    pub fn blocks_total(&self) -> Option<u32> {
        self.counts().map(|report| report.blocks_total)
    }

    /// Notes a report, which contains all that was placed before. One that is all 0 ends what was told.
    pub fn note(&mut self, report: KvReport) {
        let is_news = self.report.is_some() || report != KvReport::default();
        *self = Self {
            report: is_news.then_some(report),
            placed_since: BTreeMap::new(),
            placed_total: 0,
        };
    }

    /// Notes that a request was placed, which takes so many blocks.
    fn place(&mut self, request: RequestId, blocks: u32) {
        *self.placed_since.entry(request).or_default() += blocks;
        self.placed_total += u64::from(blocks);
    }

    /// Notes that a request has ended: its blocks are free again, or cached. True if they were not in the report.
    fn end(&mut self, request: RequestId) -> bool {
        let placed = self.placed_since.remove(&request);
        self.placed_total -= u64::from(placed.unwrap_or(0));
        placed.is_some()
    }

    /// The number of blocks that could be had; absent where nobody tells.
    fn available(&self) -> Option<u32> {
        let report = self.less_placed()?;
        Some(report.blocks_free.saturating_add(report.blocks_cached))
    }

    /// The report, less what was placed since: it takes free blocks first, then cached ones.
    fn less_placed(&self) -> Option<KvReport> {
        let report = self.counts()?;
        let placed = u32::try_from(self.placed_total).unwrap_or(u32::MAX);
        let evicted = placed.saturating_sub(report.blocks_free);
        Some(KvReport {
            blocks_free: report.blocks_free.saturating_sub(placed),
            blocks_cached: report.blocks_cached.saturating_sub(evicted),
            ..report
        })
    }
}

// === impl DeviceKv: reading ===

impl DeviceKv {
    /// The empty books of a device.
    #[must_use]
    pub fn new(spec: KvSpec) -> Self {
        let (kv, host_blocks) = match spec {
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
            kv,
            arena: HostArena::new(host_blocks),
            tiers: Tiers::default(),
            assumed: AssumedBlocks::default(),
        }
    }

    /// The pool, where the machine keeps it.
    #[inline]
    #[must_use]
    pub fn pool(&self) -> Option<&BlockPool> {
        match &self.kv {
            Kv::Owned(pool) => Some(pool),
            Kv::Reported(_) => None,
        }
    }

    /// The host memory for what is swapped out.
    #[inline]
    #[must_use]
    pub fn arena(&self) -> &HostArena {
        &self.arena
    }

    /// The length of a request's block table, in blocks.
    #[inline]
    #[must_use]
    pub fn held(&self, request: RequestId) -> u32 {
        self.pool()
            .map_or(0, |pool| count(pool.lease(request).len()))
    }

    /// The number of blocks that a new placement could have; absent where nobody counts them.
    #[inline]
    #[must_use]
    pub fn available_for(&self, prefix: Prefix<'_>) -> Option<u32> {
        match &self.kv {
            Kv::Owned(pool) => Some(pool.available_for(prefix)),
            Kv::Reported(kv) => kv.available(),
        }
    }

    /// The number of all blocks, as far as it is known.
    #[inline]
    #[must_use]
    pub fn blocks_total(&self) -> Option<u32> {
        match &self.kv {
            Kv::Owned(pool) => Some(pool.total()),
            Kv::Reported(kv) => kv.blocks_total(),
        }
    }

    /// The requests that were placed since the last report, where somebody else keeps the books.
    pub fn placed_since(&self) -> impl Iterator<Item = RequestId> {
        let placed = match &self.kv {
            Kv::Owned(_) => None,
            Kv::Reported(kv) => Some(kv.placed_since.keys().copied()),
        };
        placed.into_iter().flatten()
    }

    /// The leading blocks that the device holds of a prompt, of which `reported` are in its memory by
    /// what was reported.
    pub(crate) fn hits(&self, prefix: Prefix<'_>, reported: impl FnOnce() -> u32) -> Hits {
        let device = self.hits_in_memory(prefix, reported);
        let host = self.tiers.host.leading(prefix.after(device));
        let disk = self.tiers.disk.leading(prefix.after(device + host));
        Hits { device, host, disk }
    }

    /// The leading blocks of a prompt that the device's own memory holds, of which `reported` says what
    /// was reported.
    pub(crate) fn hits_in_memory(&self, prefix: Prefix<'_>, reported: impl FnOnce() -> u32) -> u32 {
        match &self.kv {
            Kv::Owned(pool) => pool.leading_hits(prefix),
            Kv::Reported(_) => reported(),
        }
    }

    /// The number of a prompt's blocks that the device is assumed to keep where nobody tells, no more than
    /// `max`: as many as its memory has tokens for, with so many in a block.
    #[inline]
    #[must_use]
    pub fn assumed_max(&self, prefix: Prefix<'_>, tokens_per_block: Option<u32>, max: u32) -> u32 {
        let told = self.blocks_total().zip(tokens_per_block);
        let tokens = told.map(|(blocks, tokens)| u64::from(blocks) * u64::from(tokens));
        let per_block = u64::from(prefix.tokens_per_block().max(1));
        let blocks = tokens.unwrap_or(TOKENS_UNTOLD) / per_block;
        max.min(u32::try_from(blocks).unwrap_or(u32::MAX))
    }

    /// The counts of the device with this id; absent where nobody tells any.
    #[inline]
    #[must_use]
    pub fn row(&self, id: DeviceId) -> Option<rows::Device> {
        match &self.kv {
            Kv::Owned(pool) => Some(rows::Device {
                id,
                block_bytes: pool.block_bytes(),
                blocks_total: pool.total(),
                blocks_free: pool.free(),
                blocks_cached: pool.cached(),
                blocks_evicted_total: pool.evicted_total(),
                host_blocks_total: self.arena.total(),
                host_blocks_free: self.arena.free(),
            }),
            Kv::Reported(kv) => kv.less_placed().map(|report| row_of(id, report)),
        }
    }

    /// The counts that policies are told of the device with this id; absent where nobody ever told any. They are 0
    /// where nobody does any more: a policy would go by the last ones for ever.
    #[inline]
    #[must_use]
    pub fn row_told(&self, id: DeviceId) -> Option<rows::Device> {
        let last = match &self.kv {
            Kv::Owned(_) => None,
            Kv::Reported(kv) => kv.report,
        };
        self.row(id)
            .or_else(|| last.map(|report| row_of(id, report)))
    }
}

// === impl DeviceKv: writing ===

impl DeviceKv {
    /// The pool, where the machine keeps it.
    #[inline]
    pub fn pool_mut(&mut self) -> Option<&mut BlockPool> {
        match &mut self.kv {
            Kv::Owned(pool) => Some(pool),
            Kv::Reported(_) => None,
        }
    }

    /// The counts, where somebody else keeps the books.
    #[inline]
    pub fn reported_mut(&mut self) -> Option<&mut ReportedKv> {
        match &mut self.kv {
            Kv::Owned(_) => None,
            Kv::Reported(kv) => Some(kv),
        }
    }

    /// Takes up to `blocks` blocks for a request's sequence on `executor`, those that already hold
    /// leading blocks of its prompt first.
    #[inline]
    pub fn lease(
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
            Kv::Reported(kv) => kv.place(request, blocks),
        }
    }

    /// Gives back the blocks of a request with this prompt that has left. True if that may have changed the device's row.
    #[inline]
    pub fn close(&mut self, request: RequestId, prefix: Prefix<'_>) -> bool {
        match &mut self.kv {
            Kv::Owned(pool) => {
                pool.close(request, prefix);
                true
            }
            Kv::Reported(kv) => kv.end(request),
        }
    }

    /// Forgets all contents: the engines have lost their memory. Only the disk outlives that. Returns the
    /// blocks that are no longer assumed to be there.
    pub(crate) fn forget_contents(&mut self) -> Vec<PrefixEvent> {
        if let Some(pool) = self.pool_mut() {
            pool.forget_contents();
        }
        self.tiers.host.note(PrefixEvent::Cleared, 0);
        self.assumed.clear()
    }
}

/// The row of a device whose blocks somebody else manages.
fn row_of(id: DeviceId, report: KvReport) -> rows::Device {
    rows::Device {
        id,
        block_bytes: report.block_bytes,
        blocks_total: report.blocks_total,
        blocks_free: report.blocks_free,
        blocks_cached: report.blocks_cached,
        blocks_evicted_total: report.blocks_evicted_total,
        host_blocks_total: 0,
        host_blocks_free: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_end_are_told_as_0_and_those_that_never_came_are_not_told() {
        const ID: DeviceId = DeviceId(3);
        let mut device = DeviceKv::new(KvSpec::Remote);
        let note = |device: &mut DeviceKv, report| {
            let kv = device.reported_mut().expect("it is elsewhere");
            kv.note(report);
        };
        note(&mut device, KvReport::default());
        assert_eq!(device.row_told(ID), None);
        let report = KvReport {
            blocks_total: 8,
            blocks_free: 5,
            ..KvReport::default()
        };
        note(&mut device, report);
        assert_eq!(device.row_told(ID), Some(row_of(ID, report)));
        assert_eq!(device.row(ID), Some(row_of(ID, report)));
        note(&mut device, KvReport::default());
        assert_eq!(device.row_told(ID), Some(row_of(ID, KvReport::default())));
        assert_eq!((device.row(ID), device.blocks_total()), (None, None));
    }
}
