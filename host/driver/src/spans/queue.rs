//! The queue of spans to the exporter, and the choice of those that go there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pointsman_core::Micros;
use pointsman_executor::trace::{SpanContext, TraceId};
use tokio::sync::mpsc;

use super::{RequestSpan, TraceOrigin, drawn_span};
use crate::metrics::{Metrics, TracedOutcome};

/// The way of spans to the exporter. Its clones are one queue.
#[derive(Clone, Debug)]
pub struct SpanQueue {
    /// The share of requests without a trace that is recorded, from 0 to 1.
    ratio: f64,
    metrics: Arc<Metrics>,
    ended: mpsc::Sender<RequestSpan>,
    /// True once the log has said that the queue was full.
    is_full_logged: Arc<AtomicBool>,
}

/// A request that was refused before the driver heard of it.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyRefusal {
    /// The request's part in a trace.
    pub origin: TraceOrigin,
    /// The time at which its headers were there.
    pub arrived: Micros,
    /// The time at which it was refused.
    pub ended: Micros,
    /// The status of the response.
    pub status: u16,
    /// The cause, in a word for programs.
    pub why: &'static str,
}

/// The choice about the span of a request.
pub(super) enum Chosen {
    /// Its client does not have its trace recorded.
    ByClientNot,
    /// It is in no trace of its client's, and not in the share that is recorded.
    ByLotNot(SpanContext),
    Recorded(SpanContext),
}

impl SpanQueue {
    pub(super) fn new(ratio: f64, metrics: Arc<Metrics>, ended: mpsc::Sender<RequestSpan>) -> Self {
        Self {
            ratio,
            metrics,
            ended,
            is_full_logged: Arc::default(),
        }
    }

    /// Tells of a request that was refused before the driver heard of it, if its trace is recorded.
    pub fn refused(&self, refusal: EarlyRefusal) {
        match self.choose(&refusal.origin) {
            Chosen::ByClientNot | Chosen::ByLotNot(_) => {}
            Chosen::Recorded(context) => self.send(RequestSpan::refused(refusal, context)),
        }
    }

    /// Chooses whether a request is recorded.
    pub(super) fn choose(&self, origin: &TraceOrigin) -> Chosen {
        match &origin.parent {
            Some(headers) if headers.parent.is_sampled() => {
                Chosen::Recorded(headers.parent.with_span(drawn_span()))
            }
            Some(_) => Chosen::ByClientNot,
            None => {
                let context = SpanContext::root(drawn_trace(), drawn_span());
                if is_in_share(context.trace, self.ratio) {
                    Chosen::Recorded(context.sampled())
                } else {
                    Chosen::ByLotNot(context)
                }
            }
        }
    }

    /// Hands a span over. Where there is no room it is dropped and counted.
    pub(super) fn send(&self, span: RequestSpan) {
        if self.ended.try_send(span).is_ok() {
            return;
        }
        self.metrics.traced(TracedOutcome::Dropped, 1);
        if !self.is_full_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "spans of requests are dropped: the collector does not keep up; \
                 traced_requests counts them from now on"
            );
        }
    }
}

/// True if a trace that nobody has chosen is in this share of all.
fn is_in_share(trace: TraceId, ratio: f64) -> bool {
    const LOTS: f64 = (1_u64 << 63) as f64;
    (trace.lot() as f64) < ratio * LOTS
}

fn drawn_trace() -> TraceId {
    TraceId::new(fastrand::u128(1..)).expect("it is not zero")
}
