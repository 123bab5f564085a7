//! What the needy get: victims told to leave, and the room they leave kept.
//!
//! A needy request has first claim on what its victims leave. For a running sequence that is the
//! blocks it lacks; for a waiting one a *reservation* on one executor: a slot, a model's place and
//! blocks, taken as they come free, in which it is placed as soon as all are there. So a victim,
//! older than its successor, cannot take its place back.

use crate::answer::{Eviction, Victim};
use crate::effect::Effect;
use crate::fact::{Decided, Fact, PlacedIn, RequeuedWhy};
use crate::ids::{DeviceId, ExecutorId, RequestId};
use crate::question::Shortage;

use super::Machine;
use super::executor::SlotUse;
use super::place::blocks_at_start;
use super::request::{AfterLeaving, InSlot, Phase, Request, Reservation};

impl Machine {
    /// Makes the victims leave, and keeps what they leave for the needy one.
    pub(super) fn evict(&mut self, shortage: &Shortage, eviction: &Eviction, by: Decided) {
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
        let (executor, sequence) = (placed.executor, placed.sequence(id));
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
                let how = victim.how;
                self.effect(Effect::Evict { sequence, how });
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
        self.touch_blocks(device);
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
        self.touch_blocks(device);
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
