//! Requests that may be passed on to servers elsewhere: byte for byte, and read no further than
//! decisions need.

use std::ops::Range;

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{HeaderMap, Method, Request};
use pointsman_driver::message::Hints;
use pointsman_driver::spans::Operation;
use pointsman_executor::job::Job;
use pointsman_executor::relay::{CONNECTION_HEADERS, RemoteCall, Rooms, path_and_query};
use pointsman_http::RequestBody;
use pointsman_http::fields::{Fields, read, read_whole};
use serde_json::value::RawValue;

use super::{COMPLETION_TOKENS, CompletionKind};
use crate::hints::BODY_FIELD;
use crate::target::Target;

/// The way of a request that is passed on: its method and path.
#[derive(Clone, Debug)]
pub(super) struct Passage {
    method: Method,
    path: String,
    operation: Operation,
}

/// Tokens that a chat without a bound is taken to generate at most.
const CHAT_TOKENS: u32 = 4096;

/// Fields with the bound on the tokens of an answer.
pub(super) const BOUND_FIELDS: [&str; 3] =
    ["max_completion_tokens", "max_tokens", "max_output_tokens"];

/// Paths without a row of their own of which it is known that servers find the model in the body alone.
const MODEL_IN_BODY: [&str; 19] = [
    "/api/chat",
    "/api/embed",
    "/api/embeddings",
    "/api/generate",
    "/classify",
    "/pooling",
    "/rerank",
    "/score",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/edits",
    "/v1/images/generations",
    "/v1/messages/count_tokens",
    "/v1/moderations",
    "/v1/responses/compact",
    "/v1/responses/input_tokens",
    "/v1/score",
    "/v2/rerank",
];

/// Headers of a request that are about its sender, and are not passed on. An encoding of the answer
/// would hide the tokens it took.
const KEPT_BACK: [HeaderName; 10] = [
    header::ACCEPT_ENCODING,
    header::AUTHORIZATION,
    header::CONTENT_LENGTH,
    header::COOKIE,
    header::EXPECT,
    header::FORWARDED,
    header::HOST,
    header::ORIGIN,
    header::PROXY_AUTHORIZATION,
    header::REFERER,
];
/// Beginnings of names of headers that are not passed on either: hints, a key, and those for proxies.
const KEPT_BACK_PREFIXES: [&str; 3] = ["x-pointsman-", "x-api-key", "proxy-"];

// === impl Passage ===

impl Passage {
    /// The way that `request` takes, which is this operation.
    pub(super) fn of<B>(request: &Request<B>, operation: Operation) -> Self {
        let uri = request.uri();
        let path = uri
            .path_and_query()
            .map_or(uri.path(), |path| path.as_str());
        Self {
            method: request.method().clone(),
            path: path.to_owned(),
            operation,
        }
    }

    /// The path with its query.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The operation that the request is in a trace.
    pub(super) fn operation(&self) -> Operation {
        self.operation
    }

    /// True if nothing is generated for the request: it asks what there is.
    pub(super) fn is_look(&self) -> bool {
        self.method.is_safe()
    }

    /// True if servers find the model of the request in its body alone, as far as its path is known here.
    pub(super) fn has_model_in_body(&self) -> bool {
        let (path, query) = path_and_query(&self.path);
        let is_known = MODEL_IN_BODY.contains(&path) && !may_name_model(query);
        is_known || self.operation != Operation::Other
    }

    /// The request as another server gets it.
    pub(super) fn call(
        self,
        headers: &HeaderMap,
        body: Bytes,
        (model, prompt_tokens, rooms): (Option<&str>, u32, Rooms),
    ) -> RemoteCall {
        RemoteCall {
            method: self.method,
            path: self.path,
            headers: passed_on(headers),
            body,
            model: model.map(str::to_owned),
            prompt_tokens,
            rooms,
        }
    }
}

/// True for a query in which a server may find a model. What is written in another way may be its name.
pub(super) fn may_name_model(query: &str) -> bool {
    query.contains('%') || query.to_ascii_lowercase().contains("model")
}

/// The headers of a request that are passed on.
fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut passed = headers.clone();
    for name in headers.keys() {
        let text = name.as_str();
        let is_kept = KEPT_BACK.contains(name) || CONNECTION_HEADERS.contains(name);
        if is_kept
            || KEPT_BACK_PREFIXES
                .iter()
                .any(|prefix| text.starts_with(prefix))
        {
            passed.remove(name);
        }
    }
    passed
}

/// The job of a request that no engine reads.
pub(super) fn job(kind: CompletionKind, fields: &Fields<'_>) -> Job {
    let of_each = fields.get("n").and_then(read_whole::<u32>).unwrap_or(1);
    Job {
        answers: prompts(fields).saturating_mul(of_each.max(1)),
        ..Job::new(Vec::new(), output_tokens(kind, fields))
    }
}

/// Tokens that are generated at most in each answer, as the client says or as is usual.
pub(super) fn output_tokens(kind: CompletionKind, fields: &Fields<'_>) -> u32 {
    let unasked = match kind {
        CompletionKind::Chat => CHAT_TOKENS,
        CompletionKind::Text => COMPLETION_TOKENS,
    };
    output_tokens_asked(fields).unwrap_or(unasked).max(1)
}

/// Prompts of a completion: one, unless they are in a list.
fn prompts(fields: &Fields<'_>) -> u32 {
    let prompt = fields.get("prompt").filter(|prompt| are_several(prompt));
    let prompts: Option<Vec<&RawValue>> = prompt.and_then(read);
    let count = prompts.map_or(1, |prompts| prompts.len());
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// True for a list of prompts; a list of numbers is one prompt.
pub(super) fn are_several(prompt: &RawValue) -> bool {
    let in_list = prompt.get().strip_prefix('[').map(str::trim_start);
    in_list.is_some_and(|first| !first.starts_with(|c: char| c.is_ascii_digit()))
}

fn output_tokens_asked(fields: &Fields<'_>) -> Option<u32> {
    let mut bounds = BOUND_FIELDS.iter().filter_map(|name| fields.get(name));
    bounds.find_map(read_whole::<u32>)
}

/// Tokens for which a context needs room: those of the prompt, and those that are asked for, of which there is at least
/// one.
pub(super) fn context_tokens(prompt_tokens: u32, fields: &Fields<'_>) -> u64 {
    let asked = output_tokens_asked(fields).unwrap_or(1).max(1);
    u64::from(prompt_tokens) + u64::from(asked)
}

/// Keeps a request to the executors whose context has room, as far as the bytes of its prompt tell.
pub(super) fn fit(
    target: &Target<'_>,
    (prompt_tokens, is_measured): (u32, impl FnOnce() -> bool),
    fields: &Fields<'_>,
    hints: Hints,
) -> Hints {
    let needed = context_tokens(prompt_tokens, fields);
    target.fit(needed, || !is_measured(), hints)
}

/// The body without the host's own field, which is at this place; all else is as it came.
pub(super) fn without(mut body: RequestBody, hints: Option<Range<usize>>) -> Bytes {
    if let Some(place) = hints {
        body.cut(place);
    }
    Bytes::from_owner(body)
}

/// The place of the host's own field, whose value is `hints`, with one of the commas around it; absent: there is none, or
/// its name is written in an unusual way.
pub(super) fn place(body: &[u8], hints: Option<&RawValue>) -> Option<Range<usize>> {
    let value = hints?.get();
    let offset = (value.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
    let before = trimmed_end(body.get(..offset)?);
    let before = trimmed_end(before.strip_suffix(b":")?);
    let before = before
        .strip_suffix(b"\"")?
        .strip_suffix(BODY_FIELD.as_bytes())?;
    let before = trimmed_end(before.strip_suffix(b"\"")?);
    let after = body.get(offset + value.len()..)?.trim_ascii_start();
    if let Some(before) = before.strip_suffix(b",") {
        return Some(before.len()..body.len() - after.len());
    }
    let after = after.strip_prefix(b",").unwrap_or(after);
    Some(before.len()..body.len() - after.len())
}

fn trimmed_end(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(body: &str) -> String {
        let fields = Fields::parse(body.as_bytes()).unwrap();
        let mut rest = body.to_owned();
        if let Some(place) = place(body.as_bytes(), fields.get(BODY_FIELD)) {
            rest.replace_range(place, "");
        }
        rest
    }

    #[test]
    fn a_body_is_passed_on_byte_for_byte_but_for_the_hints() {
        for (body, expected) in [
            (
                r#"{"a" : 1.50,"b":"\u00e4"}"#,
                r#"{"a" : 1.50,"b":"\u00e4"}"#,
            ),
            (r#"{"pointsman": {"group": 1}}"#, "{}"),
            (r#"{"pointsman": {"group": 1}, "a": 1}"#, r#"{ "a": 1}"#),
            (r#"{"a": 1, "pointsman" : {"x": [","]} }"#, r#"{"a": 1}"#),
            (
                r#"{"a": 1,"pointsman":{},"b":"pointsman"}"#,
                r#"{"a": 1,"b":"pointsman"}"#,
            ),
            // A name that is written in another way is left where it is.
            (r#"{"p\u006fintsman": {}}"#, r#"{"p\u006fintsman": {}}"#),
        ] {
            assert_eq!(stripped(body), expected, "{body}");
        }
    }

    #[test]
    fn the_bound_on_an_answer_is_the_clients_or_what_is_usual() {
        for (body, chat, text) in [
            ("{}", CHAT_TOKENS, COMPLETION_TOKENS),
            (r#"{"max_tokens": 7}"#, 7, 7),
            (r#"{"max_tokens": 7, "max_completion_tokens": 8}"#, 8, 8),
            (r#"{"max_tokens": "seven"}"#, CHAT_TOKENS, COMPLETION_TOKENS),
            (r#"{"max_output_tokens": 0}"#, 1, 1),
        ] {
            let fields = Fields::parse(body.as_bytes()).unwrap();
            assert_eq!(output_tokens(CompletionKind::Chat, &fields), chat);
            assert_eq!(output_tokens(CompletionKind::Text, &fields), text);
        }
    }

    #[test]
    fn a_request_has_as_many_answers_as_choices_of_each_prompt() {
        for (body, answers) in [
            ("{}", 1),
            (r#"{"n": 3}"#, 3),
            (r#"{"n": 0, "prompt": [1, 2]}"#, 1),
            (r#"{"n": 3, "prompt": ["a", "b"]}"#, 6),
            (r#"{"prompt": [ [1], [2]]}"#, 2),
            (r#"{"prompt": []}"#, 1),
        ] {
            let fields = Fields::parse(body.as_bytes()).unwrap();
            let job = job(CompletionKind::Text, &fields);
            assert_eq!(
                (job.answers, job.output_tokens_max),
                (answers, 16),
                "{body}"
            );
        }
    }

    #[test]
    fn headers_about_the_connection_and_the_sender_are_kept_back() {
        let request = Request::builder()
            .uri("/v1/completions?a=b")
            .header("host", "here")
            .header("authorization", "Bearer secret")
            .header("x-pointsman-group", "1")
            .header("keep-alive", "5")
            .header("traceparent", "00-1-2-01")
            .header("content-type", "application/json")
            .body(())
            .unwrap();
        let passage = Passage::of(&request, Operation::TextCompletion);
        let call = passage.call(request.headers(), Bytes::new(), (None, 1, Rooms::default()));
        assert_eq!(call.path, "/v1/completions?a=b");
        let mut names: Vec<&str> = call.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "traceparent"]);
    }
}
