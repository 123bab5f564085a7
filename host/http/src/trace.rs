//! The part of a request in a trace, as its route and its headers tell it.

use hyper::{HeaderMap, Request};
use pointsman_driver::clock::SystemClock;
use pointsman_driver::finished::ACCESS;
use pointsman_driver::spans::{AskedFor, EarlyRefusal, Operation, SpanQueue, TraceOrigin};
use pointsman_events::Micros;
use pointsman_executor::trace::TraceHeaders;

use super::App;
use super::error::ApiError;

/// The part of a request in a trace, which is this operation and asks with these numbers.
#[must_use]
pub fn origin(operation: Operation, headers: &HeaderMap, asked: AskedFor) -> TraceOrigin {
    TraceOrigin {
        operation,
        asked,
        parent: TraceHeaders::read(headers),
    }
}

/// A client's request that may be refused before the driver hears of it.
pub(super) struct Refusable {
    /// Absent: nobody is told of spans.
    spans: Option<SpanQueue>,
    clock: SystemClock,
    origin: TraceOrigin,
    arrived: Micros,
}

impl Refusable {
    /// The request whose headers are there now.
    pub(super) fn arrives<B>(app: &App, operation: Operation, request: &Request<B>) -> Self {
        Self {
            spans: app.watched.spans.clone(),
            clock: app.watched.clock,
            origin: origin(operation, request.headers(), AskedFor::default()),
            arrived: app.watched.clock.now(),
        }
    }

    /// Tells of the request of `tenant`, if that is known, which is refused with this.
    pub(super) fn refused(self, tenant: Option<&str>, error: &ApiError) {
        let (status, why) = error.status();
        let (status, ended) = (status.as_u16(), self.clock.now());
        let trace = self.origin.parent.as_ref().map(|it| it.parent.trace);
        tracing::info!(
            target: ACCESS,
            tenant,
            status,
            duration_ms = ended.since(self.arrived).0 / 1000,
            outcome = "refused",
            why,
            trace = trace.map(tracing::field::display),
            "request"
        );
        if let Some(spans) = self.spans {
            spans.refused(EarlyRefusal {
                origin: self.origin,
                arrived: self.arrived,
                ended,
                status,
                why,
            });
        }
    }
}
