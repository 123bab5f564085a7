//! One attached executor: its slots, device queue, models and measured speed.
//!
//! # Invariants
//! A slot belongs to one request, from the placement or reservation that took it to the one event
//! that ends it. `slots.len() <= slots_total` except after `slots_total` was lowered while more
//! ran; then nothing is placed until enough have ended. Neither are there more models or queued requests
//! than the terms allow, but for those that were there when the terms were changed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pointsman_events::changes::Stamp;
use pointsman_events::rows::{
    ExecutorInfo, ExecutorLoad, Health, LoadedModels, RequestClass, Residency,
};
use pointsman_events::{
    Arrangement, Availability, ExecutorId, ExecutorSpec, Incarnation, Micros, ModelId, RequestId,
};

use super::super::{CLASSES, count};
use super::faults::Faults;

/// Percentage of a device queue's limit from which on the queue is saturated.
const SATURATED_PERCENT: u64 = 80;

/// The use that is made of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum SlotUse {
    /// Its owner runs.
    Running,
    /// Its owner was told to leave.
    Leaving,
    /// Kept for its owner, which waits for the rest of its room.
    Reserved,
}

/// The bond between the host and an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Attachment {
    Attached,
    /// Removed as soon as nothing is placed there.
    Detaching,
}

/// A model's time on an executor: every placed or reserved sequence of it, queued ones too.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Tenure {
    pub(crate) sequences: u32,
    pub(crate) warm_until: Option<Micros>,
    /// The time at which the model came.
    started: Micros,
    /// The time of the first token since then.
    first_token: Option<Micros>,
}

impl Tenure {
    /// The time of a model that comes now, of which nothing runs yet.
    pub(super) fn new(now: Micros) -> Self {
        Self {
            sequences: 0,
            warm_until: None,
            started: now,
            first_token: None,
        }
    }

    /// Notes the first token of a sequence. Returns whether it is the model's first, too.
    pub(super) fn begins(&mut self, now: Micros) -> bool {
        let is_first = self.first_token.is_none();
        if is_first {
            self.first_token = Some(now);
        }
        is_first
    }
}

/// The part of an executor's contents that was there when its terms were changed, and may exceed them.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Surplus {
    /// Models with sequences.
    pub(crate) models: u32,
    /// Requests in the queue, in the order of [`CLASSES`].
    pub(crate) queued: [u32; CLASSES.len()],
}

/// Placed requests that wait for a slot, by class.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct DeviceQueue {
    critical: VecDeque<RequestId>,
    throughput: VecDeque<RequestId>,
}

impl DeviceQueue {
    pub(crate) fn of(&self, class: RequestClass) -> &VecDeque<RequestId> {
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

    /// Puts the requests of a class in another order. One that joins comes after them.
    pub(super) fn order(&mut self, class: RequestClass, ordered: Vec<RequestId>) {
        debug_assert_eq!(ordered.len(), self.of(class).len(), "an order adds nothing");
        *self.of_mut(class) = ordered.into();
    }

    /// Takes out the next to start: latency-critical before throughput, each class in its order.
    pub(super) fn pop(&mut self) -> Option<(RequestClass, RequestId)> {
        let mut heads = CLASSES.into_iter();
        heads.find_map(|class| Some((class, self.of_mut(class).pop_front()?)))
    }

    pub(super) fn remove(&mut self, class: RequestClass, request: RequestId) {
        self.of_mut(class).retain(|queued| *queued != request);
    }

    pub(crate) fn len(&self, class: RequestClass) -> u32 {
        count(self.of(class).len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.critical.is_empty() && self.throughput.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.critical.iter().chain(&self.throughput).copied()
    }
}

/// Everything the machine keeps about one executor.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Executor {
    // Set by inputs.
    pub(crate) id: ExecutorId,
    pub(crate) spec: ExecutorSpec,
    /// The health that the executor's owner tells.
    pub(crate) health: Health,
    pub(crate) availability: Availability,
    pub(crate) incarnation: Incarnation,
    pub(crate) attachment: Attachment,
    pub(crate) kept: Surplus,
    // In use, and measured.
    pub(crate) slots: BTreeMap<RequestId, SlotUse>,
    pub(crate) queue: DeviceQueue,
    pub(crate) models: BTreeMap<ModelId, Tenure>,
    /// Models with sequences, of the ones in `models`.
    pub(crate) models_active: u32,
    /// The models that a server elsewhere tells to be loaded, each with the time since which it does; absent: it
    /// does not tell.
    pub(super) loaded: Option<BTreeMap<ModelId, Micros>>,
    pub(crate) prefill_tokens_pending: u64,
    /// Tokens of the prompts placed there and of what was generated for them there.
    pub(crate) tokens_placed: u64,
    pub(crate) placed_total: u64,
    pub(crate) tokens_max: Option<u32>,
    /// The way in which its engine was last told to spend its steps.
    pub(crate) arrangement: Arrangement,
    /// Tokens computed since `allot` was last asked about its device.
    pub(crate) tokens_used: u64,
    pub(super) faults: Faults,
    /// The saturation that was told last.
    pub(crate) saturated: bool,
    ttft: Average,
    itl: Average,
    // For the feed.
    pub(crate) info_stamp: Stamp,
    pub(crate) load_stamp: Stamp,
    pub(crate) models_stamps: BTreeMap<ModelId, Stamp>,
}

impl Executor {
    pub(super) fn new(id: ExecutorId, spec: ExecutorSpec) -> Self {
        Self {
            id,
            spec,
            health: Health::Up,
            availability: Availability::Open,
            incarnation: Incarnation(0),
            attachment: Attachment::Attached,
            kept: Surplus::default(),
            slots: BTreeMap::new(),
            queue: DeviceQueue::default(),
            models: BTreeMap::new(),
            models_active: 0,
            loaded: None,
            prefill_tokens_pending: 0,
            tokens_placed: 0,
            placed_total: 0,
            tokens_max: None,
            arrangement: Arrangement::default(),
            tokens_used: 0,
            faults: Faults::default(),
            saturated: false,
            ttft: Average::default(),
            itl: Average::default(),
            info_stamp: Stamp::default(),
            load_stamp: Stamp::default(),
            models_stamps: BTreeMap::new(),
        }
    }

    pub(crate) fn slots_used(&self) -> u32 {
        count(self.slots.len())
    }

    /// The health as others see it: the worse of what its owner tells and what follows from its
    /// faults. An executor that is being detached drains, and a silent one is down.
    pub(crate) fn health_seen(&self) -> Health {
        match (self.health, self.attachment) {
            (Health::Down | Health::Draining, _) => self.health,
            (Health::Up | Health::Degraded, Attachment::Detaching) => Health::Draining,
            (Health::Up | Health::Degraded, Attachment::Attached) => {
                let told = match self.availability {
                    Availability::Open | Availability::Busy => self.health,
                    Availability::Silent => Health::Down,
                };
                told.max(self.faults.health())
            }
        }
    }

    /// True if it says that it has no room, or a bounded queue is filled to [`SATURATED_PERCENT`].
    pub(crate) fn is_saturated(&self) -> bool {
        if self.availability == Availability::Busy {
            return true;
        }
        let limit = u64::from(self.spec.queue_limit);
        let is_full = |class: &RequestClass| {
            u64::from(self.queue.len(*class)) * 100 >= limit * SATURATED_PERCENT
        };
        limit > 0 && CLASSES.iter().any(is_full)
    }

    /// Slots that can be taken now: the free ones, one where it is on trial, and none where it says so or
    /// rests.
    pub(crate) fn slots_free(&self) -> u32 {
        if self.availability != Availability::Open {
            return 0;
        }
        let free = self.spec.slots_total.saturating_sub(self.slots_used());
        free.min(self.faults.starts_max(&self.slots))
    }

    pub(crate) fn has_slot(&self) -> bool {
        self.slots_free() > 0
    }

    /// Gives a slot to a request that starts there, or is to.
    pub(super) fn take_slot(&mut self, request: RequestId, use_of: SlotUse) {
        self.slots.insert(request, use_of);
        self.faults.start(request);
    }

    /// Slots that are in use or closed, for those who choose among executors: they see as many free ones as
    /// [`Self::slots_free`] has.
    pub(super) fn slots_used_or_closed(&self) -> u32 {
        let not_free = self.spec.slots_total.saturating_sub(self.slots_free());
        self.slots_used().max(not_free)
    }

    pub(crate) fn has_queue_room(&self, class: RequestClass) -> bool {
        self.queue.len(class) < self.spec.queue_limit
    }

    /// True if anything at all could be placed here, as far as slots and queue go.
    pub(crate) fn is_open(&self) -> bool {
        self.health_seen().takes_new()
            && (self.has_slot()
                || self.has_queue_room(RequestClass::LatencyCritical)
                || self.has_queue_room(RequestClass::Throughput))
    }

    /// True if what waits in its queue for this model does so in vain, or for ever: it does not serve that any
    /// more, does not answer, or has no room and drains.
    pub(crate) fn strands(&self, model: Option<ModelId>) -> bool {
        let may_never_start = match self.availability {
            Availability::Open => false,
            Availability::Busy => self.health_seen() == Health::Draining,
            Availability::Silent => true,
        };
        may_never_start || !self.serves(model)
    }

    /// True if nothing is placed here or reserved.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.queue.is_empty()
    }

    pub(crate) fn serves(&self, model: Option<ModelId>) -> bool {
        match (&self.spec.serves, model) {
            (None, _) | (_, None) => true,
            (Some(served), Some(model)) => served.contains(&model),
        }
    }

    /// True if `models-max` lets a sequence of this model in.
    pub(crate) fn has_model_place(&self, model: Option<ModelId>) -> bool {
        let Some((models_max, model)) = self.spec.models_max.zip(model) else {
            return true;
        };
        let active = self.models.get(&model).is_some_and(|m| m.sequences > 0);
        // While a reserved model waits for another one to leave there are more than that, and
        // nobody enters.
        self.models_active < models_max || (active && self.models_active == models_max)
    }

    /// Sequences in slots, without those that were told to leave.
    pub(crate) fn running(&self) -> impl Iterator<Item = RequestId> + '_ {
        let slots = self.slots.iter();
        let running = slots.filter(|(_, slot)| **slot == SlotUse::Running);
        running.map(|(id, _)| *id)
    }

    /// Notes a measured time to first token.
    pub(super) fn measured_ttft(&mut self, micros: Micros) {
        self.ttft.add(micros.0);
    }

    /// Notes a measured time between tokens.
    pub(super) fn measured_itl(&mut self, micros: u64) {
        self.itl.add(micros);
    }

    pub(crate) fn info(&self) -> ExecutorInfo {
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
            loaded_models: match self.loaded {
                None => LoadedModels::Untold,
                Some(_) => LoadedModels::Told,
            },
        }
    }

    /// Blocks that the tokens placed there take by themselves; 0 where it does not say how many go
    /// into one.
    pub(super) fn blocks_reckoned(&self) -> u64 {
        match self.spec.tokens_per_block {
            Some(tokens) => self.tokens_placed.div_ceil(u64::from(tokens.max(1))),
            None => 0,
        }
    }

    /// The load, where `blocks_used` is the device's to say.
    pub(super) fn load(&self, blocks_used: u64) -> ExecutorLoad {
        ExecutorLoad {
            id: self.id,
            health: self.health_seen(),
            slots_used: self.slots_used_or_closed(),
            queued_critical: self.queue.len(RequestClass::LatencyCritical),
            queued_throughput: self.queue.len(RequestClass::Throughput),
            saturated: self.is_saturated(),
            prefill_tokens_pending: self.prefill_tokens_pending,
            blocks_used,
            placed_total: self.placed_total,
            ttft_micros: self.ttft.quantised(),
            itl_micros: self.itl.quantised(),
        }
    }

    pub(crate) fn residency(&self, model: ModelId) -> Option<Residency> {
        let loaded = self.loaded.as_ref().and_then(|told| told.get(&model));
        let told = || loaded.map(|since| Tenure::new(*since));
        let presence = self.models.get(&model).cloned().or_else(told)?;
        Some(Residency {
            executor: self.id,
            model,
            sequences: presence.sequences,
            warm_until: presence.warm_until,
            started: presence.started,
            first_token: presence.first_token,
            loaded: loaded.is_some(),
        })
    }

    /// The models that are there, in the order of their ids.
    pub(crate) fn residencies(&self) -> impl Iterator<Item = Residency> {
        let told = self.loaded.iter().flat_map(BTreeMap::keys);
        let models: BTreeSet<ModelId> = self.models.keys().chain(told).copied().collect();
        models.into_iter().filter_map(|model| self.residency(model))
    }
}

/// Attached executors by id. Ids count up, so a removed executor leaves a hole.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Executors {
    by_id: Vec<Option<Box<Executor>>>,
    pub(super) attached: u32,
}

impl Executors {
    /// Attaches an executor, and returns its id.
    pub(super) fn push(&mut self, spec: ExecutorSpec) -> ExecutorId {
        let id = ExecutorId(count(self.by_id.len()));
        self.by_id.push(Some(Box::new(Executor::new(id, spec))));
        self.attached += 1;
        id
    }

    pub(super) fn remove(&mut self, id: ExecutorId) -> Option<Box<Executor>> {
        let removed = self.by_id.get_mut(id.0 as usize)?.take()?;
        self.attached -= 1;
        Some(removed)
    }

    pub(super) fn get(&self, id: ExecutorId) -> Option<&Executor> {
        self.by_id.get(id.0 as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, id: ExecutorId) -> Option<&mut Executor> {
        self.by_id.get_mut(id.0 as usize)?.as_deref_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Executor> {
        self.by_id.iter().filter_map(Option::as_deref)
    }

    /// Checks that executors stand where their ids say, on devices that are there.
    #[cfg(feature = "serde")]
    pub(super) fn check_ids(&self, devices: usize) -> Result<(), String> {
        let attached = self.iter().count();
        if attached != self.attached as usize {
            return Err(format!(
                "{attached} executors are counted as {}",
                self.attached
            ));
        }
        for (idx, executor) in self.by_id.iter().enumerate() {
            let Some(executor) = executor else { continue };
            let (id, device) = (executor.id, executor.spec.device);
            if id.0 as usize != idx || device.0 as usize >= devices {
                return Err(format!(
                    "executor {id} is the {idx}th and on device {device}"
                ));
            }
        }
        Ok(())
    }
}

/// An exponentially weighted average with weight 1/8 for the newest value.
#[derive(Clone, Debug, Default)]
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
    fn the_device_queue_starts_latency_critical_first_and_each_class_in_its_order() {
        let [critical, bulk] = CLASSES;
        let mut queue = DeviceQueue::default();
        for (class, id) in [(bulk, 1), (bulk, 2), (critical, 3), (critical, 4)] {
            queue.push(class, RequestId(id));
        }
        queue.order(bulk, vec![RequestId(2), RequestId(1)]);
        let started: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        let expected = [(critical, 3), (critical, 4), (bulk, 2), (bulk, 1)];
        assert_eq!(started, expected.map(|(class, id)| (class, RequestId(id))));
        assert!(queue.is_empty());
    }
}
