//! The part of a request in a trace, as its path and its headers tell it.

use hyper::{HeaderMap, Request};
use pointsman_core::Micros;
use pointsman_driver::clock::SystemClock;
use pointsman_driver::finished::ACCESS;
use pointsman_driver::spans::{EarlyRefusal, Operation, SpanQueue, TraceOrigin};
use pointsman_executor::trace::TraceHeaders;

use super::passing::Passage;
use crate::App;
use crate::error::ApiError;

/// The part of a request in a trace, which the log tells also where no spans are told.
pub(super) fn origin(passage: &Passage, headers: &HeaderMap) -> Option<Box<TraceOrigin>> {
    Some(Box::new(origin_at(passage.path(), headers)))
}

/// The part in a trace of a request for a path with its query.
fn origin_at(path: &str, headers: &HeaderMap) -> TraceOrigin {
    TraceOrigin {
        operation: operation(path),
        parent: TraceHeaders::read(headers),
    }
}

/// A client's request that may be refused before the driver hears of it.
pub(crate) struct Refusable {
    /// Absent: nobody is told of spans.
    spans: Option<SpanQueue>,
    clock: SystemClock,
    origin: TraceOrigin,
    arrived: Micros,
}

impl Refusable {
    /// The request whose headers are there now.
    pub(crate) fn arrives<B>(app: &App, request: &Request<B>) -> Self {
        Self {
            spans: app.watched.spans.clone(),
            clock: app.watched.clock,
            origin: origin_at(request.uri().path(), request.headers()),
            arrived: app.watched.clock.now(),
        }
    }

    /// Tells of the request of `tenant`, if that is known, which is refused with this.
    pub(crate) fn refused(self, tenant: Option<&str>, error: &ApiError) {
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

/// The operation at a path with its query.
fn operation(path: &str) -> Operation {
    match path.split('?').next().unwrap_or_default() {
        "/v1/chat/completions" | "/v1/responses" | "/v1/messages" => Operation::Chat,
        "/v1/completions" => Operation::TextCompletion,
        "/v1/embeddings" => Operation::Embeddings,
        "/v1/rerank" => Operation::Rerank,
        "/tokenize" => Operation::Tokenize,
        "/detokenize" => Operation::Detokenize,
        _ => Operation::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_tells_the_operation() {
        for (path, expected) in [
            ("/v1/chat/completions", Operation::Chat),
            ("/v1/completions?a=b", Operation::TextCompletion),
            ("/v1/messages", Operation::Chat),
            ("/v1/embeddings", Operation::Embeddings),
            ("/v1/audio/speech", Operation::Other),
            ("", Operation::Other),
        ] {
            assert_eq!(operation(path), expected, "{path}");
        }
    }
}
