//! One attached executor: its slots, device queue, models and measured speed.
//!
//! # Invariants
//! A slot belongs to one request, from the placement (or the reservation) that took it to the
//! one event that ends its stay. `slots.len() <= slots_total` except after `slots_total` was
//! lowered while more ran; then nothing is placed until enough have ended.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{ExecutorId, Incarnation, Micros, ModelId, RequestId};
use crate::input::ExecutorSpec;
use crate::log::Stamp;
use crate::rows::{ExecutorInfo, ExecutorLoad, Health, RequestClass, Residency};

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum SlotUse {
    /// Its owner runs.
    Running,
    /// Its owner was told to leave.
    Leaving,
    /// Kept for its owner, who waits for the rest of its room.
    Reserved,
}

/// Whether an executor that is asked to leave is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Attachment {
    Attached,
    /// Removed as soon as nothing is placed there.
    Detaching,
}

/// A model's presence: every placed or reserved sequence of it, queued ones too.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Presence {
    pub(super) sequences: u32,
    pub(super) warm_until: Option<Micros>,
}

/// Placed requests that wait for a slot, by class.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct DeviceQueue {
    critical: VecDeque<RequestId>,
    throughput: VecDeque<RequestId>,
}

impl DeviceQueue {
    pub(super) fn of(&self, class: RequestClass) -> &VecDeque<RequestId> {
        match class {
            RequestClass::LatencyCritical => &self.critical,
            RequestClass::Throughput => &self.throughput,
        }
    }

    fn of_mut(&mut self, class: RequestClass) -> &mut VecDeque<RequestId> {
        match class {
            RequestClass::LatencyCritical => &mut self.critical,
            RequestClass::Throughput => &mut self.throughput,
        }
    }

    pub(super) fn push(&mut self, class: RequestClass, request: RequestId) {
        self.of_mut(class).push_back(request);
    }

    /// The next to start: latency-critical before throughput, each in order of placement.
    pub(super) fn pop(&mut self) -> Option<RequestId> {
        self.critical
            .pop_front()
            .or_else(|| self.throughput.pop_front())
    }

    pub(super) fn remove(&mut self, class: RequestClass, request: RequestId) {
        self.of_mut(class).retain(|queued| *queued != request);
    }

    pub(super) fn len(&self, class: RequestClass) -> u32 {
        count(self.of(class).len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.critical.is_empty() && self.throughput.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.critical.iter().chain(&self.throughput).copied()
    }
}

/// Everything the machine keeps about one executor.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Executor {
    // Set from outside.
    pub(super) id: ExecutorId,
    pub(super) spec: ExecutorSpec,
    pub(super) health: Health,
    pub(super) incarnation: Incarnation,
    pub(super) attachment: Attachment,
    // Owned here.
    pub(super) slots: BTreeMap<RequestId, SlotUse>,
    pub(super) queue: DeviceQueue,
    pub(super) models: BTreeMap<ModelId, Presence>,
    /// Models with sequences, of those in `models`.
    pub(super) models_active: u32,
    pub(super) prefill_tokens_pending: u64,
    pub(super) blocks_used: u64,
    pub(super) placed_total: u64,
    pub(super) tokens_max: Option<u32>,
    ttft: Average,
    itl: Average,
    // For the feed.
    pub(super) info_stamp: Stamp,
    pub(super) load_stamp: Stamp,
    pub(super) models_stamps: BTreeMap<ModelId, Stamp>,
}

impl Executor {
    pub(super) fn new(id: ExecutorId, spec: ExecutorSpec) -> Self {
        Self {
            id,
            spec,
            health: Health::Up,
            incarnation: Incarnation(0),
            attachment: Attachment::Attached,
            slots: BTreeMap::new(),
            queue: DeviceQueue::default(),
            models: BTreeMap::new(),
            models_active: 0,
            prefill_tokens_pending: 0,
            blocks_used: 0,
            placed_total: 0,
            tokens_max: None,
            ttft: Average::default(),
            itl: Average::default(),
            info_stamp: Stamp::default(),
            load_stamp: Stamp::default(),
            models_stamps: BTreeMap::new(),
        }
    }

    pub(super) fn slots_used(&self) -> u32 {
        count(self.slots.len())
    }

    pub(super) fn takes_new(&self) -> bool {
        self.health.takes_new() && self.attachment == Attachment::Attached
    }

    pub(super) fn has_slot(&self) -> bool {
        self.slots_used() < self.spec.slots_total
    }

    pub(super) fn has_queue_room(&self, class: RequestClass) -> bool {
        self.queue.len(class) < self.spec.queue_limit
    }

    /// Whether anything at all could be placed here, as far as slots and queue go.
    pub(super) fn is_open(&self) -> bool {
        self.takes_new()
            && (self.has_slot()
                || self.has_queue_room(RequestClass::LatencyCritical)
                || self.has_queue_room(RequestClass::Throughput))
    }

    /// Nothing is placed here or reserved.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.queue.is_empty()
    }

    pub(super) fn serves(&self, model: Option<ModelId>) -> bool {
        match (&self.spec.serves, model) {
            (None, _) | (_, None) => true,
            (Some(served), Some(model)) => served.contains(&model),
        }
    }

    /// Whether `models-max` lets a sequence of this model in.
    pub(super) fn has_model_place(&self, model: Option<ModelId>) -> bool {
        let Some((models_max, model)) = self.spec.models_max.zip(model) else {
            return true;
        };
        let active = self.models.get(&model).is_some_and(|m| m.sequences > 0);
        // While a reserved model waits for another one to leave there are more than that, and
        // nobody enters.
        self.models_active < models_max || (active && self.models_active == models_max)
    }

    /// Running sequences, those told to leave not counted.
    pub(super) fn running(&self) -> u32 {
        let running = self.slots.values().filter(|u| **u == SlotUse::Running);
        count(running.count())
    }

    /// Notes a measured time to first token.
    pub(super) fn measured_ttft(&mut self, micros: Micros) {
        self.ttft.add(micros.0);
    }

    /// Notes a measured time between tokens.
    pub(super) fn measured_itl(&mut self, micros: u64) {
        self.itl.add(micros);
    }

    pub(super) fn info(&self) -> ExecutorInfo {
        let spec = &self.spec;
        ExecutorInfo {
            id: self.id,
            device: spec.device,
            kind: spec.kind,
            role: spec.role,
            group: spec.group,
            share_weight: spec.share_weight,
            serves: spec.serves.clone(),
            slots_total: spec.slots_total,
            models_max: spec.models_max,
            queue_limit: spec.queue_limit,
            tokens_per_block: spec.tokens_per_block,
            preempts: spec.preempts,
        }
    }

    pub(super) fn load(&self) -> ExecutorLoad {
        let health = match (self.attachment, self.health) {
            (Attachment::Detaching, Health::Up | Health::Degraded) => Health::Draining,
            (_, health) => health,
        };
        ExecutorLoad {
            id: self.id,
            health,
            slots_used: self.slots_used(),
            queued_critical: self.queue.len(RequestClass::LatencyCritical),
            queued_throughput: self.queue.len(RequestClass::Throughput),
            prefill_tokens_pending: self.prefill_tokens_pending,
            blocks_used: self.blocks_used,
            placed_total: self.placed_total,
            ttft_micros: self.ttft.quantised(),
            itl_micros: self.itl.quantised(),
        }
    }

    pub(super) fn residency(&self, model: ModelId) -> Option<Residency> {
        let presence = self.models.get(&model)?;
        Some(Residency {
            executor: self.id,
            model,
            sequences: presence.sequences,
            warm_until: presence.warm_until,
        })
    }
}

/// An exponentially weighted average with weight 1/8 for the newest value.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Average(Option<u64>);

impl Average {
    fn add(&mut self, value: u64) {
        self.0 = Some(match self.0 {
            None => value,
            Some(old) => old - old / 8 + value / 8,
        });
    }

    /// Cut to its five leading binary digits, steps of 3 to 6 %, so that noise is no news.
    fn quantised(&self) -> Option<u64> {
        self.0.map(|value| {
            let drop = (u64::BITS - value.leading_zeros()).saturating_sub(5);
            (value >> drop) << drop
        })
    }
}

pub(super) fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_quantised_to_a_few_percent() {
        let mut average = Average::default();
        assert_eq!(average.quantised(), None);
        average.add(1000);
        assert_eq!(average.quantised(), Some(992));
        average.add(1008);
        assert_eq!(average.quantised(), Some(992), "noise is no news");
    }

    #[test]
    fn the_device_queue_starts_latency_critical_first() {
        let mut queue = DeviceQueue::default();
        queue.push(RequestClass::Throughput, RequestId(1));
        queue.push(RequestClass::LatencyCritical, RequestId(2));
        assert_eq!(queue.pop(), Some(RequestId(2)));
        assert_eq!(queue.pop(), Some(RequestId(1)));
        assert!(queue.is_empty());
    }
}
