//! The trace that a request belongs to, in the words of W3C's Trace Context: the headers `traceparent`
//! and `tracestate`, read and written.
//!
//! A header that is malformed is none, as W3C asks.
//!
//! # Not here
//! Spans, and the choice of the requests that are traced (`pointsman-driver`).

use std::fmt;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

/// The header with the trace and the span that a request was sent from.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header with what others keep beside it.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The most bytes of a `tracestate`. W3C asks for at least so many.
const STATE_BYTES_MAX: usize = 512;
/// The bit of the flags by which a trace is recorded.
const SAMPLED: u8 = 1;
/// The bit of the flags that says that the trace's id was drawn at random.
const RANDOM: u8 = 2;
/// The bytes of a `traceparent` of the version there is.
const PARENT_BYTES: usize = 55;

/// The id of a trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

/// The id of a span; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(u64);

/// A span as others refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace of the span.
    pub trace: TraceId,
    /// The span itself.
    pub span: SpanId,
    /// The flags of the trace: [`Self::is_sampled`].
    pub flags: u8,
}

/// The headers by which a request tells its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceHeaders {
    /// The span that the request was sent from.
    pub parent: SpanContext,
    /// The part that others keep beside it, as it came; absent: nothing.
    pub state: Option<String>,
}

// === impl the ids ===

impl TraceId {
    /// The trace of this number; absent: it is zero.
    #[must_use]
    pub fn new(number: u128) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// The number of 63 bits by which a share of all traces is chosen, as SDKs of OpenTelemetry do.
    #[must_use]
    pub fn lot(self) -> u64 {
        let low = self.0 & u128::from(u64::MAX);
        u64::try_from(low).unwrap_or(u64::MAX) >> 1
    }
}

impl SpanId {
    /// The span of this number; absent: it is zero.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

// === impl SpanContext ===

impl SpanContext {
    /// The first span of a trace whose id was drawn at random, and which nobody records so far.
    #[must_use]
    pub fn root(trace: TraceId, span: SpanId) -> Self {
        Self {
            trace,
            span,
            flags: RANDOM,
        }
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn with_span(self, span: SpanId) -> Self {
        Self { span, ..self }
    }

    /// The same span of a trace that is recorded.
    #[must_use]
    pub fn sampled(self) -> Self {
        let flags = self.flags | SAMPLED;
        Self { flags, ..self }
    }

    /// True if whoever began the trace records it.
    #[must_use]
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Reads the value of a `traceparent`; absent: it is none.
    fn read(text: &[u8]) -> Option<Self> {
        let (this, rest) = text.split_at_checked(PARENT_BYTES)?;
        let this = std::str::from_utf8(this).ok()?;
        let mut parts = this.split('-');
        let mut part = |digits: usize| {
            let part = parts.next()?;
            let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            (part.len() == digits && part.bytes().all(is_hex)).then_some(part)
        };
        let version = u8::from_str_radix(part(2)?, 16).ok()?;
        let trace = u128::from_str_radix(part(32)?, 16).ok()?;
        let span = u64::from_str_radix(part(16)?, 16).ok()?;
        let flags = u8::from_str_radix(part(2)?, 16).ok()?;
        // Versions to come may say more, behind another dash.
        let is_whole = match version {
            0 => rest.is_empty(),
            u8::MAX => false,
            1.. => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        is_whole.then_some(())?;
        Some(Self {
            trace: TraceId::new(trace)?,
            span: SpanId::new(span)?,
            // Others mean nothing that is known here, and are not passed on.
            flags: flags & (SAMPLED | RANDOM),
        })
    }
}

impl fmt::Display for SpanContext {
    /// Writes the value of a `traceparent`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, span, flags } = self;
        write!(f, "00-{trace}-{span}-{flags:02x}")
    }
}

// === impl TraceHeaders ===

impl TraceHeaders {
    /// Reads the headers of a request; absent: it tells no trace.
    #[must_use]
    pub fn read(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let (parent, None) = (parents.next()?, parents.next()) else {
            return None;
        };
        Some(Self {
            parent: SpanContext::read(parent.as_bytes())?,
            state: state(headers),
        })
    }

    /// Has a request tell this trace, and no other.
    ///
    /// # Panics
    /// Never: digits, dashes and what was read from a header can be a header's value.
    pub fn write(&self, headers: &mut HeaderMap) {
        let value = |text: &str| {
            HeaderValue::try_from(text).expect("what was read can be a header's value")
        };
        headers.insert(TRACEPARENT, value(&self.parent.to_string()));
        match &self.state {
            Some(state) => drop(headers.insert(TRACESTATE, value(state))),
            None => drop(headers.remove(TRACESTATE)),
        }
    }
}

/// All that others keep, in one list; absent: nothing, or more than is kept.
fn state(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(TRACESTATE).iter();
    let lists: Result<Vec<&str>, _> = values.map(HeaderValue::to_str).collect();
    let state = lists.ok()?.join(",");
    (!state.is_empty() && state.len() <= STATE_BYTES_MAX).then_some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_traceparent_is_read_as_w3c_says() {
        let read = |text: &str| TraceHeaders::read(&headers(&[(TRACEPARENT, text)]));
        let known = read(PARENT).unwrap();
        assert_eq!(known.parent.to_string(), PARENT);
        assert!(known.parent.is_sampled());
        let not_sampled = PARENT.replace("-01", "-00");
        assert!(!read(&not_sampled).unwrap().parent.is_sampled());
        // A later version is read as far as it is known, and flags that are not known are dropped.
        for later in ["cc-", "01-"] {
            let later = PARENT.replacen("00-", later, 1);
            assert_eq!(read(&later), Some(known.clone()));
            assert_eq!(read(&format!("{later}-more")), Some(known.clone()));
            assert_eq!(read(&format!("{later}more")), None);
        }
        assert_eq!(
            read(&PARENT.replace("-01", "-ff")).unwrap().parent.flags,
            SAMPLED | RANDOM
        );
        for wrong in [
            "",
            "00",
            &PARENT[1..],
            &PARENT.to_uppercase(),
            &format!("{PARENT}-more"),
            &PARENT.replacen("00-", "ff-", 1),
            &PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &PARENT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &PARENT.replace("-01", "-0x"),
            &PARENT.replace('-', "_"),
            &PARENT.replace("00f067aa", "+0f067aa"),
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let twice = headers(&[(TRACEPARENT, PARENT), (TRACEPARENT, PARENT)]);
        assert_eq!(TraceHeaders::read(&twice), None);
    }

    #[test]
    fn a_state_is_passed_on_with_the_trace_it_came_with() {
        let came = headers(&[
            (TRACEPARENT, PARENT),
            (TRACESTATE, "a=1,b=2"),
            (TRACESTATE, "c=3"),
        ]);
        let mut read = TraceHeaders::read(&came).unwrap();
        assert_eq!(read.state.as_deref(), Some("a=1,b=2,c=3"));
        let mut to = came.clone();
        read.write(&mut to);
        assert_eq!(to.get_all(TRACESTATE).iter().count(), 1);
        assert_eq!(TraceHeaders::read(&to), Some(read.clone()));
        read.state = None;
        read.write(&mut to);
        assert!(!to.contains_key(TRACESTATE));
        let long = "a=".to_owned() + &"x".repeat(STATE_BYTES_MAX);
        let long = headers(&[(TRACEPARENT, PARENT), (TRACESTATE, &long)]);
        assert_eq!(TraceHeaders::read(&long).unwrap().state, None);
        // Without a trace there is no state.
        assert_eq!(TraceHeaders::read(&headers(&[(TRACESTATE, "a=1")])), None);
    }
}
