//! Shortages: for whom room is made, and when.
//!
//! Evictions are asked for the most urgent running sequence of each device that cannot grow, and
//! for the first waiting request of each class that nothing could take and to which somebody could
//! give way. The interlock says what an answer may do, and [`Machine::evict`] what becomes of the room.
//!
//! # Invariants
//! 1. While a claim is open its shortage is not asked about again, so none is covered twice.
//! 2. The most urgent short sequence of a device can always evict the preemptible others, so
//!    sequences that wait for each other's blocks cannot block a device for ever.
//!
//! # Bounds
//! After an answer that freed nothing a class is not asked about for `evict-retry`, unless a more
//! urgent request comes.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use pointsman_events::rows::RequestClass;
use pointsman_events::{
    Author, Clock, Decided, DeviceId, Fact, Hook, Micros, Question, RefusalCause, RequestId,
    Shortage, ShortageCause,
};

use super::super::interlock::check_place;
use super::super::ledger::Executor;
use super::super::requests::{Request, most_urgent};
use super::super::timers::EvictGate;
use super::super::{CLASSES, Machine};
use super::OngoingRound;
use super::built_in::{self, Insistence};
use super::feasibility::Feasibility;

impl OngoingRound<'_> {
    pub(super) fn relieve(&mut self) {
        for device in self.machine.ledger.sets().short.clone() {
            if self.machine.ledger.is_short(device) {
                self.relieve_growth(device);
            }
        }
        for (idx, class) in CLASSES.into_iter().enumerate() {
            if self.gate_is_open(idx, class) {
                let gate = self.relieve_waiting(class);
                self.machine.out.timers.evict_gates[idx] = gate;
            }
        }
        self.machine.out.timers.arm_evict();
    }

    fn relieve_growth(&mut self, device: DeviceId) {
        let Some((shortage, since)) = self.machine.growth_shortage(device) else {
            return;
        };
        let id = shortage.needy;
        self.machine.requests.asked_for(id, self.at.now);
        self.machine.out.fact(Fact::Short(id, shortage.cause));
        let is_stalled = self.at.now.since(since) >= self.machine.config.unplaced_max;
        let books = self.machine.books();
        // Where nobody can give way by the built-in rule either, no policy is to blame.
        let overdue = is_stalled.then(|| built_in::eviction(books, &shortage, Insistence::Arrival));
        if let Some(eviction) = overdue.flatten() {
            self.strike_for(id, Clock::Stalled, Hook::Preemption);
            self.machine.evict(&shortage, &eviction, Decided::BUILT_IN);
        } else {
            self.ask_evict(&shortage, Insistence::Arrival);
        }
        self.machine.arm_request(id);
    }

    /// Tells whether `evict` may be asked for a class: not right after it freed nothing, unless a
    /// more urgent request has come since.
    fn gate_is_open(&self, idx: usize, class: RequestClass) -> bool {
        let gate = self.machine.out.timers.evict_gates[idx];
        if gate.until <= self.at.now {
            return true;
        }
        let admitted = self.admitted.iter();
        let admitted = admitted.filter_map(|id| self.machine.requests.find(*id));
        let mut admitted = admitted.filter(|r| r.row.class == class);
        admitted.any(|r| gate.priority.is_none_or(|gated| r.row.priority > gated))
    }

    /// Makes room for a waiting request of a class that nothing could take. Returns the gate for
    /// the class, which is open where that helped or nobody needs it.
    fn relieve_waiting(&mut self, class: RequestClass) -> EvictGate {
        let candidates = self.machine.unplaceable(class);
        let requests = candidates.iter().map(|id| &self.machine.requests[*id]);
        let Some(urgency) = requests.map(Request::urgency).max() else {
            return EvictGate::default();
        };
        let gate = EvictGate {
            until: self.at.now.after(self.machine.config.evict_retry),
            priority: Some(urgency.priority),
        };
        let least = self.machine.ledger.sets().preemptible.first();
        if least.is_none_or(|(victim, _)| *victim > urgency) {
            return gate;
        }
        let ordered = self.ask_order(&candidates);
        let needy = self.machine.neediest(&ordered);
        let shortage = needy.and_then(|needy| self.machine.placement_shortage(needy));
        let Some((shortage, needy)) = shortage.zip(needy) else {
            return gate;
        };
        let priority = Some(needy.row.priority);
        let fact = Fact::Short(shortage.needy, shortage.cause);
        self.machine.out.fact(fact);
        if self.ask_evict(&shortage, Insistence::MoreUrgentOnly) {
            EvictGate::default()
        } else {
            EvictGate { priority, ..gate }
        }
    }

    /// Asks for victims and evicts them. True if somebody leaves.
    fn ask_evict(&mut self, shortage: &Shortage, insistence: Insistence) -> bool {
        self.machine.refresh_sharers();
        let question = Question::Preemption(*shortage);
        let answer = self.ask(question, |answer| answer.preemption());
        let author = answer.author;
        let books = self.machine.books();
        let eviction = match (author, answer.value) {
            (Author::Policy(_), Some(eviction)) => eviction,
            _ => built_in::eviction(books, shortage, insistence),
        };
        let Some(eviction) = eviction else {
            return false;
        };
        if let Err(refusal) = books.check_eviction(shortage, &eviction) {
            self.refuse(author, Hook::Preemption, refusal);
            return false;
        }
        let reason = eviction.reason;
        let by = Decided { author, reason };
        self.machine.evict(shortage, &eviction, by);
        true
    }
}

// === impl Machine: what is short ===

impl Machine {
    /// The shortage of the device's most urgent short sequence, and its beginning; absent where
    /// room is on the way or was asked for just now.
    fn growth_shortage(&self, device: DeviceId) -> Option<(Shortage, Micros)> {
        let record = &self.ledger[device];
        let needy = most_urgent(record.short.iter().map(|id| &self.requests[*id]))?;
        let placed = needy.placement();
        let short = placed.short?;
        let is_coming =
            record.claims.contains(&needy.id()) && !self.books().leaving_on(device).is_empty();
        let asked_just_now = short
            .asked
            .is_some_and(|asked| self.out.now().since(asked) < self.config.evict_retry);
        if is_coming || asked_just_now {
            return None;
        }
        let shortage = Shortage {
            cause: ShortageCause::Blocks,
            needy: needy.id(),
            executor: Some(placed.executor),
            blocks: short.blocks.saturating_sub(record.held(needy.id())),
        };
        Some((shortage, short.since))
    }

    /// Queued requests of a class that no executor could take now and for which no room is being
    /// made.
    fn unplaceable(&self, class: RequestClass) -> Vec<RequestId> {
        let mut feasibility = Feasibility::default();
        let unplaceable = self.requests.queued().filter(|request| {
            request.row.class == class
                && request.reservation().is_none()
                && !feasibility.check(&self.ledger, request)
        });
        unplaceable.map(Request::id).collect()
    }

    /// The first of these waiting requests to which somebody less urgent could give way: on an executor,
    /// or on its device where the request lacks blocks alone. If there is no such one, the first to
    /// which somebody as urgent could, and else the first of all.
    fn neediest(&self, ordered: &[RequestId]) -> Option<&Request> {
        let (mut on_executor, mut on_device) = (BTreeMap::new(), BTreeMap::new());
        for (urgency, id) in &self.ledger.sets().preemptible {
            let executor = &self.ledger[self.requests[*id].placement().executor];
            on_executor.entry(executor.id).or_insert(*urgency);
            on_device.entry(executor.spec.device).or_insert(*urgency);
        }
        let least_urgent =
            |needy: &Request, at: &Executor| match check_place(&self.ledger, needy, at) {
                Err(RefusalCause::NoSlot | RefusalCause::ModelsMax) => on_executor.get(&at.id),
                Err(RefusalCause::NoBlocks { .. }) => on_device.get(&at.spec.device),
                Ok(_) | Err(_) => None,
            };
        // The length from which on nobody less urgent gives way to requests that are alike.
        let mut hopeless = BTreeMap::new();
        let mut first = None;
        for needy in ordered.iter().map(|id| &self.requests[*id]) {
            let (row, length) = (&needy.row, needy.tokens_bound());
            let kind = (row.model, needy.urgency(), &row.allowed, &row.failed_on);
            let shortest = hopeless.entry(kind).or_insert(u64::MAX);
            if length >= *shortest || self.ledger.can_run(row.model).is_err() {
                continue;
            }
            let executors = self.ledger.executors();
            let least = executors.filter_map(|at| least_urgent(needy, at)).min();
            match least.map(|least| least.cmp(&needy.urgency())) {
                Some(Ordering::Less) => return Some(needy),
                Some(Ordering::Equal) => first = first.or(Some(needy)),
                Some(Ordering::Greater) | None => {}
            }
            *shortest = length;
        }
        first.or_else(|| ordered.first().map(|id| &self.requests[*id]))
    }

    /// The room that a waiting request lacks: a slot if that is all somewhere, else blocks, else a
    /// model's place; absent where no eviction could help. The blocks are enough on any executor
    /// that lacks the same.
    fn placement_shortage(&self, needy: &Request) -> Option<Shortage> {
        self.ledger.can_run(needy.row.model).ok()?;
        let mut found: Option<(ShortageCause, u32)> = None;
        let rank = |cause| match cause {
            ShortageCause::Slots => 0,
            ShortageCause::Blocks => 1,
            ShortageCause::Models => 2,
        };
        for executor in self.ledger.executors() {
            let cause = match check_place(&self.ledger, needy, executor) {
                Err(RefusalCause::NoSlot) => ShortageCause::Slots,
                Err(RefusalCause::NoBlocks { .. }) => ShortageCause::Blocks,
                Err(RefusalCause::ModelsMax) => ShortageCause::Models,
                Ok(_) | Err(_) => continue,
            };
            let blocks = self.books().blocks_lacked_by(needy, executor);
            found = Some(match found {
                Some((best, most)) if rank(best) == rank(cause) => (best, most.max(blocks)),
                Some(better) if rank(better.0) < rank(cause) => better,
                Some(_) | None => (cause, blocks),
            });
        }
        found.map(|(cause, blocks)| Shortage {
            cause,
            needy: needy.id(),
            executor: None,
            blocks,
        })
    }

    /// Marks the rows of sequences whose blocks others may share: what their eviction frees changes
    /// when others begin or cease to share them, and is brought up to date when it matters.
    fn refresh_sharers(&mut self) {
        let placed = self.ledger.sets().preemptible.iter();
        for (_, id) in placed {
            if !self.requests[*id].prompt_blocks.hashes.is_empty() {
                self.requests.touch_sequence(*id, &mut self.out);
            }
        }
    }
}
