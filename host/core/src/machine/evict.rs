//! The interlock for evictions: whether victims may be made to leave, and whether that covers the
//! shortage.
//!
//! # Invariants
//! A victim is never more urgent than the needy one; of two equals neither evicts the other more
//! than once ([`Machine::check_victim`]). So evictions cannot go round in circles.

use std::collections::BTreeSet;

use crate::answer::{EvictHow, Eviction, Victim};
use crate::ids::{DeviceId, ExecutorId, RequestId};
use crate::question::Shortage;
use crate::refusal::{Refusal, RefusalCause};

use super::Machine;
use super::executor::{Executor, SlotUse, count};
use super::place::blocks_at_start;
use super::request::{InSlot, Phase, Request};

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
        // What has not started loses nothing, and could not start while the sequences before it
        // wait for the blocks that it holds.
        if placed.in_slot == InSlot::Queued && needy.placed().is_some() {
            return Ok(());
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
        // Those in the device queue are behind: a slot that comes free is first the claimants'.
        staying + expected.count() < executor.spec.slots_total as usize
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
    pub(super) fn leaving_on(&self, device: DeviceId) -> BTreeSet<RequestId> {
        let executors = self.devices[device.0 as usize].executors.iter();
        let slots = executors
            .filter_map(|id| self.executors.get(*id))
            .flat_map(|executor| &executor.slots);
        let leaving = slots.filter(|(_, slot)| **slot == SlotUse::Leaving);
        leaving.map(|(id, _)| *id).collect()
    }
}
