//! The way to the collector: a message sent, and its answer understood.
//!
//! A collector that is gone costs a line in the log, and one when it is back.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, StatusCode};
use pointsman_remote::client::Connections;
use serde_json::Value;
use tracing::{info, warn};

use crate::TelemetrySettings;

/// The path of spans, after the collector's address.
pub(super) const TRACES: &str = "/v1/traces";
/// The path of metrics.
pub(super) const METRICS: &str = "/v1/metrics";

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const USER_AGENT: &str = concat!("pointsman/", env!("CARGO_PKG_VERSION"));

/// A path of the collector.
pub(super) struct Collector {
    // Immutable.
    connections: Connections,
    url: String,
    headers: HeaderMap,
    patience: Duration,
    // Owned.
    known: Known,
}

/// The collector, as the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    TakesAll,
    HasFailed,
}

/// The fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The collector has it, but for so many spans or points.
    Taken { refused: u64 },
    /// The collector does not want it.
    Refused,
    /// The collector may take it later.
    Failed { retry_after: Option<Duration> },
}

impl Collector {
    pub(super) fn new(
        connections: Connections,
        settings: &TelemetrySettings,
        path: &'static str,
    ) -> Self {
        let mut headers = settings.headers.clone();
        headers.insert(header::CONTENT_TYPE, JSON);
        headers
            .entry(header::USER_AGENT)
            .or_insert(HeaderValue::from_static(USER_AGENT));
        Self {
            connections,
            url: format!("{}{path}", settings.endpoint),
            headers,
            patience: settings.timeout,
            known: Known::TakesAll,
        }
    }

    /// Sends a message, and logs if that is otherwise than before.
    pub(super) async fn send(&mut self, message: Bytes) -> Sent {
        let request = (self.headers.clone(), message);
        let answer = self.connections.post(&self.url, request, self.patience);
        let (sent, why) = match answer.await {
            Ok((head, body)) => {
                let why = format!("it answers {}", head.status);
                (understood(head.status, &head.headers, &body), why)
            }
            Err(error) => (Sent::Failed { retry_after: None }, error.to_string()),
        };
        self.note(sent, &why);
        sent
    }

    fn note(&mut self, sent: Sent, why: &str) {
        let url = &*self.url;
        match (sent, self.known) {
            (Sent::Taken { refused: 0 }, Known::TakesAll) => {}
            (Sent::Taken { refused: 0 }, Known::HasFailed) => {
                info!(url, "the collector takes everything again");
                self.known = Known::TakesAll;
            }
            (Sent::Taken { .. } | Sent::Refused | Sent::Failed { .. }, Known::HasFailed) => {}
            (Sent::Taken { refused }, Known::TakesAll) => {
                warn!(url, refused, "the collector refuses a part");
                self.known = Known::HasFailed;
            }
            (Sent::Refused | Sent::Failed { .. }, Known::TakesAll) => {
                warn!(
                    url,
                    why,
                    "the collector does not take what it is sent, which is counted from now on"
                );
                self.known = Known::HasFailed;
            }
        }
    }
}

/// The meaning of an answer, as OTLP says.
fn understood(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Sent {
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Sent::Failed {
            retry_after: retry_after(headers),
        },
        status if status.is_success() => Sent::Taken {
            refused: refused(body),
        },
        _ => Sent::Refused,
    }
}

/// The number of spans or points that a collector has not taken of a message. An answer that is no JSON
/// says nothing.
fn refused(body: &[u8]) -> u64 {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let part = &answer["partialSuccess"];
    let rejected = ["rejectedSpans", "rejectedDataPoints"].map(|name| {
        // Numbers of 64 bits are written as texts; some write them as numbers.
        let as_text = part[name].as_str().and_then(|text| text.parse().ok());
        as_text.or_else(|| part[name].as_u64()).unwrap_or(0)
    });
    rejected.into_iter().fold(0, u64::saturating_add)
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, body: &str) -> Sent {
        let status = StatusCode::from_u16(status).unwrap();
        understood(status, &HeaderMap::new(), body.as_bytes())
    }

    #[test]
    fn an_answer_is_understood_as_otlp_says() {
        for (body, expected) in [
            ("", 0),
            ("{}", 0),
            ("nonsense", 0),
            (r#"{"partialSuccess": {}}"#, 0),
            (r#"{"partialSuccess": {"rejectedSpans": "3"}}"#, 3),
            (r#"{"partialSuccess": {"rejectedDataPoints": 4}}"#, 4),
            (r#"{"partialSuccess": {"rejectedSpans": -1}}"#, 0),
        ] {
            let refused = expected;
            assert_eq!(answered(200, body), Sent::Taken { refused }, "{body}");
        }
        for status in [400, 401, 404, 415, 500, 302] {
            assert_eq!(answered(status, ""), Sent::Refused, "{status}");
        }
        for status in [429, 502, 503, 504] {
            let failed = Sent::Failed { retry_after: None };
            assert_eq!(answered(status, ""), failed, "{status}");
        }
    }

    #[test]
    fn a_collector_may_say_when_to_come_back() {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("7"));
        let sent = understood(StatusCode::SERVICE_UNAVAILABLE, &headers, b"");
        let retry_after = Some(Duration::from_secs(7));
        assert_eq!(sent, Sent::Failed { retry_after });
    }
}
