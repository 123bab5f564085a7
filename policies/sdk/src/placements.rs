//! Placements that the answer being made has counted so far.
//!
//! The host applies the answers of a batch in order, so a policy has to count its own earlier
//! placements. The next `observe` says which of them the host took. The SDK clears the counts
//! there, so a refused placement leaves nothing behind.

use crate::case::blocks_for;
use crate::executor::Executor;
use crate::fleet::Seat;
use crate::held::Held;
use crate::mirror::Mirror;
use crate::wire::types::{Request, RequestClass};

/// Placements since the last `observe`, over the [`Mirror`] they were made against.
#[derive(Clone, Debug, Default)]
pub struct BatchPlacements {
    // By position; grown on demand, and reset through the lists of what was touched, so that
    // clearing costs as much as was placed.
    executors: Vec<Placed>,
    devices: Vec<u64>,
    models: Vec<u32>,
    positions_touched: Vec<usize>,
    devices_touched: Vec<usize>,
    models_touched: Vec<usize>,
    /// Executors in the order they were placed on, some more than once.
    ids: Vec<u32>,
    /// Length of the part of `ids` that the policy's index has been updated for.
    indexed: usize,
    /// Executors that have room for the request which is being placed only together with what is held of its prompt.
    held: Vec<Held>,
}

/// Placements on one executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementCounts {
    /// Requests placed in a slot.
    pub slots: u32,
    /// Latency-critical requests placed in the queue.
    pub queued_critical: u32,
    /// Throughput requests placed in the queue.
    pub queued_throughput: u32,
    /// KV blocks that the placements take.
    pub blocks: u64,
    /// Tokens of their prompts to be prefilled, as [`Router`](crate::Router) has them.
    pub prefill_tokens: u64,
}

#[derive(Clone, Debug, Default)]
struct Placed {
    counts: PlacementCounts,
    /// Models that did not run on the executor before.
    started: Vec<u32>,
}

/// The placements of an answer that has none.
pub(crate) static NOTHING_PLACED: BatchPlacements = BatchPlacements {
    executors: Vec::new(),
    devices: Vec::new(),
    models: Vec::new(),
    positions_touched: Vec::new(),
    devices_touched: Vec::new(),
    models_touched: Vec::new(),
    ids: Vec::new(),
    indexed: 0,
    held: Vec::new(),
};

// === impl BatchPlacements ===

impl BatchPlacements {
    /// Placements on an executor.
    #[must_use]
    #[inline]
    pub fn counts(&self, executor: &Executor<'_>) -> PlacementCounts {
        self.executors
            .get(executor.position)
            .map_or_else(PlacementCounts::default, |placed| placed.counts)
    }

    /// Models that the placements start on an executor.
    #[must_use]
    #[inline]
    pub fn started(&self, executor: &Executor<'_>) -> &[u32] {
        self.executors
            .get(executor.position)
            .map_or(&[], |placed| &placed.started)
    }

    /// Blocks of a device that the placements take.
    #[must_use]
    #[inline]
    pub fn blocks(&self, mirror: &Mirror, device: u32) -> u64 {
        if self.devices_touched.is_empty() {
            return 0;
        }
        let taken = mirror
            .device_position(device)
            .and_then(|at| self.devices.get(at));
        taken.copied().unwrap_or(0)
    }

    /// Placements of a model.
    #[must_use]
    #[inline]
    pub fn running(&self, mirror: &Mirror, model: u32) -> u32 {
        let placed = mirror
            .model_position(model)
            .and_then(|at| self.models.get(at));
        placed.copied().unwrap_or(0)
    }

    /// Counts a placement.
    pub fn place(
        &mut self,
        mirror: &Mirror,
        request: &Request,
        executor: &Executor<'_>,
        seat: Seat,
    ) {
        self.place_sharing((mirror, request), executor, seat, 0);
    }

    /// Counts a placement that found its blocks only since the executor's device has so many tokens of its prompt.
    pub(crate) fn place_sharing(
        &mut self,
        (mirror, request): (&Mirror, &Request),
        executor: &Executor<'_>,
        seat: Seat,
        cached_tokens: u64,
    ) {
        self.ids.push(executor.id());
        self.positions_touched.push(executor.position);
        let placed = grown(&mut self.executors, executor.position);
        let counts = &mut placed.counts;
        match (seat, request.class) {
            (Seat::Slot, _) => counts.slots += 1,
            (Seat::Queue, RequestClass::LatencyCritical) => counts.queued_critical += 1,
            (Seat::Queue, RequestClass::Throughput) => counts.queued_throughput += 1,
        }
        if let Some(model) = request.model {
            if !executor.runs(model) && !placed.started.contains(&model) {
                placed.started.push(model);
            }
            if let Some(at) = mirror.model_position(model) {
                *grown(&mut self.models, at) += 1;
                self.models_touched.push(at);
            }
        }
        if let Some(blocks) = blocks_for(mirror, request, executor, cached_tokens) {
            counts.blocks += blocks;
            if let Some(at) = mirror.device_position(executor.info.device) {
                *grown(&mut self.devices, at) += blocks;
                self.devices_touched.push(at);
            }
        }
    }

    /// Counts tokens that a placement leaves to be prefilled.
    pub(crate) fn add_prefill(&mut self, executor: &Executor<'_>, tokens: u64) {
        let counts = &mut grown(&mut self.executors, executor.position).counts;
        counts.prefill_tokens = counts.prefill_tokens.saturating_add(tokens);
    }

    /// Executors placed on.
    pub(crate) fn executors(&self) -> &[u32] {
        &self.ids
    }

    /// Executors placed on since the last [`Self::set_indexed`].
    pub(crate) fn executors_not_indexed(&self) -> &[u32] {
        &self.ids[self.indexed..]
    }

    pub(crate) fn set_indexed(&mut self) {
        self.indexed = self.ids.len();
    }

    /// Executors that have room for the request which is being placed only together with what is held of its prompt.
    pub(crate) fn held(&self) -> &[Held] {
        &self.held
    }

    /// Takes these executors over. Returns those of the request before.
    pub(crate) fn set_held(&mut self, held: Vec<Held>) -> Vec<Held> {
        std::mem::replace(&mut self.held, held)
    }

    /// Blocks of that prompt that are held on an executor.
    #[inline]
    pub(crate) fn held_on(&self, executor: u32) -> u64 {
        let mut held = self.held.iter();
        let here = held.find(|held| held.executor == executor);
        here.map_or(0, |held| held.blocks)
    }

    /// Forgets all placements.
    pub fn clear(&mut self) {
        for at in self.positions_touched.drain(..) {
            self.executors[at].counts = PlacementCounts::default();
            self.executors[at].started.clear();
        }
        for at in self.devices_touched.drain(..) {
            self.devices[at] = 0;
        }
        for at in self.models_touched.drain(..) {
            self.models[at] = 0;
        }
        self.ids.clear();
        self.indexed = 0;
    }
}

fn grown<T: Clone + Default>(list: &mut Vec<T>, at: usize) -> &mut T {
    if list.len() <= at {
        list.resize(at + 1, T::default());
    }
    &mut list[at]
}

// === impl PlacementCounts ===

impl PlacementCounts {
    /// Requests placed, in a slot or in the queue.
    #[must_use]
    #[inline]
    pub fn requests(&self) -> u64 {
        u64::from(self.slots) + u64::from(self.queued_critical) + u64::from(self.queued_throughput)
    }
}
