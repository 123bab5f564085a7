//! Checks of evictions: that each victim may be made to leave, and that this covers the shortage.
//!
//! # Invariants
//! A victim is never more urgent than the needy request; of two equals neither evicts the other
//! more than once ([`Books::check_victim`]). So evictions cannot go round in circles.

use std::collections::BTreeSet;

use pointsman_events::{
    DeviceId, EvictHow, Eviction, Refusal, RefusalCause, RequestId, Shortage, Victim,
};

use super::super::count;
use super::super::ledger::{Executor, SlotUse, blocks_at_start};
use super::super::requests::{InSlot, Phase, Placed, Request};
use super::{Books, check_open_to};

/// Requests that are to leave.
type Leaving = BTreeSet<RequestId>;

impl Books<'_> {
    /// Checks that an eviction is in order and covers its shortage.
    pub(crate) fn check_eviction(
        self,
        shortage: &Shortage,
        eviction: &Eviction,
    ) -> Result<(), Refusal> {
        let needy = &self.requests[shortage.needy];
        let refuse = |cause: RefusalCause| cause.at(needy.id(), eviction.executor);
        let executor = self.ledger.find(eviction.executor);
        let executor = executor.ok_or_else(|| refuse(RefusalCause::UnknownExecutor))?;
        match shortage.executor {
            Some(only) if only != eviction.executor => {
                return Err(refuse(RefusalCause::WrongExecutor));
            }
            Some(_) => {}
            None => {
                check_open_to(self.ledger, needy, executor).map_err(refuse)?;
                self.ledger.can_run(needy.row.model).map_err(refuse)?;
            }
        }
        let mut victims = Leaving::new();
        let mut host_blocks = 0;
        for Victim { request, how } in &eviction.victims {
            let refuse = |cause: RefusalCause| cause.at(*request, eviction.executor);
            self.check_victim(needy, *request, *how, executor)
                .map_err(refuse)?;
            if !victims.insert(*request) {
                return Err(RefusalCause::NamedTwice.of(*request));
            }
            if *how == EvictHow::Swap {
                host_blocks += self.host_blocks_for(*request);
                self.check_arena(executor, host_blocks).map_err(refuse)?;
            }
        }
        if self.is_covered(needy, shortage, executor, &victims) {
            Ok(())
        } else {
            Err(refuse(RefusalCause::NotCovered))
        }
    }

    /// The victims of an eviction that could be spared, each for itself: the others are in order and
    /// cover the shortage, also by the blocks that policies are told of.
    pub(crate) fn spared(self, shortage: &Shortage, eviction: &Eviction) -> Vec<RequestId> {
        let Some(executor) = self.ledger.find(eviction.executor) else {
            return Vec::new();
        };
        let device = &self.ledger[executor.spec.device];
        let pool = device.pool();
        let available = pool.map_or(0, |pool| pool.available());
        let blocks_left = |victims: &[Victim]| {
            let freed = victims.iter();
            let freed = freed.map(|it| pool.map_or(0, |pool| pool.exclusive(it.request)));
            available.saturating_add(freed.sum())
        };
        let mut spared = Vec::new();
        for at in 0..eviction.victims.len() {
            let mut others = eviction.clone();
            let victim = others.victims.remove(at);
            let is_enough = pool.is_none() || blocks_left(&others.victims) >= shortage.blocks;
            if !others.victims.is_empty()
                && is_enough
                && self.check_eviction(shortage, &others).is_ok()
            {
                spared.push(victim.request);
            }
        }
        spared
    }

    /// Checks that a request may be made to give way to another one, which needs room on
    /// `executor`.
    pub(crate) fn check_victim(
        self,
        needy: &Request,
        victim: RequestId,
        how: EvictHow,
        executor: &Executor,
    ) -> Result<(), RefusalCause> {
        if victim == needy.id() {
            return Err(RefusalCause::IsNeedy);
        }
        let request = self.requests.find(victim);
        let request = request.ok_or(RefusalCause::UnknownRequest)?;
        let placed = match &request.phase {
            Phase::Waiting(_) => return Err(RefusalCause::NotPlaced),
            Phase::Leaving(..) => return Err(RefusalCause::AlreadyLeaving),
            Phase::Placed(placed) => placed,
        };
        let spec = &self.ledger[placed.executor].spec;
        if spec.device != executor.spec.device {
            return Err(RefusalCause::WrongDevice);
        }
        if !spec.preempts {
            return Err(RefusalCause::NotPreemptible);
        }
        let arena = &self.ledger[executor.spec.device].arena();
        if how == EvictHow::Swap && arena.total() == 0 {
            return Err(RefusalCause::NotSwappable);
        }
        let block = spec.tokens_per_block.unwrap_or(1);
        check_precedence(needy, (request, placed), block)
    }

    /// The number of blocks of host memory that a victim takes. One that has not started holds nothing
    /// yet.
    fn host_blocks_for(self, victim: RequestId) -> u32 {
        let request = &self.requests[victim];
        if request.is_queued_on_executor() {
            return 0;
        }
        let executor = request.placement().executor;
        self.ledger.host_blocks_for(victim, executor)
    }

    /// Checks that the host memory of an executor's device has so many free blocks.
    fn check_arena(self, executor: &Executor, needed: u32) -> Result<(), RefusalCause> {
        let available = self.ledger[executor.spec.device].arena().free();
        if needed > available {
            return Err(RefusalCause::HostFull { needed, available });
        }
        Ok(())
    }

    /// Tells whether the needy request has all it lacks once these have left, with the room that is
    /// free and leaving now, and less the room that others have first claim on.
    fn is_covered(
        self,
        needy: &Request,
        shortage: &Shortage,
        executor: &Executor,
        victims: &Leaving,
    ) -> bool {
        let device = &self.ledger[executor.spec.device];
        let waits = shortage.executor.is_none();
        let leaving = self.leaving_with(device.id, victims);
        let (blocks, coming) = if waits {
            let coming = self.ledger.available_after(needy, executor, &leaving);
            (blocks_at_start(needy, executor), coming)
        } else {
            let pool = device.pool();
            let coming = pool.map(|pool| pool.available() + pool.freed_by(&leaving));
            (shortage.blocks, coming)
        };
        if coming.is_some_and(|coming| coming < blocks + self.spoken_for(device.id, needy, victims))
        {
            return false;
        }
        !waits
            || (self.slot_is_covered(executor, victims)
                && self.model_is_covered(needy, executor, victims))
    }

    /// The number of blocks that a waiting request must get on an executor: without what others hold
    /// of its prompt there, unless a possible victim holds it alone and would give it back.
    pub(crate) fn blocks_lacked_by(self, needy: &Request, executor: &Executor) -> u32 {
        let preemptible = self.ledger.sets().preemptible.iter();
        let gives_way = |id: &RequestId| {
            let checked = self.check_victim(needy, *id, EvictHow::Recompute, executor);
            checked.is_ok()
        };
        let victims = preemptible.map(|(_, id)| *id).filter(gives_way);
        let shared = self.ledger.shared_whatever_leaves(needy, executor, victims);
        blocks_at_start(needy, executor).saturating_sub(shared)
    }

    /// The number of blocks that others have first claim on: requests with open claims, and for a
    /// newcomer also the running sequences that lack some. A victim's claim goes with it.
    fn spoken_for(self, device: DeviceId, needy: &Request, victims: &Leaving) -> u32 {
        let device = &self.ledger[device];
        let mut ahead: BTreeSet<RequestId> = device.claims.iter().copied().collect();
        if needy.waiting().is_some() {
            ahead.extend(&device.short);
        }
        let others = ahead.difference(victims);
        let others = others.copied().filter(|id| *id != needy.id());
        others.map(|id| self.blocks_missing(id)).sum()
    }

    /// The number of blocks that a claimant still lacks.
    fn blocks_missing(self, id: RequestId) -> u32 {
        let request = &self.requests[id];
        let (executor, needed) = match request.reservation() {
            Some(reservation) => {
                let executor = &self.ledger[reservation.executor];
                (executor.id, blocks_at_start(request, executor))
            }
            None => {
                let placed = request.placement();
                (
                    placed.executor,
                    placed.short.map_or(0, |short| short.blocks),
                )
            }
        };
        needed.saturating_sub(self.ledger.device_of(executor).held(id))
    }

    /// Tells whether a slot comes free for a newcomer. Requests in the device queue are behind: a
    /// slot that comes free is first the claimants'.
    fn slot_is_covered(self, executor: &Executor, victims: &Leaving) -> bool {
        let stays = |(id, slot): &(&RequestId, &SlotUse)| {
            **slot != SlotUse::Leaving && !victims.contains(*id)
        };
        let staying = executor.slots.iter().filter(stays).count();
        let claims = self.ledger[executor.spec.device].claims.iter();
        let expected = claims.filter(|id| {
            let reservation = self.requests[**id].reservation();
            reservation.is_some_and(|r| r.executor == executor.id)
                && !executor.slots.contains_key(id)
        });
        staying + expected.count() < executor.spec.slots_total as usize
    }

    fn model_is_covered(self, needy: &Request, executor: &Executor, victims: &Leaving) -> bool {
        let Some((models_max, model)) = executor.spec.models_max.zip(needy.row.model) else {
            return true;
        };
        let leaving = self.leaving_with(executor.spec.device, victims);
        let staying = executor.models.iter().filter(|(other, presence)| {
            let leave = leaving.iter().map(|id| &self.requests[*id]);
            let leave = leave.filter(|request| {
                request.row.model == Some(**other) && request.placement().executor == executor.id
            });
            **other != model && presence.sequences > count(leave.count())
        });
        count(staying.count()) < models_max
    }

    /// Sequences on a device that are leaving, or will be with these victims.
    fn leaving_with(self, device: DeviceId, victims: &Leaving) -> Leaving {
        let mut leaving = self.leaving_on(device);
        leaving.extend(victims);
        leaving
    }

    /// Sequences on a device that were told to leave and have not left yet.
    pub(crate) fn leaving_on(self, device: DeviceId) -> Leaving {
        let executors = self.ledger.executors_on(device);
        let slots = executors.flat_map(|executor| &executor.slots);
        let leaving = slots.filter(|(_, slot)| **slot == SlotUse::Leaving);
        leaving.map(|(id, _)| *id).collect()
    }
}

/// Checks that a placed victim does not come before the needy request. `block` is the least number
/// of tokens that count as progress.
fn check_precedence(
    needy: &Request,
    (victim, placed): (&Request, &Placed),
    block: u32,
) -> Result<(), RefusalCause> {
    // A victim that has not started loses nothing, and could not start while the sequences before
    // it wait for the blocks that it holds.
    if placed.in_slot == InSlot::Queued && needy.placed().is_some() {
        return Ok(());
    }
    if victim.urgency() > needy.urgency() {
        return Err(RefusalCause::MoreUrgent);
    }
    // The first by urgency and arrival always gets through; that order has no circles, and the rest
    // below breaks the circles among all others.
    if needy.precedes(victim) {
        return Ok(());
    }
    if needy.evicted_for.contains(&victim.id()) {
        return Err(RefusalCause::EvictedForVictim);
    }
    if victim.preemptions > 0 && placed.generated < block {
        return Err(RefusalCause::NoProgress);
    }
    Ok(())
}
