//! The order of requests that wait elsewhere than in the queue: parked ones, and those in the queue
//! of an executor.
//!
//! A slot comes free between rounds, when no policy can be asked. So a device queue is put in order
//! whenever one of several has joined or left it, and starts its requests in that order.
//!
//! # Invariants
//! A request that later, not more urgent ones have overtaken `overtaken-max` times goes first,
//! whatever the policy says (`pointsman-sim`, `tests/queues.rs`).

use pointsman_events::rows::RequestClass;
use pointsman_events::{Clock, ExecutorId, Fact, Hook, RequestId};

use super::super::count;
use super::super::requests::Request;
use super::OngoingRound;

impl OngoingRound<'_> {
    /// Lets parked requests into the queue while it has room. Where it has too little for all of
    /// them, `order` is asked who comes first.
    pub(super) fn unpark(&mut self) {
        let room = self.room() as usize;
        let parking = self.machine.requests.parking();
        if room == 0 || parking.is_empty() {
            return;
        }
        let mut entering: Vec<RequestId> = parking.iter().copied().collect();
        if entering.len() > room {
            entering = self.first_parked(&entering, room);
        }
        for id in entering {
            self.machine.requests.unpark(id);
            self.machine.out.fact(Fact::Unparked(id));
            self.enqueue(id);
        }
    }

    /// The parked requests for which there is room, by the policy's order.
    fn first_parked(&mut self, parked: &[RequestId], room: usize) -> Vec<RequestId> {
        let max = self.machine.config.overtaken_max;
        let is_overdue = |request: &Request| request.waiting().is_some_and(|w| w.overtaken >= max);
        let ordered = self.ask_order(parked);
        let mut entering = self.overdue_first(ordered, is_overdue);
        let left = entering.split_off(room);
        for id in &entering {
            if is_overdue(&self.machine.requests[*id]) {
                self.strike_for(*id, Clock::Overtaken, Hook::Priority);
            }
        }
        self.count_passed(&left, &entering);
        entering
    }

    /// Counts for requests that stay parked how many of those that enter overtake them.
    fn count_passed(&mut self, left: &[RequestId], entering: &[RequestId]) {
        let machine = &self.machine;
        let requests = &machine.requests;
        let entering: Vec<&Request> = entering.iter().map(|id| &requests[*id]).collect();
        let passing = left.iter().map(|id| {
            let request = &requests[*id];
            let passing = entering.iter();
            let passing = passing.filter(|other| machine.is_overtaken(request, other));
            (*id, count(passing.count()))
        });
        let passing: Vec<(RequestId, u32)> = passing.collect();
        for (id, passing) in passing {
            if let Some(waiting) = self.machine.requests.waiting_mut(id) {
                waiting.overtaken = waiting.overtaken.saturating_add(passing);
            }
        }
    }

    /// Has device queues put in order whose requests are others than before, each class by itself.
    pub(super) fn order_device_queues(&mut self) {
        for (executor, class) in self.machine.ledger.take_queue_due() {
            self.order_device_queue(executor, class);
        }
    }

    fn order_device_queue(&mut self, executor: ExecutorId, class: RequestClass) {
        let Some(record) = self.machine.ledger.find(executor) else {
            return;
        };
        let mut queued: Vec<RequestId> = record.queue.of(class).iter().copied().collect();
        // Others may have left since.
        if queued.len() < 2 {
            return;
        }
        queued.sort_unstable();
        for id in &queued {
            let placed = self.machine.requests[*id].placement();
            if placed.overtaken >= self.machine.config.overtaken_max && !placed.goes_first {
                self.machine.requests.put_first(*id);
                self.strike_for(*id, Clock::Overtaken, Hook::Priority);
            }
        }
        let ordered = self.ask_order(&queued);
        let ordered = self.overdue_first(ordered, |request| request.placement().goes_first);
        self.machine.ledger.order_queue(executor, class, ordered);
    }

    /// Requests in this order, but the overdue ones first, by arrival.
    fn overdue_first(
        &self,
        ordered: Vec<RequestId>,
        is_overdue: impl Fn(&Request) -> bool,
    ) -> Vec<RequestId> {
        let is_overdue = |id: &RequestId| is_overdue(&self.machine.requests[*id]);
        let (mut first, others): (Vec<RequestId>, Vec<RequestId>) =
            ordered.into_iter().partition(is_overdue);
        first.sort_unstable();
        first.extend(others);
        first
    }
}
