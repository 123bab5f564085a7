//! Host memory of devices, to which what evicted sequences hold is moved: the host arenas.
//!
//! A request that leaves by swap keeps its *swapped* tokens: the KV of its leading tokens, in blocks of
//! its device's arena, from which the same executor can copy it back. They are the request's own from
//! the eviction until its sequence runs again, begins anew elsewhere, or has ended.
//!
//! # Invariants
//! [`Ledger::check_arenas`]: each block of an arena is free, or one live request's. The blocks of a
//! request are given to nobody else while an engine may write them or read them: from the eviction
//! until the sequence has left, and from a start until the engine has taken the sequence up.
//!
//! # Bounds
//! An arena has the blocks that its device was attached with. What finds no room there is not swapped.

use pointsman_events::{BlockCopy, BlockId, DeviceId, ExecutorId, HostBlockId, RequestId};

use super::super::count;
use super::super::outbox::Outbox;
use super::Ledger;
use super::pool::blocks_for;

/// The blocks of one device's host memory.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Arena {
    total: u32,
    free: Vec<HostBlockId>,
}

/// The part of a request's KV that is in an arena.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Swapped {
    device: DeviceId,
    /// The only executor that can go on with it.
    executor: ExecutorId,
    /// The blocks, in the order of the tokens.
    blocks: Vec<HostBlockId>,
    /// Leading tokens whose KV is there; 0 until the sequence has left.
    tokens: u32,
}

// === impl Arena ===

impl Arena {
    pub(super) fn new(total: u32) -> Self {
        Self {
            total,
            // Popped from the end, so the first block is handed out first.
            free: (0..total).rev().map(HostBlockId).collect(),
        }
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// The number of blocks that are nobody's.
    pub(crate) fn free(&self) -> u32 {
        count(self.free.len())
    }
}

impl Swapped {
    #[cfg(feature = "serde")]
    pub(super) fn device(&self) -> DeviceId {
        self.device
    }
}

// === impl Ledger: reading ===

impl Ledger {
    /// Leading tokens of a request whose KV an executor has in host memory; 0 where it has none.
    pub(crate) fn swapped_tokens(&self, request: RequestId, executor: ExecutorId) -> u32 {
        let swapped = self.swapped.get(&request);
        let here = swapped.filter(|swapped| swapped.executor == executor);
        here.map_or(0, |swapped| swapped.tokens)
    }

    /// True if a request has blocks in an arena.
    pub(crate) fn has_swapped(&self, request: RequestId) -> bool {
        self.swapped.contains_key(&request)
    }

    /// The number of blocks of host memory that a placed request takes if it leaves by swap. What an
    /// engine has not copied back yet is there already.
    pub(crate) fn host_blocks_for(&self, request: RequestId, executor: ExecutorId) -> u32 {
        if self.has_swapped(request) {
            return 0;
        }
        self.device_of(executor).held(request)
    }

    /// The copies by which a sequence that is to start gets its swapped KV back: none where its blocks
    /// hold as much already.
    pub(crate) fn copies_back(&self, request: RequestId, executor: ExecutorId) -> Vec<BlockCopy> {
        let swapped = self.swapped.get(&request);
        let Some(swapped) = swapped.filter(|swapped| swapped.executor == executor) else {
            return Vec::new();
        };
        let pool = self.device_of(executor).pool();
        let cached = pool.map_or(0, |pool| pool.cached_of(request)) as usize;
        let table = self.block_table(request, executor);
        let copy = |(host, block): (&HostBlockId, &BlockId)| BlockCopy {
            host: *host,
            block: *block,
        };
        let copies = swapped.blocks.iter().zip(table).map(copy);
        copies.skip(cached).collect()
    }
}

// === impl Ledger: writing ===

impl Ledger {
    /// Takes host memory for all that a placed request holds on an executor, and returns the blocks, in
    /// the order of its block table. None where it has its KV there still.
    pub(crate) fn swap_out(
        &mut self,
        request: RequestId,
        executor: ExecutorId,
        out: &mut Outbox,
    ) -> Vec<HostBlockId> {
        if self.has_swapped(request) {
            return Vec::new();
        }
        let device = self[executor].spec.device;
        let held = self[device].held(request) as usize;
        let free = &mut self.device_mut(device).arena.free;
        let blocks: Vec<HostBlockId> = (0..held).map_while(|_| free.pop()).collect();
        debug_assert_eq!(blocks.len(), held, "the interlock has found room");
        let swapped = Swapped {
            device,
            executor,
            blocks: blocks.clone(),
            tokens: 0,
        };
        self.swapped.insert(request, swapped);
        self.touch_blocks(device, out);
        blocks
    }

    /// Notes that a sequence has left with the KV of `tokens` leading tokens in host memory; with 0, with
    /// what was there before. Blocks that hold none come free.
    pub(crate) fn swapped_out(&mut self, request: RequestId, tokens: u32, out: &mut Outbox) {
        let Some(mut swapped) = self.swapped.remove(&request) else {
            return;
        };
        if tokens > 0 {
            swapped.tokens = tokens;
        }
        let device = swapped.device;
        let per_block = self[swapped.executor].spec.tokens_per_block.unwrap_or(1);
        let kept = blocks_for(u64::from(swapped.tokens), per_block) as usize;
        let empty = swapped.blocks.split_off(kept.min(swapped.blocks.len()));
        self.device_mut(device).arena.free.extend(empty);
        self.touch_blocks(device, out);
        if kept > 0 {
            self.swapped.insert(request, swapped);
        }
    }

    /// Forgets the swapped KV of a request that is to be dropped as soon as no engine can be reading it:
    /// when its sequence has left.
    pub(crate) fn forget_swapped(&mut self, request: RequestId) {
        if let Some(swapped) = self.swapped.get_mut(&request) {
            swapped.tokens = 0;
        }
    }

    /// Gives the host memory of a request back, if it has any.
    pub(crate) fn drop_swapped(&mut self, request: RequestId, out: &mut Outbox) {
        if let Some(swapped) = self.swapped.remove(&request) {
            let arena = &mut self.device_mut(swapped.device).arena;
            arena.free.extend(swapped.blocks);
            self.touch_blocks(swapped.device, out);
        }
    }

    /// Gives the host memory of a request back that is placed on another executor than the one which
    /// could go on with it.
    pub(crate) fn drop_swapped_elsewhere(
        &mut self,
        request: RequestId,
        executor: ExecutorId,
        out: &mut Outbox,
    ) {
        let swapped = self.swapped.get(&request);
        if swapped.is_some_and(|swapped| swapped.executor != executor) {
            self.drop_swapped(request, out);
        }
    }

    /// Gives all host memory of an executor back: its memory is lost, or it is gone.
    pub(super) fn drop_all_swapped(&mut self, executor: ExecutorId, out: &mut Outbox) {
        let of_it = self.swapped.iter().filter(|(_, s)| s.executor == executor);
        for request in of_it.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.drop_swapped(request, out);
        }
    }
}

// === impl Ledger: checking ===

impl Ledger {
    /// Requests with blocks in an arena, the executor that can go on with each, and its tokens there.
    pub(crate) fn swapped(&self) -> impl Iterator<Item = (RequestId, ExecutorId, u32)> + '_ {
        let swapped = self.swapped.iter();
        swapped.map(|(request, swapped)| (*request, swapped.executor, swapped.tokens))
    }

    /// Checks that each block of each arena is free or one request's.
    pub(crate) fn check_arenas(&self) -> Result<(), String> {
        for device in &self.devices {
            let of_device = |swapped: &&Swapped| swapped.device == device.id;
            let taken = self.swapped.values().filter(of_device);
            let taken = taken.flat_map(|swapped| &swapped.blocks);
            let mut blocks: Vec<HostBlockId> = taken.chain(&device.arena.free).copied().collect();
            blocks.sort_unstable();
            if !blocks
                .into_iter()
                .eq((0..device.arena.total).map(HostBlockId))
            {
                return Err(format!(
                    "the blocks of the arena of device {} are not each somebody's or free",
                    device.id
                ));
            }
        }
        Ok(())
    }
}
