//! The messages of OTLP, version 1, as far as they are sent, in their JSON form: fields in camel case,
//! numbers of 64 bits as texts, enums as numbers, ids as hexadecimal digits.

use std::fmt::Display;

use pointsman_executor::trace::{SpanId, TraceId};
use serde::{Serialize, Serializer};

use crate::names;

/// An export of spans.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Traces<'a> {
    pub(super) resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceSpans<'a> {
    pub(super) resource: &'a Resource,
    pub(super) scope_spans: [ScopeSpans; 1],
}

#[derive(Serialize)]
pub(super) struct ScopeSpans {
    pub(super) scope: Scope,
    pub(super) spans: Vec<Span>,
}

/// An export of metrics.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Measurements<'a> {
    pub(super) resource_metrics: [ResourceMetrics<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceMetrics<'a> {
    pub(super) resource: &'a Resource,
    pub(super) scope_metrics: [ScopeMetrics; 1],
}

#[derive(Serialize)]
pub(super) struct ScopeMetrics {
    pub(super) scope: Scope,
    pub(super) metrics: Vec<Metric>,
}

/// The process that everything is about.
#[derive(Debug, Serialize)]
pub(super) struct Resource {
    attributes: Vec<Attribute>,
}

/// The maker of spans and metrics.
#[derive(Serialize)]
pub(super) struct Scope {
    name: &'static str,
    version: &'static str,
}

/// A number of 64 bits, which JSON has as a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole(pub(super) u64);

/// An id, written as its digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digits<T>(pub(super) T);

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Attribute {
    pub(super) key: &'static str,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) enum Value {
    #[serde(rename = "stringValue")]
    Text(String),
    #[serde(rename = "intValue")]
    Whole(Whole),
    #[serde(rename = "doubleValue")]
    Double(f64),
    #[serde(rename = "boolValue")]
    Flag(bool),
    #[serde(rename = "arrayValue")]
    List { values: Vec<Value> },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Span {
    pub(super) trace_id: Digits<TraceId>,
    pub(super) span_id: Digits<SpanId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parent_span_id: Option<Digits<SpanId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trace_state: Option<String>,
    pub(super) flags: u32,
    pub(super) name: String,
    pub(super) kind: SpanKind,
    pub(super) start_time_unix_nano: Whole,
    pub(super) end_time_unix_nano: Whole,
    pub(super) attributes: Vec<Attribute>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) events: Vec<Event>,
    pub(super) status: Status,
}

#[derive(Clone, Copy)]
pub(super) enum SpanKind {
    Internal,
    Server,
    Client,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event {
    pub(super) time_unix_nano: Whole,
    pub(super) name: &'static str,
}

/// The status of a span; without a code it is not set.
#[derive(Default, Serialize)]
pub(super) struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

#[derive(Clone, Serialize)]
pub(super) struct Metric {
    pub(super) name: String,
    pub(super) description: &'static str,
    pub(super) unit: &'static str,
    #[serde(flatten)]
    pub(super) data: Data,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Data {
    #[serde(rename_all = "camelCase")]
    Sum {
        data_points: Vec<NumberPoint>,
        aggregation_temporality: u8,
        is_monotonic: bool,
    },
    #[serde(rename_all = "camelCase")]
    Gauge { data_points: Vec<NumberPoint> },
    #[serde(rename_all = "camelCase")]
    Histogram {
        data_points: Vec<HistogramPoint>,
        aggregation_temporality: u8,
    },
}

/// The times of a point: since when it is counted, and now.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Times {
    pub(super) start_time_unix_nano: Whole,
    pub(super) time_unix_nano: Whole,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NumberPoint {
    pub(super) attributes: Vec<Attribute>,
    #[serde(flatten)]
    pub(super) times: Times,
    pub(super) as_double: f64,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HistogramPoint {
    pub(super) attributes: Vec<Attribute>,
    #[serde(flatten)]
    pub(super) times: Times,
    pub(super) count: Whole,
    pub(super) sum: f64,
    /// One more than there are bounds.
    pub(super) bucket_counts: Vec<Whole>,
    pub(super) explicit_bounds: Vec<f64>,
}

/// The aggregation of points that are counted since the start.
pub(super) const CUMULATIVE: u8 = 2;
/// The code of a status that says that something failed.
const ERROR: u8 = 2;

// === impl the values ===

impl Attribute {
    pub(super) fn text(key: &'static str, text: impl Into<String>) -> Self {
        let value = Value::Text(text.into());
        Self { key, value }
    }

    pub(super) fn whole(key: &'static str, number: impl Into<u64>) -> Self {
        let value = Value::Whole(Whole(number.into()));
        Self { key, value }
    }

    pub(super) fn double(key: &'static str, number: f64) -> Self {
        let value = Value::Double(number);
        Self { key, value }
    }
}

impl Status {
    /// The status of a span that failed; the message may be empty.
    pub(super) fn error(message: &str) -> Self {
        Self {
            code: Some(ERROR),
            message: message.to_owned(),
        }
    }
}

impl Resource {
    /// This process, as a service of this name.
    pub(super) fn new(service: &str) -> Self {
        let instance = format!("{:032x}", fastrand::u128(..));
        Self {
            attributes: vec![
                Attribute::text(names::SERVICE_NAME, service),
                Attribute::text(names::SERVICE_VERSION, env!("CARGO_PKG_VERSION")),
                Attribute::text(names::SERVICE_INSTANCE, instance),
            ],
        }
    }
}

impl Default for Scope {
    fn default() -> Self {
        Self {
            name: names::SCOPE,
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

impl Serialize for Whole {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<T: Display> Serialize for Digits<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl Serialize for SpanKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(match self {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        })
    }
}
