//! The clocks that bound what a policy can do to a request.
//!
//! 1. *Unplaced*: what some executor could have taken for `unplaced-max` is placed by the built-in
//!    rule. 2. *Overtaken*: a request that later, not more urgent ones have overtaken
//!    `overtaken-max` times where it could have run goes first. 3. *Tokenless*: a running sequence
//!    without a token for `tokenless-steps-max` steps gets a built-in allotment (see
//!    `inputs/sequences`). 4. *Stalled*: a running sequence that lacked a block for `unplaced-max`
//!    gets a built-in eviction (see `shortages`).

use crate::fact::{Clock, Decided, Fact};
use crate::policies::Strike;
use pointsman_interface::Hook;
use pointsman_interface::{ExecutorId, RequestId};

use super::super::interlock::check_open_to;
use super::super::requests::Request;
use super::super::{Machine, count};
use super::feasibility::Feasibility;
use super::{OngoingRound, built_in};

impl OngoingRound<'_> {
    /// Places the requests that the first two clocks put first, where the built-in rule finds room.
    pub(super) fn place_overdue(&mut self) {
        for id in self.machine.requests.watched().clone() {
            let Some(clock) = self.machine.overdue(id) else {
                continue;
            };
            let request = &self.machine.requests[id];
            let Some(on) = built_in::first_with_room(&self.machine.ledger, request) else {
                continue;
            };
            let strike = Fact::Strike(clock, Hook::Routing, id);
            self.machine.out.fact(strike);
            self.strike(Strike {
                at: self.at.now,
                hook: Hook::Routing,
                clock,
                request: Some(id),
            });
            self.place(id, on, Decided::BUILT_IN);
        }
    }

    /// Second clock: counts the placements of this round that overtook a request left waiting.
    pub(super) fn count_overtaken(&mut self) {
        for id in &self.asked {
            let waiting = self.machine.requests.find(*id);
            let Some(request) = waiting.filter(|request| request.waiting().is_some()) else {
                continue;
            };
            let overtook = self.placements.iter().filter(|(other, executor)| {
                *other > *id && self.machine.overtakes(*other, request, *executor)
            });
            let n = count(overtook.count());
            if n == 0 {
                continue;
            }
            if let Some(waiting) = self.machine.requests.waiting_mut(*id) {
                waiting.overtaken = waiting.overtaken.saturating_add(n);
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

impl Machine {
    /// The clock that has run out for a watched request, if one has.
    fn overdue(&self, id: RequestId) -> Option<Clock> {
        let request = self.requests.find(id)?;
        let waiting = request.waiting()?;
        if request.reservation().is_some() {
            return None;
        }
        if waiting.overtaken >= self.config.overtaken_max {
            return Some(Clock::Overtaken);
        }
        let since = self.out.now().since(waiting.feasible_since?);
        (since >= self.config.unplaced_max).then_some(Clock::Unplaced)
    }

    /// Tells whether a placement went past a request that is at least as urgent and could have run
    /// there.
    fn overtakes(&self, other: RequestId, request: &Request, executor: ExecutorId) -> bool {
        let other = self.requests.find(other);
        let executor = self.ledger.find(executor);
        other.is_some_and(|other| other.urgency() <= request.urgency())
            && executor.is_some_and(|e| check_open_to(&self.ledger, request, e).is_ok())
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
            waiting.feasible_since.get_or_insert(now);
        } else {
            waiting.feasible_since = None;
        }
        if could_run || waiting.overtaken > 0 {
            self.requests.watch(id);
        } else {
            self.requests.unwatch(id);
        }
        self.arm_request(id);
    }
}
