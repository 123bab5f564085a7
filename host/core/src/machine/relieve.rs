//! Shortages: who is asked about, and when.
//!
//! The most urgent running sequence of each device that cannot grow, and the most urgent waiting
//! request of each class that nothing could take, are asked about; what an answer may do is
//! `evict`'s to say, and what becomes of the room is `reserve`'s.
//!
//! # Invariants
//! 1. While a claim is open its shortage is not asked about again, so none is covered twice.
//! 2. The most urgent short sequence of a device can always evict the preemptible others, so
//!    sequences that wait for each other's blocks cannot block a device for ever.
//!
//! # Bounds
//! After an answer that freed nothing a class is not asked about for `evict-retry`, unless
//! somebody more urgent comes.

use crate::answer::Author;
use crate::fact::{Clock, Decided, Fact};
use crate::hook::Hook;
use crate::ids::{DeviceId, Micros, RequestId};
use crate::policies::{Policies, Strike};
use crate::question::{Question, Shortage, ShortageCause};
use crate::refusal::RefusalCause;
use crate::rows::{Moment, RequestClass};
use crate::view::View;

use super::executor::count;
use super::liveness::EvictGate;
use super::place::blocks_at_start;
use super::request::Request;
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
            let strike = Strike {
                at: self.now,
                hook: Hook::Preemption,
                clock: Clock::Stalled,
                request: Some(id),
            };
            policies.struck(&View::new(self), &strike);
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

    /// What eviction frees of a sequence also changes when others begin or cease to share its
    /// blocks; the rows are brought up to date when it matters.
    fn refresh_sharers(&mut self) {
        let placed = self.preemptible.iter().map(|(_, id)| *id);
        let shares = |id: &RequestId| {
            let request = self.requests.get(id);
            request.is_some_and(|request| !request.prompt_hashes.is_empty())
        };
        for id in placed.filter(shares).collect::<Vec<_>>() {
            self.touch_sequence(id);
        }
    }

    /// Asks for victims and evicts them. True if somebody leaves.
    fn ask_evict(
        &mut self,
        at: Moment,
        policies: &mut dyn Policies,
        shortage: &Shortage,
        insistence: Insistence,
    ) -> bool {
        self.refresh_sharers();
        let asked = self.asked(at, Question::Preemption(*shortage));
        let answer = policies.ask(&asked).preemption();
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
