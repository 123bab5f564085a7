//! Timers, and the clocks that bound what a policy can do to a request.
//!
//! 1. *Unplaced*: what some executor could have taken for `unplaced-max` is placed by the built-in
//!    rule. 2. *Overtaken*: what later, not more urgent requests have overtaken `overtaken-max`
//!    times where it could have run goes first. 3. *Tokenless*: a running sequence without a token
//!    for `tokenless-steps-max` steps gets a built-in allotment. 4. *Stalled*: a running sequence
//!    that lacked a block for `unplaced-max` gets a built-in eviction (see `relieve`).
//!
//! # Bounds
//! A request and an executor have at most one timer each.

use std::collections::{BTreeMap, BTreeSet};

use crate::answer::Author;
use crate::fact::{Clock, Decided, Fact, Outcome};
use crate::hook::Hook;
use crate::ids::{DeviceId, ExecutorId, Micros, ModelId, RequestId};
use crate::policies::{Policies, Strike};
use crate::view::View;

use super::request::{AfterLeaving, Phase, Request};
use super::round::{Feasibility, RoundRecord};
use super::{CLASSES, Machine};

/// Whose timer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
enum Timer {
    Request(RequestId),
    Executor(ExecutorId),
    /// `evict` may be asked again.
    Evict,
}

/// When something may fall due, at most once per thing.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Timers {
    by_time: BTreeSet<(Micros, Timer)>,
    armed: BTreeMap<Timer, Micros>,
    /// Per class, in the order of [`CLASSES`]: when `evict` may be asked again.
    pub(super) evict_gates: [EvictGate; CLASSES.len()],
}

/// Keeps `evict` from being asked in every round of an overloaded host.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct EvictGate {
    pub(super) until: Micros,
    /// Somebody more urgent than this passes.
    pub(super) priority: Option<i32>,
}

impl Timers {
    pub(super) fn next(&self) -> Option<Micros> {
        self.by_time.first().map(|(at, _)| *at)
    }

    fn arm(&mut self, timer: Timer, at: Option<Micros>) {
        let old = match at {
            Some(at) => self.armed.insert(timer, at),
            None => self.armed.remove(&timer),
        };
        if old == at {
            return;
        }
        if let Some(old) = old {
            self.by_time.remove(&(old, timer));
        }
        if let Some(at) = at {
            self.by_time.insert((at, timer));
        }
    }

    pub(super) fn disarm_request(&mut self, id: RequestId) {
        self.arm(Timer::Request(id), None);
    }

    pub(super) fn disarm_executor(&mut self, id: ExecutorId) {
        self.arm(Timer::Executor(id), None);
    }

    pub(super) fn arm_evict(&mut self) {
        let gates = self.evict_gates.iter();
        let next = gates
            .map(|gate| gate.until)
            .filter(|at| *at > Micros(0))
            .max();
        self.arm(Timer::Evict, next);
    }

    fn pop_due(&mut self, now: Micros) -> Option<Timer> {
        let (at, timer) = self.by_time.first().copied()?;
        if at > now {
            return None;
        }
        self.arm(timer, None);
        Some(timer)
    }

    /// Requests with a timer.
    pub(super) fn requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.armed.keys().filter_map(|timer| match timer {
            Timer::Request(id) => Some(*id),
            Timer::Executor(_) | Timer::Evict => None,
        })
    }
}

// === impl Machine: timers ===

impl Machine {
    /// Sets a request's timer to the next time at which something about it may fall due.
    pub(super) fn arm_request(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        // What is overdue already could not be helped in this round; it is looked at again soon.
        let soon = self.now.after(self.config.evict_retry);
        let at = self.due_at(request);
        let at = at.map(|at| if at <= self.now { soon } else { at });
        self.timers.arm(Timer::Request(id), at);
    }

    fn due_at(&self, request: &Request) -> Option<Micros> {
        let bound = self.config.unplaced_max;
        let other = match &request.phase {
            Phase::Leaving(_, AfterLeaving::Gone) => return None,
            Phase::Leaving(_, AfterLeaving::Requeue) => None,
            Phase::Placed(placed) => placed.short.map(|short| {
                let stalled = short.since.after(bound);
                let retry = short.asked.map(|at| at.after(self.config.evict_retry));
                retry.map_or(stalled, |retry| retry.min(stalled))
            }),
            Phase::Waiting(waiting) => {
                let reserved = waiting.reservation.as_ref().map(|r| r.since.after(bound));
                let unplaced = waiting.feasible_since.map(|since| since.after(bound));
                let expires = waiting.since.after(self.config.wait_max);
                let soonest = [reserved, unplaced, waiting.held_until, Some(expires)];
                soonest.into_iter().flatten().min()
            }
        };
        other.into_iter().chain(request.row.deadline).min()
    }

    /// Sets an executor's timer to when the first of its models cools.
    pub(super) fn arm_executor(&mut self, id: ExecutorId) {
        let models = self.executors.get(id).map(|executor| &executor.models);
        let cools = models
            .into_iter()
            .flatten()
            .filter_map(|(_, p)| p.warm_until);
        let at = cools.min();
        self.timers.arm(Timer::Executor(id), at);
    }

    pub(super) fn fire_timers(&mut self) {
        while let Some(timer) = self.timers.pop_due(self.now) {
            match timer {
                Timer::Request(id) => self.fire_request(id),
                Timer::Executor(id) => self.fire_executor(id),
                Timer::Evict => {
                    for gate in &mut self.timers.evict_gates {
                        *gate = EvictGate::default();
                    }
                    self.due = true;
                }
            }
        }
    }

    fn fire_request(&mut self, id: RequestId) {
        self.expire(id);
        if !self.requests.contains_key(&id) {
            return;
        }
        // A hold, a clock or a reservation: the round deals with it.
        self.due = true;
        if self.reservation_is_overdue(id) {
            self.drop_reservation(id);
        }
        if let Some(waiting) = self.requests.get_mut(&id).and_then(Request::waiting_mut) {
            waiting.held_until = waiting.held_until.filter(|at| *at > self.now);
        }
        self.arm_request(id);
    }

    /// Ends a request whose time has run out.
    pub(super) fn expire(&mut self, id: RequestId) {
        let request = self.requests.get(&id);
        if let Some(why) = request.and_then(|request| self.expiry(request)) {
            self.end(id, Outcome::Expired(why));
        }
    }

    fn fire_executor(&mut self, id: ExecutorId) {
        let now = self.now;
        let models = self.executors.get(id).map(|executor| &executor.models);
        let cooled: Vec<ModelId> = models
            .into_iter()
            .flatten()
            .filter(|(_, presence)| presence.warm_until.is_some_and(|at| at <= now))
            .map(|(model, _)| *model)
            .collect();
        self.cool(id, &cooled);
        self.arm_executor(id);
        self.due = true;
    }
}

// === impl Machine: clocks ===

impl Machine {
    fn overdue(&self, request: &Request) -> Option<Clock> {
        let waiting = request.waiting()?;
        if waiting.reservation.is_some() {
            return None;
        }
        if waiting.overtaken >= self.config.overtaken_max {
            return Some(Clock::Overtaken);
        }
        let since = waiting.feasible_since?;
        (self.now.since(since) >= self.config.unplaced_max).then_some(Clock::Unplaced)
    }

    /// Places what the first two clocks say must go first, where the built-in rule finds room.
    pub(super) fn place_overdue(&mut self, policies: &mut dyn Policies, record: &mut RoundRecord) {
        for id in self.watched.clone() {
            let Some(request) = self.requests.get(&id) else {
                continue;
            };
            let Some(clock) = self.overdue(request) else {
                continue;
            };
            let Some((executor, into)) = self.first_with_room(request) else {
                continue;
            };
            self.fact(Fact::Strike(clock, Hook::Routing, id));
            let strike = Strike {
                at: self.now,
                hook: Hook::Routing,
                clock,
                request: Some(id),
            };
            policies.struck(&View::new(self), &strike);
            self.place(id, executor, into, Decided::BUILT_IN);
            record.placements.push((id, executor));
        }
    }

    /// Second clock: counts, for those left waiting, who overtook them in this round.
    pub(super) fn count_overtaken(&mut self, record: &RoundRecord) {
        for id in &record.asked {
            let Some(request) = self.requests.get(id) else {
                continue;
            };
            if request.waiting().is_none() {
                continue;
            }
            let overtook = record.placements.iter().filter(|(other, executor)| {
                *other > *id && self.overtakes(*other, request, *executor)
            });
            let n = super::executor::count(overtook.count());
            if n == 0 {
                continue;
            }
            if let Some(waiting) = self.requests.get_mut(id).and_then(Request::waiting_mut) {
                waiting.overtaken = waiting.overtaken.saturating_add(n);
            }
            self.watched.insert(*id);
        }
    }

    /// Whether a placement went past a request that is at least as urgent and could have run
    /// there.
    fn overtakes(&self, other: RequestId, request: &Request, executor: ExecutorId) -> bool {
        let less_urgent = self
            .requests
            .get(&other)
            .is_some_and(|other| other.urgency() <= request.urgency());
        let executor = self.executors.get(executor);
        less_urgent
            && executor.is_some_and(|executor| self.check_open_to(request, executor).is_ok())
    }

    /// First clock: starts it for those that could have been placed in this round and were not,
    /// and stops it for the others.
    pub(super) fn watch_feasible(&mut self, record: &RoundRecord) {
        for id in &record.admitted {
            self.arm_request(*id);
        }
        let mut feasible = Feasibility::default();
        for id in self
            .watched
            .clone()
            .into_iter()
            .chain(record.asked.iter().copied())
        {
            let Some(request) = self.requests.get(&id).filter(|r| r.waiting().is_some()) else {
                self.watched.remove(&id);
                continue;
            };
            let could_run = feasible.check(self, request);
            let now = self.now;
            let Some(waiting) = self.requests.get_mut(&id).and_then(Request::waiting_mut) else {
                continue;
            };
            if could_run {
                waiting.feasible_since.get_or_insert(now);
            } else {
                waiting.feasible_since = None;
            }
            if could_run || waiting.overtaken > 0 {
                self.watched.insert(id);
            } else {
                self.watched.remove(&id);
            }
            self.arm_request(id);
        }
    }

    /// Third clock: the next allotment of the device is the built-in one, and its policy is told
    /// of the strike then.
    pub(super) fn strike_tokenless(&mut self, id: RequestId, device: DeviceId) {
        if self.devices[device.0 as usize]
            .spec
            .tokens_per_step
            .is_none()
        {
            return;
        }
        self.fact(Fact::Strike(Clock::Tokenless, Hook::Budget, id));
        self.allot_built_in.insert(device);
        self.allot_due.insert(device);
        self.due = true;
    }

    /// Notes that an answer, or an action in it, was refused, and tells its author.
    pub(super) fn refuse(
        &mut self,
        policies: &mut dyn Policies,
        author: Author,
        hook: Hook,
        refusal: crate::Refusal,
    ) {
        policies.refused(author, hook, &refusal);
        self.fact(Fact::Refused(author, hook, refusal));
    }
}
