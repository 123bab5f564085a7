//! Host memory of devices, to which what evicted sequences hold is moved: the host arenas.
//!
//! A request that leaves by swap keeps its *swapped* tokens: the KV of its leading tokens, in blocks of
//! its device's arena, from which the same executor can copy it back. They are the request's own from
//! the eviction until its sequence runs again, begins anew elsewhere, or has ended.
//!
//! # Invariants
//! [`SwappedOut::check`]: each block of an arena is free, or one live request's. The blocks of a
//! request are given to nobody else while an engine may write them or read them: from the eviction
//! until the sequence has left, and from a start until the engine has taken the sequence up.
//!
//! # Bounds
//! An arena has the blocks that its device was attached with. What finds no room there is not swapped.

use std::collections::BTreeMap;

use pointsman_events::{BlockCopy, BlockId, DeviceId, ExecutorId, HostBlockId, RequestId};

use crate::count;
use crate::device::DeviceKv;
use crate::pool::blocks_for;

/// The blocks of one device's host memory.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HostArena {
    total: u32,
    free: Vec<HostBlockId>,
}

/// The KV that requests have in host memory, whatever the device.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SwappedOut(BTreeMap<RequestId, Swapped>);

/// The part of a request's KV that is in an arena.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Swapped {
    device: DeviceId,
    /// The only executor that can go on with it.
    executor: ExecutorId,
    /// The blocks, in the order of the tokens.
    blocks: Vec<HostBlockId>,
    /// Leading tokens whose KV is there; 0 until the sequence has left.
    tokens: u32,
}

// === impl HostArena ===

impl HostArena {
    pub(crate) fn new(total: u32) -> Self {
        Self {
            total,
            // Popped from the end, so the first block is handed out first.
            free: (0..total).rev().map(HostBlockId).collect(),
        }
    }

    /// The number of all blocks.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total
    }

    /// The number of blocks that are nobody's.
    #[must_use]
    pub fn free(&self) -> u32 {
        count(self.free.len())
    }
}

// === impl SwappedOut: reading ===

impl SwappedOut {
    /// Leading tokens of a request whose KV an executor has in host memory; 0 where it has none.
    #[must_use]
    pub fn tokens(&self, request: RequestId, executor: ExecutorId) -> u32 {
        self.on(request, executor)
            .map_or(0, |swapped| swapped.tokens)
    }

    /// Tells whether a request has blocks in an arena.
    #[must_use]
    pub fn has(&self, request: RequestId) -> bool {
        self.0.contains_key(&request)
    }

    /// The device in whose arena a request has blocks, and the executor that can go on with it.
    #[must_use]
    pub fn place(&self, request: RequestId) -> Option<(DeviceId, ExecutorId)> {
        let swapped = self.0.get(&request)?;
        Some((swapped.device, swapped.executor))
    }

    /// The requests with which only this executor can go on.
    pub fn on_executor(&self, executor: ExecutorId) -> impl Iterator<Item = RequestId> + '_ {
        let swapped = self.0.iter();
        let of_it = swapped.filter(move |(_, swapped)| swapped.executor == executor);
        of_it.map(|(request, _)| *request)
    }

    /// Requests with blocks in an arena, the executor that can go on with each, and its tokens there.
    pub fn iter(&self) -> impl Iterator<Item = (RequestId, ExecutorId, u32)> + '_ {
        let swapped = self.0.iter();
        swapped.map(|(request, swapped)| (*request, swapped.executor, swapped.tokens))
    }

    /// The copies by which a sequence that is to start on an executor of the device gets its swapped KV
    /// back: none where its blocks hold as much already.
    #[must_use]
    pub fn copies_back(
        &self,
        (request, executor): (RequestId, ExecutorId),
        device: &DeviceKv,
    ) -> Vec<BlockCopy> {
        let (Some(swapped), Some(pool)) = (self.on(request, executor), device.pool()) else {
            return Vec::new();
        };
        let copy = |(host, block): (&HostBlockId, &BlockId)| BlockCopy {
            host: *host,
            block: *block,
        };
        let copies = swapped.blocks.iter().zip(pool.lease(request)).map(copy);
        copies.skip(pool.cached_of(request) as usize).collect()
    }

    fn on(&self, request: RequestId, executor: ExecutorId) -> Option<&Swapped> {
        let swapped = self.0.get(&request);
        swapped.filter(|swapped| swapped.executor == executor)
    }
}

// === impl SwappedOut: writing ===

impl SwappedOut {
    /// Takes host memory of a device for all that a request holds there, which has none, and returns the
    /// blocks, in the order of its block table.
    pub fn swap_out(
        &mut self,
        (request, executor): (RequestId, ExecutorId),
        (id, device): (DeviceId, &mut DeviceKv),
    ) -> Vec<HostBlockId> {
        let held = device.held(request) as usize;
        let free = &mut device.arena.free;
        let blocks: Vec<HostBlockId> = (0..held).map_while(|_| free.pop()).collect();
        debug_assert_eq!(blocks.len(), held, "the interlock has found room");
        let swapped = Swapped {
            device: id,
            executor,
            blocks: blocks.clone(),
            tokens: 0,
        };
        self.0.insert(request, swapped);
        blocks
    }

    /// Notes that a sequence has left with the KV of `tokens` leading tokens in host memory; with 0, with
    /// what was there before. Blocks of its device that hold none come free.
    pub fn left(
        &mut self,
        request: RequestId,
        (tokens, tokens_per_block): (u32, u32),
        device: &mut DeviceKv,
    ) {
        let Some(swapped) = self.0.get_mut(&request) else {
            return;
        };
        if tokens > 0 {
            swapped.tokens = tokens;
        }
        let kept = blocks_for(u64::from(swapped.tokens), tokens_per_block) as usize;
        let empty = swapped.blocks.split_off(kept.min(swapped.blocks.len()));
        device.arena.free.extend(empty);
        if kept == 0 {
            self.0.remove(&request);
        }
    }

    /// Forgets the swapped KV of a request that is to be dropped as soon as no engine can be reading it:
    /// when its sequence has left.
    pub fn forget(&mut self, request: RequestId) {
        if let Some(swapped) = self.0.get_mut(&request) {
            swapped.tokens = 0;
        }
    }

    /// Gives the host memory of a request back, which is its device's.
    pub fn give_back(&mut self, request: RequestId, device: &mut DeviceKv) {
        if let Some(swapped) = self.0.remove(&request) {
            device.arena.free.extend(swapped.blocks);
        }
    }
}

// === impl SwappedOut: checking ===

impl SwappedOut {
    /// Checks that each block of a device's arena is free or one request's.
    ///
    /// # Errors
    /// The sentence that says which device's are not.
    pub fn check(&self, id: DeviceId, device: &DeviceKv) -> Result<(), String> {
        let taken = self.0.values().filter(|swapped| swapped.device == id);
        let taken = taken.flat_map(|swapped| &swapped.blocks);
        let mut blocks: Vec<HostBlockId> = taken.chain(&device.arena.free).copied().collect();
        blocks.sort_unstable();
        if !blocks
            .into_iter()
            .eq((0..device.arena.total).map(HostBlockId))
        {
            return Err(format!(
                "the blocks of the arena of device {id} are not each somebody's or free"
            ));
        }
        Ok(())
    }

    /// Checks that every request here has host memory of one of so many devices.
    ///
    /// # Errors
    /// The sentence that says that one has not.
    #[cfg(feature = "serde")]
    pub fn check_ids(&self, devices: usize) -> Result<(), String> {
        if self.0.values().any(|it| it.device.0 as usize >= devices) {
            return Err("a request has host memory of a device that is not there".to_owned());
        }
        Ok(())
    }
}
