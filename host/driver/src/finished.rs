//! Requests that have ended, each in a few words: a line of the access log, and the newest for the
//! monitor.
//!
//! # Bounds
//! [`NEWEST`] requests are kept, and `LINES_MAX` lines wait for the log. The driver never waits for it: a
//! line without room is dropped, and the next one says how many were, or a warning at the end.
//!
//! # Not here
//! Requests that HTTP refuses at the door, which has lines of its own for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pointsman_core::rows::{NameKind, RequestClass};
use pointsman_core::{ExecutorId, Input, Micros, Outcome, RequestId, SequenceRef, Stamped, Stay};
use pointsman_executor::delivery::Authorship;
use pointsman_executor::trace::TraceId;
use tokio::sync::mpsc;
use tracing::{Level, info, warn};

use super::lives::UsedTokens;
use super::message::TicketId;
use super::quota::QuotaHold;
use super::{Driver, Life};
use crate::metrics::ending;

/// The target of the lines of the access log.
pub const ACCESS: &str = "pointsman::access";

/// Requests that are kept.
pub const NEWEST: usize = 50;
/// Lines that may wait for the log.
pub(super) const LINES_MAX: usize = 4096;

/// A request that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedRequest {
    pub ticket: TicketId,
    /// The time of its end.
    pub at: Micros,
    pub tenant: String,
    /// The model that the client asks for; absent: any.
    pub model: Option<String>,
    pub class: RequestClass,
    /// The executor of its last placement; absent: it had none.
    pub executor: Option<String>,
    /// The decision that placed it last, or that turned it away; absent: there was none.
    pub by: Option<Authorship>,
    pub prompt_tokens: u32,
    /// The part of the prompt that was cached.
    pub cached_tokens: u32,
    pub output_tokens: u32,
    /// The number of its placements.
    pub places: u32,
    /// The time from its arrival to its first place; absent: it had none.
    pub waited: Option<Micros>,
    /// The time from its arrival to its first token; absent: there was none.
    pub first_token: Option<Micros>,
    /// The time from its arrival to its end.
    pub duration: Micros,
    /// `finished`, `refused`, `cancelled`, `expired` or `failed`.
    pub outcome: &'static str,
    /// The reason; empty where there is nothing to say.
    pub why: &'static str,
    /// The trace that the client named; absent: none.
    pub trace: Option<TraceId>,
}

/// The newest requests that have ended, and the way to the log.
#[derive(Debug, Default)]
pub(super) struct Finished {
    /// Requests that have ended and whose executors have not let them go yet: what they used is not known
    /// before.
    leaving: BTreeMap<RequestId, Leaving>,
    newest: VecDeque<Arc<FinishedRequest>>,
    /// Absent: nobody writes them down.
    lines: Option<mpsc::Sender<AccessLine>>,
    /// Lines that found no room since the last one that did.
    dropped: u64,
}

/// A request that has ended and is still on its executor.
#[derive(Debug)]
struct Leaving {
    request: FinishedRequest,
    /// The executor that has it; absent: it has none.
    executor: Option<ExecutorId>,
    used: UsedTokens,
    /// The hold on the limits of its tenant; absent: it has none.
    quota: Option<QuotaHold>,
}

/// A line of the access log.
#[derive(Debug)]
pub struct AccessLine {
    request: Arc<FinishedRequest>,
    /// Lines before it that are missing.
    dropped: u64,
}

/// The lines that wait for the log.
#[derive(Debug)]
pub struct AccessLines(mpsc::Receiver<AccessLine>);

// === impl Finished ===

impl Finished {
    /// Has each request written down by whoever has the lines.
    pub(super) fn log(&mut self) -> AccessLines {
        let (lines, waiting) = mpsc::channel(LINES_MAX);
        self.lines = Some(lines);
        AccessLines(waiting)
    }

    fn ended(&mut self, request: FinishedRequest) {
        let request = Arc::new(request);
        if self.newest.len() >= NEWEST {
            self.newest.pop_back();
        }
        self.newest.push_front(Arc::clone(&request));
        if let Some(lines) = &self.lines
            && tracing::enabled!(target: ACCESS, Level::INFO)
        {
            let dropped = self.dropped;
            let sent = lines.try_send(AccessLine { request, dropped });
            self.dropped = if sent.is_ok() { 0 } else { dropped + 1 };
        }
    }

    /// The newest requests, the newest first.
    pub(super) fn newest(&self) -> Vec<Arc<FinishedRequest>> {
        self.newest.iter().cloned().collect()
    }
}

impl Driver {
    /// Ends every request without a word to its client, and takes note of each as if its executor had let it
    /// go: nobody hears more of it.
    pub fn abandon(&mut self, now: Micros) {
        let requests: Vec<_> = self.requests.ids().collect();
        for request in &requests {
            self.input(now, Input::RequestCancelled(*request));
        }
        self.take_notes();
        for sequence in self.leaving() {
            self.input(now, Input::SequenceLeft(sequence, 0));
        }
        self.take_notes();
        for request in requests {
            self.requests.forget(request);
        }
        let lines_lost = self.finished.dropped;
        if lines_lost > 0 {
            warn!(
                lines_lost,
                "the access log lacks requests that ended with the server"
            );
        }
    }

    /// Takes note of the end of a request, whose life was this.
    pub(super) fn note_finished(
        &mut self,
        stamped: &Stamped,
        (request, outcome): (RequestId, Outcome),
        life: &Life,
    ) {
        let Some(about) = self.requests.about(request) else {
            return;
        };
        let used = life.used;
        let since = |at: Micros| at.since(life.arrived);
        let ending = ending(outcome);
        let (model, executor) = (life.model, life.executor);
        let finished = FinishedRequest {
            ticket: about.ticket,
            at: stamped.now,
            tenant: self.name_of(NameKind::Tenant, life.tenant.0),
            model: model.map(|id| self.name_of(NameKind::Model, id.0)),
            class: life.class,
            executor: executor.map(|id| self.name_of(NameKind::Executor, id.0)),
            by: about.by,
            prompt_tokens: used.prompt_tokens,
            cached_tokens: used.cached_tokens,
            output_tokens: used.output_tokens,
            places: life.places,
            waited: life.first_placed.map(since),
            first_token: life.first_token.map(since),
            duration: since(stamped.now),
            outcome: ending.outcome,
            why: ending.why,
            trace: about.trace,
        };
        if life.stays {
            let leaving = Leaving {
                request: finished,
                executor,
                used,
                quota: self.requests.take_quota(request),
            };
            self.finished.leaving.insert(request, leaving);
        } else {
            self.finished.ended(finished);
        }
    }

    /// The sequences of requests that have ended and that their executors have not let go yet.
    fn leaving(&self) -> Vec<SequenceRef> {
        let leaving = self.finished.leaving.iter();
        let sequences = leaving.filter_map(|(request, leaving)| {
            let executor = leaving.executor?;
            Some(SequenceRef {
                request: *request,
                executor,
                incarnation: self.machine.executor_snapshot(executor)?.incarnation,
            })
        });
        sequences.collect()
    }

    /// Takes note of what a request used on an executor that has let it go.
    pub(super) fn note_stayed(&mut self, now: Micros, stay: &Stay) {
        self.requests.stayed(now, stay);
        let Some(mut leaving) = self.finished.leaving.remove(&stay.request) else {
            return;
        };
        leaving.used.stayed(stay);
        if let Some(quota) = &mut leaving.quota {
            quota.stayed(now, stay);
        }
        let used = leaving.used;
        self.finished.ended(FinishedRequest {
            prompt_tokens: used.prompt_tokens,
            cached_tokens: used.cached_tokens,
            output_tokens: used.output_tokens,
            ..leaving.request
        });
    }
}

// === impl AccessLines ===

impl AccessLines {
    /// Writes each line to the log, until the driver has ended.
    ///
    /// # Cancellation
    /// Lines that wait are lost.
    pub async fn write(mut self) {
        while let Some(line) = self.0.recv().await {
            line.write();
        }
    }
}

impl AccessLine {
    fn write(&self) {
        let request = &self.request;
        let by = request.by.as_ref();
        let millis = |time: Option<Micros>| time.map(|time| time.0 / 1000);
        info!(
            target: ACCESS,
            request = request.ticket.0,
            tenant = request.tenant,
            model = request.model,
            class = request.class.as_str(),
            executor = request.executor,
            policy = by.map(|by| &*by.policy),
            reason = by.map(|by| &*by.reason),
            prompt_tokens = request.prompt_tokens,
            cached_tokens = request.cached_tokens,
            output_tokens = request.output_tokens,
            wait_ms = millis(request.waited),
            ttft_ms = millis(request.first_token),
            duration_ms = request.duration.0 / 1000,
            outcome = request.outcome,
            why = Some(request.why).filter(|why| !why.is_empty()),
            trace = request.trace.map(tracing::field::display),
            lines_lost = Some(self.dropped).filter(|lost| *lost > 0),
            "request"
        );
    }
}
