//! The decisions about the newest requests: questions, answers, and the facts that followed.
//!
//! A `LogSink` sees the questions of a turn, and the `DecisionLog` joins them with the machine's
//! facts into one [`Trace`] per request.
//!
//! # Invariants
//! 1. The log changes no decision: answers pass unchanged, and neither a policy nor the machine
//!    reads it.
//!
//! # Bounds
//! The newest `admin.decisions-max` requests, the oldest go first. Of each the first and the last
//! `STEPS_MAX` / 2 steps, texts cut at `TEXT_CHARS_MAX` characters, lists at `NAMED_MAX`: at
//! most 12 KiB (`tests::a_case_is_small`).

mod sink;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pointsman_core::rows::{Cached, Request};
use pointsman_core::{
    Author, Decided, EvictHow, ExecutorId, Fact, FaultKind, Hook, Micros, Outcome, PlacedIn,
    RefusalCause, RequestId, RequeuedWhy, Round, Stamped,
};
use pointsman_executor::delivery::BUILT_IN;
use pointsman_policy::PolicyHost;

use super::message::TicketId;
use super::record;
pub use sink::TracedAnswer;

/// Steps that are remembered of one request.
pub const STEPS_MAX: usize = 32;
/// Executors of one answer that are remembered.
pub const NAMED_MAX: usize = 8;
/// Most allowed executors of a request whose row is remembered.
const ALLOWED_MAX: usize = 256;
/// Most characters of a text.
const TEXT_CHARS_MAX: usize = 128;
/// Most policies whose names and reasons are kept at hand.
const AUTHORS_MAX: usize = 64;

/// The decisions about one request.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The request's id between HTTP and the driver.
    pub ticket: TicketId,
    /// The request's id in the machine.
    pub request: RequestId,
    pub tenant: String,
    /// The model that the client named; absent: none.
    pub model: Option<String>,
    /// The row that policies saw at the arrival, or the reason why there is none.
    pub row: Result<Arc<Request>, NoRow>,
    /// Events in the order in which they happened.
    pub steps: Vec<TraceStep>,
    /// Number of forgotten steps, between the first and the last ones.
    pub forgotten: u32,
    /// The request's end; absent while the request lives.
    pub outcome: Option<Outcome>,
}

/// A reason why a trace has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRow {
    /// The request ended as it arrived.
    #[error("it ended as it arrived, before any policy was asked")]
    EndedAtOnce,
    /// The request allows more executors than are remembered.
    #[error("it allows too many executors to be remembered whole")]
    AllowsTooMany,
}

/// An event of a request, with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceStep {
    pub at: Micros,
    pub round: Round,
    pub event: TraceEvent,
    /// Number of such events in a row, in as many rounds.
    pub times: u32,
}

/// An event of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A policy was asked about the request.
    Asked(Box<TracedQuestion>),
    /// The request was let into the queue.
    Admitted(DecidedBy),
    /// The request waits outside the queue.
    Parked(DecidedBy),
    /// The request came from outside into the queue.
    Unparked,
    /// The request was refused by decision.
    TurnedAway(DecidedBy),
    /// The request waits by decision, until this time at the latest.
    Held(Option<Micros>, DecidedBy),
    /// The request got a place.
    Placed(ExecutorId, PlacedIn, DecidedBy),
    /// The interlock refused an answer about the request.
    Refused(Hook, Option<ExecutorId>, RefusalCause, DecidedBy),
    /// A liveness bound ran out for the request.
    Struck(Hook),
    /// The engine took the sequence up.
    Started(ExecutorId),
    /// The sequence has to leave for the sake of another request.
    Evicted(TracedEviction, DecidedBy),
    /// The request waits for a place again.
    Requeued(RequeuedWhy),
    /// The request ended.
    Ended(Outcome),
}

/// The eviction of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedEviction {
    /// The executor that the sequence leaves.
    pub executor: ExecutorId,
    /// The request that needs the room.
    pub needy: RequestId,
    /// The way in which the sequence leaves.
    pub how: EvictHow,
    /// Blocks that it gives back.
    pub blocks: u32,
}

/// A question about a request, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedQuestion {
    pub hook: Hook,
    /// Number of requests in the same question.
    pub together: usize,
    /// Cached parts of the prompt, where the question told them.
    pub cached: Option<Cached>,
    /// The answer about the request; absent: none that could be used.
    pub answer: Option<TracedAnswer>,
    pub by: DecidedBy,
    /// Policies that were asked before and failed.
    pub faults: Vec<(u32, FaultKind)>,
}

/// The author of a decision, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedBy {
    /// The policy; absent: the built-in rule.
    pub author: Option<Arc<PolicyWords>>,
    /// Index into the policy's reasons.
    pub reason: u16,
}

/// The name and reasons of a policy, kept after the policy has gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyWords {
    pub number: u32,
    pub name: String,
    pub reasons: Vec<String>,
}

/// The decisions about the newest requests.
#[derive(Debug)]
pub(super) struct DecisionLog {
    max: usize,
    traces: BTreeMap<RequestId, Trace>,
    tickets: BTreeMap<TicketId, RequestId>,
    authors: BTreeMap<u32, Arc<PolicyWords>>,
    /// Questions of this turn, mostly in the order in which facts about them come.
    pending: VecDeque<PendingQuestion>,
}

/// A question about a request that no fact has followed yet.
#[derive(Debug)]
struct PendingQuestion {
    request: RequestId,
    at: Micros,
    round: Round,
    hook: Hook,
    together: usize,
    cached: Option<Cached>,
    answer: Option<TracedAnswer>,
    author: Author,
    reason: u16,
    faults: Vec<(u32, FaultKind)>,
}

/// Passes questions on, and notes them and their answers.
#[derive(Debug)]
pub(super) struct LogSink<'a>(&'a mut DecisionLog);

/// A request that has arrived.
pub(super) struct ArrivedRequest<'a> {
    pub(super) ticket: TicketId,
    pub(super) request: RequestId,
    pub(super) tenant: &'a str,
    pub(super) model: Option<&'a str>,
    /// Absent: it has ended.
    pub(super) row: Option<Arc<Request>>,
}

// === impl DecisionLog ===

impl DecisionLog {
    /// A log of the newest `max` requests.
    pub(super) fn new(max: u32) -> Self {
        Self {
            max: usize::try_from(max).unwrap_or(usize::MAX),
            traces: BTreeMap::new(),
            tickets: BTreeMap::new(),
            authors: BTreeMap::new(),
            pending: VecDeque::new(),
        }
    }

    /// A sink for the questions of a round.
    pub(super) fn sink(&mut self) -> LogSink<'_> {
        LogSink(self)
    }

    /// Begins the trace of a request.
    pub(super) fn arrived(&mut self, arrival: ArrivedRequest<'_>) {
        if self.max == 0 {
            return;
        }
        let is_small = |row: &Arc<Request>| {
            row.allowed
                .as_ref()
                .is_none_or(|allowed| allowed.len() <= ALLOWED_MAX)
        };
        let row = match arrival.row {
            Some(row) if is_small(&row) => Ok(row),
            Some(_) => Err(NoRow::AllowsTooMany),
            None => Err(NoRow::EndedAtOnce),
        };
        let trace = Trace {
            ticket: arrival.ticket,
            request: arrival.request,
            tenant: cut(arrival.tenant),
            model: arrival.model.map(cut),
            row,
            steps: Vec::new(),
            forgotten: 0,
            outcome: None,
        };
        self.tickets.insert(trace.ticket, trace.request);
        self.traces.insert(trace.request, trace);
        while self.traces.len() > self.max {
            if let Some((_, oldest)) = self.traces.pop_first() {
                self.tickets.remove(&oldest.ticket);
            }
        }
    }

    /// Notes a fact. Call it with all facts of a round in order, then [`Self::rest`].
    pub(super) fn fact(&mut self, stamped: &Stamped, policies: &PolicyHost) {
        if self.max == 0 {
            return;
        }
        let Some((request, hook)) = about(&stamped.fact) else {
            return;
        };
        if let Some(hook) = hook {
            self.catch_up(request, hook, policies);
        }
        let Some(event) = self.step_of(&stamped.fact, policies) else {
            return;
        };
        self.add(request, (stamped.now, stamped.round), event);
    }

    /// Notes the questions of the round that led to nothing.
    pub(super) fn rest(&mut self, policies: &PolicyHost) {
        for question in std::mem::take(&mut self.pending) {
            self.note(question, policies);
        }
    }

    /// The trace of the request of `ticket`.
    pub(super) fn of(&self, ticket: TicketId) -> Option<&Trace> {
        self.traces.get(self.tickets.get(&ticket)?)
    }

    /// The traces of the newest `last` requests, the newest first.
    pub(super) fn newest(&self, last: usize) -> Vec<Trace> {
        self.traces.values().rev().take(last).cloned().collect()
    }

    /// Notes the question of `hook` about `request`, which a fact follows.
    fn catch_up(&mut self, request: RequestId, hook: Hook, policies: &PolicyHost) {
        let about = |pending: &PendingQuestion| pending.request == request && pending.hook == hook;
        let idx = self.pending.iter().position(about);
        if let Some(pending) = idx.and_then(|idx| self.pending.remove(idx)) {
            self.note(pending, policies);
        }
    }

    fn note(&mut self, pending: PendingQuestion, policies: &PolicyHost) {
        let question = TracedQuestion {
            hook: pending.hook,
            together: pending.together,
            cached: pending.cached,
            answer: pending.answer,
            by: self.by(pending.author, pending.reason, policies),
            faults: pending.faults,
        };
        let asked = TraceEvent::Asked(Box::new(question));
        self.add(pending.request, (pending.at, pending.round), asked);
    }

    fn add(&mut self, request: RequestId, (at, round): (Micros, Round), event: TraceEvent) {
        let Some(trace) = self.traces.get_mut(&request) else {
            return;
        };
        if let TraceEvent::Ended(outcome) = event {
            trace.outcome = Some(outcome);
        }
        trace.add(TraceStep {
            at,
            round,
            event,
            times: 1,
        });
    }

    fn step_of(&mut self, fact: &Fact, policies: &PolicyHost) -> Option<TraceEvent> {
        let mut by = |decided: &Decided| self.by(decided.author, decided.reason, policies);
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "other facts are about no request, or nothing that was decided"
        )]
        Some(match fact {
            Fact::Admitted(_, decided) => TraceEvent::Admitted(by(decided)),
            Fact::Parked(_, decided) => TraceEvent::Parked(by(decided)),
            Fact::Unparked(_) => TraceEvent::Unparked,
            Fact::TurnedAway(_, decided) => TraceEvent::TurnedAway(by(decided)),
            Fact::Held(_, until, decided) => TraceEvent::Held(*until, by(decided)),
            Fact::Placed {
                executor,
                into,
                by: decided,
                ..
            } => TraceEvent::Placed(*executor, *into, by(decided)),
            Fact::Started(_, executor) => TraceEvent::Started(*executor),
            Fact::Evicted {
                executor,
                needy,
                how,
                blocks,
                by: decided,
                ..
            } => {
                let eviction = TracedEviction {
                    executor: *executor,
                    needy: *needy,
                    how: *how,
                    blocks: *blocks,
                };
                TraceEvent::Evicted(eviction, by(decided))
            }
            Fact::Requeued(_, why) => TraceEvent::Requeued(*why),
            Fact::Refused(author, hook, refusal) => {
                let by = self.by(*author, 0, policies);
                TraceEvent::Refused(*hook, refusal.executor, refusal.cause, by)
            }
            Fact::Strike(_, hook, _) => TraceEvent::Struck(*hook),
            Fact::Ended(_, outcome) => TraceEvent::Ended(*outcome),
            _ => return None,
        })
    }

    fn by(&mut self, author: Author, reason: u16, policies: &PolicyHost) -> DecidedBy {
        let author = match author {
            Author::BuiltIn => None,
            Author::Policy(number) => Some(self.words_of(number, policies)),
        };
        DecidedBy { author, reason }
    }

    fn words_of(&mut self, number: u32, policies: &PolicyHost) -> Arc<PolicyWords> {
        if let Some(words) = self.authors.get(&number) {
            return Arc::clone(words);
        }
        while self.authors.len() >= AUTHORS_MAX {
            // The words stay with those who quote them.
            self.authors.pop_first();
        }
        let said = policies.description(number);
        let words = Arc::new(PolicyWords {
            number,
            name: cut(record::name(policies, number)),
            reasons: said.map_or_else(Vec::new, |said| said.reasons.clone()),
        });
        self.authors.insert(number, Arc::clone(&words));
        words
    }
}

/// The request of a fact, and the hook whose question led to it, if one did.
fn about(fact: &Fact) -> Option<(RequestId, Option<Hook>)> {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "other facts are about no request, or nothing that was decided"
    )]
    Some(match fact {
        Fact::Admitted(request, _) | Fact::Parked(request, _) => (*request, Some(Hook::Admission)),
        Fact::TurnedAway(request, by) => {
            let asked = by.author != Author::BuiltIn;
            (*request, asked.then_some(Hook::Admission))
        }
        Fact::Held(request, ..) | Fact::Placed { request, .. } => (*request, Some(Hook::Routing)),
        Fact::Unparked(request)
        | Fact::Started(request, _)
        | Fact::Evicted {
            victim: request, ..
        }
        | Fact::Requeued(request, _)
        | Fact::Strike(_, _, request)
        | Fact::Ended(request, _) => (*request, None),
        Fact::Refused(_, hook, refusal) => (refusal.request?, Some(*hook)),
        _ => return None,
    })
}

fn cut(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

// === impl Trace ===

impl Trace {
    /// The cached parts of the prompt, as the newest question that had them told them; without such
    /// a question none.
    pub(super) fn cached(&self, request: RequestId) -> Cached {
        let last = self.steps.iter().rev().find_map(|step| match &step.event {
            TraceEvent::Asked(pending) => pending.cached.clone(),
            TraceEvent::Admitted(_)
            | TraceEvent::Parked(_)
            | TraceEvent::Unparked
            | TraceEvent::TurnedAway(_)
            | TraceEvent::Held(..)
            | TraceEvent::Placed(..)
            | TraceEvent::Refused(..)
            | TraceEvent::Struck(_)
            | TraceEvent::Started(_)
            | TraceEvent::Evicted(..)
            | TraceEvent::Requeued(_)
            | TraceEvent::Ended(_) => None,
        });
        last.unwrap_or(Cached {
            request,
            overlaps: Vec::new(),
            floor_tokens: 0,
            shared_tokens: 0,
        })
    }

    /// The executors that the steps name; some several times.
    pub(super) fn executors(&self) -> Vec<ExecutorId> {
        let mut executors = Vec::new();
        for step in &self.steps {
            match &step.event {
                TraceEvent::Asked(pending) => {
                    let overlaps = pending.cached.iter().flat_map(|cached| &cached.overlaps);
                    executors.extend(overlaps.map(|overlap| overlap.executor));
                    let named = pending.answer.iter().flat_map(TracedAnswer::executors);
                    executors.extend(named);
                }
                TraceEvent::Placed(executor, ..)
                | TraceEvent::Started(executor)
                | TraceEvent::Evicted(TracedEviction { executor, .. }, _) => {
                    executors.push(*executor);
                }
                TraceEvent::Refused(_, executor, ..) => executors.extend(*executor),
                TraceEvent::Admitted(_)
                | TraceEvent::Parked(_)
                | TraceEvent::Unparked
                | TraceEvent::TurnedAway(_)
                | TraceEvent::Held(..)
                | TraceEvent::Struck(_)
                | TraceEvent::Requeued(_)
                | TraceEvent::Ended(_) => {}
            }
        }
        executors
    }

    /// Adds a step. A step that repeats one of the last two is only counted there; beyond
    /// [`STEPS_MAX`] steps, one in the middle is forgotten.
    fn add(&mut self, step: TraceStep) {
        // A held request repeats a question and its result, round after round.
        for back in [1, 2] {
            let idx = self.steps.len().checked_sub(back);
            if let Some(before) = idx.and_then(|idx| self.steps.get_mut(idx))
                && before.event == step.event
            {
                before.times = before.times.saturating_add(1);
                before.round = step.round;
                return;
            }
        }
        if self.steps.len() == STEPS_MAX {
            self.steps.remove(STEPS_MAX / 2);
            self.forgotten = self.forgotten.saturating_add(1);
        }
        self.steps.push(step);
    }
}

impl DecidedBy {
    /// The name of the policy that decided, or `built-in`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.author.as_ref().map_or(BUILT_IN, |words| &words.name)
    }

    /// The reason, in the policy's words; empty: no reason was given.
    #[must_use]
    pub fn why(&self) -> &str {
        let reasons = self.author.as_ref().map(|words| &words.reasons);
        let reason = reasons.and_then(|reasons| reasons.get(usize::from(self.reason)));
        reason.map_or("", String::as_str)
    }
}
