//! The spans of one request.

use pointsman_core::{Micros, Outcome, RequeuedWhy, SessionKey, Stay};
use pointsman_executor::delivery::StopReason;
use pointsman_executor::server::{ServerAnswer, ServerUrl};
use pointsman_executor::trace::{SpanContext, SpanId, TraceHeaders};

use super::{AskedFor, EarlyRefusal, PLACEMENTS_MAX, TraceOrigin, drawn_span};
use crate::message::{Submission, TicketId};
use crate::metrics::ending;

/// The outcome of a request that was not taken.
const REFUSED: &str = "refused";
/// The most characters of the reason why a placement failed.
const WHY_CHARS_MAX: usize = 256;

/// The kinds of requests that clients make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A conversation is gone on with.
    Chat,
    /// A text is gone on with.
    TextCompletion,
    /// Texts are turned into vectors.
    Embeddings,
    /// Texts are put in the order of their use for a question.
    Rerank,
    /// A text is turned into tokens.
    Tokenize,
    /// Tokens are turned into a text.
    Detokenize,
    /// A request of a kind that is not known here.
    Other,
}

/// A request that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestSpan {
    /// The request's own span.
    pub context: SpanContext,
    /// The headers that the client sent; absent: it named no trace.
    pub parent: Option<TraceHeaders>,
    /// The request's id between HTTP and the driver; absent: the driver never heard of it.
    pub ticket: Option<TicketId>,
    /// The operation that the client asked for.
    pub operation: Operation,
    /// The numbers that the client asked with.
    pub asked: AskedFor,
    /// The key of the session that the client named; absent: none.
    pub session: Option<SessionKey>,
    /// The tenant; absent: the driver never heard of the request.
    pub tenant: Option<String>,
    /// The model that the client named; absent: none, or the driver never heard of the request.
    pub model: Option<String>,
    /// Tokens of the prompt, as the executor counts them; absent: it was not tokenised here, and no server
    /// has told.
    pub input_tokens: Option<u32>,
    /// Leading tokens of the prompt that the last executor had already.
    pub cached_tokens: u32,
    /// Tokens generated, over all placements.
    pub output_tokens: u32,
    /// The reason why generation ended; absent: it did not, or a server elsewhere has its own words.
    pub stop: Option<StopReason>,
    /// The words of the server elsewhere that answered; absent: none did.
    pub server_answer: Option<ServerAnswer>,
    pub arrived: Micros,
    /// The time at which the driver heard of the first token; absent: it heard of none before the end.
    pub first_token: Option<Micros>,
    pub ended: Micros,
    /// The times without a place, in their order.
    pub waits: Vec<Wait>,
    /// The places that the request had, in their order.
    pub placements: Vec<PlacementSpan>,
    /// The number of places that the request had, with those that are not told.
    pub attempts: u32,
    /// The outcome, unless the request was served: its word, and the reason's.
    pub error: Option<(&'static str, &'static str)>,
    /// The status of the response of a request that the driver never heard of; absent: it did.
    pub status: Option<u16>,
}

/// A time without a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub span: SpanId,
    pub from: Micros,
    pub until: Micros,
}

/// A place that a request had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementSpan {
    /// The span, which a server elsewhere was told.
    pub span: SpanId,
    pub executor: String,
    /// The address of a server elsewhere; absent: an engine in this process.
    pub server: Option<ServerUrl>,
    /// The model that was to answer; empty: it never got so far.
    pub model: String,
    /// The policy that placed it.
    pub policy: String,
    /// The policy's reason, in its own words.
    pub reason: String,
    pub placed: Micros,
    /// The time at which the executor took it up; absent: it never did.
    pub started: Option<Micros>,
    pub ended: Micros,
    pub end: PlacementEnd,
    /// Tokens generated there.
    pub output_tokens: u32,
    /// The cause, where it failed there; empty: none was told.
    pub why: String,
}

/// The end of a request's time at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementEnd {
    /// The request is still there.
    Open,
    /// The request was served.
    Served,
    /// The request had to give way, and waits again.
    Evicted,
    /// The executor failed the request.
    Failed,
    /// The executor died.
    Lost,
    /// The executor had no room after all.
    TurnedBack,
    /// The request ended in another way: its client left, or its time ran out.
    CutOff,
}

/// A request under way, to become a [`RequestSpan`].
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) span: RequestSpan,
    /// The time since which it has had no place; absent: it has one.
    waits_since: Option<Micros>,
}

// === impl RequestSpan ===

impl RequestSpan {
    /// A request that arrived now, and to which nothing has happened yet.
    fn new(context: SpanContext, origin: &TraceOrigin, now: Micros) -> Self {
        Self {
            context,
            parent: origin.parent.clone(),
            ticket: None,
            operation: origin.operation,
            asked: origin.asked,
            session: None,
            tenant: None,
            model: None,
            input_tokens: None,
            cached_tokens: 0,
            output_tokens: 0,
            stop: None,
            server_answer: None,
            arrived: now,
            first_token: None,
            ended: now,
            waits: Vec::new(),
            placements: Vec::new(),
            attempts: 0,
            error: None,
            status: None,
        }
    }

    /// A request that was refused before the driver heard of it.
    pub(super) fn refused(refusal: EarlyRefusal, context: SpanContext) -> Self {
        let EarlyRefusal {
            origin,
            arrived,
            ended,
            status,
            why,
        } = refusal;
        Self {
            ended,
            error: Some((REFUSED, why)),
            status: Some(status),
            ..Self::new(context, &origin, arrived)
        }
    }

    /// Adds the tokens of the newest stay, which has ended.
    pub(super) fn used(&mut self, stay: &Stay) {
        self.output_tokens = self.output_tokens.saturating_add(stay.output_tokens);
        self.cached_tokens = stay.cached_tokens;
        if let Some(placement) = self.placements.last_mut() {
            placement.output_tokens = stay.output_tokens;
        }
    }
}

// === impl Recording ===

impl Recording {
    pub(super) fn new(
        now: Micros,
        (ticket, submission): (TicketId, &Submission),
        (origin, context): (&TraceOrigin, SpanContext),
    ) -> Self {
        let job = &submission.job;
        let input_tokens = u32::try_from(job.prompt.len()).ok();
        let span = RequestSpan {
            ticket: Some(ticket),
            tenant: Some(submission.tenant.clone()),
            model: submission.model.clone(),
            session: submission.hints.session,
            input_tokens: input_tokens.filter(|tokens| *tokens > 0),
            ..RequestSpan::new(context, origin, now)
        };
        Self {
            span,
            waits_since: Some(now),
        }
    }

    /// Takes note of the model that the newest placement is for. Returns the trace that its executor is
    /// told.
    pub(super) fn starts(&mut self, model: &str) -> Option<TraceHeaders> {
        let placement = self.span.placements.last_mut()?;
        model.clone_into(&mut placement.model);
        let state = self.span.parent.as_ref();
        Some(TraceHeaders {
            parent: self.span.context.with_span(placement.span),
            state: state.and_then(|headers| headers.state.clone()),
        })
    }

    pub(super) fn placed(&mut self, placement: PlacementSpan) {
        self.waited(placement.placed);
        let span = &mut self.span;
        span.attempts = span.attempts.saturating_add(1);
        if span.placements.len() >= PLACEMENTS_MAX {
            // The last one is told of in any case: servers elsewhere refer to it.
            span.placements.pop();
        }
        span.placements.push(placement);
    }

    pub(super) fn started(&mut self, now: Micros) {
        if let Some(placement) = self.present() {
            placement.started.get_or_insert(now);
        }
    }

    pub(super) fn failed(&mut self, why: &str) {
        let why = why.chars().take(WHY_CHARS_MAX).collect();
        if let Some(placement) = self.present() {
            placement.why = why;
        }
    }

    pub(super) fn stay_ended(&mut self, now: Micros, stay: &Stay) {
        self.span.used(stay);
        if let Some(placement) = self.span.placements.last_mut() {
            placement.ended = now;
        }
    }

    pub(super) fn requeued(&mut self, now: Micros, why: RequeuedWhy) {
        let end = match why {
            RequeuedWhy::Evicted => PlacementEnd::Evicted,
            RequeuedWhy::Failed => PlacementEnd::Failed,
            RequeuedWhy::Lost => PlacementEnd::Lost,
            RequeuedWhy::TurnedBack => PlacementEnd::TurnedBack,
        };
        self.close(now, end);
        self.waits_since = Some(now);
    }

    /// The span of the request, which has ended.
    pub(super) fn end(mut self, now: Micros, outcome: Outcome) -> RequestSpan {
        let end = match outcome {
            Outcome::Finished { .. } => PlacementEnd::Served,
            Outcome::Failed(_) => PlacementEnd::Failed,
            Outcome::Cancelled | Outcome::Expired(_) | Outcome::Refused(_) => PlacementEnd::CutOff,
        };
        self.close(now, end);
        self.waited(now);
        let span = &mut self.span;
        span.ended = now;
        if let Outcome::Finished { output_tokens } = outcome {
            span.output_tokens = output_tokens;
        } else {
            let ending = ending(outcome);
            span.error = Some((ending.outcome, ending.why));
        }
        self.span
    }

    /// The placement where the request is now.
    fn present(&mut self) -> Option<&mut PlacementSpan> {
        let last = self.span.placements.last_mut();
        last.filter(|placement| placement.end == PlacementEnd::Open)
    }

    fn close(&mut self, now: Micros, end: PlacementEnd) {
        if let Some(placement) = self.present() {
            placement.end = end;
            placement.ended = now;
        }
    }

    fn waited(&mut self, until: Micros) {
        if let Some(from) = self.waits_since.take()
            && self.span.waits.len() < PLACEMENTS_MAX
        {
            let span = drawn_span();
            self.span.waits.push(Wait { span, from, until });
        }
    }
}
