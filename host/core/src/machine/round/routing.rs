//! Order and routing: queued requests get their places.

use std::borrow::Cow;
use std::collections::VecDeque;

use pointsman_events::{Decided, Fact, Hook, Question, Refusal, RefusedWhy, RequestId, routing};

use super::super::interlock::{first_in_order, order};
use super::super::requests::Request;
use super::feasibility::Feasibility;
use super::{OngoingRound, built_in};

impl OngoingRound<'_> {
    pub(super) fn ask_order_and_routing(&mut self) {
        self.asked = self.feasible();
        if self.asked.is_empty() {
            return;
        }
        let asked = std::mem::take(&mut self.asked);
        self.ordered = self.ask_order(&asked);
        self.asked = asked;
        let mut left: VecDeque<RequestId> = self.ordered.iter().copied().collect();
        while !self.machine.ledger.sets().open.is_empty() {
            let mut batch = self.next_batch(&mut left);
            if batch.is_empty() {
                break;
            }
            let run = self.run_of(Hook::Routing, &batch);
            // After this run has taken its room, the rest is looked at anew.
            for id in batch.drain(run..).rev() {
                left.push_front(id);
            }
            self.ask_route(&batch);
        }
    }

    /// Queued requests without a reservation that some executor could take now, in order of
    /// arrival.
    fn feasible(&self) -> Vec<RequestId> {
        let ledger = &self.machine.ledger;
        if ledger.sets().open.is_empty() {
            return Vec::new();
        }
        let mut feasibility = Feasibility::default();
        let queued = self.machine.requests.queued();
        let feasible = queued.filter(|r| is_routable(r) && feasibility.check(ledger, r));
        feasible.map(Request::id).collect()
    }

    /// These requests in the policy's order.
    pub(super) fn ask_order(&mut self, requests: &[RequestId]) -> Vec<RequestId> {
        let question = Question::Priority(Cow::Owned(self.machine.asked(requests)));
        let answer = self.ask(question, |answer| answer.priority());
        let (ordered, checked) = order(requests, answer.value.unwrap_or_default());
        if let Err(refusal) = checked {
            self.refuse(answer.author, Hook::Priority, refusal);
        }
        ordered
    }

    /// The next requests to route, without the ones that nothing could take any more.
    fn next_batch(&self, left: &mut VecDeque<RequestId>) -> Vec<RequestId> {
        let mut feasibility = Feasibility::default();
        let mut batch = Vec::new();
        while batch.len() < self.machine.config.batch_max as usize
            && let Some(id) = left.pop_front()
        {
            let request = &self.machine.requests[id];
            if is_routable(request) && feasibility.check(&self.machine.ledger, request) {
                batch.push(id);
            }
        }
        batch
    }

    fn ask_route(&mut self, batch: &[RequestId]) {
        for id in batch {
            self.machine.tell_hold_end(*id);
        }
        let cached = batch.iter().filter_map(|id| self.machine.cached(*id));
        let question = Question::Routing(Cow::Owned(cached.collect()));
        let answer = self.ask(question, |answer| answer.routing());
        let author = answer.author;
        let verdicts = self.in_count(author, (Hook::Routing, batch.len()), answer.value);
        let mut verdicts = verdicts.into_iter();
        for id in batch {
            let Some(verdict) = verdicts.next() else {
                self.route_built_in(*id);
                continue;
            };
            let reason = verdict.reason;
            let routed = self.route(*id, verdict.choice, Decided { author, reason });
            if let Err(refusal) = routed {
                self.refuse(author, Hook::Routing, refusal);
            }
        }
    }

    fn route(
        &mut self,
        id: RequestId,
        choice: routing::Choice,
        by: Decided,
    ) -> Result<(), Refusal> {
        let machine = &mut *self.machine;
        match choice {
            routing::Choice::Place(executors) => {
                let request = &machine.requests[id];
                let on = first_in_order(&machine.ledger, request, &executors)?;
                self.place(id, on, by);
            }
            routing::Choice::Hold(until) => {
                if !self
                    .feasibility
                    .check(&machine.ledger, &machine.requests[id])
                {
                    self.without_room.insert(id);
                }
                let waiting = machine.requests.waiting_mut(id);
                let held_max = machine.config.held_max;
                let until = waiting.and_then(|waiting| waiting.hold(self.at.now, until, held_max));
                machine.out.fact(Fact::Held(id, until, by));
            }
            routing::Choice::GiveUp => self.turn_away(id, RefusedWhy::GaveUp, by),
        }
        Ok(())
    }

    fn route_built_in(&mut self, id: RequestId) {
        let request = &self.machine.requests[id];
        if let Some(on) = built_in::first_with_room(&self.machine.ledger, request) {
            self.place(id, on, Decided::BUILT_IN);
        }
    }
}

fn is_routable(request: &Request) -> bool {
    request.waiting().is_some() && request.reservation().is_none()
}
