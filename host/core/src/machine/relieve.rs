//! Shortages: who is asked about, the interlock for evictions, and the room kept for the needy.
//!
//! A needy request has first claim on what its victims leave. For a running sequence that is the
//! blocks it lacks; for a waiting one a *reservation* on one executor: a slot, a model's place and
//! blocks, taken as they come free, in which it is placed as soon as all are there.
//!
//! # Invariants
//! 1. While a claim is open its shortage is not asked about again, so none is covered twice.
//! 2. A victim is never more urgent than the needy one; of two equals neither evicts the other
//!    more than once ([`Machine::check_victim`]). So evictions cannot go round in circles.
//! 3. The most urgent short sequence of a device can always evict the preemptible others, so
//!    sequences that wait for each other's blocks cannot block a device for ever.

use std::collections::BTreeSet;

use crate::effect::Effect;
use crate::fact::{Clock, Decided, Fact, PlacedIn, RequeuedWhy};
use crate::ids::{DeviceId, ExecutorId, Micros, RequestId};
use crate::policies::{
    Author, EvictHow, Eviction, Hook, Policies, Shortage, ShortageCause, Victim,
};
use crate::refusal::{Refusal, RefusalCause};
use crate::rows::{Moment, RequestClass};
use crate::view::View;

use super::executor::{Executor, SlotUse, count};
use super::liveness::EvictGate;
use super::place::blocks_at_start;
use super::request::{AfterLeaving, InSlot, Phase, Request, Reservation};
use super::round::{Feasibility, RoundRecord};
use super::{CLASSES, Machine};

/// For whom the built-in rule makes others give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Insistence {
    /// Only for somebody more urgent.
    MoreUrgentOnly,
    /// Also for an equal that arrived earlier.
    Arrival,
}

// === impl Machine: asking ===

impl Machine {
    /// Asks who gives way, for the most urgent running sequence of each device that cannot grow,
    /// and for the most urgent waiting request of each class that nothing could take.
    pub(super) fn relieve(
        &mut self,
        at: Moment,
        policies: &mut dyn Policies,
        record: &RoundRecord,
    ) {
        for device in self.short_devices.clone() {
            if self.devices[device.0 as usize].short.is_empty() {
                self.short_devices.remove(&device);
            } else {
                self.relieve_growth(at, policies, device);
            }
        }
        for (idx, class) in CLASSES.into_iter().enumerate() {
            if self.gate_is_open(idx, class, record) {
                self.relieve_waiting(at, policies, (idx, class));
            }
        }
        self.timers.arm_evict();
    }

    fn relieve_growth(&mut self, at: Moment, policies: &mut dyn Policies, device: DeviceId) {
        let Some((shortage, since)) = self.growth_shortage(device) else {
            return;
        };
        let id = shortage.needy;
        let request = self.requests.get_mut(&id).and_then(Request::placed_mut);
        if let Some(short) = request.and_then(|placed| placed.short.as_mut()) {
            short.asked = Some(at.now);
        }
        self.fact(Fact::Short(id, shortage.cause));
        if self.now.since(since) >= self.config.unplaced_max {
            self.fact(Fact::Strike(Clock::Stalled, Hook::Preemption, id));
            if let Some(eviction) = self.evict_built_in(&shortage, Insistence::Arrival) {
                self.evict(&shortage, &eviction, Decided::BUILT_IN);
            }
        } else {
            self.ask_evict(at, policies, &shortage, Insistence::Arrival);
        }
        self.arm_request(id);
    }

    /// The shortage of the device's most urgent short sequence, unless its room is on the way or
    /// it was asked about just now; and since when it is short.
    fn growth_shortage(&self, device: DeviceId) -> Option<(Shortage, Micros)> {
        let record = &self.devices[device.0 as usize];
        let short = record.short.iter().filter_map(|id| self.requests.get(id));
        let needy = short.reduce(|a, b| if b.precedes(a) { b } else { a })?;
        let placed = needy.placed()?;
        let short = placed.short?;
        let on_the_way = record.claims.contains(&needy.id()) && !self.leaving_on(device).is_empty();
        let asked_just_now = short
            .asked
            .is_some_and(|asked| self.now.since(asked) < self.config.evict_retry);
        if on_the_way || asked_just_now {
            return None;
        }
        let held = record.pool()?.lease(needy.id()).len();
        let shortage = Shortage {
            cause: ShortageCause::Blocks,
            needy: needy.id(),
            executor: Some(placed.executor),
            blocks: short.blocks.saturating_sub(count(held)),
        };
        Some((shortage, short.since))
    }

    /// Whether `evict` may be asked for a class: not right after it freed nothing, unless
    /// somebody more urgent has come since.
    fn gate_is_open(&self, idx: usize, class: RequestClass, record: &RoundRecord) -> bool {
        let gate = self.timers.evict_gates[idx];
        if gate.until <= self.now {
            return true;
        }
        let admitted = record
            .admitted
            .iter()
            .filter_map(|id| self.requests.get(id));
        let mut admitted = admitted.filter(|r| r.row.class == class);
        admitted.any(|r| gate.priority.is_none_or(|gated| r.row.priority > gated))
    }

    fn relieve_waiting(
        &mut self,
        at: Moment,
        policies: &mut dyn Policies,
        (idx, class): (usize, RequestClass),
    ) {
        let candidates = self.unplaceable(class);
        let requests = candidates.iter().filter_map(|id| self.requests.get(id));
        let Some(urgency) = requests.map(Request::urgency).max() else {
            self.timers.evict_gates[idx] = EvictGate::default();
            return;
        };
        self.timers.evict_gates[idx] = EvictGate {
            until: self.now.after(self.config.evict_retry),
            priority: Some(urgency.priority),
        };
        let least = self.preemptible.first();
        if least.is_none_or(|(victim, _)| *victim > urgency) {
            return;
        }
        let ordered = self.ask_order(at, policies, &candidates);
        let needy = ordered.first().and_then(|id| self.requests.get(id));
        let Some(shortage) = needy.and_then(|needy| self.placement_shortage(needy)) else {
            return;
        };
        self.fact(Fact::Short(shortage.needy, shortage.cause));
        if self.ask_evict(at, policies, &shortage, Insistence::MoreUrgentOnly) {
            self.timers.evict_gates[idx] = EvictGate::default();
        }
    }

    /// Queued requests of a class that no executor could take now and for whom no room is being
    /// made.
    fn unplaceable(&self, class: RequestClass) -> Vec<RequestId> {
        let mut feasibility = Feasibility::default();
        let queued = self.queue.iter().filter_map(|id| self.requests.get(id));
        let queued = queued.filter(|request| {
            request.row.class == class
                && request.waiting().is_some_and(|w| w.reservation.is_none())
                && !feasibility.check(self, request)
        });
        queued.map(Request::id).collect()
    }

    /// What stands in a waiting request's way: a slot if that is all somewhere, else blocks, else
    /// a model's place. None where no eviction could help.
    fn placement_shortage(&self, needy: &Request) -> Option<Shortage> {
        let mut found: Option<(ShortageCause, u32)> = None;
        let rank = |cause| match cause {
            ShortageCause::Slots => 0,
            ShortageCause::Blocks => 1,
            ShortageCause::Models => 2,
        };
        for executor in self.executors.iter() {
            let cause = match self.check_place(needy, executor) {
                Err(RefusalCause::NoSlot) => ShortageCause::Slots,
                Err(RefusalCause::NoBlocks { .. }) => ShortageCause::Blocks,
                Err(RefusalCause::ModelsMax) => ShortageCause::Models,
                Err(RefusalCause::RunningMax) => return None,
                Ok(_) | Err(_) => continue,
            };
            if found.is_none_or(|(best, _)| rank(cause) < rank(best)) {
                found = Some((cause, blocks_at_start(needy, executor)));
            }
        }
        found.map(|(cause, blocks)| Shortage {
            cause,
            needy: needy.id(),
            executor: None,
            blocks,
        })
    }

    /// Asks for victims and evicts them. True if somebody leaves.
    fn ask_evict(
        &mut self,
        at: Moment,
        policies: &mut dyn Policies,
        shortage: &Shortage,
        insistence: Insistence,
    ) -> bool {
        let answer = policies.evict(&View::new(self), at, shortage);
        let (author, eviction) = self.take_answer(Hook::Preemption, answer);
        let eviction = match (author, eviction) {
            (Author::Policy(_), Some(eviction)) => eviction,
            _ => self.evict_built_in(shortage, insistence),
        };
        let Some(eviction) = eviction else {
            return false;
        };
        if let Err(refusal) = self.check_eviction(shortage, &eviction) {
            self.refuse(policies, author, Hook::Preemption, refusal);
            return false;
        }
        let reason = eviction.reason;
        self.evict(shortage, &eviction, Decided { author, reason });
        true
    }
}

// === impl Machine: the interlock ===

impl Machine {
    /// Whether an eviction is in order and covers its shortage.
    pub(super) fn check_eviction(
        &self,
        shortage: &Shortage,
        eviction: &Eviction,
    ) -> Result<(), Refusal> {
        let id = shortage.needy;
        let refuse = |cause: RefusalCause| cause.at(id, eviction.executor);
        let needy = self.requests.get(&id);
        let needy = needy.ok_or(RefusalCause::UnknownRequest.of(id))?;
        let executor = self.executors.get(eviction.executor);
        let executor = executor.ok_or_else(|| refuse(RefusalCause::UnknownExecutor))?;
        match shortage.executor {
            Some(only) if only != eviction.executor => {
                return Err(refuse(RefusalCause::WrongExecutor));
            }
            Some(_) => {}
            None => {
                self.check_open_to(needy, executor).map_err(refuse)?;
                self.check_running_max(needy).map_err(refuse)?;
            }
        }
        let mut victims = BTreeSet::new();
        for Victim { request, how } in &eviction.victims {
            self.check_victim(needy, *request, *how, eviction.executor)
                .map_err(|cause| cause.at(*request, eviction.executor))?;
            if !victims.insert(*request) {
                return Err(RefusalCause::NamedTwice.of(*request));
            }
        }
        if self.is_covered(needy, shortage, executor, &victims) {
            Ok(())
        } else {
            Err(refuse(RefusalCause::NotCovered))
        }
    }

    /// Whether one request may be made to give way to another.
    pub(super) fn check_victim(
        &self,
        needy: &Request,
        victim: RequestId,
        how: EvictHow,
        executor: ExecutorId,
    ) -> Result<(), RefusalCause> {
        if victim == needy.id() {
            return Err(RefusalCause::IsNeedy);
        }
        let request = self.requests.get(&victim);
        let request = request.ok_or(RefusalCause::UnknownRequest)?;
        let placed = match &request.phase {
            Phase::Waiting(_) => return Err(RefusalCause::NotPlaced),
            Phase::Leaving(..) => return Err(RefusalCause::AlreadyLeaving),
            Phase::Placed(placed) => placed,
        };
        let device = |id| self.executors.get(id).map(|executor| executor.spec.device);
        if device(placed.executor) != device(executor) {
            return Err(RefusalCause::WrongDevice);
        }
        let spec = self.executors.get(placed.executor).map(|e| &e.spec);
        let spec = spec.ok_or(RefusalCause::UnknownExecutor)?;
        if !spec.preempts {
            return Err(RefusalCause::NotPreemptible);
        }
        if how == EvictHow::Swap {
            return Err(RefusalCause::NotSwappable);
        }
        if request.urgency() > needy.urgency() {
            return Err(RefusalCause::MoreUrgent);
        }
        // Whoever comes first by urgency and arrival always gets through; that order has no
        // circles, and the rest below breaks those of everybody else.
        if needy.precedes(request) {
            return Ok(());
        }
        if needy.evicted_for.contains(&victim) {
            return Err(RefusalCause::EvictedForVictim);
        }
        let block = spec.tokens_per_block.unwrap_or(1);
        if request.preemptions > 0 && placed.generated < block {
            return Err(RefusalCause::NoProgress);
        }
        Ok(())
    }

    /// Whether the needy one has all it lacks once these have left, with what is free and leaving
    /// now and less what others have first claim on.
    fn is_covered(
        &self,
        needy: &Request,
        shortage: &Shortage,
        executor: &Executor,
        victims: &BTreeSet<RequestId>,
    ) -> bool {
        let device = &self.devices[executor.spec.device.0 as usize];
        let waits = shortage.executor.is_none();
        let blocks = if waits {
            blocks_at_start(needy, executor)
        } else {
            shortage.blocks
        };
        if let Some(pool) = device.pool() {
            let mut leaving = self.leaving_on(device.id);
            leaving.extend(victims);
            let coming = pool.available() + pool.freed_by(&leaving);
            if coming < blocks + self.spoken_for(device.id, needy) {
                return false;
            }
        }
        !waits
            || (self.slot_is_covered(executor, victims)
                && self.model_is_covered(needy, executor, victims))
    }

    /// Blocks that others have first claim on: those with open claims, and for a newcomer also
    /// the running sequences that lack some.
    fn spoken_for(&self, device: DeviceId, needy: &Request) -> u32 {
        let record = &self.devices[device.0 as usize];
        let mut ahead: BTreeSet<RequestId> = record.claims.iter().copied().collect();
        if needy.waiting().is_some() {
            ahead.extend(&record.short);
        }
        let others = ahead.into_iter().filter(|id| *id != needy.id());
        others.map(|id| self.unmet_blocks(id)).sum()
    }

    /// Blocks a claimant still lacks.
    fn unmet_blocks(&self, id: RequestId) -> u32 {
        let Some(request) = self.requests.get(&id) else {
            return 0;
        };
        let (executor, needed) = match &request.phase {
            Phase::Placed(placed) | Phase::Leaving(placed, _) => (
                placed.executor,
                placed.short.map_or(0, |short| short.blocks),
            ),
            Phase::Waiting(waiting) => {
                let Some(reservation) = &waiting.reservation else {
                    return 0;
                };
                let record = self.executors.get(reservation.executor);
                let needed = record.map_or(0, |record| blocks_at_start(request, record));
                (reservation.executor, needed)
            }
        };
        let held = self
            .pool_of(executor)
            .map_or(0, |pool| pool.lease(id).len());
        needed.saturating_sub(count(held))
    }

    fn slot_is_covered(&self, executor: &Executor, victims: &BTreeSet<RequestId>) -> bool {
        let stays = |(id, slot): &(&RequestId, &SlotUse)| {
            **slot != SlotUse::Leaving && !victims.contains(*id)
        };
        let staying = executor.slots.iter().filter(stays).count();
        let claims = &self.devices[executor.spec.device.0 as usize].claims;
        let expected = claims.iter().filter(|id| {
            let waiting = self.requests.get(id).and_then(Request::waiting);
            let reservation = waiting.and_then(|waiting| waiting.reservation.as_ref());
            reservation.is_some_and(|r| r.executor == executor.id)
                && !executor.slots.contains_key(id)
        });
        let queued = executor.queue.iter().filter(|id| !victims.contains(id));
        staying + expected.count() + queued.count() < executor.spec.slots_total as usize
    }

    fn model_is_covered(
        &self,
        needy: &Request,
        executor: &Executor,
        victims: &BTreeSet<RequestId>,
    ) -> bool {
        let Some((models_max, model)) = executor.spec.models_max.zip(needy.row.model) else {
            return true;
        };
        let mut leaving = self.leaving_on(executor.spec.device);
        leaving.extend(victims);
        let staying = executor.models.iter().filter(|(other, presence)| {
            let leave = leaving.iter().filter_map(|id| self.requests.get(id));
            let leave = leave.filter(|r| {
                r.row.model == Some(**other)
                    && r.placed().is_some_and(|p| p.executor == executor.id)
            });
            **other != model && presence.sequences > count(leave.count())
        });
        count(staying.count()) < models_max
    }

    /// Sequences on a device that were told to leave and have not yet.
    fn leaving_on(&self, device: DeviceId) -> BTreeSet<RequestId> {
        let executors = self.devices[device.0 as usize].executors.iter();
        let slots = executors
            .filter_map(|id| self.executors.get(*id))
            .flat_map(|executor| &executor.slots);
        let leaving = slots.filter(|(_, slot)| **slot == SlotUse::Leaving);
        leaving.map(|(id, _)| *id).collect()
    }
}

// === impl Machine: applying ===

impl Machine {
    /// Makes the victims leave, and keeps what they leave for the needy one.
    fn evict(&mut self, shortage: &Shortage, eviction: &Eviction, by: Decided) {
        let executor = eviction.executor;
        let Some(device) = self.executors.get(executor).map(|e| e.spec.device) else {
            return;
        };
        if shortage.executor.is_none() {
            self.reserve(shortage.needy, executor, by);
        }
        let claims = &mut self.devices[device.0 as usize].claims;
        if !claims.contains(&shortage.needy) {
            claims.push(shortage.needy);
        }
        for victim in &eviction.victims {
            self.evict_one(*victim, shortage.needy, by);
        }
        self.refill(executor);
    }

    fn evict_one(&mut self, victim: Victim, needy: RequestId, by: Decided) {
        let id = victim.request;
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let mut evicted_for = request.evicted_for.clone();
        evicted_for.retain(|other| self.requests.contains_key(other));
        evicted_for.insert(needy);
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let Phase::Placed(placed) = &request.phase else {
            return;
        };
        let (executor, incarnation) = (placed.executor, placed.incarnation);
        let in_slot = placed.in_slot;
        request.preemptions += 1;
        request.evicted_for = evicted_for;
        self.fact(Fact::Evicted {
            victim: id,
            executor,
            needy,
            how: victim.how,
            by,
        });
        match in_slot {
            // Its engine has never heard of it.
            InSlot::Queued => {
                self.close_stay(id);
                self.requeue(id, RequeuedWhy::Evicted);
                self.fact(Fact::Left(id, executor));
            }
            InSlot::Running => {
                self.start_leaving(id, AfterLeaving::Requeue);
                self.effect(Effect::Evict {
                    request: id,
                    executor,
                    incarnation,
                    how: victim.how,
                });
                self.touch_load(executor);
            }
        }
    }

    /// Keeps room on an executor for a waiting request.
    fn reserve(&mut self, id: RequestId, executor: ExecutorId, by: Decided) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let model = request.row.model;
        let Some(waiting) = request.waiting_mut() else {
            return;
        };
        waiting.reservation = Some(Reservation {
            executor,
            since: self.now,
            by,
        });
        self.join_model(executor, model);
        let device = self.executors.get(executor).map(|e| e.spec.device);
        if let Some(pool) = device
            .and_then(|device| self.device_mut(device))
            .and_then(|device| device.pool_mut())
        {
            pool.reserve(id, &[], 0);
        }
        self.arm_request(id);
        self.fact(Fact::Reserved(id, executor));
    }

    /// Gives what is free on a device to those who have first claim on it, in order.
    pub(super) fn serve_claims(&mut self, device: DeviceId) {
        for id in self.devices[device.0 as usize].claims.clone() {
            let reserved = self.requests.get(&id).and_then(Request::waiting);
            let reserved = reserved.and_then(|waiting| waiting.reservation.as_ref());
            match reserved.map(|reservation| (reservation.executor, reservation.by)) {
                Some((executor, by)) => self.fill_reservation(id, executor, by),
                None => {
                    self.fill_short(id);
                }
            }
        }
    }

    /// Takes what is free for a reservation, and places its request once all is there.
    fn fill_reservation(&mut self, id: RequestId, executor: ExecutorId, by: Decided) {
        let needed = match (self.requests.get(&id), self.executors.get(executor)) {
            (Some(request), Some(record)) => blocks_at_start(request, record),
            _ => return,
        };
        let Some(record) = self.executors.get_mut(executor) else {
            return;
        };
        if !record.slots.contains_key(&id) && record.has_slot() {
            record.slots.insert(id, SlotUse::Reserved);
        }
        let has_slot = record.slots.contains_key(&id);
        let has_place = record
            .spec
            .models_max
            .is_none_or(|models_max| record.models_active <= models_max);
        let device = record.spec.device;
        let pool = self.devices[device.0 as usize].pool_mut();
        let has_blocks = pool.is_none_or(|pool| {
            pool.grow(id, needed);
            pool.lease(id).len() >= needed as usize
        });
        self.touch_device(device);
        self.touch_load(executor);
        if has_slot && has_place && has_blocks {
            self.complete_reservation(id, executor, by);
        }
    }

    fn complete_reservation(&mut self, id: RequestId, executor: ExecutorId, by: Decided) {
        let device = self.executors.get(executor).map(|e| e.spec.device);
        if let Some(device) = device.and_then(|device| self.device_mut(device)) {
            device.drop_claim(id);
        }
        self.enter(id, executor, 0, PlacedIn::Slot);
        self.fact(Fact::Placed {
            request: id,
            executor,
            into: PlacedIn::Slot,
            by,
        });
        self.start(id);
    }

    /// Gives what is free on a device to running sequences that lack a block and have no claim,
    /// the most urgent first.
    pub(super) fn serve_short(&mut self, device: DeviceId) {
        loop {
            let record = &self.devices[device.0 as usize];
            let unclaimed = record.short.iter().filter(|id| !record.claims.contains(id));
            let requests = unclaimed.filter_map(|id| self.requests.get(id));
            let first = requests.reduce(|a, b| if b.precedes(a) { b } else { a });
            let Some(id) = first.map(Request::id) else {
                return;
            };
            if !self.fill_short(id) {
                return;
            }
        }
    }

    pub(super) fn reservation_is_overdue(&self, id: RequestId) -> bool {
        let waiting = self.requests.get(&id).and_then(Request::waiting);
        let reservation = waiting.and_then(|waiting| waiting.reservation.as_ref());
        reservation.is_some_and(|r| self.now.since(r.since) >= self.config.unplaced_max)
    }

    /// Gives up the room kept for a request, if there is any.
    pub(super) fn drop_reservation(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let model = request.row.model;
        let reservation = request.waiting_mut().and_then(|w| w.reservation.take());
        let Some(Reservation { executor, .. }) = reservation else {
            return;
        };
        let Some(record) = self.executors.get_mut(executor) else {
            return;
        };
        record.slots.remove(&id);
        let device = record.spec.device;
        if let Some(device) = self.device_mut(device) {
            device.drop_claim(id);
            if let Some(pool) = device.pool_mut() {
                pool.close(id);
            }
        }
        self.leave_model(executor, model);
        self.touch_device(device);
        self.touch_load(executor);
        self.arm_request(id);
        self.fact(Fact::ReservationDropped(id, executor));
        self.refill(executor);
        self.remove_if_detached(executor);
        self.due = true;
    }

    /// Gives up all room kept on an executor that takes nothing new any more.
    pub(super) fn drop_reservations_on(&mut self, executor: ExecutorId) {
        let Some(device) = self.device_of(executor) else {
            return;
        };
        for id in device.claims.clone() {
            let waiting = self.requests.get(&id).and_then(Request::waiting);
            let reservation = waiting.and_then(|waiting| waiting.reservation.as_ref());
            if reservation.is_some_and(|r| r.executor == executor) {
                self.drop_reservation(id);
            }
        }
    }
}
