//! What a policy has placed in its answer so far.
//!
//! The answers of one batch are applied in order, so that a policy counts its own earlier
//! placements. Whether the host takes them is seen at the next `observe`, where the SDK clears
//! these counts: a refused placement leaves nothing behind.

use crate::fit::{Need, Seat};
use crate::mirror::{Executor, Mirror};
use crate::wire::types::RequestClass;

/// Placements since the last `observe`, over the [`Mirror`] they were made against.
#[derive(Clone, Debug, Default)]
pub struct Tentative {
    // By position; grown on demand, and reset through the lists of what was touched, so that
    // clearing costs as much as was placed.
    executors: Vec<Placed>,
    devices: Vec<u64>,
    models: Vec<u32>,
    executors_touched: Vec<usize>,
    devices_touched: Vec<usize>,
    models_touched: Vec<usize>,
}

/// Placements on one executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Into a slot.
    pub slots: u32,
    /// Into its queue.
    pub queued_critical: u32,
    /// Into its queue.
    pub queued_throughput: u32,
}

#[derive(Clone, Debug, Default)]
struct Placed {
    counts: Counts,
    /// Models that did not run there.
    started: Vec<u32>,
}

// === impl Tentative ===

impl Tentative {
    /// Placements on an executor.
    #[must_use]
    #[inline]
    pub fn counts(&self, executor: &Executor<'_>) -> Counts {
        self.executors
            .get(executor.position)
            .map_or_else(Counts::default, |placed| placed.counts)
    }

    /// Models placed on an executor that did not run there.
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
    pub fn place(&mut self, mirror: &Mirror, need: &Need<'_>, executor: &Executor<'_>, seat: Seat) {
        let placed = grown(&mut self.executors, executor.position);
        if placed.counts == Counts::default() {
            self.executors_touched.push(executor.position);
        }
        let counts = &mut placed.counts;
        match (seat, need.request.class) {
            (Seat::Slot, _) => counts.slots += 1,
            (Seat::Queue, RequestClass::LatencyCritical) => counts.queued_critical += 1,
            (Seat::Queue, RequestClass::Throughput) => counts.queued_throughput += 1,
        }
        if let Some(model) = need.request.model {
            if !executor.runs(model) && !placed.started.contains(&model) {
                placed.started.push(model);
            }
            if let Some(at) = mirror.model_position(model) {
                *grown(&mut self.models, at) += 1;
                self.models_touched.push(at);
            }
        }
        if let Some(blocks) = need.blocks_on(executor)
            && let Some(at) = mirror.device_position(executor.info.device)
        {
            *grown(&mut self.devices, at) += blocks;
            self.devices_touched.push(at);
        }
    }

    /// Forgets all placements.
    pub fn clear(&mut self) {
        for at in self.executors_touched.drain(..) {
            self.executors[at].counts = Counts::default();
            self.executors[at].started.clear();
        }
        for at in self.devices_touched.drain(..) {
            self.devices[at] = 0;
        }
        for at in self.models_touched.drain(..) {
            self.models[at] = 0;
        }
    }
}

fn grown<T: Clone + Default>(list: &mut Vec<T>, at: usize) -> &mut T {
    if list.len() <= at {
        list.resize(at + 1, T::default());
    }
    &mut list[at]
}

// === impl Counts ===

impl Counts {
    /// All placements.
    #[must_use]
    #[inline]
    pub fn total(&self) -> u64 {
        u64::from(self.slots) + u64::from(self.queued_critical) + u64::from(self.queued_throughput)
    }
}
