//! Requests as spans: what a collector of traces is told of each request once it has ended and its executor
//! has let it go.
//!
//! They are put together from the machine's facts, as the metrics are. A request is in the trace that
//! its client names, and whether it is recorded is the client's choice then; of those without a trace a
//! share is recorded. A server elsewhere is told the span of the placement that sent it the request.
//!
//! A request that HTTP refuses before the driver hears of it is told of by the [`SpanQueue`]: how long it took,
//! and why it was refused.
//!
//! # Bounds
//! A request has at most [`PLACEMENTS_MAX`] placements and as many waits; what comes later is counted. One that
//! has ended and is still on its executor takes a place there.
//! [`SPANS_MAX`] requests that have ended wait for the exporter. One more is dropped and counted: nobody
//! waits for a collector.
//!
//! # Not here
//! The names of attributes, and the way to a collector (`pointsman-telemetry`). Prompts and answers, which
//! nobody is told.

mod queue;
mod record;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_core::{ExecutorId, Fact, Micros, Outcome, RequestId, Stamped, Stay};
use pointsman_executor::contract::Event;
use pointsman_executor::server::ServerUrl;
use pointsman_executor::trace::{SpanContext, SpanId, TraceHeaders};
use tokio::sync::mpsc;

pub use queue::{EarlyRefusal, SpanQueue};
pub use record::{Operation, PlacementEnd, PlacementSpan, RequestSpan, Wait};

use crate::lives::Life;
use crate::message::{Submission, TicketId};
use crate::metrics::{Metrics, Texts};
use queue::Chosen;
use record::Recording;

/// Requests whose spans wait for the exporter.
pub const SPANS_MAX: usize = 2048;
/// Placements of one request that are told, and waits.
pub const PLACEMENTS_MAX: usize = 16;

/// A request's part in a trace, as HTTP has read it.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceOrigin {
    /// The operation that the client asks for.
    pub operation: Operation,
    /// The numbers that it asks with.
    pub asked: AskedFor,
    /// The trace that the client names; absent: none.
    pub parent: Option<TraceHeaders>,
}

/// The numbers that a client asks with; absent: it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AskedFor {
    pub stream: Option<bool>,
    pub choices: Option<u32>,
    pub tokens_max: Option<u32>,
    pub seed: Option<u64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
}

/// The spans of the requests in hand.
#[derive(Debug)]
pub struct Spans {
    queue: SpanQueue,
    live: BTreeMap<RequestId, Live>,
    /// Requests that have ended and whose executors have not let them go yet: the tokens that they used are
    /// not known before.
    leaving: BTreeMap<RequestId, RequestSpan>,
    /// The addresses of servers elsewhere.
    servers: BTreeMap<ExecutorId, ServerUrl>,
}

/// A live request that is in a trace.
#[derive(Debug)]
enum Live {
    /// Nobody is told of it but the servers elsewhere that get it.
    Unrecorded(SpanContext),
    Recorded(Box<Recording>),
}

/// The beginning of a request's span.
#[derive(Debug)]
pub(crate) struct BegunSpan(Live);

/// Spans of all requests in the traces of their clients, and of this share of the others, from 0 to 1;
/// and those that have ended.
#[must_use]
pub fn spans(ratio: f64, metrics: Arc<Metrics>) -> (Spans, mpsc::Receiver<RequestSpan>) {
    let (ended, receiver) = mpsc::channel(SPANS_MAX);
    let spans = Spans {
        queue: SpanQueue::new(ratio, metrics, ended),
        live: BTreeMap::new(),
        leaving: BTreeMap::new(),
        servers: BTreeMap::new(),
    };
    (spans, receiver)
}

// === impl Spans ===

impl Spans {
    /// The way of spans to the exporter, for those who refuse requests themselves.
    #[must_use]
    pub fn queue(&self) -> SpanQueue {
        self.queue.clone()
    }

    /// Takes note of a server elsewhere.
    pub(crate) fn attached(&mut self, executor: ExecutorId, server: ServerUrl) {
        self.servers.insert(executor, server);
    }

    /// Begins the span of a request; absent: it has none, and servers elsewhere get the client's headers
    /// as they came.
    pub(crate) fn begin(
        &self,
        now: Micros,
        ticket: TicketId,
        submission: &Submission,
    ) -> Option<BegunSpan> {
        let origin = submission.trace.as_deref()?;
        Some(BegunSpan(match self.queue.choose(origin) {
            Chosen::ByClientNot => return None,
            Chosen::ByLotNot(context) => Live::Unrecorded(context),
            Chosen::Recorded(context) => {
                let recording = Recording::new(now, (ticket, submission), (origin, context));
                Live::Recorded(Box::new(recording))
            }
        }))
    }

    /// Takes note of the number of a request.
    pub(crate) fn arrived(&mut self, request: RequestId, BegunSpan(live): BegunSpan) {
        self.live.insert(request, live);
    }

    /// Takes note of the model that the newest placement is for. Returns the trace that its executor is
    /// told; absent: the client's, if any.
    pub(crate) fn starts(&mut self, request: RequestId, model: &str) -> Option<TraceHeaders> {
        match self.live.get_mut(&request)? {
            Live::Unrecorded(context) => Some(TraceHeaders {
                parent: *context,
                state: None,
            }),
            Live::Recorded(recording) => recording.starts(model),
        }
    }

    /// Takes note of an executor's news, before the machine is told.
    pub(crate) fn event(&mut self, now: Micros, event: &Event) {
        match event {
            Event::Stepped(report) => {
                for made in report.progress.iter().filter(|made| made.is_one_token()) {
                    if let Some(recording) = self.recorded(made.request) {
                        recording.span.first_token.get_or_insert(now);
                    }
                }
            }
            Event::PromptCounted(sequence, count) => {
                if let Some(recording) = self.recorded(sequence.request) {
                    recording.span.input_tokens = Some(count.tokens);
                }
            }
            Event::Answered(sequence, answer) => {
                if let Some(recording) = self.recorded(sequence.request) {
                    recording.span.server_answer = Some(answer.clone());
                }
            }
            Event::Finished { sequence, stop } => {
                // A server elsewhere does not tell it in the host's words.
                let is_own = !self.servers.contains_key(&sequence.executor);
                if let Some(recording) = self.recorded(sequence.request) {
                    recording.span.stop = is_own.then_some(*stop);
                }
            }
            Event::Failed { sequence, why, .. } => {
                if let Some(recording) = self.recorded(sequence.request) {
                    recording.failed(why);
                }
            }
            Event::Started(_) | Event::Left { .. } | Event::Lost { .. } | Event::Changed(_) => {}
        }
    }

    /// Folds in a fact. `life` is that of its request before it.
    pub(crate) fn fact(&mut self, stamped: &Stamped, life: Option<Life>, texts: Texts<'_>) {
        let now = stamped.now;
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "other facts are about no request, or no part of its spans"
        )]
        match &stamped.fact {
            Fact::Placed {
                request,
                executor,
                by,
                ..
            } => {
                let server = self.servers.get(executor).cloned();
                if let Some(Live::Recorded(recording)) = self.live.get_mut(request) {
                    let (policy, reason) = (texts.author(by.author), texts.reason(*by));
                    recording.placed(PlacementSpan {
                        span: drawn_span(),
                        executor: texts.executor(*executor).to_owned(),
                        server,
                        model: String::new(),
                        policy: policy.to_owned(),
                        reason: reason.to_owned(),
                        placed: now,
                        started: None,
                        ended: now,
                        end: PlacementEnd::Open,
                        output_tokens: 0,
                        why: String::new(),
                    });
                }
            }
            Fact::Started(request, _) => {
                if let Some(recording) = self.recorded(*request) {
                    recording.started(now);
                }
            }
            Fact::StayEnded(stay) => self.stay_ended(now, stay),
            Fact::Requeued(request, why) => {
                if let Some(recording) = self.recorded(*request) {
                    recording.requeued(now, *why);
                }
            }
            Fact::Ended(request, outcome) => self.ended(now, (*request, *outcome), life),
            Fact::ExecutorDetached(executor) => drop(self.servers.remove(executor)),
            _ => {}
        }
    }

    /// Takes note of what a request used on an executor that has let it go. Of one that has ended it is the
    /// last word.
    fn stay_ended(&mut self, now: Micros, stay: &Stay) {
        if let Some(mut span) = self.leaving.remove(&stay.request) {
            span.used(stay);
            self.queue.send(span);
        } else if let Some(recording) = self.recorded(stay.request) {
            recording.stay_ended(now, stay);
        }
    }

    /// Tells of a request that has ended, unless its executor has yet to let it go.
    fn ended(&mut self, now: Micros, (request, outcome): (RequestId, Outcome), life: Option<Life>) {
        let Some(Live::Recorded(recording)) = self.live.remove(&request) else {
            return;
        };
        let span = recording.end(now, outcome);
        if life.is_some_and(|life| life.stays) {
            self.leaving.insert(request, span);
        } else {
            self.queue.send(span);
        }
    }

    fn recorded(&mut self, request: RequestId) -> Option<&mut Recording> {
        match self.live.get_mut(&request)? {
            Live::Unrecorded(_) => None,
            Live::Recorded(recording) => Some(recording),
        }
    }
}

fn drawn_span() -> SpanId {
    SpanId::new(fastrand::u64(1..)).expect("it is not zero")
}
