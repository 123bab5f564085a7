//! The KV of requests in host memory: taken when they leave by swap, and given back.

use pointsman_events::{BlockCopy, DeviceId, ExecutorId, HostBlockId, RequestId};

use super::super::outbox::Outbox;
use super::Ledger;

// === impl Ledger: reading ===

impl Ledger {
    /// Leading tokens of a request whose KV an executor has in host memory; 0 where it has none.
    pub(crate) fn swapped_tokens(&self, request: RequestId, executor: ExecutorId) -> u32 {
        self.swapped.tokens(request, executor)
    }

    /// True if a request has blocks in an arena.
    pub(crate) fn has_swapped(&self, request: RequestId) -> bool {
        self.swapped.has(request)
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
        let memory = &self.device_of(executor).memory;
        self.swapped.copies_back((request, executor), memory)
    }

    /// Requests with blocks in an arena, the executor that can go on with each, and its tokens there.
    pub(crate) fn swapped(&self) -> impl Iterator<Item = (RequestId, ExecutorId, u32)> + '_ {
        self.swapped.iter()
    }

    /// Checks that each block of each arena is free or one request's.
    pub(crate) fn check_arenas(&self) -> Result<(), String> {
        let mut devices = self.devices.iter();
        devices.try_for_each(|device| self.swapped.check(device.id, &device.memory))
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
        let id = self[executor].spec.device;
        let memory = &mut self.devices[id.0 as usize].memory;
        let blocks = self.swapped.swap_out((request, executor), (id, memory));
        self.touch_blocks(id, out);
        blocks
    }

    /// Notes that a sequence has left with the KV of `tokens` leading tokens in host memory; with 0, with
    /// what was there before. Blocks that hold none come free.
    pub(crate) fn swapped_out(&mut self, request: RequestId, tokens: u32, out: &mut Outbox) {
        let Some((device, executor)) = self.swapped.place(request) else {
            return;
        };
        let per_block = self[executor].spec.tokens_per_block.unwrap_or(1);
        let memory = &mut self.devices[device.0 as usize].memory;
        self.swapped.left(request, (tokens, per_block), memory);
        self.touch_blocks(device, out);
    }

    /// Forgets the swapped KV of a request that is to be dropped as soon as no engine can be reading it:
    /// when its sequence has left.
    pub(crate) fn forget_swapped(&mut self, request: RequestId) {
        self.swapped.forget(request);
    }

    /// Gives the host memory of a request back, if it has any.
    pub(crate) fn drop_swapped(&mut self, request: RequestId, out: &mut Outbox) {
        if let Some((DeviceId(idx), _)) = self.swapped.place(request) {
            let memory = &mut self.devices[idx as usize].memory;
            self.swapped.give_back(request, memory);
            self.touch_blocks(DeviceId(idx), out);
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
        let place = self.swapped.place(request);
        if place.is_some_and(|(_, on)| on != executor) {
            self.drop_swapped(request, out);
        }
    }

    /// Gives all host memory of an executor back: its memory is lost, or it is gone.
    pub(super) fn drop_all_swapped(&mut self, executor: ExecutorId, out: &mut Outbox) {
        for request in self.swapped.on_executor(executor).collect::<Vec<_>>() {
            self.drop_swapped(request, out);
        }
    }
}
