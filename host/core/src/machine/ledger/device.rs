//! One device: its KV blocks, its executors, and the first claims on blocks that come free.

use std::collections::BTreeSet;

use pointsman_events::changes::Stamp;
use pointsman_events::rows;
use pointsman_events::{DeviceId, DeviceSpec, ExecutorId, RequestId};
use pointsman_kv::{BlockPool, DeviceKv, HostArena, Prefix};

/// Everything the machine keeps about one device.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Device {
    pub(crate) id: DeviceId,
    pub(crate) spec: DeviceSpec,
    /// The KV blocks of the device, wherever they are.
    pub(super) memory: DeviceKv,
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
        Self {
            id,
            memory: DeviceKv::new(spec.kv),
            spec,
            executors: Vec::new(),
            short: BTreeSet::new(),
            claims: Vec::new(),
            stamp: Stamp::default(),
        }
    }

    /// Tells whether there is somebody to divide the tokens of a step among.
    pub(super) fn is_divided(&self) -> bool {
        self.spec.tokens_per_step.is_some() && !self.executors.is_empty()
    }

    /// The pool, where the machine keeps it.
    pub(crate) fn pool(&self) -> Option<&BlockPool> {
        self.memory.pool()
    }

    /// The requests that count beside the last report, where somebody else keeps the books.
    pub(crate) fn placed_since(&self) -> impl Iterator<Item = RequestId> {
        self.memory.placed_since()
    }

    /// Host memory for what is swapped out.
    pub(crate) fn arena(&self) -> &HostArena {
        self.memory.arena()
    }

    /// The length of a request's block table, in blocks.
    pub(crate) fn held(&self, request: RequestId) -> u32 {
        self.memory.held(request)
    }

    /// Ends a shortage of blocks, and the claim that came of it.
    pub(super) fn settle(&mut self, request: RequestId) {
        self.short.remove(&request);
        self.claims.retain(|claimant| *claimant != request);
    }

    /// The number of blocks that a new placement could have; absent where nobody counts them. While
    /// a running sequence lacks a block, free ones are not for newcomers.
    pub(super) fn available_for(&self, prefix: Prefix<'_>) -> Option<u32> {
        if self.pool().is_some() && !self.short.is_empty() {
            return Some(0);
        }
        self.memory.available_for(prefix)
    }

    /// The counts of its memory; absent where nobody reports any.
    pub(crate) fn row(&self) -> Option<rows::Device> {
        self.memory.row(self.id)
    }
}
