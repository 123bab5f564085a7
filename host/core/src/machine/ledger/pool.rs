//! The KV blocks of one device, and their holders.
//!
//! A [`BlockPool`] is a ledger: a *lease* is one request's blocks, opened by
//! [`BlockPool::reserve`], grown, and closed by exactly one [`BlockPool::close`]. Full blocks of
//! prompt tokens can be *published* under the hash of their contents; then later leases share
//! them, and once nobody holds them they stay as cache until the room is needed.
//!
//! # Invariants
//! [`BlockPool::check`]: every block is free, cached or held; a block's holders are exactly the
//! leases that list it; the index names exactly the published blocks.
//!
//! # Bounds
//! Everything is bounded by the number of blocks, fixed when the pool is made.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_interface::{BlockHash, BlockId, RequestId};

use super::super::count;

/// One request's blocks, in the order of its tokens.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Lease {
    blocks: Vec<BlockId>,
}

/// The state of one block.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Block {
    /// Leases that list it.
    holders: u32,
    /// The hash of its contents, once published.
    hash: Option<BlockHash>,
    /// The time at which it became cached, in releases.
    cached_at: u64,
}

/// The block ledger of one device.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct BlockPool {
    block_bytes: u64,
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    /// Published blocks nobody holds, least recently released first.
    cached: BTreeSet<(u64, BlockId)>,
    index: BTreeMap<BlockHash, BlockId>,
    leases: BTreeMap<RequestId, Lease>,
    /// Counts releases, to order the cached blocks.
    clock: u64,
    evicted_total: u64,
}

impl BlockPool {
    pub(super) fn new(block_bytes: u64, blocks_total: u32) -> Self {
        Self {
            block_bytes,
            blocks: (0..blocks_total).map(|_| Block::default()).collect(),
            // Popped from the end, so the first block is handed out first.
            free: (0..blocks_total).rev().map(BlockId).collect(),
            cached: BTreeSet::new(),
            index: BTreeMap::new(),
            leases: BTreeMap::new(),
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
    pub(crate) fn available(&self) -> u32 {
        self.free() + self.cached()
    }

    pub(crate) fn evicted_total(&self) -> u64 {
        self.evicted_total
    }

    /// The blocks of a request, in the order of its tokens.
    pub(crate) fn lease(&self, request: RequestId) -> &[BlockId] {
        self.leases
            .get(&request)
            .map_or(&[], |lease| lease.blocks.as_slice())
    }

    /// The number of leading `hashes` that some block holds.
    pub(crate) fn leading_hits(&self, hashes: &[BlockHash]) -> u32 {
        count(
            hashes
                .iter()
                .take_while(|hash| self.index.contains_key(hash))
                .count(),
        )
    }

    /// The number of blocks that a request whose prompt has these hashes could get, hits included.
    pub(crate) fn available_for(&self, hashes: &[BlockHash]) -> u32 {
        let held_hits = hashes
            .iter()
            .map_while(|hash| self.index.get(hash))
            .filter(|block| self.block(**block).holders > 0)
            .count();
        self.available() + count(held_hits)
    }

    /// Opens a lease of up to `n` blocks: first the ones that already hold the prompt's leading
    /// blocks, then empty ones. Where fewer are available the lease gets those, and [`Self::grow`]
    /// adds the rest later. Returns how many leading blocks already hold their tokens.
    ///
    /// # Panics
    /// If the request has a lease: every lease has one opening.
    pub(super) fn reserve(&mut self, request: RequestId, hashes: &[BlockHash], n: u32) -> u32 {
        assert!(
            !self.leases.contains_key(&request),
            "a request has one lease at a time"
        );
        let hits: Vec<BlockId> = hashes
            .iter()
            .take(n as usize)
            .map_while(|hash| self.index.get(hash).copied())
            .collect();
        for block in &hits {
            self.hold(*block);
        }
        let blocks_cached = count(hits.len());
        self.leases.insert(request, Lease { blocks: hits });
        self.grow(request, n);
        blocks_cached
    }

    /// Adds empty blocks to a lease until it has `n`, as far as there are any. Returns the new
    /// blocks.
    pub(super) fn grow(&mut self, request: RequestId, n: u32) -> Vec<BlockId> {
        let has = self.lease(request).len();
        let want = (n as usize).saturating_sub(has);
        let got: Vec<BlockId> = (0..want).map_while(|_| self.take_empty()).collect();
        if let Some(lease) = self.leases.get_mut(&request) {
            lease.blocks.extend_from_slice(&got);
        }
        got
    }

    /// Closes a lease and gives its blocks back: published ones as cache, the others as free.
    pub(super) fn close(&mut self, request: RequestId) {
        let Some(lease) = self.leases.remove(&request) else {
            return;
        };
        // The tail is released first, so that a prefix outlives what follows it.
        for block in lease.blocks.into_iter().rev() {
            self.release(block);
        }
    }

    /// Notes that block number `idx` of a lease now holds the contents with this hash. Where
    /// another block already holds them, nothing changes.
    pub(super) fn publish(&mut self, request: RequestId, idx: usize, hash: BlockHash) {
        let Some(block) = self.lease(request).get(idx).copied() else {
            return;
        };
        if self.block(block).hash.is_none() && !self.index.contains_key(&hash) {
            self.block_mut(block).hash = Some(hash);
            self.index.insert(hash, block);
        }
    }

    /// The number of blocks of a lease that nobody else holds.
    pub(crate) fn exclusive(&self, request: RequestId) -> u32 {
        let lease = self.lease(request).iter();
        count(
            lease
                .filter(|block| self.block(**block).holders == 1)
                .count(),
        )
    }

    /// The number of blocks that would become available if all these leases were closed: the
    /// blocks nobody else holds.
    pub(crate) fn freed_by(&self, leaving: &BTreeSet<RequestId>) -> u32 {
        let mut holders: BTreeMap<BlockId, u32> = BTreeMap::new();
        for request in leaving {
            for block in self.lease(*request) {
                *holders.entry(*block).or_default() += 1;
            }
        }
        let all_leave = holders
            .iter()
            .filter(|(block, n)| self.block(**block).holders == **n);
        count(all_leave.count())
    }

    /// Forgets every published prefix: the contents are gone though the blocks are not.
    pub(super) fn forget_contents(&mut self) {
        self.index.clear();
        for block in &mut self.blocks {
            block.hash = None;
        }
        while let Some((_, block)) = self.cached.pop_first() {
            self.evicted_total += 1;
            self.free.push(block);
        }
    }

    fn take_empty(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => self.evict_cached()?,
        };
        self.block_mut(block).holders = 1;
        Some(block)
    }

    /// Drops the contents of the least recently released cached block.
    fn evict_cached(&mut self) -> Option<BlockId> {
        let (_, block) = self.cached.pop_first()?;
        if let Some(hash) = self.block_mut(block).hash.take() {
            self.index.remove(&hash);
        }
        self.evicted_total += 1;
        Some(block)
    }

    fn hold(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        if block.holders == 0 {
            self.cached.remove(&(block.cached_at, id));
        }
        block.holders += 1;
    }

    fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        block.holders -= 1;
        if block.holders > 0 {
            return;
        }
        if block.hash.is_some() {
            self.clock += 1;
            block.cached_at = self.clock;
            self.cached.insert((self.clock, id));
        } else {
            self.free.push(id);
        }
    }

    fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }

    fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.0 as usize]
    }

    /// Requests with a lease.
    pub(crate) fn holders(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.leases.keys().copied()
    }

    /// Checks that every block that is named is there.
    #[cfg(feature = "serde")]
    pub(crate) fn check_ids(&self) -> Result<(), String> {
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
    pub(crate) fn check(&self) -> Result<(), String> {
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
            if block.holders != listed {
                return Err(format!(
                    "block {idx} counts {} holders and is listed by {listed}",
                    block.holders
                ));
            }
        }
        let published = self.blocks.iter().filter(|block| block.hash.is_some());
        if published.count() != self.index.len() {
            return Err("the prefix index does not name exactly the published blocks".into());
        }
        Ok(())
    }
}

/// The number of blocks of `tokens_per_block` tokens that hold `tokens` tokens.
pub(crate) fn blocks_for(tokens: u64, tokens_per_block: u32) -> u32 {
    u32::try_from(tokens.div_ceil(u64::from(tokens_per_block.max(1)))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RequestId = RequestId(1);
    const B: RequestId = RequestId(2);
    const HASHES: [BlockHash; 2] = [BlockHash(10), BlockHash(11)];

    #[test]
    fn a_published_prefix_is_shared_and_outlives_its_maker() {
        let mut pool = BlockPool::new(1, 4);
        assert_eq!(pool.reserve(A, &HASHES, 3), 0);
        pool.publish(A, 0, HASHES[0]);
        pool.publish(A, 1, HASHES[1]);
        assert_eq!(pool.available_for(&HASHES), 3, "one free and two to share");
        assert_eq!(pool.reserve(B, &HASHES, 3), 2);
        assert_eq!(pool.exclusive(A), 1);
        assert_eq!(pool.freed_by(&BTreeSet::from([A, B])), 4);
        pool.close(A);
        pool.check().unwrap();
        pool.close(B);
        pool.check().unwrap();
        assert_eq!((pool.free(), pool.cached()), (2, 2));
        assert_eq!(pool.leading_hits(&HASHES), 2);
    }

    #[test]
    fn cache_is_dropped_from_the_tail_when_the_room_is_needed() {
        let mut pool = BlockPool::new(1, 2);
        pool.reserve(A, &HASHES, 2);
        pool.publish(A, 0, HASHES[0]);
        pool.publish(A, 1, HASHES[1]);
        pool.close(A);
        pool.reserve(B, &[], 1);
        assert_eq!(pool.leading_hits(&HASHES), 1, "the tail went first");
        assert_eq!(pool.evicted_total(), 1);
        pool.check().unwrap();
    }

    #[test]
    fn a_lease_gets_what_there_is_and_grows_later() {
        let mut pool = BlockPool::new(1, 3);
        pool.reserve(A, &[], 2);
        pool.reserve(B, &[], 3);
        assert_eq!(pool.lease(B).len(), 1);
        assert!(pool.grow(B, 3).is_empty());
        pool.close(A);
        assert_eq!(pool.grow(B, 3).len(), 2);
        assert_eq!(pool.available(), 0);
        pool.check().unwrap();
    }

    #[test]
    fn block_counts_round_up() {
        assert_eq!(blocks_for(0, 16), 0);
        assert_eq!(blocks_for(16, 16), 1);
        assert_eq!(blocks_for(17, 16), 2);
    }
}
