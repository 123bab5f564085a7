//! One live request: the client's wishes, and the way it has come.
//!
//! The phase is a state machine: without a place (arrived, parked, queued) → placed (in a device
//! queue or a slot) → leaving → without a place again, or gone. A request that has ended is not
//! here.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use pointsman_events::changes::Stamp;
use pointsman_events::rows::{Request as RequestRow, RequestClass, Stage};
use pointsman_events::{
    ExecutorId, Incarnation, Micros, NewRequest, Progress, PromptBlocks, PromptCount, RequestId,
    RequeuedWhy, Round, SequenceRef, Stay,
};

use super::waiting::{Reservation, Waiting};

/// The urgency of a request before any policy: the greater, the more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Urgency {
    pub(crate) class: RequestClass,
    pub(crate) priority: i32,
}

/// Everything the machine keeps about one live request.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Request {
    /// The request as policies see it while it has no place.
    pub(crate) row: Arc<RequestRow>,
    pub(crate) prompt_blocks: PromptBlocks,
    /// The longest cached prefix of the prompt, as last looked up.
    prefix: Option<KnownPrefix>,
    pub(crate) phase: Phase,
    // Over all its placements.
    pub(crate) generated: u32,
    pub(crate) first_token_at: Option<Micros>,
    pub(crate) preemptions: u32,
    /// Placements that ended because the executor failed it or died.
    pub(crate) failures: u32,
    /// Requests for which it was evicted: it may not evict these in turn.
    pub(crate) evicted_for: BTreeSet<RequestId>,
    // For the feed.
    pub(crate) waiting_stamp: Stamp,
    pub(crate) sequence_stamp: Stamp,
}

/// The longest cached prefix of a prompt.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct KnownPrefix {
    tokens: u32,
    /// The round in which it was looked up.
    at: Round,
}

/// The place of a request.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Phase {
    /// Without a place.
    Waiting(Waiting),
    /// On an executor.
    Placed(Placed),
    /// On an executor, told to leave it.
    Leaving(Placed, AfterLeaving),
}

/// The state of a request after it has left its executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum AfterLeaving {
    /// It waits again.
    Requeue,
    /// Its outcome is set; only its room is still in use.
    Gone,
}

/// A request on an executor.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Placed {
    pub(crate) executor: ExecutorId,
    pub(crate) incarnation: Incarnation,
    pub(crate) in_slot: InSlot,
    /// Its stay without a place before.
    stay_before: Waiting,
    pub(crate) placed_at: Micros,
    pub(crate) started_at: Option<Micros>,
    /// Leading prompt tokens that its blocks held when it was placed.
    pub(crate) cached_tokens: u32,
    /// Prompt tokens whose KV is there.
    pub(crate) prefilled: u32,
    /// The prompt as the server counts it; absent: it has not told, or there is none.
    pub(crate) counted: Option<PromptCount>,
    /// Tokens generated in this placement.
    pub(crate) generated: u32,
    pub(super) last_token_at: Option<Micros>,
    pub(super) steps_without_token: u32,
    /// The number of requests that went past it in the device queue.
    pub(crate) overtaken: u32,
    /// True if it goes first in the device queue, because too many went past it.
    pub(crate) goes_first: bool,
    /// Set while it lacks a block to go on.
    pub(crate) short: Option<Short>,
}

/// The place of a request on its executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum InSlot {
    /// The request waits in the device queue.
    Queued,
    /// The request has a slot and runs.
    Running,
}

/// A running sequence that cannot grow.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Short {
    pub(crate) since: Micros,
    /// The time at which victims were last asked for.
    pub(crate) asked: Option<Micros>,
    /// The number of blocks that it must have in all.
    pub(crate) blocks: u32,
}

const PLACED: &str = "a request with a slot, a queue entry or a shortage is placed";

/// The effect of a step on one sequence.
#[derive(Debug)]
pub(crate) struct Advance {
    pub(crate) prefilled: u32,
    pub(crate) generated: u32,
    /// Time from the placement to the first token of all, if this is it.
    pub(crate) ttft: Option<Micros>,
    /// Microseconds for each of these tokens, if they are not the first of the placement.
    pub(crate) itl: Option<u64>,
}

// === impl Advance ===

impl Advance {
    /// Returns whether the placement's first token is among these.
    pub(crate) fn has_first_token(&self) -> bool {
        self.generated > 0 && self.itl.is_none()
    }

    /// Tokens of the step that went to the sequence. The token that follows the prompt's last one
    /// comes out of the same pass.
    pub(crate) fn tokens_used(&self) -> u32 {
        self.prefilled.max(self.generated)
    }
}

// === impl Request: reading ===

impl Request {
    /// A request that arrives at `now`. The executors that it is allowed are put in attach order, to be searched.
    pub(crate) fn new(id: RequestId, now: Micros, mut new: NewRequest) -> Self {
        if let Some(allowed) = &mut new.allowed {
            allowed.sort_unstable();
        }
        let row = RequestRow {
            id,
            model: new.model,
            adapter: new.adapter,
            tenant: new.tenant,
            session: new.session,
            class: new.class,
            priority: new.priority,
            head_start: new.head_start,
            stage: Stage::Arrived,
            labels: new.labels,
            arrived: now,
            deadline: new.deadline,
            may_wait: new.may_wait,
            prompt_tokens: new.prompt_tokens,
            output_tokens_max: new.output_tokens_max,
            output_tokens_expected: new.output_tokens_expected,
            group: new.group,
            allowed: new.allowed,
            failed_on: Vec::new(),
            preferred: new.preferred,
            attempts: 0,
            hold_end: None,
        };
        Self {
            row: Arc::new(row),
            prompt_blocks: new.prompt_blocks,
            prefix: None,
            phase: Phase::Waiting(Waiting::new(now)),
            generated: 0,
            first_token_at: None,
            preemptions: 0,
            failures: 0,
            evicted_for: BTreeSet::new(),
            waiting_stamp: Stamp::default(),
            sequence_stamp: Stamp::default(),
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.row.id
    }

    pub(crate) fn urgency(&self) -> Urgency {
        Urgency {
            class: self.row.class,
            priority: self.row.priority,
        }
    }

    /// True if this request comes before `other` by urgency, then arrival.
    pub(crate) fn precedes(&self, other: &Request) -> bool {
        self.precedence() < other.precedence()
    }

    /// True if `other` overtakes this request where it goes first: it came later, and is not more
    /// urgent.
    pub(crate) fn is_passed_by(&self, other: &Request) -> bool {
        self.id() < other.id() && other.urgency() <= self.urgency()
    }

    /// The number of requests that overtook it where it waits now, in the queue or on an executor.
    pub(crate) fn overtaken(&self) -> u32 {
        match &self.phase {
            Phase::Waiting(waiting) => waiting.overtaken,
            Phase::Placed(placed) | Phase::Leaving(placed, _) => placed.overtaken,
        }
    }

    /// The place of this request by urgency, then arrival: the least comes first.
    pub(crate) fn precedence(&self) -> (Reverse<Urgency>, RequestId) {
        (Reverse(self.urgency()), self.id())
    }

    pub(crate) fn waiting(&self) -> Option<&Waiting> {
        match &self.phase {
            Phase::Waiting(waiting) => Some(waiting),
            Phase::Placed(_) | Phase::Leaving(..) => None,
        }
    }

    /// The room kept for a request that waits.
    pub(crate) fn reservation(&self) -> Option<&Reservation> {
        self.waiting()?.reservation.as_ref()
    }

    /// The placement of a request that has one, leaving or not.
    pub(crate) fn placed(&self) -> Option<&Placed> {
        match &self.phase {
            Phase::Placed(placed) | Phase::Leaving(placed, _) => Some(placed),
            Phase::Waiting(_) => None,
        }
    }

    /// The placement of a request that cannot be without one.
    ///
    /// # Panics
    /// If it waits: see [`super::Requests`].
    pub(crate) fn placement(&self) -> &Placed {
        self.placed().expect(PLACED)
    }

    /// The executor that it is placed on, or that has room kept for it.
    pub(crate) fn executor(&self) -> Option<ExecutorId> {
        let placed = self.placed().map(|placed| placed.executor);
        placed.or_else(|| Some(self.reservation()?.executor))
    }

    /// True if it has a place and no slot yet.
    pub(crate) fn is_queued_on_executor(&self) -> bool {
        self.placed()
            .is_some_and(|placed| placed.in_slot == InSlot::Queued)
    }

    /// True if it has not started: it has no place, or one in the queue of an executor. Policies
    /// are told it as a request that waits.
    pub(crate) fn is_unstarted(&self) -> bool {
        self.waiting().is_some() || self.is_queued_on_executor()
    }

    /// True if its outcome is set and only its room is still in use.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_, AfterLeaving::Gone))
    }

    /// The stay that its placement comes to.
    pub(crate) fn stay(&self) -> Stay {
        let placed = self.placement();
        let taken_up = |tokens| placed.started_at.map_or(0, |_| tokens);
        let prompt = placed.prompt();
        Stay {
            request: self.id(),
            executor: placed.executor,
            tenant: self.row.tenant,
            model: self.row.model,
            started: placed.started_at,
            prompt_tokens: taken_up(prompt.tokens),
            cached_tokens: taken_up(prompt.cached),
            output_tokens: taken_up(placed.generated),
        }
    }

    /// The name of its sequence, by which its executor knows it.
    pub(crate) fn sequence(&self) -> SequenceRef {
        let placed = self.placement();
        SequenceRef {
            request: self.id(),
            executor: placed.executor,
            incarnation: placed.incarnation,
        }
    }

    /// The length of its prompt's longest cached prefix when that was last looked up.
    pub(crate) fn cached_tokens(&self) -> u32 {
        self.prefix.map_or(0, |prefix| prefix.tokens)
    }

    /// The round in which its longest cached prefix was last looked up; absent: never.
    pub(crate) fn prefix_known_at(&self) -> Option<Round> {
        self.prefix.map(|prefix| prefix.at)
    }

    /// Tokens whose KV it must hold to generate its next token, plus that one.
    pub(crate) fn tokens_ahead(&self) -> u64 {
        let generated = self.placed().map_or(0, |placed| placed.generated);
        u64::from(self.row.prompt_tokens) + u64::from(generated) + 1
    }

    /// Most tokens whose KV it may ever hold.
    pub(crate) fn tokens_bound(&self) -> u64 {
        u64::from(self.row.prompt_tokens) + u64::from(self.row.output_tokens_max)
    }
}

// === impl Request: changing ===

impl Request {
    /// Notes its longest cached prefix, as looked up in round `at`.
    pub(super) fn know_prefix(&mut self, tokens: u32, at: Round) {
        self.prefix = Some(KnownPrefix { tokens, at });
    }

    pub(super) fn row_mut(&mut self) -> &mut RequestRow {
        Arc::make_mut(&mut self.row)
    }

    /// The placement of a request that cannot be without one, to be changed.
    pub(super) fn placement_mut(&mut self) -> &mut Placed {
        match &mut self.phase {
            Phase::Placed(placed) | Phase::Leaving(placed, _) => placed,
            Phase::Waiting(_) => panic!("{PLACED}"),
        }
    }

    /// Replaces the phase by the one that follows it.
    pub(super) fn turn(&mut self, next: impl FnOnce(Phase) -> Phase) {
        let between = Phase::Waiting(Waiting::new(Micros(0)));
        self.phase = next(std::mem::replace(&mut self.phase, between));
    }

    /// Tokens of its prompt as it came: without what earlier placements generated, which the next
    /// one has as prompt.
    pub(crate) fn prompt_tokens_sent(&self) -> u32 {
        let here = self.placed().map_or(0, |placed| placed.generated);
        let before = self.generated.saturating_sub(here);
        self.row.prompt_tokens.saturating_sub(before)
    }

    /// Sets the tokens generated over all placements to those that are left of the answer. Those of
    /// earlier placements were given back then, and are left whatever is said.
    pub(super) fn keep(&mut self, generated: u32) {
        let before = self.generated - self.placement().generated;
        self.generated = generated.clamp(before, before + self.row.output_tokens_max);
        self.placement_mut().generated = self.generated - before;
        if self.generated == 0 {
            self.first_token_at = None;
        }
    }

    /// Books the tokens of a step.
    pub(super) fn advance(&mut self, made: Progress, now: Micros) -> Advance {
        let prompt_tokens = self.row.prompt_tokens;
        let is_first = self.generated == 0 && made.is_one_token();
        if is_first {
            self.first_token_at = Some(now);
        }
        self.generated += made.generated;
        let placed = self.placement_mut();
        let left = prompt_tokens.saturating_sub(placed.prefilled);
        let mut advance = Advance {
            prefilled: made.prefilled.min(left),
            generated: made.generated,
            ttft: None,
            itl: None,
        };
        placed.prefilled += advance.prefilled;
        placed.generated += made.generated;
        if made.generated > 0 {
            match placed.last_token_at {
                None => advance.ttft = is_first.then(|| now.since(placed.placed_at)),
                Some(last) => advance.itl = Some(now.since(last).0 / u64::from(made.generated)),
            }
            placed.last_token_at = Some(now);
        }
        advance
    }
}

// === impl Phase ===

impl Phase {
    /// The phase of a waiting request that gets a place.
    pub(super) fn enter(self, placed: Placed) -> Phase {
        match self {
            Phase::Waiting(stay_before) => Phase::Placed(Placed {
                stay_before,
                ..placed
            }),
            Phase::Placed(_) | Phase::Leaving(..) => panic!("only a waiting request gets a place"),
        }
    }

    /// The phase of a running request that is told to leave.
    pub(super) fn leave(self, after: AfterLeaving) -> Phase {
        match self {
            Phase::Placed(placed) => Phase::Leaving(
                Placed {
                    short: None,
                    ..placed
                },
                after,
            ),
            Phase::Waiting(_) | Phase::Leaving(..) => panic!("only a running request can leave"),
        }
    }

    /// The phase of a request whose outcome is set while it leaves.
    pub(super) fn end(self) -> Phase {
        match self {
            Phase::Leaving(placed, _) => Phase::Leaving(placed, AfterLeaving::Gone),
            Phase::Waiting(_) | Phase::Placed(_) => panic!("only a leaving request is let go"),
        }
    }

    /// The phase of a request that has left and waits again.
    pub(super) fn requeue(self, now: Micros, why: RequeuedWhy) -> Phase {
        match self {
            Phase::Placed(placed) | Phase::Leaving(placed, _) => {
                let resumed = placed.stay_resumed(why);
                Phase::Waiting(resumed.unwrap_or_else(|| Waiting::new(now)))
            }
            Phase::Waiting(_) => panic!("a waiting request is queued already"),
        }
    }
}

impl Placed {
    /// The part of the prompt that is read, as the server has counted it or else as the host has.
    pub(crate) fn prompt(&self) -> PromptCount {
        self.counted.unwrap_or(PromptCount {
            tokens: self.prefilled,
            cached: self.cached_tokens,
        })
    }

    /// The stay without a place that goes on where it is turned back before anything was generated:
    /// that was no place. Absent: a new one begins.
    pub(crate) fn stay_resumed(&self, why: RequeuedWhy) -> Option<Waiting> {
        let is_nothing = why == RequeuedWhy::TurnedBack && self.generated == 0;
        is_nothing.then(|| self.stay_before.resumed(self.placed_at))
    }

    /// A placement in the device queue, the first stop on the way to a slot.
    pub(crate) fn new(
        (executor, incarnation): (ExecutorId, Incarnation),
        now: Micros,
        cached_tokens: u32,
    ) -> Self {
        Self {
            executor,
            incarnation,
            in_slot: InSlot::Queued,
            stay_before: Waiting::new(now),
            placed_at: now,
            started_at: None,
            cached_tokens,
            prefilled: cached_tokens,
            counted: None,
            generated: 0,
            last_token_at: None,
            steps_without_token: 0,
            overtaken: 0,
            goes_first: false,
            short: None,
        }
    }
}
