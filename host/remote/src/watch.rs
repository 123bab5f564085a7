//! The part of a response that the host looks at while it goes through: the tokens it took, its id, and why it ended.
//!
//! Servers tell the tokens in `usage`, in the last lines of a stream, and anywhere in a whole answer. Where they do not, the events of a stream
//! are counted, of which most have a token each.
//!
//! The id and the reasons go to traces: they are words without spaces, so that no text of an answer is among them.

use http::{HeaderMap, Method, StatusCode};
use memchr::memmem;
use pointsman_events::PromptCount;
use pointsman_executor::relay::{field_texts, is_event_stream};
use pointsman_executor::server::ServerAnswer;
use serde_json::Value;

/// Bytes at the beginning of a body in which its id is looked for.
const HEAD_BYTES: usize = 1 << 10;
/// Bytes at the end of a body in which a stream's `usage` is looked for, and why the answer ended.
const TAIL_BYTES: usize = 4 << 10;
/// The name of the tokens that an answer took.
const USAGE: &[u8] = br#""usage""#;
/// The name of an answer's id.
const ID: &[u8] = br#""id""#;
/// The names of the reasons why an answer ended, of OpenAI's API and of Anthropic's.
const REASONS: [&[u8]; 2] = [br#""finish_reason""#, br#""stop_reason""#];
/// Words, in small letters, by which servers say that a prompt is too long for a model's context: of vLLM, SGLang,
/// TensorRT-LLM, llama.cpp, Ollama and OpenAI.
const TOO_LONG: [&[u8]; 7] = [
    b"context length",
    b"context_length",
    b"context size",
    b"context_size",
    b"context window",
    b"maximum model length",
    b"maximum allowed length",
];
/// The fields, in quotes, with the tokens of prompt and output in answers that have no `usage`: of Ollama and of llama.cpp.
const NATIVE_COUNTS: [(&[u8], &[u8]); 2] = [
    (br#""prompt_eval_count""#, br#""eval_count""#),
    (br#""tokens_evaluated""#, br#""tokens_predicted""#),
];
const ID_BYTES_MAX: usize = 128;
const REASON_BYTES_MAX: usize = 32;

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A stream of events.
    Events,
    /// A whole answer.
    Whole,
    /// An error: nothing was generated.
    Error,
    /// An account of what there is, such as an earlier answer: nothing was generated.
    Account,
}

/// A body that goes through.
#[derive(Debug)]
pub(crate) struct BodyWatch {
    pub(crate) form: Form,
    /// The first bytes.
    head: Vec<u8>,
    /// The last bytes.
    tail: Vec<u8>,
    /// The latest `usage` of a whole answer: long lists may follow it, as vLLM's tokens of the prompt.
    usage: Option<Value>,
    /// Events so far, or what looks like some.
    events: u32,
}

/// Tokens as a server tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: Option<PromptCount>,
    pub(crate) output: Option<u32>,
    /// True if the prompt was read, however many tokens it has.
    pub(crate) is_prompt_read: bool,
}

impl BodyWatch {
    /// A body that follows this head, in answer to this method.
    pub(crate) fn of(method: &Method, headers: &HeaderMap, status: StatusCode) -> Self {
        Self::new(match (status.is_success(), is_event_stream(headers)) {
            (false, _) => Form::Error,
            (true, _) if method.is_safe() => Form::Account,
            (true, true) => Form::Events,
            (true, false) => Form::Whole,
        })
    }

    fn new(form: Form) -> Self {
        Self {
            form,
            head: Vec::new(),
            tail: Vec::new(),
            usage: None,
            events: 0,
        }
    }

    /// Looks at the next bytes of the body.
    pub(crate) fn see(&mut self, bytes: &[u8]) {
        self.events += self.events_in(bytes);
        if self.form == Form::Whole {
            let seen = [&self.tail, bytes].concat();
            self.usage = last_value(&seen, USAGE, Value::is_object).or(self.usage.take());
        }
        let room = HEAD_BYTES - self.head.len();
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
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
            Form::Whole | Form::Error | Form::Account => 0,
        }
    }

    /// The tokens that the server tells at the end of the body.
    pub(crate) fn usage(&self) -> Usage {
        let told = match self.form {
            Form::Whole => self.usage.clone(),
            Form::Events => last_value(&self.tail, USAGE, Value::is_object),
            Form::Error | Form::Account => return Usage::default(),
        };
        let (prompt, output) = match told {
            Some(usage) => (
                prompt_count(&usage),
                number(&usage, &["/completion_tokens", "/output_tokens"]),
            ),
            None => self.native_counts(),
        };
        Usage {
            prompt,
            output,
            is_prompt_read: prompt.is_some() || output.is_some(),
        }
    }

    /// The tokens of prompt and output in the last lines of answers in servers' own words.
    fn native_counts(&self) -> (Option<PromptCount>, Option<u32>) {
        let count = |name: &[u8]| {
            let tokens = last_value(&self.tail, name, Value::is_u64)?.as_u64()?;
            u32::try_from(tokens).ok()
        };
        let prompt = |tokens| PromptCount { tokens, cached: 0 };
        let told = NATIVE_COUNTS.map(|(read, made)| (count(read).map(prompt), count(made)));
        let mut told = told.into_iter().filter(|(_, output)| output.is_some());
        told.next().unwrap_or_default()
    }

    /// True for a stream of which so little has been seen that its first event may be an error.
    pub(crate) fn awaits_first_event(&self) -> bool {
        self.form == Form::Events
            && self.head.len() < HEAD_BYTES
            && first_event(&self.head).is_none()
    }

    /// The status of the error that a stream's first event is; absent: it is none, or tells none.
    pub(crate) fn first_error(&self) -> Option<StatusCode> {
        if self.form != Form::Events {
            return None;
        }
        let event = first_event(&self.head)?;
        event.split(|byte| *byte == b'\n').find_map(error_status)
    }

    /// The status of an error among the last events of a stream; absent: there is none, or tells none.
    pub(crate) fn last_error(&self) -> Option<StatusCode> {
        if self.form != Form::Events {
            return None;
        }
        let mut lines = self.tail.rsplit(|byte| *byte == b'\n');
        lines.find_map(error_status)
    }

    /// True for an error in which the server says that the prompt is too long for it, as far as it has been seen.
    pub(crate) fn says_too_long(&self) -> bool {
        let says = || {
            let head = self.head.to_ascii_lowercase();
            let mut phrases = TOO_LONG.iter();
            phrases.any(|phrase| memmem::find(&head, phrase).is_some())
        };
        self.form == Form::Error && says()
    }

    /// The server's words about the answer, all of whose body has been seen.
    pub(crate) fn answer(&self) -> ServerAnswer {
        match self.form {
            Form::Events | Form::Whole => {}
            Form::Error | Form::Account => return ServerAnswer::default(),
        }
        let reasons = REASONS.into_iter();
        let reasons = reasons.flat_map(|name| field_texts(&self.tail, name));
        let mut ids = field_texts(&self.head, ID);
        ServerAnswer {
            id: ids.find_map(|id| word(id, ID_BYTES_MAX)),
            finish_reasons: reasons
                .filter_map(|reason| word(reason, REASON_BYTES_MAX))
                .collect(),
        }
    }
}

/// The last value of this kind that a field of this name, which is in quotes, has in a part of a body.
fn last_value(part: &[u8], name: &[u8], is_of_kind: fn(&Value) -> bool) -> Option<Value> {
    let mut found = memmem::rfind_iter(part, name);
    found.find_map(|at| value_after(&part[at + name.len()..]).filter(is_of_kind))
}

/// The text, if it is a word of at most so many bytes.
fn word(text: &[u8], bytes_max: usize) -> Option<String> {
    let is_of_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
    let is_word = !text.is_empty() && text.len() <= bytes_max && text.iter().all(is_of_word);
    is_word.then(|| text.iter().copied().map(char::from).collect())
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

/// The JSON value after a colon at the beginning of `bytes`, if it is whole.
fn value_after(bytes: &[u8]) -> Option<Value> {
    let bytes = bytes.trim_ascii_start().strip_prefix(b":")?;
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter();
    values.next()?.ok()
}

/// The first block of a stream, an event or a comment; absent: its end has not been seen.
fn first_event(begun: &[u8]) -> Option<&[u8]> {
    let ends = [&b"\n\n"[..], b"\r\n\r\n"];
    let ends = ends.iter().filter_map(|end| memmem::find(begun, end));
    ends.min().map(|end| &begun[..end])
}

/// The status in a line of a stream that is the data of an error.
fn error_status(line: &[u8]) -> Option<StatusCode> {
    let data = line.strip_prefix(b"data:")?;
    memmem::find(data, br#""error""#)?;
    let data: Value = serde_json::from_slice(data).ok()?;
    let is_answer = data.get("choices").is_some();
    let code = data.get("error").filter(|_| !is_answer)?.get("code")?;
    let code = code.as_u64().or_else(|| code.as_str()?.parse().ok())?;
    StatusCode::from_u16(u16::try_from(code).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(body: &[u8], piece: usize) -> BodyWatch {
        watched_as(Form::Events, body, piece)
    }

    fn watched_as(form: Form, body: &[u8], piece: usize) -> BodyWatch {
        let mut watch = BodyWatch::new(form);
        for bytes in body.chunks(piece) {
            watch.see(bytes);
        }
        watch
    }

    #[test]
    fn what_is_looked_at_again_was_not_generated_again() {
        let body = br#"{"id": "resp_1", "usage": {"input_tokens": 5, "output_tokens": 7}}"#;
        for (method, is_told) in [
            (Method::GET, false),
            (Method::HEAD, false),
            (Method::POST, true),
        ] {
            let mut watch = BodyWatch::of(&method, &HeaderMap::new(), StatusCode::OK);
            watch.see(body);
            assert_eq!(watch.usage() != Usage::default(), is_told, "{method}");
            assert_eq!(watch.answer().id.is_some(), is_told, "{method}");
        }
    }

    #[test]
    fn only_an_error_says_that_a_prompt_is_too_long() {
        let body = br#"{"message":"the input length exceeds the Context Length"}"#;
        let says = |form| {
            let mut watch = BodyWatch::new(form);
            watch.see(body);
            watch.says_too_long()
        };
        assert!(says(Form::Error) && !says(Form::Whole) && !says(Form::Events));
        let mut other = BodyWatch::new(Form::Error);
        other.see(br#"{"message":"`temperature` must be positive"}"#);
        assert!(!other.says_too_long());
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
            is_prompt_read: true,
        };
        let ollama =
            br#"{"message":{},"done":true,"prompt_eval_count":5,"eval_count":7,"eval_duration":1}"#;
        let emptied = br#"{"usage":{"prompt_tokens":5,"completion_tokens":7},"x":{"usage":null}}"#;
        let llama_cpp =
            br#"{"content":"\"tokens_predicted\":1","tokens_predicted":7,"tokens_evaluated":5}"#;
        for body in [&whole[..], streamed, &long, ollama, llama_cpp, emptied] {
            for piece in [1, 3, 100, TAIL_BYTES, 5 * TAIL_BYTES] {
                assert_eq!(watched(body, piece).usage(), expected, "{piece}");
            }
        }
        let ids = "1234, ".repeat(TAIL_BYTES);
        let followed = [
            &whole[..whole.len() - 1],
            br#", "prompt_token_ids": ["#,
            ids.as_bytes(),
            b"5]}",
        ];
        for body in [&whole[..], &followed.concat()] {
            for piece in [1, 100, TAIL_BYTES, 50 * TAIL_BYTES] {
                assert_eq!(
                    watched_as(Form::Whole, body, piece).usage(),
                    expected,
                    "{piece}"
                );
            }
        }
        for body in [&b"{}"[..], br#"{"usage": null}"#, br#"{"usage": {"#, b""] {
            assert_eq!(watched(body, 2).usage(), Usage::default());
        }
    }

    #[test]
    fn the_errors_in_a_stream_are_told_from_answers_however_they_were_cut() {
        let full = "data: {\"error\": {\"message\": \"The queue is full.\", \"code\": 503}}\n\ndata: [DONE]\n\n";
        let text = "data: {\"error\": {\"code\": \"500\"}}\r\n\r\n";
        let choice = "data: {\"choices\": [{\"error\": 1}], \"error\": {\"code\": 500}}\n\n";
        let unnamed = "data: {\"error\": \"no code\"}\n\n";
        let late = format!(": comment\n\n{choice}{full}");
        for (body, first, last) in [
            (full, Some(503), Some(503)),
            (text, Some(500), Some(500)),
            (choice, None, None),
            (unnamed, None, None),
            (&late, None, Some(503)),
            ("data: {\"error\"", None, None),
        ] {
            for piece in [1, 7, HEAD_BYTES] {
                let watch = watched(body.as_bytes(), piece);
                let codes = [watch.first_error(), watch.last_error()];
                let codes = codes.map(|status| status.map(|it| it.as_u16()));
                assert_eq!(codes, [first, last], "{body}");
            }
        }
        let awaits = |body: &str| watched(body.as_bytes(), 1).awaits_first_event();
        assert!(awaits("") && awaits("data: {}\n") && !awaits(full));
        assert!(!awaits(&" ".repeat(HEAD_BYTES)));
    }

    #[test]
    fn an_answer_is_told_by_its_id_and_the_reasons_of_its_choices_however_it_was_cut() {
        let choices = r#"[{"index": 0, "text": "\"finish_reason\":\"no\"", "finish_reason": "stop"},
            {"index": 1, "text": "", "finish_reason": "length"}]"#;
        let whole = format!(r#"{{"id": "cmpl-1", "choices": {choices}, "usage": {{}}}}"#);
        let streamed = "data: {\"id\":\"chatcmpl-1\",\"choices\":[{\"finish_reason\":null}]}\n\n\
            data: {\"id\":\"chatcmpl-1\",\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n\
            data: [DONE]\n\n";
        let messages = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\
            \"stop_reason\":null}}\n\nevent: message_delta\ndata: {\"delta\":{\"stop_reason\":\"end_turn\",\
            \"stop_sequence\":null}}\n\n";
        let long = [&whole[..20], &" ".repeat(2 * TAIL_BYTES), &whole[20..]].concat();
        for (body, id, reasons) in [
            (&*whole, "cmpl-1", &["stop", "length"][..]),
            (streamed, "chatcmpl-1", &["tool_calls"]),
            (messages, "msg_1", &["end_turn"]),
            (&long, "cmpl-1", &["stop", "length"]),
        ] {
            for piece in [1, 7, HEAD_BYTES, 5 * TAIL_BYTES] {
                let answer = watched(body.as_bytes(), piece).answer();
                assert_eq!(answer.id.as_deref(), Some(id), "{body}");
                assert_eq!(answer.finish_reasons, reasons, "{body}");
            }
        }
    }

    #[test]
    fn what_is_no_word_is_told_to_nobody() {
        let long = "a".repeat(ID_BYTES_MAX + 1);
        let body = format!(
            r#"{{"id": "two words", "id": "{long}", "id": 7, "finish_reason": "the answer", "stop_reason": ""}}"#
        );
        let answer = watched(body.as_bytes(), 100).answer();
        assert_eq!(answer, ServerAnswer::default());
        let mut error = BodyWatch::new(Form::Error);
        error.see(br#"{"id": "a", "finish_reason": "stop"}"#);
        assert_eq!(error.answer(), ServerAnswer::default());
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
