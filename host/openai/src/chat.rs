//! The shapes of answers to chats.

use schemars::JsonSchema;
use serde::Serialize;

use super::envelope::{Choice, FinishReason};
use super::inflow::{Ending, WholeText};
use super::logprobs::{ChatLogprobs, Told};
use super::tools::AnswerPart;

/// The choice of a whole answer.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChatCompletion", inline)]
pub(super) struct ChatChoice<'a> {
    index: u32,
    message: Message<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: FinishReason,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Message<'a> {
    role: &'static str,
    /// Null where there are only calls.
    content: Option<&'a str>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
}

/// A call of a tool, or in a chunk a part of one.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Call<'a> {
    /// The number of the call, in a chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: CalledWith<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct CalledWith<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    /// A JSON object as text, or in a chunk a part of it.
    arguments: &'a str,
}

/// The choice of a chunk.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChatCompletionChunk", inline)]
pub(super) struct ChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<FinishReason>,
}

#[derive(Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
}

const ROLE: &str = "assistant";
const FUNCTION: &str = "function";

/// A maker of the ids of calls, by the index of a choice and the number of the call.
pub(super) type CallIds<'a> = &'a dyn Fn(u32, u32) -> String;

impl Choice for ChatChoice<'_> {
    const OBJECT: &'static str = "chat.completion";
}

impl Choice for ChunkChoice<'_> {
    const OBJECT: &'static str = "chat.completion.chunk";
}

pub(super) fn whole<'a>(index: u32, answer: &'a WholeText, ids: CallIds<'_>) -> ChatChoice<'a> {
    let calls = (0..).zip(&answer.calls).map(|(number, call)| Call {
        index: None,
        id: Some(ids(index, number)),
        kind: Some(FUNCTION),
        function: CalledWith {
            name: Some(&call.name),
            arguments: &call.arguments,
        },
    });
    let tool_calls: Vec<Call<'_>> = calls.collect();
    let has_text = tool_calls.is_empty() || !answer.text.is_empty();
    ChatChoice {
        index,
        message: Message {
            role: ROLE,
            content: has_text.then_some(&*answer.text),
            refusal: None,
            tool_calls,
        },
        logprobs: answer.told.of_chat(),
        finish_reason: answer.end.into(),
    }
}

pub(super) fn opening(index: u32) -> ChunkChoice<'static> {
    let delta = Delta {
        role: Some(ROLE),
        content: Some(""),
        tool_calls: Vec::new(),
    };
    chunk(index, delta, None, None)
}

/// The chunk with a part of the answer.
pub(super) fn delta<'a>(
    index: u32,
    part: &'a AnswerPart,
    told: &Told,
    ids: CallIds<'_>,
) -> ChunkChoice<'a> {
    let mut delta = Delta::default();
    match part {
        AnswerPart::Text(text) => delta.content = Some(text),
        AnswerPart::CallBegins(number, name) => delta.tool_calls.push(Call {
            index: Some(*number),
            id: Some(ids(index, *number)),
            kind: Some(FUNCTION),
            function: CalledWith {
                name: Some(name),
                arguments: "",
            },
        }),
        AnswerPart::Arguments(number, arguments) => delta.tool_calls.push(Call {
            index: Some(*number),
            id: None,
            kind: None,
            function: CalledWith {
                name: None,
                arguments,
            },
        }),
    }
    chunk(index, delta, told.of_chat(), None)
}

pub(super) fn stop(index: u32, end: Ending, told: &Told) -> ChunkChoice<'static> {
    chunk(index, Delta::default(), told.of_chat(), Some(end.into()))
}

fn chunk(
    index: u32,
    delta: Delta<'_>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<FinishReason>,
) -> ChunkChoice<'_> {
    ChunkChoice {
        index,
        delta,
        logprobs,
        finish_reason,
    }
}
