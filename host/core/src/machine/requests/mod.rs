//! Live requests, and the lists in which they wait.
//!
//! # Invariants
//! A request is in exactly one list while it waits, the one that its stage names, and in none while
//! it is placed (`check`). Phases change by the methods here only, each of which consumes the phase
//! before.
//!
//! # Panics
//! `requests[id]` is for ids that cannot be missing, because a list, a timer or the books name
//! them. It panics if one is, for the reason that [`super::ledger`] gives. Ids from outside, in
//! inputs and in answers, go through [`Requests::find`].

mod record;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

use pointsman_events::changes::RowKey;
use pointsman_events::rows::Stage;
use pointsman_events::{
    Config, ExecutorId, Micros, PlacedIn, Progress, PromptCount, RequestId, RequeuedWhy, Round,
};

use super::count;
use super::outbox::Outbox;
use super::timers::Timer;

pub(super) use record::{Advance, AfterLeaving, InSlot, Phase, Placed, Request, Short, Urgency};
pub(super) use waiting::{Reservation, Waiting};

/// The records of live requests, and their lists.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Requests {
    by_id: BTreeMap<RequestId, Request>,
    next: u64,
    arrivals: Vec<RequestId>,
    parking: BTreeSet<RequestId>,
    queue: BTreeSet<RequestId>,
    /// Waiting requests for which a liveness clock runs.
    watched: BTreeSet<RequestId>,
}

const LIVE: &str = "a request that a list, a timer or the books name is live";

impl Index<RequestId> for Requests {
    type Output = Request;

    fn index(&self, id: RequestId) -> &Request {
        self.find(id).expect(LIVE)
    }
}

// === impl Requests: reading ===

impl Requests {
    /// A request that somebody outside has named, if it is live.
    pub(crate) fn find(&self, id: RequestId) -> Option<&Request> {
        self.by_id.get(&id)
    }

    /// All requests, in order of arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Request> {
        self.by_id.values()
    }

    /// The id of the next request to arrive.
    pub(super) fn next_id(&self) -> RequestId {
        RequestId(self.next)
    }

    /// Requests that admission has not been asked about.
    pub(super) fn arrivals(&self) -> &[RequestId] {
        &self.arrivals
    }

    pub(super) fn parking(&self) -> &BTreeSet<RequestId> {
        &self.parking
    }

    pub(super) fn queue(&self) -> &BTreeSet<RequestId> {
        &self.queue
    }

    /// The number of requests for which the queue has room.
    pub(super) fn room(&self, config: &Config) -> u32 {
        config.queue_max.saturating_sub(count(self.queue.len()))
    }

    /// The queued requests, in order of arrival.
    pub(super) fn queued(&self) -> impl Iterator<Item = &Request> {
        self.queue.iter().map(|id| &self[*id])
    }

    pub(super) fn watched(&self) -> &BTreeSet<RequestId> {
        &self.watched
    }
}

/// The request that comes before the others by urgency, then arrival.
pub(super) fn most_urgent<'a>(requests: impl Iterator<Item = &'a Request>) -> Option<&'a Request> {
    requests.reduce(|a, b| if b.precedes(a) { b } else { a })
}

// === impl Requests: without a place ===

impl Requests {
    /// Takes a new request in among the arrivals.
    pub(super) fn arrive(&mut self, request: Request, out: &mut Outbox) {
        let id = request.id();
        self.next = id.0 + 1;
        self.arrivals.push(id);
        self.by_id.insert(id, request);
        self.touch_waiting(id, out);
    }

    /// Takes the arrivals off their list: each is to be enqueued, parked or forgotten.
    pub(super) fn take_arrivals(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.arrivals)
    }

    pub(super) fn park(&mut self, id: RequestId, out: &mut Outbox) {
        self.get_mut(id).row_mut().stage = Stage::Parked;
        self.touch_waiting(id, out);
        self.parking.insert(id);
    }

    /// Takes a parked request off its list: it is to be enqueued.
    pub(super) fn unpark(&mut self, id: RequestId) {
        self.parking.remove(&id);
        self.count_overtaken_anew(id);
    }

    /// Forgets how often a waiting request was overtaken.
    pub(super) fn count_overtaken_anew(&mut self, id: RequestId) {
        if let Some(waiting) = self.waiting_mut(id) {
            waiting.overtaken = 0;
        }
    }

    pub(super) fn enqueue(&mut self, id: RequestId, out: &mut Outbox) {
        self.get_mut(id).row_mut().stage = Stage::Queued;
        self.touch_waiting(id, out);
        self.queue.insert(id);
    }

    /// The clocks of a request, if it waits.
    pub(super) fn waiting_mut(&mut self, id: RequestId) -> Option<&mut Waiting> {
        match &mut self.get_mut(id).phase {
            Phase::Waiting(waiting) => Some(waiting),
            Phase::Placed(_) | Phase::Leaving(..) => None,
        }
    }

    pub(super) fn watch(&mut self, id: RequestId) {
        self.watched.insert(id);
    }

    pub(super) fn unwatch(&mut self, id: RequestId) {
        self.watched.remove(&id);
    }

    /// Brings the row of a request that was held on purpose up to date with the latest time at which
    /// a hold ends.
    pub(super) fn tell_hold_end(&mut self, id: RequestId, held_max: Micros, out: &mut Outbox) {
        let request = self.get_mut(id);
        let waiting = request.waiting().filter(|waiting| waiting.was_held());
        let hold_end = waiting.map(|waiting| waiting.hold_end(out.now(), held_max));
        if hold_end.is_some() && request.row.hold_end != hold_end {
            request.row_mut().hold_end = hold_end;
            self.touch_waiting(id, out);
        }
    }

    /// Notes room that is kept for a waiting request.
    pub(super) fn reserve(&mut self, id: RequestId, reservation: Reservation) {
        let waiting = self.waiting_mut(id);
        let waiting = waiting.expect("room is kept only for a waiting request");
        waiting.reservation = Some(reservation);
    }

    /// Takes a request's reservation from it, if it has one.
    pub(super) fn unreserve(&mut self, id: RequestId) -> Option<Reservation> {
        self.waiting_mut(id)?.reservation.take()
    }

    /// Forgets a request that has ended, and whose room is free.
    pub(super) fn forget(&mut self, id: RequestId, out: &mut Outbox) {
        let request = self.by_id.remove(&id);
        let mut request = request.expect("a request is forgotten once");
        out.timers.arm(Timer::Request(id), None);
        if request.placed().is_some() {
            out.gone(RowKey::Sequence(id), &mut request.sequence_stamp);
        } else {
            self.unlist(id, request.row.stage);
        }
        if request.is_unstarted() {
            out.gone(RowKey::Waiting(id), &mut request.waiting_stamp);
        }
    }

    /// Takes a request without a place off the list that its stage names.
    fn unlist(&mut self, id: RequestId, stage: Stage) {
        match stage {
            Stage::Arrived => self.arrivals.retain(|arrival| *arrival != id),
            Stage::Parked => drop(self.parking.remove(&id)),
            Stage::Queued => drop(self.queue.remove(&id)),
            Stage::Placed => debug_assert!(false, "this stage has no list"),
        }
    }
}

// === impl Requests: on an executor ===

impl Requests {
    /// Gives a queued request its place.
    pub(super) fn enter(
        &mut self,
        id: RequestId,
        placed: Placed,
        into: PlacedIn,
        out: &mut Outbox,
    ) {
        self.queue.remove(&id);
        let request = self.get_mut(id);
        request.turn(|phase| phase.enter(placed));
        match into {
            PlacedIn::Slot => out.gone(RowKey::Waiting(id), &mut request.waiting_stamp),
            PlacedIn::Queue => {
                request.row_mut().stage = Stage::Placed;
                self.touch_waiting(id, out);
            }
        }
        self.touch_sequence(id, out);
    }

    /// Notes that a request leaves the device queue for a slot.
    pub(super) fn leave_device_queue(&mut self, id: RequestId, out: &mut Outbox) {
        let request = self.get_mut(id);
        debug_assert!(request.is_queued_on_executor(), "it is in the queue");
        out.gone(RowKey::Waiting(id), &mut request.waiting_stamp);
    }

    /// Notes that a placed request has its slot.
    pub(super) fn run(&mut self, id: RequestId) {
        self.placement_mut(id).in_slot = InSlot::Running;
    }

    /// Counts a request that went past this one in the device queue.
    pub(super) fn overtaken_on_executor(&mut self, id: RequestId) {
        let placed = self.placement_mut(id);
        placed.overtaken = placed.overtaken.saturating_add(1);
    }

    /// Has a request go first in the device queue from now on.
    pub(super) fn put_first(&mut self, id: RequestId) {
        self.placement_mut(id).goes_first = true;
    }

    /// Notes that an engine has taken a sequence up.
    pub(super) fn started(&mut self, id: RequestId, out: &mut Outbox) {
        self.placement_mut(id).started_at.get_or_insert(out.now());
        self.touch_sequence(id, out);
    }

    /// Books the tokens of a step.
    pub(super) fn advance(&mut self, made: Progress, now: Micros) -> Advance {
        self.get_mut(made.request).advance(made, now)
    }

    /// Takes note of a prompt as the server counts it.
    pub(super) fn count_prompt(&mut self, id: RequestId, count: PromptCount) {
        self.placement_mut(id).counted = Some(count);
    }

    /// Counts a step of the engine that gave the sequence so many tokens. True if it is the `max`th in a row in which a sequence that had
    /// its blocks got nothing; then the count starts anew.
    pub(super) fn count_step(&mut self, id: RequestId, tokens: u32, max: u32) -> bool {
        let placed = self.placement_mut(id);
        let steps = &mut placed.steps_without_token;
        *steps = if tokens > 0 || placed.short.is_some() {
            0
        } else {
            *steps + 1
        };
        let is_starved = *steps >= max;
        if is_starved {
            *steps = 0;
        }
        is_starved
    }

    /// Notes that a running sequence must have `blocks` blocks in all to go on.
    pub(super) fn lack(&mut self, id: RequestId, blocks: u32, now: Micros) {
        self.placement_mut(id).short = Some(Short {
            since: now,
            asked: None,
            blocks,
        });
    }

    /// Notes that victims were asked for, for a sequence that lacks blocks.
    pub(super) fn asked_for(&mut self, id: RequestId, now: Micros) {
        if let Some(short) = &mut self.placement_mut(id).short {
            short.asked = Some(now);
        }
    }

    /// Notes that a sequence has the blocks that it lacked.
    pub(super) fn suffice(&mut self, id: RequestId) {
        self.placement_mut(id).short = None;
    }

    /// Notes that a request is evicted for `needy`, against which it may not turn.
    pub(super) fn evicted(&mut self, id: RequestId, needy: RequestId) {
        let mut evicted_for = std::mem::take(&mut self.get_mut(id).evicted_for);
        evicted_for.retain(|other| self.by_id.contains_key(other));
        evicted_for.insert(needy);
        let request = self.get_mut(id);
        request.evicted_for = evicted_for;
        request.preemptions += 1;
    }

    /// Notes the longest cached prefix of a request's prompt, as looked up in round `at`.
    pub(super) fn know_prefix(&mut self, id: RequestId, tokens: u32, at: Round) {
        self.get_mut(id).know_prefix(tokens, at);
    }

    /// Tells a running request to leave.
    pub(super) fn leave(&mut self, id: RequestId, after: AfterLeaving, out: &mut Outbox) {
        self.get_mut(id).turn(|phase| phase.leave(after));
        self.touch_sequence(id, out);
    }

    /// Notes that a leaving request will not wait again.
    pub(super) fn let_go(&mut self, id: RequestId) {
        self.get_mut(id).turn(Phase::end);
    }

    /// Has a request whose placement is closed go on from `generated` tokens, all placements taken
    /// together: they are all that is left of its answer.
    pub(super) fn keep(&mut self, id: RequestId, generated: u32) {
        self.get_mut(id).keep(generated);
    }

    /// Has a request served by no other executors than these from now on. Its row is told when it waits
    /// again.
    pub(super) fn keep_to(&mut self, id: RequestId, executors: &[ExecutorId]) {
        let mut to = executors.to_vec();
        to.sort_unstable();
        let allowed = &mut self.get_mut(id).row_mut().allowed;
        let allowed = allowed.get_or_insert_with(|| to.clone());
        allowed.retain(|executor| to.binary_search(executor).is_ok());
    }

    /// Notes that a placement ended because `executor` failed it or died.
    pub(super) fn failed(&mut self, id: RequestId, executor: ExecutorId, why: RequeuedWhy) {
        let request = self.get_mut(id);
        if why == RequeuedWhy::TurnedBack {
            return;
        }
        request.failures += 1;
        // A request that an executor had not taken up when it died had no part in it, and may go there
        // again when it is back.
        if why == RequeuedWhy::Failed || request.placement().started_at.is_some() {
            request.row_mut().failed_on.push(executor);
        }
    }

    /// Puts a request whose placement is closed back into the queue. Its tokens count as prompt
    /// from now on. It was admitted once, so the queue's bound does not apply.
    pub(super) fn requeue(&mut self, id: RequestId, why: RequeuedWhy, out: &mut Outbox) {
        let request = self.get_mut(id);
        let generated = request.placement().generated;
        let row = request.row_mut();
        row.prompt_tokens = row.prompt_tokens.saturating_add(generated);
        row.output_tokens_max = row.output_tokens_max.saturating_sub(generated);
        row.stage = Stage::Queued;
        row.attempts += 1;
        row.hold_end = None;
        request.turn(|phase| phase.requeue(out.now(), why));
        out.gone(RowKey::Sequence(id), &mut request.sequence_stamp);
        self.queue.insert(id);
        self.touch_waiting(id, out);
    }

    /// Marks the row of a placed request.
    pub(super) fn touch_sequence(&mut self, id: RequestId, out: &mut Outbox) {
        let request = self.get_mut(id);
        out.mark(RowKey::Sequence(id), &mut request.sequence_stamp);
    }

    fn touch_waiting(&mut self, id: RequestId, out: &mut Outbox) {
        let request = self.get_mut(id);
        out.mark(RowKey::Waiting(id), &mut request.waiting_stamp);
    }

    fn get_mut(&mut self, id: RequestId) -> &mut Request {
        self.by_id.get_mut(&id).expect(LIVE)
    }

    fn placement_mut(&mut self, id: RequestId) -> &mut Placed {
        self.get_mut(id).placement_mut()
    }
}
