//! One scheduling round: admission, order, routing, then shortages and budgets.
//!
//! An answer is data. What it says is validated action by action, and applied or refused; where
//! there is no usable answer the built-in rule decides. Nothing a policy says can make a round
//! fail or go on without end: each request is asked about at most once per hook and round.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::answer::{Answer, Author, Otherwise, admission, routing};
use crate::fact::{Decided, Fact, Outcome, RefusedWhy};
use crate::hook::Hook;
use crate::ids::{ExecutorId, Micros, ModelId, RequestId, Round};
use crate::policies::Policies;
use crate::question::{Asked, Question};
use crate::refusal::RefusalCause;
use crate::rows::{Cached, Moment, RequestClass, Stage};
use crate::view::View;

use super::Machine;
use super::executor::count;
use super::request::Request;

/// What happened in a round, for the clocks.
#[derive(Debug, Default)]
pub(super) struct RoundRecord {
    /// Let into the queue or the parking list.
    pub(super) admitted: Vec<RequestId>,
    /// Those that some executor could have taken when order was asked.
    pub(super) asked: Vec<RequestId>,
    pub(super) placements: Vec<(RequestId, ExecutorId)>,
}

/// Whether some executor could take a request now, remembered for requests that differ only in
/// their length. Good for as long as nothing is placed or freed.
#[derive(Debug, Default)]
pub(super) struct Feasibility {
    known: BTreeMap<(Option<ModelId>, RequestClass), Known>,
}

/// Lengths known to fit somewhere and known to fit nowhere.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    fits: Option<Length>,
    too_long: Option<Length>,
}

/// What a request's need of blocks grows with.
#[derive(Clone, Copy, Debug)]
struct Length {
    prompt: u32,
    bound: u64,
}

impl Length {
    fn within(self, other: Length) -> bool {
        self.prompt <= other.prompt && self.bound <= other.bound
    }
}

impl Feasibility {
    /// Whether some executor could take this waiting request now.
    pub(super) fn check(&mut self, machine: &Machine, request: &Request) -> bool {
        let row = &request.row;
        if row.allowed.is_some() || !row.failed_on.is_empty() {
            return machine.first_with_room(request).is_some();
        }
        let length = Length {
            prompt: row.prompt_tokens,
            bound: request.tokens_bound(),
        };
        let known = self.known.entry((row.model, row.class)).or_default();
        if known.fits.is_some_and(|fits| length.within(fits)) {
            return true;
        }
        // A cached prefix shortens what is needed, so nothing follows from what did not fit.
        let plain = request.prompt_hashes.is_empty();
        if plain && known.too_long.is_some_and(|long| long.within(length)) {
            return false;
        }
        let fits = machine.first_with_room(request).is_some();
        match (plain, fits) {
            (true, true) => known.fits = Some(length),
            (true, false) => known.too_long = Some(length),
            (false, _) => {}
        }
        fits
    }
}

// === impl Machine ===

impl Machine {
    /// One scheduling round, if something changed that could change its answers; otherwise only
    /// time passes.
    pub fn decide(&mut self, now: Micros, policies: &mut dyn Policies) {
        self.handle_time_passed(now);
        if !self.due {
            return;
        }
        self.due = false;
        self.round = Round(self.round.0 + 1);
        let at = Moment {
            now: self.now,
            round: self.round,
        };
        let mut record = RoundRecord::default();
        self.unpark(&mut record);
        self.ask_admission(at, policies, &mut record);
        self.place_overdue(policies, &mut record);
        self.ask_order_and_routing(at, policies, &mut record);
        self.count_overtaken(&record);
        self.relieve(at, policies, &record);
        self.watch_feasible(&record);
        self.ask_budgets(at, policies);
        // What left the queue in this round made room in it.
        self.due |= self.room() > 0 && !self.parking.is_empty();
    }

    /// A question about the machine as it is now.
    pub(super) fn asked<'a>(&'a self, at: Moment, question: Question<'a>) -> Asked<'a> {
        Asked {
            view: View::new(self),
            at,
            question,
        }
    }

    /// Notes the faults of an answer as facts, and returns who decided and what.
    pub(super) fn take_answer<T>(&mut self, hook: Hook, answer: Answer<T>) -> (Author, Option<T>) {
        for fault in answer.faults {
            self.fact(Fact::Fault(hook, fault));
        }
        (answer.author, answer.value)
    }

    fn set_stage(&mut self, id: RequestId, stage: Stage) {
        if let Some(request) = self.requests.get_mut(&id) {
            Arc::make_mut(&mut request.row).stage = stage;
        }
        self.touch_waiting(id);
    }

    fn room(&self) -> u32 {
        self.config
            .queue_max
            .saturating_sub(count(self.queue.len()))
    }
}

// === impl Machine: admission ===

impl Machine {
    /// Lets parked requests into the queue while it has room, in order of arrival.
    fn unpark(&mut self, record: &mut RoundRecord) {
        while self.room() > 0
            && let Some(id) = self.parking.pop_first()
        {
            self.fact(Fact::Unparked(id));
            self.enqueue(id, record);
        }
    }

    fn enqueue(&mut self, id: RequestId, record: &mut RoundRecord) {
        self.set_stage(id, Stage::Queued);
        self.queue.insert(id);
        record.admitted.push(id);
    }

    fn ask_admission(&mut self, at: Moment, policies: &mut dyn Policies, record: &mut RoundRecord) {
        for id in self.arrivals.clone() {
            self.expire(id);
        }
        let arrivals = std::mem::take(&mut self.arrivals);
        for batch in arrivals.chunks(self.config.batch_max as usize) {
            let mut left = batch;
            while !left.is_empty() {
                let (run, rest) = left.split_at(self.run(policies, Hook::Admission, left));
                self.ask_admit(at, policies, run, record);
                left = rest;
            }
        }
    }

    /// How many of these requests, from the first on, one policy is asked about together.
    fn run(&self, policies: &dyn Policies, hook: Hook, requests: &[RequestId]) -> usize {
        let run = policies.run(&View::new(self), hook, requests);
        run.clamp(1, requests.len())
    }

    fn ask_admit(
        &mut self,
        at: Moment,
        policies: &mut dyn Policies,
        batch: &[RequestId],
        record: &mut RoundRecord,
    ) {
        let question = Question::Admission {
            arrivals: Cow::Borrowed(batch),
            room: self.room(),
        };
        let answer = policies.ask(&self.asked(at, question)).admission();
        let otherwise = answer.otherwise;
        let (author, verdicts) = self.take_answer(Hook::Admission, answer);
        let asked = (Hook::Admission, batch.len());
        let verdicts = self.in_count(policies, author, asked, verdicts);
        let mut verdicts = verdicts.into_iter();
        for id in batch {
            match verdicts.next() {
                Some(verdict) => {
                    let by = Decided {
                        author,
                        reason: verdict.reason,
                    };
                    if let Err(cause) = self.admit(*id, verdict.choice, by, record) {
                        self.refuse(policies, author, Hook::Admission, cause.of(*id));
                        self.admit_otherwise(*id, otherwise, record);
                    }
                }
                None => self.admit_otherwise(*id, otherwise, record),
            }
        }
    }

    /// The verdicts, if there is one for each of `expected` questions; otherwise none of them.
    fn in_count<T>(
        &mut self,
        policies: &mut dyn Policies,
        author: Author,
        (hook, expected): (Hook, usize),
        verdicts: Option<Vec<T>>,
    ) -> Vec<T> {
        let verdicts = verdicts.unwrap_or_default();
        if author == Author::BuiltIn || verdicts.len() == expected {
            return verdicts;
        }
        let cause = RefusalCause::WrongCount {
            expected: count(expected),
            got: count(verdicts.len()),
        };
        self.refuse(policies, author, hook, cause.whole());
        Vec::new()
    }

    fn admit(
        &mut self,
        id: RequestId,
        choice: admission::Choice,
        by: Decided,
        record: &mut RoundRecord,
    ) -> Result<(), RefusalCause> {
        use admission::Choice;
        // A client that may wait outside is let in at once where there is room inside.
        let choice = match choice {
            Choice::Park if self.room() > 0 => Choice::Admit,
            Choice::Admit | Choice::Park | Choice::Shed(_) | Choice::Displace(_) => choice,
        };
        match choice {
            Choice::Admit if self.room() == 0 => return Err(RefusalCause::QueueFull),
            Choice::Admit => {
                self.fact(Fact::Admitted(id, by));
                self.enqueue(id, record);
            }
            Choice::Park => {
                self.check_park(id)?;
                self.fact(Fact::Parked(id, by));
                self.set_stage(id, Stage::Parked);
                self.parking.insert(id);
                record.admitted.push(id);
            }
            Choice::Shed(retry_after) => {
                self.fact(Fact::TurnedAway(id, by));
                let why = RefusedWhy::NoRoom { retry_after };
                self.end(id, Outcome::Refused(why));
            }
            Choice::Displace(other) => {
                if !self.queue.contains(&other) {
                    return Err(RefusalCause::NotQueued);
                }
                self.fact(Fact::TurnedAway(other, by));
                let retry_after = self.config.retry_after_secs;
                let why = RefusedWhy::Displaced { retry_after };
                self.end(other, Outcome::Refused(why));
                self.fact(Fact::Admitted(id, by));
                self.enqueue(id, record);
            }
        }
        Ok(())
    }

    fn check_park(&self, id: RequestId) -> Result<(), RefusalCause> {
        if count(self.parking.len()) >= self.config.parking_max {
            return Err(RefusalCause::ParkingFull);
        }
        match self.requests.get(&id) {
            Some(request) if request.row.may_wait => Ok(()),
            Some(_) => Err(RefusalCause::MayNotWait),
            None => Err(RefusalCause::UnknownRequest),
        }
    }

    /// Decides about an arrival for which there is no usable verdict.
    fn admit_otherwise(&mut self, id: RequestId, otherwise: Otherwise, record: &mut RoundRecord) {
        match otherwise {
            Otherwise::BuiltIn => self.admit_built_in(id, record),
            Otherwise::Closed => {
                self.fact(Fact::TurnedAway(id, Decided::BUILT_IN));
                let retry_after = self.config.retry_after_secs;
                self.end(id, Outcome::Refused(RefusedWhy::Closed { retry_after }));
            }
        }
    }

    /// Admits while there is room.
    fn admit_built_in(&mut self, id: RequestId, record: &mut RoundRecord) {
        let choice = if self.room() > 0 {
            admission::Choice::Admit
        } else {
            admission::Choice::Shed(self.config.retry_after_secs)
        };
        let applied = self.admit(id, choice, Decided::BUILT_IN, record);
        debug_assert_eq!(
            applied,
            Ok(()),
            "the built-in choice looks at the room first"
        );
    }
}

// === impl Machine: order and routing ===

impl Machine {
    fn ask_order_and_routing(
        &mut self,
        at: Moment,
        policies: &mut dyn Policies,
        record: &mut RoundRecord,
    ) {
        record.asked = self.feasible();
        if record.asked.is_empty() {
            return;
        }
        let ordered = self.ask_order(at, policies, &record.asked);
        let mut left: VecDeque<RequestId> = ordered.into();
        while !self.open.is_empty() {
            let mut batch = self.next_batch(&mut left);
            if batch.is_empty() {
                break;
            }
            let run = self.run(policies, Hook::Routing, &batch);
            // After this run has taken its room, the rest is looked at anew.
            for id in batch.drain(run..).rev() {
                left.push_front(id);
            }
            self.ask_route(at, policies, &batch, record);
        }
    }

    /// Queued requests without a reservation that some executor could take now, in order of
    /// arrival.
    fn feasible(&self) -> Vec<RequestId> {
        if self.open.is_empty() {
            return Vec::new();
        }
        let mut feasibility = Feasibility::default();
        let queued = self.queue.iter().filter(|id| {
            let request = self.requests.get(id);
            request.is_some_and(|r| self.is_routable(r) && feasibility.check(self, r))
        });
        queued.copied().collect()
    }

    fn is_routable(&self, request: &Request) -> bool {
        let waiting = request.waiting();
        waiting.is_some_and(|waiting| waiting.reservation.is_none())
    }

    /// These requests in the policy's order; those it left out, in order of arrival, after them.
    pub(super) fn ask_order(
        &mut self,
        at: Moment,
        policies: &mut dyn Policies,
        requests: &[RequestId],
    ) -> Vec<RequestId> {
        let question = Question::Priority(Cow::Borrowed(requests));
        let answer = policies.ask(&self.asked(at, question)).priority();
        let (author, order) = self.take_answer(Hook::Priority, answer);
        let mut left: BTreeSet<RequestId> = requests.iter().copied().collect();
        let mut ordered = Vec::with_capacity(requests.len());
        let mut refused = None;
        // More than was asked about cannot be in order; the first fault stands for all.
        for id in order.unwrap_or_default() {
            if left.remove(&id) {
                ordered.push(id);
            } else if refused.is_none() {
                let asked = requests.binary_search(&id).is_ok();
                let cause = if asked {
                    RefusalCause::NamedTwice
                } else {
                    RefusalCause::NotAsked
                };
                refused = Some(cause.of(id));
            }
        }
        if let Some(refusal) = refused {
            self.refuse(policies, author, Hook::Priority, refusal);
        }
        ordered.extend(left);
        ordered
    }

    /// The next requests to route, those that nothing could take any more left out.
    fn next_batch(&self, left: &mut VecDeque<RequestId>) -> Vec<RequestId> {
        let mut feasibility = Feasibility::default();
        let mut batch = Vec::new();
        while batch.len() < self.config.batch_max as usize
            && let Some(id) = left.pop_front()
        {
            let request = self.requests.get(&id).filter(|r| self.is_routable(r));
            if request.is_some_and(|request| feasibility.check(self, request)) {
                batch.push(id);
            }
        }
        batch
    }

    fn ask_route(
        &mut self,
        at: Moment,
        policies: &mut dyn Policies,
        batch: &[RequestId],
        record: &mut RoundRecord,
    ) {
        let cached: Vec<Cached> = batch.iter().filter_map(|id| self.cached_row(*id)).collect();
        let question = Question::Routing(Cow::Owned(cached));
        let answer = policies.ask(&self.asked(at, question)).routing();
        let (author, verdicts) = self.take_answer(Hook::Routing, answer);
        let asked = (Hook::Routing, batch.len());
        let verdicts = self.in_count(policies, author, asked, verdicts);
        let mut verdicts = verdicts.into_iter();
        for id in batch {
            match verdicts.next() {
                Some(verdict) => {
                    let by = Decided {
                        author,
                        reason: verdict.reason,
                    };
                    if let Err(refusal) = self.route(*id, verdict.choice, by, record) {
                        self.refuse(policies, author, Hook::Routing, refusal);
                    }
                }
                None => self.route_built_in(*id, record),
            }
        }
    }

    fn route(
        &mut self,
        id: RequestId,
        choice: routing::Choice,
        by: Decided,
        record: &mut RoundRecord,
    ) -> Result<(), crate::Refusal> {
        match choice {
            routing::Choice::Place(executors) => {
                let (executor, into) = self.first_in_order(id, &executors)?;
                self.place(id, executor, into, by);
                record.placements.push((id, executor));
            }
            routing::Choice::Hold(until) => {
                let now = self.now;
                let until = until.filter(|at| *at > now);
                let request = self.requests.get_mut(&id);
                if let Some(waiting) = request.and_then(Request::waiting_mut) {
                    waiting.held_until = until;
                }
                self.fact(Fact::Held(id, until, by));
            }
            routing::Choice::GiveUp => {
                self.fact(Fact::TurnedAway(id, by));
                self.end(id, Outcome::Refused(RefusedWhy::GaveUp));
            }
        }
        Ok(())
    }

    /// The first of these executors on which the request can be placed now; otherwise why not on
    /// the first of them.
    fn first_in_order(
        &self,
        id: RequestId,
        executors: &[ExecutorId],
    ) -> Result<(ExecutorId, crate::fact::PlacedIn), crate::Refusal> {
        let request = self.requests.get(&id);
        let request = request.ok_or(RefusalCause::UnknownRequest.of(id))?;
        let mut first = None;
        for executor in executors {
            let cause = match self.executors.get(*executor) {
                None => RefusalCause::UnknownExecutor,
                Some(record) => match self.check_place(request, record) {
                    Ok(into) => return Ok((*executor, into)),
                    Err(cause) => cause,
                },
            };
            first.get_or_insert(cause.at(id, *executor));
        }
        Err(first.unwrap_or(RefusalCause::NamesNone.of(id)))
    }

    fn route_built_in(&mut self, id: RequestId, record: &mut RoundRecord) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        if let Some((executor, into)) = self.first_with_room(request) {
            self.place(id, executor, into, Decided::BUILT_IN);
            record.placements.push((id, executor));
        }
    }
}
