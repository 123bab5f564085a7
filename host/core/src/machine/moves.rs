//! Moves of requests: into an executor and out of it, on to the next phase, and to their end.
//!
//! A move changes the books, the requests and the rows that policies are told, in that order where
//! nothing else is said. A needy request has first claim on the room of its victims. For a running
//! sequence that is the blocks it lacks; for a waiting one a *reservation* on one executor: a slot,
//! a model's place and blocks, taken as they come free, in which it is placed as soon as all are
//! there. So a victim, older than its successor, cannot take its place back.

use std::collections::{BTreeMap, VecDeque};

use pointsman_events::{
    Decided, DeviceId, Effect, EvictHow, Eviction, ExecutorId, Fact, Micros, Outcome, PlacedIn,
    RequestId, RequeuedWhy, Shortage, StartOrder, Victim,
};

use super::Machine;
use super::ledger::{Freed, Grown, Step};
use super::requests::{AfterLeaving, InSlot, Phase, Placed, Request, Reservation};
use super::timers::Timer;

// === impl Machine: in ===

impl Machine {
    /// Places a waiting request for which the interlock found room `into` an executor.
    pub(super) fn place(
        &mut self,
        id: RequestId,
        (executor, into): (ExecutorId, PlacedIn),
        by: Decided,
    ) {
        debug_assert!(
            self.requests[id].reservation().is_none(),
            "a request whose room is kept is placed there"
        );
        let request = &self.requests[id];
        let cached_tokens = self.ledger.place(request, executor, &mut self.out);
        let blocks_max = self.config.tier_blocks_max;
        self.ledger.assume_cached(request, executor, blocks_max);
        self.enter(id, executor, cached_tokens, into);
        let device = self.ledger[executor].spec.device;
        self.ledger.touch_blocks(device, &mut self.out);
        self.begin(id, (executor, into), by);
    }

    /// Turns a waiting request into a placed one on `executor`, whose blocks and model's place it
    /// has. `cached_tokens` of its prompt need no prefill; the last one always does, for its
    /// logits.
    fn enter(&mut self, id: RequestId, executor: ExecutorId, cached_tokens: u32, into: PlacedIn) {
        let request = &self.requests[id];
        let cached_tokens = cached_tokens.min(request.row.prompt_tokens.saturating_sub(1));
        let life = (executor, self.ledger[executor].incarnation);
        let placed = Placed::new(life, self.out.now(), cached_tokens);
        self.ledger.enter(request, &placed, into, &mut self.out);
        self.requests.enter(id, placed, into, &mut self.out);
        self.ledger.touch_load(executor, &mut self.out);
        self.arm_request(id);
    }

    fn begin(&mut self, request: RequestId, (executor, into): (ExecutorId, PlacedIn), by: Decided) {
        self.out.fact(Fact::Placed {
            request,
            executor,
            into,
            by,
        });
        if into == PlacedIn::Slot {
            self.start(request);
        }
    }

    /// Orders the engine to take up a request that has its slot.
    fn start(&mut self, id: RequestId) {
        self.requests.run(id);
        let request = &self.requests[id];
        let placed = request.placement();
        let executor = placed.executor;
        let order = StartOrder {
            sequence: request.sequence(),
            device: self.ledger[executor].spec.device,
            model: request.row.model,
            prompt_tokens: request.row.prompt_tokens,
            cached_tokens: placed.cached_tokens,
            output_tokens_max: request.row.output_tokens_max,
            blocks: self.ledger.block_table(id, executor).to_vec(),
            copies: self.ledger.copies_back(id, executor),
        };
        self.ledger.start(executor, &mut self.out);
        self.out.effect(Effect::Start(order));
        self.requests.touch_sequence(id, &mut self.out);
        self.ledger.touch_load(executor, &mut self.out);
    }
}

// === impl Machine: handing out room ===

impl Machine {
    /// Hands out the room that is free on a device: to claims, then to running sequences that lack
    /// a block, then to the device queues. An executor that was to be removed once it is idle is.
    pub(super) fn refill(&mut self, freed: Freed) {
        let device = freed.hand_out();
        self.serve(device);
        for executor in self.ledger[device].executors.clone() {
            while let Some(next) = self.ledger.pop_queued(executor) {
                self.count_overtaken_on(executor, next);
                self.requests.leave_device_queue(next, &mut self.out);
                self.start(next);
            }
        }
        self.ledger.remove_detached(device, &mut self.out);
    }

    /// Counts for the requests in a device queue that the next one to start overtakes them.
    fn count_overtaken_on(&mut self, executor: ExecutorId, next: RequestId) {
        let next = &self.requests[next];
        let left = self.ledger[executor].queue.of(next.row.class).iter();
        let overtaken = left.filter(|id| self.is_overtaken(&self.requests[**id], next));
        let overtaken: Vec<RequestId> = overtaken.copied().collect();
        for id in overtaken {
            self.requests.overtaken_on_executor(id);
        }
    }

    /// Gives free blocks, and other room that is kept, to claims in order, then to running
    /// sequences that lack a block, as [`Self::short_in_order`] has them.
    pub(super) fn serve(&mut self, device: DeviceId) {
        for id in self.ledger[device].claims.clone() {
            match self.requests[id].reservation() {
                Some(reservation) => self.fill_reservation(id, *reservation),
                None => {
                    self.fill_short(id);
                }
            }
        }
        for id in self.short_in_order(device) {
            if !self.fill_short(id) {
                return;
            }
        }
    }

    /// The sequences that lack blocks on a device and have no claim to any, as they get what is free.
    /// Those of an engine come in the order of that engine; of the first of each engine the most
    /// urgent one comes first.
    fn short_in_order(&self, device: DeviceId) -> Vec<RequestId> {
        let device = &self.ledger[device];
        let unclaimed = device.short.iter().filter(|id| !device.claims.contains(id));
        let mut engines: BTreeMap<ExecutorId, Vec<&Request>> = BTreeMap::new();
        for request in unclaimed.map(|id| &self.requests[*id]) {
            let executor = request.placement().executor;
            engines.entry(executor).or_default().push(request);
        }
        for (executor, short) in &mut engines {
            let places = self.ledger[*executor].arrangement.places();
            let place = |id| places.get(&id).copied().unwrap_or(usize::MAX);
            short.sort_by_key(|request| (place(request.id()), request.precedence()));
        }
        let mut queues: Vec<VecDeque<&Request>> = engines.into_values().map(Into::into).collect();
        let head = |queue: &VecDeque<&Request>| queue.front().map(|request| request.precedence());
        let mut order = Vec::with_capacity(device.short.len());
        while let Some(queue) = queues.iter_mut().min_by_key(|queue| head(queue)) {
            order.extend(queue.pop_front().map(Request::id));
            queues.retain(|queue| !queue.is_empty());
        }
        order
    }

    /// Takes free room for a reservation, and places its request once all is there.
    fn fill_reservation(&mut self, id: RequestId, reservation: Reservation) {
        let Reservation { executor, by, .. } = reservation;
        let request = &self.requests[id];
        if self.ledger.fill(request, executor, &mut self.out) {
            let cached_tokens = self.ledger.cached_tokens(id, executor);
            self.enter(id, executor, cached_tokens, PlacedIn::Slot);
            self.begin(id, (executor, PlacedIn::Slot), by);
        }
    }

    /// Gives free blocks to a sequence that lacks some. True if it has all it needs now.
    fn fill_short(&mut self, id: RequestId) -> bool {
        let request = &self.requests[id];
        let (sequence, short) = (request.sequence(), request.placement().short);
        let short = short.expect("a sequence with a claim, or listed as short, lacks blocks");
        let executor = sequence.executor;
        let Grown { blocks, is_enough } = self.ledger.grow(id, executor, short.blocks);
        if is_enough {
            self.requests.suffice(id);
            self.arm_request(id);
        }
        if !blocks.is_empty() {
            self.out.effect(Effect::Grant { sequence, blocks });
            self.requests.touch_sequence(id, &mut self.out);
            self.ledger.touch_load(executor, &mut self.out);
            let device = self.ledger[executor].spec.device;
            self.ledger.touch_blocks(device, &mut self.out);
        }
        is_enough
    }
}

// === impl Machine: room for the needy ===

impl Machine {
    /// Makes the victims leave, and keeps their room for the needy request.
    pub(super) fn evict(&mut self, shortage: &Shortage, eviction: &Eviction, by: Decided) {
        let executor = eviction.executor;
        if shortage.executor.is_none() {
            self.reserve(shortage.needy, executor, by);
        }
        let device = self.ledger[executor].spec.device;
        let mut freed = self.ledger.claim(device, shortage.needy);
        for victim in &eviction.victims {
            if let Some(more) = self.evict_one(*victim, shortage.needy, by) {
                freed = freed.and(more);
            }
        }
        self.refill(freed);
    }

    /// The number of blocks that come free when a victim leaves after those that leave already.
    fn blocks_freed_by(&self, victim: RequestId, device: DeviceId) -> u32 {
        let Some(pool) = self.ledger[device].pool() else {
            return 0;
        };
        let mut leaving = self.books().leaving_on(device);
        let before = pool.freed_by(&leaving);
        leaving.insert(victim);
        pool.freed_by(&leaving) - before
    }

    /// Makes a victim leave. The engine has never heard of one in the device queue, which is out at
    /// once.
    fn evict_one(&mut self, victim: Victim, needy: RequestId, by: Decided) -> Option<Freed> {
        let (id, how) = (victim.request, victim.how);
        self.requests.evicted(id, needy);
        let executor = self.requests[id].placement().executor;
        let blocks = self.blocks_freed_by(id, self.ledger[executor].spec.device);
        self.out.fact(Fact::Evicted {
            victim: id,
            executor,
            needy,
            how,
            blocks,
            by,
        });
        if self.requests[id].is_queued_on_executor() {
            let freed = self.release(id);
            if how == EvictHow::Recompute {
                self.ledger.drop_swapped(id, &mut self.out);
            }
            self.requeue(id, RequeuedWhy::Evicted);
            self.out.fact(Fact::Left(id, executor));
            return Some(freed);
        }
        let host_blocks = match how {
            EvictHow::Swap => self.ledger.swap_out(id, executor, &mut self.out),
            EvictHow::Recompute => {
                self.ledger.forget_swapped(id);
                Vec::new()
            }
        };
        self.leave(id, AfterLeaving::Requeue);
        let sequence = self.requests[id].sequence();
        self.out.effect(Effect::Evict {
            sequence,
            host_blocks,
        });
        self.ledger.touch_load(executor, &mut self.out);
        None
    }

    /// Keeps room on an executor for a waiting request.
    fn reserve(&mut self, id: RequestId, executor: ExecutorId, by: Decided) {
        let since = self.out.now();
        let reservation = Reservation {
            executor,
            since,
            by,
        };
        self.requests.reserve(id, reservation);
        self.ledger
            .reserve(&self.requests[id], executor, &mut self.out);
        self.arm_request(id);
        self.out.fact(Fact::Reserved(id, executor));
    }

    /// Gives up all room kept for these requests, and hands it out only then.
    pub(super) fn drop_reservations(&mut self, ids: &[RequestId]) {
        let freed = ids.iter().filter_map(|id| {
            let Reservation { executor, .. } = self.requests.unreserve(*id)?;
            let request = &self.requests[*id];
            let freed = self.ledger.vacate(request, executor, &mut self.out);
            self.arm_request(*id);
            self.out.fact(Fact::ReservationDropped(*id, executor));
            Some(freed)
        });
        if let Some(freed) = freed.reduce(Freed::and) {
            self.refill(freed);
        }
    }

    /// Gives up all room kept on an executor that takes nothing new any more.
    pub(super) fn drop_reservations_on(&mut self, executor: ExecutorId) {
        let claims = self.ledger.device_of(executor).claims.iter().copied();
        let is_here = |id: &RequestId| self.requests[*id].executor() == Some(executor);
        let here: Vec<RequestId> = claims.filter(is_here).collect();
        self.drop_reservations(&here);
    }
}

// === impl Machine: out ===

impl Machine {
    /// Closes a placement. The request keeps its phase until the caller says what becomes of it.
    pub(super) fn release(&mut self, id: RequestId) -> Freed {
        self.out.fact(Fact::StayEnded(self.requests[id].stay()));
        self.ledger.release(&self.requests[id], &mut self.out)
    }

    /// Turns a running sequence into a leaving one. Its slot and blocks stay its own until it has
    /// left.
    fn leave(&mut self, id: RequestId, after: AfterLeaving) {
        self.ledger.leave(&self.requests[id]);
        self.requests.leave(id, after, &mut self.out);
        self.arm_request(id);
    }

    /// Puts a request whose placement is closed back into the queue.
    pub(super) fn requeue(&mut self, id: RequestId, why: RequeuedWhy) {
        let row = &self.requests[id].row;
        self.ledger.count_waiting(row, Step::Up, &mut self.out);
        self.requests.requeue(id, why, &mut self.out);
        self.arm_request(id);
        self.out.due = true;
        self.out.fact(Fact::Requeued(id, why));
        self.look_for_next_server(id);
    }

    /// Forgets a request that has ended, and whose room is free.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.ledger.drop_swapped(id, &mut self.out);
        self.requests.forget(id, &mut self.out);
    }

    /// Sets a request's outcome, unless it has one or has been forgotten. A running request is told
    /// to leave; any other one is forgotten at once.
    pub(super) fn end(&mut self, id: RequestId, outcome: Outcome) {
        let Some(request) = self.requests.find(id) else {
            return;
        };
        match &request.phase {
            Phase::Leaving(_, AfterLeaving::Gone) => return,
            Phase::Leaving(_, AfterLeaving::Requeue) => {
                self.requests.let_go(id);
                self.arm_request(id);
            }
            Phase::Waiting(_) => {
                self.drop_reservations(&[id]);
                let row = &self.requests[id].row;
                self.ledger.count_waiting(row, Step::Down, &mut self.out);
                self.forget(id);
            }
            Phase::Placed(placed) if placed.in_slot == InSlot::Queued => {
                let freed = self.release(id);
                self.refill(freed);
                self.forget(id);
            }
            Phase::Placed(_) => {
                self.leave(id, AfterLeaving::Gone);
                let sequence = self.requests[id].sequence();
                self.out.effect(Effect::Cancel(sequence));
            }
        }
        self.out.due = true;
        self.out.end(id, outcome);
    }
}

// === impl Machine: when a request falls due ===

impl Machine {
    /// Sets a request's timer to the next time at which something about it may fall due.
    pub(super) fn arm_request(&mut self, id: RequestId) {
        let now = self.out.now();
        // Anything overdue could not be helped in this round; it is looked at again soon.
        let soon = now.after(self.config.evict_retry);
        let at = self.due_at(&self.requests[id]);
        let at = at.map(|at| if at <= now { soon } else { at });
        self.out.timers.arm(Timer::Request(id), at);
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
                let reserved = request.reservation().map(|r| r.since.after(bound));
                let unplaced = waiting.unplaced_at(bound);
                let expires = waiting.since.after(self.config.wait_max);
                let unserved = waiting.unserved_since;
                let unserved = unserved.map(|since| since.after(self.config.unserved_max));
                let soonest = [
                    reserved,
                    unplaced,
                    unserved,
                    waiting.asked_at(),
                    Some(expires),
                ];
                soonest.into_iter().flatten().min()
            }
        };
        other.into_iter().chain(request.row.deadline).min()
    }
}
