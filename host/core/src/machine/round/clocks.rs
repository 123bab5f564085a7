//! The clocks that bound what a policy can do to a request.
//!
//! 1. *Unplaced*: what some executor could have taken for `unplaced-max` is placed by the built-in
//!    rule. 2. *Overtaken*: a request that later, not more urgent ones have overtaken
//!    `overtaken-max` times where it could have run goes first, also among the parked and in the
//!    queue of an executor (see `queues`); it counts against the policy whose answer let the last of
//!    them go before it. 3. *Tokenless*: a running sequence without a token for
//!    `tokenless-steps-max` steps gets a built-in allotment, and its engine a built-in order (see
//!    `inputs/sequences`). 4. *Stalled*: a running sequence that lacked a block for `unplaced-max`
//!    gets a built-in eviction, if that finds somebody to give way (see `shortages`).
//!
//! A hold on purpose, where some executor could take the request, stops the first two while it lasts, so that nobody is
//! struck for it: see `requests/waiting`. A request that has waited for `wait-max` is placed by the built-in rule if
//! an executor can take it at that time, and refused only if none can.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use pointsman_events::rows::Stage;
use pointsman_events::{
    Clock, Decided, ExecutorId, ExpiredWhy, Fact, Hook, Outcome, RequestId, Strike,
};

use super::super::interlock::check_open_to;
use super::super::requests::{Request, Waiting};
use super::super::{Machine, count};
use super::feasibility::Feasibility;
use super::{OngoingRound, built_in};

/// A reason to place a request before any policy is asked.
enum Overdue {
    /// A clock has run out, which counts against the policy of a hook.
    Clock(Clock, Hook),
    /// It has waited for as long as it may.
    Waited,
}

impl OngoingRound<'_> {
    /// Places the requests that must go first, where the built-in rule finds room. They overtake nobody: no
    /// policy let them.
    pub(super) fn place_overdue(&mut self) {
        for id in self.machine.requests.watched().clone() {
            let Some(overdue) = self.machine.overdue(id) else {
                continue;
            };
            let request = &self.machine.requests[id];
            let room = built_in::first_with_room(&self.machine.ledger, request);
            match (overdue, room) {
                (Overdue::Clock(clock, hook), Some(on)) => {
                    self.strike_for(id, clock, hook);
                    // Where it is turned back, that is not told again.
                    self.machine.requests.count_overtaken_anew(id);
                    self.machine.place(id, on, Decided::BUILT_IN);
                }
                (Overdue::Waited, Some(on)) => self.machine.place(id, on, Decided::BUILT_IN),
                (Overdue::Waited, None) => {
                    self.machine.end(id, Outcome::Expired(ExpiredWhy::Wait));
                }
                (Overdue::Clock(..), None) => {}
            }
        }
    }

    /// Tells that a clock of a request ran out by the answers of a hook's policy.
    pub(super) fn strike_for(&mut self, id: RequestId, clock: Clock, hook: Hook) {
        let strike = Fact::Strike(clock, hook, id);
        self.machine.out.fact(strike);
        self.strike(Strike {
            at: self.at.now,
            hook,
            clock,
            request: Some(id),
        });
    }

    /// Second clock: counts the placements of this round that overtook a request left waiting, and
    /// not on purpose. One that nothing could take when its turn came waits for lack of room, not on purpose.
    pub(super) fn count_overtaken(&mut self) {
        let places = LazyCell::new(|| places(&self.ordered));
        for id in &self.asked {
            let waiting = self.machine.requests.find(*id);
            let lacks_room = self.without_room.contains(id);
            let counts = |waiting: &Waiting| lacks_room || waiting.held_until().is_none();
            let Some(request) = waiting.filter(|request| request.waiting().is_some_and(counts))
            else {
                continue;
            };
            // Most are placed in order of arrival, so ids are looked at first.
            let later = self.placements.iter().filter(|(other, _)| other > id);
            let overtook = later
                .filter(|(other, executor)| self.machine.overtakes(*other, request, *executor));
            let overtook: Vec<RequestId> = overtook.map(|(other, _)| *other).collect();
            if overtook.is_empty() {
                continue;
            }
            let hook = at_fault(&places, *id, &overtook);
            if let Some(waiting) = self.machine.requests.waiting_mut(*id) {
                waiting.overtaken = waiting.overtaken.saturating_add(count(overtook.len()));
                waiting.overtaken_by = hook;
            }
            self.machine.requests.watch(*id);
        }
    }

    /// First clock: starts it for requests that could have been placed in this round and were not,
    /// and stops it for the others.
    pub(super) fn watch_feasible(&mut self) {
        for id in &self.admitted {
            if self.machine.requests.find(*id).is_some() {
                self.machine.arm_request(*id);
            }
        }
        let mut feasibility = Feasibility::default();
        let watched = self.machine.requests.watched().clone();
        for id in watched.into_iter().chain(self.asked.drain(..)) {
            self.machine.watch(id, &mut feasibility);
        }
    }
}

/// The place of each request in an order.
fn places(ordered: &[RequestId]) -> BTreeMap<RequestId, usize> {
    let places = ordered.iter().enumerate();
    places.map(|(place, id)| (*id, place)).collect()
}

/// The hook whose answer let a request be overtaken: the order's if each of those that overtook it was tried
/// before it, else that of routing, which did not place it when its turn came.
fn at_fault(places: &BTreeMap<RequestId, usize>, id: RequestId, overtook: &[RequestId]) -> Hook {
    let was_tried_first = |other| places.get(other) < places.get(&id);
    if overtook.iter().all(was_tried_first) {
        Hook::Priority
    } else {
        Hook::Routing
    }
}

impl Machine {
    /// The reason to place a watched request now, if there is one.
    fn overdue(&self, id: RequestId) -> Option<Overdue> {
        let request = self.requests.find(id)?;
        let waiting = request.waiting()?;
        if request.reservation().is_some() {
            return None;
        }
        let unplaced_at = waiting.unplaced_at(self.config.unplaced_max);
        if unplaced_at.is_some_and(|at| at <= self.out.now()) {
            return Some(Overdue::Clock(Clock::Unplaced, Hook::Routing));
        }
        if self.has_waited_out(waiting) {
            return Some(Overdue::Waited);
        }
        let is_overtaken = waiting.overtaken >= self.config.overtaken_max;
        let counts = is_overtaken && waiting.held_until().is_none();
        counts.then_some(Overdue::Clock(Clock::Overtaken, waiting.overtaken_by))
    }

    /// Tells whether a request has been without a place for as long as one may.
    pub(in super::super) fn has_waited_out(&self, waiting: &Waiting) -> bool {
        self.out.now().since(waiting.since) >= self.config.wait_max
    }

    /// Tells whether the built-in rule finds room for a queued request.
    pub(in super::super) fn could_be_placed(&self, request: &Request) -> bool {
        request.row.stage == Stage::Queued
            && request.reservation().is_none()
            && built_in::first_with_room(&self.ledger, request).is_some()
    }

    /// Brings the row of a request up to date with the latest time at which a hold ends.
    pub(super) fn tell_hold_end(&mut self, id: RequestId) {
        let held_max = self.config.held_max;
        self.requests.tell_hold_end(id, held_max, &mut self.out);
    }

    /// Tells whether a placement went past a request that could have run there.
    fn overtakes(&self, other: RequestId, request: &Request, executor: ExecutorId) -> bool {
        let other = self.requests.find(other);
        let executor = self.ledger.find(executor);
        other.is_some_and(|other| self.is_overtaken(request, other))
            && executor.is_some_and(|e| check_open_to(&self.ledger, request, e).is_ok())
    }

    /// Tells whether `other`, which goes before `request`, overtakes it: it came later and is not more
    /// urgent. A tenant is not overtaken by one that has fewer requests placed, by their weights: a
    /// policy may give tenants their shares, whatever queue one of them makes.
    pub(in super::super) fn is_overtaken(&self, request: &Request, other: &Request) -> bool {
        let (tenant, others) = (request.row.tenant, other.row.tenant);
        request.is_passed_by(other) && !self.ledger.holds_more(tenant, others)
    }

    fn watch(&mut self, id: RequestId, feasibility: &mut Feasibility) {
        let waiting = self.requests.find(id);
        let Some(request) = waiting.filter(|request| request.waiting().is_some()) else {
            self.requests.unwatch(id);
            return;
        };
        let could_run = feasibility.check(&self.ledger, request);
        let now = self.out.now();
        let Some(waiting) = self.requests.waiting_mut(id) else {
            return;
        };
        if could_run {
            waiting.could_run(now);
        } else {
            waiting.could_not_run(now);
        }
        let is_overtaken = waiting.overtaken > 0;
        if waiting.held_until().is_some() {
            self.tell_hold_end(id);
        }
        if could_run || is_overtaken {
            self.requests.watch(id);
        } else {
            self.requests.unwatch(id);
        }
        self.arm_request(id);
    }
}
