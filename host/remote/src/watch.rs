//! The part of a response that the host looks at while it goes through: the tokens it took.
//!
//! Servers tell them in `usage`, in the last lines of a body. Where they do not, the events of a stream
//! are counted, of which most have a token each.

use http::{HeaderMap, StatusCode};
use memchr::memmem;
use pointsman_events::PromptCount;
use pointsman_executor::relay::is_event_stream;
use serde_json::Value;

/// Bytes at the end of a body in which `usage` is looked for.
const TAIL_BYTES: usize = 4 << 10;

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A stream of events.
    Events,
    /// A whole answer.
    Whole,
    /// An error: nothing was generated.
    Error,
}

/// A body that goes through.
#[derive(Debug)]
pub(crate) struct BodyWatch {
    pub(crate) form: Form,
    /// The last bytes.
    tail: Vec<u8>,
    /// Events so far, or what looks like some.
    events: u32,
}

/// Tokens as a server tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: Option<PromptCount>,
    pub(crate) output: Option<u32>,
}

impl BodyWatch {
    /// A body that follows this head.
    pub(crate) fn of(headers: &HeaderMap, status: StatusCode) -> Self {
        Self::new(match (status.is_success(), is_event_stream(headers)) {
            (false, _) => Form::Error,
            (true, true) => Form::Events,
            (true, false) => Form::Whole,
        })
    }

    fn new(form: Form) -> Self {
        Self {
            form,
            tail: Vec::new(),
            events: 0,
        }
    }

    /// Looks at the next bytes of the body.
    pub(crate) fn see(&mut self, bytes: &[u8]) {
        self.events += self.events_in(bytes);
        let keep = TAIL_BYTES.saturating_sub(bytes.len());
        let drop = self.tail.len().saturating_sub(keep);
        self.tail.drain(..drop);
        let from = bytes.len().saturating_sub(TAIL_BYTES);
        self.tail.extend_from_slice(&bytes[from..]);
    }

    /// Events that begin in `bytes`, which follow the tail. Within an event's JSON there is no line end.
    fn events_in(&self, bytes: &[u8]) -> u32 {
        let begins = |at: &usize| match at.checked_sub(1) {
            Some(before) => bytes[before] == b'\n',
            None => self.tail.last().is_none_or(|last| *last == b'\n'),
        };
        let count = memmem::find_iter(bytes, b"data:").filter(begins).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Tokens that have been generated so far, as far as events tell.
    pub(crate) fn generated(&self) -> u32 {
        match self.form {
            Form::Events => self.events,
            Form::Whole | Form::Error => 0,
        }
    }

    /// The tokens that the server tells at the end of the body.
    pub(crate) fn usage(&self) -> Usage {
        let mut found = memmem::rfind_iter(&self.tail, br#""usage""#);
        if self.form == Form::Error {
            return Usage::default();
        }
        let usage = found.find_map(|at| object_after(&self.tail[at + br#""usage""#.len()..]));
        let Some(usage) = usage else {
            return Usage::default();
        };
        Usage {
            prompt: prompt_count(&usage),
            output: number(&usage, &["/completion_tokens", "/output_tokens"]),
        }
    }
}

/// The prompt in a `usage`. Anthropic's API counts what was cached, and what was put into the cache, beside the
/// other tokens.
fn prompt_count(usage: &Value) -> Option<PromptCount> {
    let told = number(usage, &["/prompt_tokens", "/input_tokens"])?;
    let beside = number(usage, &["/cache_read_input_tokens"]);
    let stored = number(usage, &["/cache_creation_input_tokens"]).unwrap_or(0);
    let among = [
        "/prompt_tokens_details/cached_tokens",
        "/input_tokens_details/cached_tokens",
    ];
    let cached = beside.or_else(|| number(usage, &among)).unwrap_or(0);
    let tokens = told.saturating_add(stored);
    let tokens = tokens.saturating_add(beside.unwrap_or(0));
    Some(PromptCount {
        tokens,
        cached: cached.min(tokens),
    })
}

/// The number at the first of these JSON pointers that has one.
fn number(usage: &Value, pointers: &[&str]) -> Option<u32> {
    let mut values = pointers
        .iter()
        .filter_map(|pointer| usage.pointer(pointer)?.as_u64());
    values.next().and_then(|tokens| u32::try_from(tokens).ok())
}

/// The JSON object after a colon at the beginning of `bytes`.
fn object_after(bytes: &[u8]) -> Option<Value> {
    let bytes = bytes.trim_ascii_start().strip_prefix(b":")?;
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter();
    let value: Value = values.next()?.ok()?;
    value.is_object().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(body: &[u8], piece: usize) -> BodyWatch {
        let mut watch = BodyWatch::new(Form::Events);
        for bytes in body.chunks(piece) {
            watch.see(bytes);
        }
        watch
    }

    #[test]
    fn usage_is_found_at_the_end_of_a_body_however_it_was_cut() {
        let whole = br#"{"choices": [{"text": "\"usage\": {}"}], "usage": {"prompt_tokens": 5,
            "completion_tokens": 7, "total_tokens": 12}, "timings": {"cache_n": 3}}"#;
        let streamed = b"data: {\"choices\":[],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":\
            {\"input_tokens\":5,\"output_tokens\":7}}\n\ndata: [DONE]\n\n";
        let long = [&vec![b' '; 3 * TAIL_BYTES][..], whole].concat();
        let expected = Usage {
            prompt: Some(PromptCount {
                tokens: 5,
                cached: 0,
            }),
            output: Some(7),
        };
        for body in [&whole[..], streamed, &long] {
            for piece in [1, 3, 100, TAIL_BYTES, 5 * TAIL_BYTES] {
                assert_eq!(watched(body, piece).usage(), expected, "{piece}");
            }
        }
        for body in [&b"{}"[..], br#"{"usage": null}"#, br#"{"usage": {"#, b""] {
            assert_eq!(watched(body, 2).usage(), Usage::default());
        }
    }

    #[test]
    fn cached_tokens_are_told_from_those_that_were_read() {
        for (usage, tokens, cached) in [
            (
                r#"{"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}"#,
                9,
                4,
            ),
            (
                r#"{"prompt_tokens": 9, "prompt_tokens_details": null}"#,
                9,
                0,
            ),
            (
                r#"{"input_tokens": 9, "input_tokens_details": {"cached_tokens": 12}}"#,
                9,
                9,
            ),
            (
                r#"{"input_tokens": 2, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3}"#,
                10,
                5,
            ),
        ] {
            let body = format!("{{\"usage\": {usage}}}");
            let found = watched(body.as_bytes(), 7).usage().prompt;
            assert_eq!(found, Some(PromptCount { tokens, cached }), "{usage}");
        }
    }

    #[test]
    fn the_events_of_a_stream_are_counted_and_not_what_looks_like_one() {
        let body =
            b"data: {\"text\": \"data: data:\"}\n\ndata: {}\n\n: comment\nid: 1\ndata: x\n\n";
        for piece in 1..body.len() {
            assert!(watched(body, piece).generated() <= 3, "{piece}");
        }
        assert_eq!(watched(body, body.len()).generated(), 3);
    }
}
