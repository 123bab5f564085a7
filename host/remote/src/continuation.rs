//! A streamed chat that goes on at another server when the one that streams it fails: the other is given
//! the text so far as the beginning of the assistant's message, and its chunks go on under the first one's
//! id.
//!
//! Such a stream goes through by whole lines, since a client has to be left at the end of one. What cannot
//! be gone on with (tool calls, reasoning, several choices, an answer that has ended) goes through as any
//! other stream does. An answer in a form is not gone on with either: a server takes the text so far for a part of the
//! prompt, and begins the form anew behind it.

use std::mem;

use bytes::Bytes;
use memchr::memrchr;
use pointsman_executor::relay::{BrokenStream, RelaySender};
use serde_json::{Map, Value, json};

/// The most bytes of text that are kept of a stream.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// The most bytes of a line that are kept until it ends.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Fields with the bound on the tokens of a chat.
const BOUND_FIELDS: [&str; 2] = ["max_completion_tokens", "max_tokens"];
/// OpenAI's field with the form of the answer, which may be that there is none.
const RESPONSE_FORMAT: &str = "response_format";
/// Further fields with the form of the answer, of vLLM, SGLang and llama.cpp.
const FORM_FIELDS: [&str; 6] = [
    "structured_outputs",
    "structural_tag",
    "regex",
    "ebnf",
    "json_schema",
    "grammar",
];
/// The beginning of the names of such fields of vLLM.
const GUIDED: &str = "guided_";

/// A streamed chat on its way through.
#[derive(Debug)]
pub(crate) struct Follower {
    /// The bytes of a line that has not ended.
    partial: Vec<u8>,
    id: Option<String>,
    /// The text since the stream's beginning, wherever that was.
    text: String,
    /// The chunks with text.
    tokens: u32,
    part: Part,
    place: Place,
    /// True while another server could go on with it.
    can_go_on: bool,
}

/// The part of a stream that a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// All of it so far.
    First,
    /// It goes on with a stream that broke off after so many tokens.
    Later { tokens_before: u32 },
}

/// The place of the last line that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It is empty, and ends an event.
    EventEnd,
    WithinEvent,
}

/// The body of a request to go on with a stream; absent: nobody can.
pub(crate) fn body(original: &Bytes, broken: &BrokenStream) -> Option<Bytes> {
    if broken.text.is_empty() {
        return Some(original.clone());
    }
    let mut body: Map<String, Value> = serde_json::from_slice(original).ok()?;
    if body.iter().any(|(name, value)| is_form(name, value)) {
        return None;
    }
    for name in BOUND_FIELDS {
        if let Some(bound) = body.get_mut(name).filter(|bound| !bound.is_null()) {
            let left = bound.as_u64()?.checked_sub(broken.tokens.into())?;
            *bound = (left > 0).then_some(left)?.into();
        }
    }
    let messages = body.get_mut("messages")?.as_array_mut()?;
    if messages.last()?["role"] == "assistant" {
        return None;
    }
    messages.push(json!({"role": "assistant", "content": broken.text}));
    // By these vLLM and SGLang continue the last message; llama.cpp does so in any case.
    body.insert("continue_final_message".to_owned(), true.into());
    body.insert("add_generation_prompt".to_owned(), false.into());
    serde_json::to_vec(&body).ok().map(Bytes::from)
}

/// True for a field by which the answer has to have a form.
fn is_form(name: &str, value: &Value) -> bool {
    let is_told = if name == RESPONSE_FORMAT {
        value["type"] != "text"
    } else {
        FORM_FIELDS.contains(&name) || name.starts_with(GUIDED)
    };
    is_told && !value.is_null()
}

// === impl Follower ===

impl Follower {
    /// A stream that begins, or goes on with one that broke off.
    pub(crate) fn new(broken: Option<&BrokenStream>) -> Self {
        Self {
            partial: Vec::new(),
            id: broken.and_then(|broken| broken.id.clone()),
            text: broken.map_or_else(String::new, |broken| broken.text.clone()),
            tokens: broken.map_or(0, |broken| broken.tokens),
            part: broken.map_or(Part::First, |broken| Part::Later {
                tokens_before: broken.tokens,
            }),
            place: Place::EventEnd,
            can_go_on: true,
        }
    }

    /// Takes the next bytes. Returns the lines that have ended, for the client.
    pub(crate) fn pass(&mut self, bytes: &[u8]) -> Bytes {
        self.partial.extend_from_slice(bytes);
        let Some(end) = memrchr(b'\n', &self.partial) else {
            if self.partial.len() <= LINE_BYTES_MAX {
                return Bytes::new();
            }
            self.can_go_on = false;
            return mem::take(&mut self.partial).into();
        };
        let rest = self.partial.split_off(end + 1);
        let lines = mem::replace(&mut self.partial, rest);
        self.lines(&lines)
    }

    /// Takes the end of the stream. Returns what is left of it.
    pub(crate) fn finish(&mut self) -> Bytes {
        let rest = mem::take(&mut self.partial);
        self.lines(&rest)
    }

    /// The stream as its client has it, to be gone on with; absent: nobody can.
    pub(crate) fn broken(self, sender: RelaySender, original: &Bytes) -> Option<BrokenStream> {
        let broken = BrokenStream {
            sender,
            id: self.id,
            text: self.text,
            tokens: self.tokens,
            is_within_event: self.place == Place::WithinEvent,
        };
        let can_go_on = self.can_go_on && body(original, &broken).is_some();
        can_go_on.then_some(broken)
    }

    fn lines(&mut self, lines: &[u8]) -> Bytes {
        let mut passed = Vec::with_capacity(lines.len());
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            self.place = if line.trim_ascii().is_empty() {
                Place::EventEnd
            } else {
                Place::WithinEvent
            };
            match self.line(line) {
                Some(written_anew) => passed.extend_from_slice(written_anew.as_bytes()),
                None => passed.extend_from_slice(line),
            }
        }
        passed.into()
    }

    /// Takes note of a line. Returns it as it is written anew; absent: it goes on as it came.
    fn line(&mut self, line: &[u8]) -> Option<String> {
        let json = line.strip_prefix(b"data:")?;
        let mut chunk: Value = serde_json::from_slice(json).ok()?;
        self.note(&chunk);
        match self.part {
            Part::First => None,
            Part::Later { tokens_before } => {
                self.adopt(&mut chunk, tokens_before);
                Some(format!("data: {chunk}\n"))
            }
        }
    }

    /// Takes note of a chunk.
    fn note(&mut self, chunk: &Value) {
        if self.id.is_none() {
            self.id = chunk["id"].as_str().map(str::to_owned);
        }
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            let is_only = choice["index"] == 0 && choice["finish_reason"].is_null();
            self.can_go_on &= is_only;
            for (name, value) in choice["delta"].as_object().into_iter().flatten() {
                match (&**name, value.as_str()) {
                    ("content", Some(text)) => self.append(text),
                    ("role", _) => {}
                    _ => self.can_go_on &= value.is_null(),
                }
            }
        }
    }

    fn append(&mut self, text: &str) {
        if text.is_empty() || !self.can_go_on {
            return;
        }
        self.text.push_str(text);
        self.tokens = self.tokens.saturating_add(1);
        if self.text.len() > TEXT_BYTES_MAX {
            self.can_go_on = false;
            self.text = String::new();
        }
    }

    /// Makes a chunk one of the stream that broke off: with its id, without the beginning of a message,
    /// and with its tokens where they are told.
    fn adopt(&self, chunk: &mut Value, tokens_before: u32) {
        if let Some(id) = &self.id {
            chunk["id"] = id.as_str().into();
        }
        let choices = chunk.get_mut("choices").and_then(Value::as_array_mut);
        for choice in choices.into_iter().flatten() {
            if let Some(delta) = choice.get_mut("delta").and_then(Value::as_object_mut) {
                delta.remove("role");
            }
        }
        let before = u64::from(tokens_before);
        if let Some(usage) = chunk.get_mut("usage").and_then(Value::as_object_mut) {
            let mut change = |name: &str, change: fn(u64, u64) -> u64| {
                if let Some(tokens) = usage.get_mut(name)
                    && let Some(told) = tokens.as_u64()
                {
                    *tokens = change(told, before).into();
                }
            };
            change("prompt_tokens", u64::saturating_sub);
            change("completion_tokens", u64::saturating_add);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> String {
        format!(
            "data: {{\"id\":\"a\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}]}}\n\n"
        )
    }

    fn broken(text: &str, tokens: u32) -> BrokenStream {
        BrokenStream {
            sender: RelaySender::to_nobody(),
            id: Some("a".to_owned()),
            text: text.to_owned(),
            tokens,
            is_within_event: false,
        }
    }

    fn original(extra: &str) -> Bytes {
        let body = format!(r#"{{"messages": [{{"role": "user", "content": "Hi"}}]{extra}}}"#);
        body.into_bytes().into()
    }

    #[test]
    fn a_stream_goes_through_by_whole_lines_however_it_is_cut() {
        let stream = [": x\r\n", &chunk("one "), &chunk("two"), "data: [DONE]"].concat();
        for piece in 1..stream.len() {
            let mut follower = Follower::new(None);
            let mut passed = Vec::new();
            for bytes in stream.as_bytes().chunks(piece) {
                let lines = follower.pass(bytes);
                assert!(lines.last().is_none_or(|last| *last == b'\n'));
                passed.extend_from_slice(&lines);
            }
            let open = follower.finish();
            assert_eq!(open, "data: [DONE]");
            assert_eq!([&passed, &open[..]].concat(), stream.as_bytes());
            assert_eq!((&*follower.text, follower.tokens), ("one two", 2));
            let told = follower.broken(RelaySender::to_nobody(), &original(""));
            assert_eq!(told.unwrap().id.as_deref(), Some("a"));
        }
    }

    #[test]
    fn who_goes_on_is_given_the_text_so_far_and_the_tokens_left() {
        let asked = |extra: &str, text: &str| {
            let body = body(&original(extra), &broken(text, 3))?;
            Some(serde_json::from_slice::<Value>(&body).unwrap())
        };
        let body = asked(r#", "max_tokens": 5, "seed": 7"#, "one two").unwrap();
        let expected = json!({
            "messages": [
                {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "one two"},
            ],
            "max_tokens": 2, "seed": 7,
            "continue_final_message": true, "add_generation_prompt": false,
        });
        assert_eq!(body, expected);
        // Nothing was said yet, all has been said, or the bound is none.
        assert!(
            asked("", "")
                .unwrap()
                .get("continue_final_message")
                .is_none()
        );
        for extra in [
            r#", "max_tokens": 3"#,
            r#", "max_completion_tokens": 2"#,
            r#", "max_tokens": "x""#,
        ] {
            assert_eq!(asked(extra, "one"), None, "{extra}");
        }
        assert!(asked(r#", "max_tokens": null"#, "one").is_some());
        // A message that the client itself has begun, and no messages at all.
        let begun = Bytes::from_static(br#"{"messages": [{"role": "assistant", "content": "A"}]}"#);
        for original in [begun, Bytes::from_static(b"{}"), Bytes::from_static(b"[")] {
            assert!(super::body(&original, &broken("one", 1)).is_none());
        }
    }

    #[test]
    fn an_answer_in_a_form_is_begun_anew_and_not_gone_on_with() {
        for form in [
            r#""response_format": {"type": "json_object"}"#,
            r#""response_format": {"type": "json_schema", "json_schema": {"schema": {}}}"#,
            r#""guided_json": {"type": "object"}"#,
            r#""guided_choice": ["a", "b"]"#,
            r#""structured_outputs": {"regex": "a+"}"#,
            r#""regex": "a+""#,
            r#""ebnf": "root ::= \"a\"""#,
            r#""json_schema": "{}""#,
            r#""grammar": "root ::= \"a\"""#,
        ] {
            let original = original(&format!(", {form}"));
            assert!(body(&original, &broken("one", 1)).is_none(), "{form}");
            assert_eq!(body(&original, &broken("", 0)), Some(original), "{form}");
        }
        for none in [
            r#""response_format": {"type": "text"}"#,
            r#""response_format": null, "guided_json": null, "grammar": null"#,
        ] {
            let original = original(&format!(", {none}"));
            assert!(body(&original, &broken("one", 1)).is_some(), "{none}");
        }
    }

    #[test]
    fn a_part_goes_on_under_the_id_and_with_the_tokens_of_the_first() {
        let first = broken("one ", 1);
        let mut follower = Follower::new(Some(&first));
        let begins = r#"data: {"id":"b","choices":[{"index":0,"delta":{"role":"assistant","content":"two"},"finish_reason":null}]}"#;
        let usage = r#"data: {"id":"b","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}"#;
        let stream = [begins, "\n\n", usage, "\n\ndata: [DONE]\n\n"].concat();
        let passed = follower.pass(stream.as_bytes());
        let passed = std::str::from_utf8(&passed).unwrap();
        let lines: Vec<&str> = passed.lines().filter(|line| !line.is_empty()).collect();
        let json = |line: &str| serde_json::from_str::<Value>(line.strip_prefix("data: ").unwrap());
        let expected = json!({
            "id": "a",
            "choices": [{"index": 0, "delta": {"content": "two"}, "finish_reason": null}],
        });
        assert_eq!(json(lines[0]).unwrap(), expected);
        let usage = json!({"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13});
        assert_eq!(json(lines[1]).unwrap()["usage"], usage);
        assert_eq!(lines[2..], ["data: [DONE]"]);
        let again = follower
            .broken(RelaySender::to_nobody(), &original(""))
            .unwrap();
        assert_eq!((&*again.text, again.tokens), ("one two", 2));
        assert_eq!(again.id.as_deref(), Some("a"));
    }

    #[test]
    fn a_stream_is_known_to_break_off_within_an_event() {
        for (stream, is_within) in [
            ("", false),
            ("data: {}\n\n", false),
            ("data: {}\r\n\r\n", false),
            ("data: {}\n\ndata: {", false),
            ("data: {}\n\nevent: x\n", true),
            (": a comment\r\n", true),
        ] {
            let mut follower = Follower::new(None);
            follower.pass(stream.as_bytes());
            let told = follower.broken(RelaySender::to_nobody(), &original(""));
            assert_eq!(told.unwrap().is_within_event, is_within, "{stream:?}");
        }
    }

    #[test]
    fn what_nobody_can_go_on_with_is_not_gone_on_with() {
        for choice in [
            r#"{"index":0,"delta":{"tool_calls":[{}]},"finish_reason":null}"#,
            r#"{"index":0,"delta":{"reasoning_content":"hm"},"finish_reason":null}"#,
            r#"{"index":1,"delta":{"content":"x"},"finish_reason":null}"#,
            r#"{"index":0,"delta":{},"finish_reason":"stop"}"#,
        ] {
            let mut follower = Follower::new(None);
            follower.pass(format!("data: {{\"id\":\"a\",\"choices\":[{choice}]}}\n\n").as_bytes());
            let told = follower.broken(RelaySender::to_nobody(), &original(""));
            assert!(told.is_none(), "{choice}");
        }
        let mut follower = Follower::new(None);
        for _ in 0..3 {
            follower.pass(chunk(&"x".repeat(TEXT_BYTES_MAX / 2)).as_bytes());
        }
        assert!(follower.text.is_empty());
        assert_cannot_go_on(follower);
        // Nor is a line without end kept for ever.
        let mut follower = Follower::new(None);
        let endless = vec![b'x'; LINE_BYTES_MAX];
        assert!(follower.pass(&endless).is_empty());
        assert_eq!(follower.pass(b"y").len(), LINE_BYTES_MAX + 1);
        assert_cannot_go_on(follower);
    }

    fn assert_cannot_go_on(follower: Follower) {
        assert!(
            follower
                .broken(RelaySender::to_nobody(), &original(""))
                .is_none()
        );
    }
}
