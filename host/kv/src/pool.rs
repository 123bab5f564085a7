//! The KV blocks of one device, and their holders.
//!
//! A [`BlockPool`] is a ledger: a *lease* is one request's blocks, opened by
//! [`BlockPool::open`], grown, and closed by exactly one [`BlockPool::close`]. Full blocks of
//! prompt tokens can be *published* under the key of their contents; then later leases share
//! them, and once nobody holds them they stay as cache until the room is needed.
//!
//! # Invariants
//! [`BlockPool::check`]: every block is free, cached or held; a block's holders are exactly the
//! leases that list it; an executor uses exactly the blocks that its leases list, each once however
//! many list it; the index names exactly the published blocks.
//!
//! # Bounds
//! Everything is bounded by the number of blocks, fixed when the pool is made.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pointsman_events::{BlockId, ExecutorId, RequestId};

use crate::count;
use crate::holders::{Holders, Use};
use crate::prefix::{Prefix, PrefixKey};
use crate::table::Table;

/// One request's blocks, in the order of its tokens.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Lease {
    /// The executor that the blocks are for.
    executor: ExecutorId,
    /// Leading blocks that held their tokens when the lease was opened; once contents were forgotten, those that had been
    /// published by then.
    cached: u32,
    /// Leading blocks that need not be published any more: those that were cached, and those that have been.
    published: u32,
    blocks: Vec<BlockId>,
}

/// The state of one block.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Block {
    /// Leases that list it.
    holders: Holders,
    /// The key of its contents, once published.
    key: Option<PrefixKey>,
    /// The time at which it became cached, in releases.
    cached_at: u64,
}

/// The block ledger of one device.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockPool {
    block_bytes: u64,
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    /// Published blocks nobody holds, least recently released first.
    cached: BTreeSet<(u64, BlockId)>,
    index: Table<PrefixKey, BlockId>,
    leases: BTreeMap<RequestId, Lease>,
    /// Blocks that the leases of each executor list, each counted once; executors that use none are
    /// missing.
    used: BTreeMap<ExecutorId, u32>,
    /// Counts releases, to order the cached blocks.
    clock: u64,
    evicted_total: u64,
}

impl BlockPool {
    pub(crate) fn new(block_bytes: u64, blocks_total: u32) -> Self {
        Self {
            block_bytes,
            blocks: (0..blocks_total).map(|_| Block::default()).collect(),
            // Popped from the end, so the first block is handed out first.
            free: (0..blocks_total).rev().map(BlockId).collect(),
            cached: BTreeSet::new(),
            index: Table::default(),
            leases: BTreeMap::new(),
            used: BTreeMap::new(),
            clock: 0,
            evicted_total: 0,
        }
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    pub(crate) fn total(&self) -> u32 {
        count(self.blocks.len())
    }

    /// The number of blocks that hold nothing.
    pub(crate) fn free(&self) -> u32 {
        count(self.free.len())
    }

    /// The number of blocks that nobody holds and that hold a prefix.
    pub(crate) fn cached(&self) -> u32 {
        count(self.cached.len())
    }

    /// The number of blocks that could be handed out now.
    #[inline]
    pub fn available(&self) -> u32 {
        self.free() + self.cached()
    }

    pub(crate) fn evicted_total(&self) -> u64 {
        self.evicted_total
    }

    /// The blocks of a request, in the order of its tokens.
    #[inline]
    pub fn lease(&self, request: RequestId) -> &[BlockId] {
        self.leases
            .get(&request)
            .map_or(&[], |lease| lease.blocks.as_slice())
    }

    /// The number of blocks that the sequences of an executor hold, each counted once however many
    /// hold it.
    #[inline]
    pub fn used_by(&self, executor: ExecutorId) -> u32 {
        self.used.get(&executor).copied().unwrap_or(0)
    }

    /// The number of blocks that an executor would use with one more sequence, of `blocks` blocks.
    #[inline]
    pub fn used_with(&self, executor: ExecutorId, prefix: Prefix<'_>, blocks: u32) -> u32 {
        let is_here = |block: &BlockId| self.block(*block).holders.is_on(executor);
        let shared = count(self.hits(prefix).filter(is_here).count());
        let new = blocks.saturating_sub(shared);
        self.used_by(executor).saturating_add(new)
    }

    /// The number of leading blocks of a request that held their tokens when its lease was opened.
    #[inline]
    pub fn cached_of(&self, request: RequestId) -> u32 {
        self.leases.get(&request).map_or(0, |lease| lease.cached)
    }

    /// The leading blocks of a prompt that are there.
    fn hits<'a>(&'a self, prefix: Prefix<'a>) -> impl Iterator<Item = BlockId> + 'a {
        prefix.keys().map_while(|key| self.index.get(&key).copied())
    }

    /// The leading blocks of a prompt that are there and that somebody holds.
    fn held_hits<'a>(&'a self, prefix: Prefix<'a>) -> impl Iterator<Item = BlockId> + 'a {
        let hits = self.hits(prefix);
        hits.filter(|block| self.holders(*block) > 0)
    }

    /// The number of leading blocks of a prompt that are there.
    pub(crate) fn leading_hits(&self, prefix: Prefix<'_>) -> u32 {
        count(self.hits(prefix).count())
    }

    /// The number of blocks that a request with this prompt could get, hits included.
    pub(crate) fn available_for(&self, prefix: Prefix<'_>) -> u32 {
        self.available() + count(self.held_hits(prefix).count())
    }

    /// The number of blocks that a request with this prompt could get once these leases are
    /// closed, hits included.
    pub fn available_after(&self, leaving: &BTreeSet<RequestId>, prefix: Prefix<'_>) -> u32 {
        let listed = self.listed_by(leaving);
        let stays =
            |block: &BlockId| self.holders(*block) > listed.get(block).copied().unwrap_or(0);
        let shared = count(self.held_hits(prefix).filter(stays).count());
        self.available() + self.freed_of(&listed) + shared
    }

    /// The number of a prompt's leading blocks that are held whoever of `victims` leaves, or that no
    /// victim counts as its own.
    pub fn shared_whatever_leaves(
        &self,
        prefix: Prefix<'_>,
        victims: impl Iterator<Item = RequestId>,
    ) -> u32 {
        let mut shared: BTreeSet<BlockId> = self.held_hits(prefix).collect();
        if !shared.is_empty() {
            for block in victims.flat_map(|victim| self.lease(victim)) {
                if self.holders(*block) == 1 {
                    shared.remove(block);
                }
            }
        }
        count(shared.len())
    }

    /// Opens a lease for a sequence on `executor`, which begins with the blocks that already hold
    /// the prompt's leading tokens. [`Self::grow`] adds the others.
    ///
    /// # Panics
    /// If the request has a lease: every lease has one opening.
    pub(crate) fn open(&mut self, request: RequestId, executor: ExecutorId, prefix: Prefix<'_>) {
        assert!(
            !self.leases.contains_key(&request),
            "a request has one lease at a time"
        );
        let hits: Vec<BlockId> = self.hits(prefix).collect();
        for block in &hits {
            self.hold(*block, executor);
        }
        let cached = count(hits.len());
        let lease = Lease {
            executor,
            cached,
            published: cached,
            blocks: hits,
        };
        self.leases.insert(request, lease);
    }

    /// Adds empty blocks to a lease until it has `n`, as far as there are any. Returns the new
    /// blocks.
    #[inline]
    pub fn grow(&mut self, request: RequestId, n: u32) -> Vec<BlockId> {
        let Some(lease) = self.leases.get(&request) else {
            return Vec::new();
        };
        let executor = lease.executor;
        let want = (n as usize).saturating_sub(lease.blocks.len());
        let got: Vec<BlockId> = (0..want).map_while(|_| self.take_empty(executor)).collect();
        if let Some(lease) = self.leases.get_mut(&request) {
            lease.blocks.extend_from_slice(&got);
        }
        got
    }

    /// Closes a lease, whose prompt this is, and gives its blocks back: published ones as cache, the others as free. Of
    /// contents that another block held first, and no longer does, its own block is the published one now.
    #[inline]
    pub fn close(&mut self, request: RequestId, prefix: Prefix<'_>) {
        if let Some(lease) = self.leases.get(&request) {
            let blocks = lease.cached..lease.published;
            self.publish_blocks(request, prefix, blocks);
        }
        let Some(lease) = self.leases.remove(&request) else {
            return;
        };
        // The tail is released first, so that a prefix outlives what follows it.
        for block in lease.blocks.into_iter().rev() {
            self.release(block, lease.executor);
        }
    }

    /// Makes the first `full` blocks of a lease, which hold the leading blocks of this prompt by now,
    /// available to others. Where another block already holds the same contents, nothing changes. Each block
    /// is looked at once, and again at the end: a prompt that is prefilled in many steps is not gone through in each of them.
    #[inline]
    pub fn publish(&mut self, request: RequestId, prefix: Prefix<'_>, full: u32) {
        let Some(lease) = self.leases.get_mut(&request) else {
            return;
        };
        let first = lease.published;
        lease.published = first.max(full);
        self.publish_blocks(request, prefix, first..full);
    }

    fn publish_blocks(&mut self, request: RequestId, prefix: Prefix<'_>, blocks: Range<u32>) {
        let keys = prefix.after(blocks.start).keys();
        for (idx, key) in blocks.zip(keys) {
            self.publish_block(request, idx as usize, key);
        }
    }

    fn publish_block(&mut self, request: RequestId, idx: usize, key: PrefixKey) {
        let Some(block) = self.lease(request).get(idx).copied() else {
            return;
        };
        if self.block(block).key.is_none() && self.index.get(&key).is_none() {
            self.block_mut(block).key = Some(key);
            self.index.insert(key, block);
        }
    }

    /// The number of blocks of a lease that nobody else holds.
    #[inline]
    pub fn exclusive(&self, request: RequestId) -> u32 {
        let lease = self.lease(request).iter();
        count(lease.filter(|block| self.holders(**block) == 1).count())
    }

    /// The number of blocks that would become available if all these leases were closed: the
    /// blocks nobody else holds.
    pub fn freed_by(&self, leaving: &BTreeSet<RequestId>) -> u32 {
        self.freed_of(&self.listed_by(leaving))
    }

    fn freed_of(&self, listed: &BTreeMap<BlockId, u32>) -> u32 {
        let all_leave = |(block, n): &(&BlockId, &u32)| self.holders(**block) == **n;
        count(listed.iter().filter(all_leave).count())
    }

    /// The blocks that these leases list, with how many of them list each.
    fn listed_by(&self, leases: &BTreeSet<RequestId>) -> BTreeMap<BlockId, u32> {
        let mut listed: BTreeMap<BlockId, u32> = BTreeMap::new();
        for block in leases.iter().flat_map(|request| self.lease(*request)) {
            *listed.entry(*block).or_default() += 1;
        }
        listed
    }

    /// Forgets every published prefix: the contents are gone though the blocks are not.
    pub(crate) fn forget_contents(&mut self) {
        self.index = Table::default();
        for block in &mut self.blocks {
            block.key = None;
        }
        for lease in self.leases.values_mut() {
            lease.cached = lease.published;
        }
        while let Some((_, block)) = self.cached.pop_first() {
            self.evicted_total += 1;
            self.free.push(block);
        }
    }

    fn take_empty(&mut self, executor: ExecutorId) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => self.evict_cached()?,
        };
        self.add_holder(block, executor);
        Some(block)
    }

    /// Drops the contents of the least recently released cached block.
    fn evict_cached(&mut self) -> Option<BlockId> {
        let (_, block) = self.cached.pop_first()?;
        if let Some(key) = self.block_mut(block).key.take() {
            self.index.remove(&key);
        }
        self.evicted_total += 1;
        Some(block)
    }

    fn hold(&mut self, id: BlockId, executor: ExecutorId) {
        let block = self.block(id);
        if block.holders.count() == 0 {
            let cached = (block.cached_at, id);
            self.cached.remove(&cached);
        }
        self.add_holder(id, executor);
    }

    fn add_holder(&mut self, id: BlockId, executor: ExecutorId) {
        if self.block_mut(id).holders.add(executor) == Use::Changed {
            *self.used.entry(executor).or_default() += 1;
        }
    }

    fn release(&mut self, id: BlockId, executor: ExecutorId) {
        if self.block_mut(id).holders.remove(executor) == Use::Changed {
            self.unuse(executor);
        }
        let block = &mut self.blocks[id.0 as usize];
        if block.holders.count() > 0 {
            return;
        }
        if block.key.is_some() {
            self.clock += 1;
            block.cached_at = self.clock;
            self.cached.insert((self.clock, id));
        } else {
            self.free.push(id);
        }
    }

    /// Counts a block less for an executor.
    fn unuse(&mut self, executor: ExecutorId) {
        let used = self.used.entry(executor).or_default();
        *used -= 1;
        if *used == 0 {
            self.used.remove(&executor);
        }
    }

    fn holders(&self, id: BlockId) -> u32 {
        self.block(id).holders.count()
    }

    fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }

    fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.0 as usize]
    }

    /// Requests with a lease, and the executor of each.
    pub fn leases(&self) -> impl Iterator<Item = (RequestId, ExecutorId)> + '_ {
        let leases = self.leases.iter();
        leases.map(|(request, lease)| (*request, lease.executor))
    }

    /// Checks that every block that is named is there.
    ///
    /// # Errors
    /// The sentence that names one which is not.
    #[cfg(feature = "serde")]
    pub fn check_ids(&self) -> Result<(), String> {
        let leased = self.leases.values().flat_map(|lease| &lease.blocks);
        let cached = self.cached.iter().map(|(_, block)| block);
        let mut named = leased
            .chain(cached)
            .chain(self.index.values())
            .chain(&self.free);
        match named.find(|block| block.0 as usize >= self.blocks.len()) {
            Some(block) => Err(format!("block {block} is not there")),
            None => Ok(()),
        }
    }

    /// Checks the ledger against itself.
    ///
    /// # Errors
    /// The sentence that says what contradicts what.
    pub fn check(&self) -> Result<(), String> {
        let mut holders = vec![0u32; self.blocks.len()];
        for block in self.leases.values().flat_map(|lease| &lease.blocks) {
            holders[block.0 as usize] += 1;
        }
        let held = holders.iter().filter(|n| **n > 0).count();
        let sum = self.free.len() + self.cached.len() + held;
        if sum != self.blocks.len() {
            return Err(format!(
                "{} free + {} cached + {held} held is not the total of {} blocks",
                self.free.len(),
                self.cached.len(),
                self.blocks.len()
            ));
        }
        for (idx, (block, listed)) in self.blocks.iter().zip(holders).enumerate() {
            let counted = block.holders.count();
            if counted != listed {
                return Err(format!(
                    "block {idx} counts {counted} holders and is listed by {listed}"
                ));
            }
        }
        let published = self.blocks.iter().filter(|block| block.key.is_some());
        if published.count() != self.index.len() {
            return Err("the prefix index does not name exactly the published blocks".into());
        }
        self.check_used()
    }

    fn check_used(&self) -> Result<(), String> {
        let mut listed: BTreeMap<ExecutorId, BTreeSet<BlockId>> = BTreeMap::new();
        for lease in self.leases.values() {
            listed
                .entry(lease.executor)
                .or_default()
                .extend(&lease.blocks);
        }
        let distinct = listed.into_iter().filter(|(_, blocks)| !blocks.is_empty());
        let distinct: BTreeMap<_, _> = distinct.map(|(id, b)| (id, count(b.len()))).collect();
        if distinct != self.used {
            return Err(format!(
                "executors count {:?} blocks and their sequences hold {distinct:?}",
                self.used
            ));
        }
        Ok(())
    }
}

/// The number of blocks of `tokens_per_block` tokens that hold `tokens` tokens.
#[inline]
pub fn blocks_for(tokens: u64, tokens_per_block: u32) -> u32 {
    u32::try_from(tokens.div_ceil(u64::from(tokens_per_block.max(1)))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
