//! Chat completions: the conversation read, and the shapes of answers.

use pointsman_executor::delivery::StopReason;
use pointsman_executor::prompt::ChatMessage;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};

use super::envelope::{Choice, FinishReason};
use super::inflow::WholeText;
use crate::error::ApiError;
use crate::fields::{Fields, mismatch, object};
use crate::openapi::named;

/// The choice of a whole answer.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChatCompletion", inline)]
pub(super) struct ChatChoice<'a> {
    index: u32,
    message: Message<'a>,
    logprobs: Option<()>,
    finish_reason: FinishReason,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<()>,
}

/// The choice of a chunk.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChatCompletionChunk", inline)]
pub(super) struct ChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: Option<()>,
    finish_reason: Option<FinishReason>,
}

#[derive(Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

const ROLE: &str = "assistant";

impl Choice for ChatChoice<'_> {
    const OBJECT: &'static str = "chat.completion";
}

impl Choice for ChunkChoice<'_> {
    const OBJECT: &'static str = "chat.completion.chunk";
}

pub(super) fn whole(answer: &WholeText) -> ChatChoice<'_> {
    ChatChoice {
        index: 0,
        message: Message {
            role: ROLE,
            content: &answer.text,
            refusal: None,
        },
        logprobs: None,
        finish_reason: answer.stop.into(),
    }
}

pub(super) fn opening() -> ChunkChoice<'static> {
    let delta = Delta {
        role: Some(ROLE),
        content: Some(""),
    };
    chunk(delta, None)
}

pub(super) fn delta(text: &str) -> ChunkChoice<'_> {
    let delta = Delta {
        role: None,
        content: Some(text),
    };
    chunk(delta, None)
}

pub(super) fn stop(stop: StopReason) -> ChunkChoice<'static> {
    chunk(Delta::default(), Some(stop.into()))
}

fn chunk(delta: Delta<'_>, finish_reason: Option<FinishReason>) -> ChunkChoice<'_> {
    ChunkChoice {
        index: 0,
        delta,
        logprobs: None,
        finish_reason,
    }
}

/// The schema of [`messages`].
pub(super) fn messages_schema(schemas: &mut SchemaGenerator) -> Value {
    let text_part = object(
        &["type", "text"],
        vec![
            ("type", json!({"type": "string", "enum": ["text"]})),
            ("text", json!({"type": "string"})),
        ],
    );
    let mut properties = vec![
        ("role", json!({"type": "string", "enum": ROLES})),
        (
            "content",
            json!({"anyOf": [{"type": "string"}, {"type": "array", "items": text_part}]}),
        ),
        ("name", json!({"type": "string"})),
    ];
    properties.extend(UNBUILT.map(|field| (field, json!({"type": "null"}))));
    let message = object(&["role", "content"], properties);
    let message = named(schemas, "ChatMessage", message);
    json!({"type": "array", "items": message, "minItems": 1})
}

/// Roles of messages. `developer` is OpenAI's newer word for `system`, which templates do not know.
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// Fields of messages that would change the answer if they were built.
const UNBUILT: [&str; 3] = ["tool_calls", "function_call", "audio"];

/// Reads the conversation of a request.
pub(super) fn messages(fields: &mut Fields) -> Result<Vec<ChatMessage>, ApiError> {
    match fields.take("messages") {
        None => Err(ApiError::Missing("messages")),
        Some(Value::Array(list)) if !list.is_empty() => list
            .into_iter()
            .enumerate()
            .map(|(index, value)| message(&format!("messages[{index}]"), value))
            .collect(),
        Some(other) => {
            let wanted = "a list of at least one message";
            Err(mismatch("messages".to_owned(), wanted, &other))
        }
    }
}

fn message(at: &str, value: Value) -> Result<ChatMessage, ApiError> {
    let Value::Object(values) = value else {
        return Err(mismatch(at.to_owned(), "an object", &value));
    };
    let mut fields = Fields::new(values, str::to_owned);
    let role = match fields.take("role") {
        None => return Err(missing(at, "role")),
        Some(Value::String(role)) => role_of_template(at, role)?,
        Some(other) => return Err(mismatch(format!("{at}.role"), "a text", &other)),
    };
    for unbuilt in UNBUILT {
        if fields.take(unbuilt).is_some() {
            let param = format!("{at}.{unbuilt}");
            let message = format!("`{param}` is not built; leave it out");
            return Err(ApiError::field(param, message));
        }
    }
    let content = match fields.take("content") {
        None => return Err(missing(at, "content")),
        Some(content) => text_of(&format!("{at}.content"), content)?,
    };
    let name = match fields.take("name") {
        None => None,
        Some(Value::String(name)) => Some(name),
        Some(other) => return Err(mismatch(format!("{at}.name"), "a text", &other)),
    };
    Ok(ChatMessage {
        role,
        content,
        name,
    })
}

fn role_of_template(at: &str, role: String) -> Result<String, ApiError> {
    match &*role {
        "developer" => Ok("system".to_owned()),
        known if ROLES.contains(&known) => Ok(role),
        _ => {
            let wanted = "`system`, `developer`, `user` or `assistant`";
            Err(mismatch(format!("{at}.role"), wanted, &Value::from(role)))
        }
    }
}

/// The text of a content: a text, or parts whose texts follow one another.
fn text_of(at: &str, content: Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let mut whole = String::new();
            for (index, part) in parts.iter().enumerate() {
                let at = format!("{at}[{index}]");
                if part["type"] != "text" {
                    let wanted = "a part of type `text`, which alone is built";
                    return Err(mismatch(at, wanted, &part["type"]));
                }
                let Some(text) = part["text"].as_str() else {
                    return Err(mismatch(format!("{at}.text"), "a text", &part["text"]));
                };
                whole.push_str(text);
            }
            Ok(whole)
        }
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            let wanted = "a text or a list of text parts";
            Err(mismatch(at.to_owned(), wanted, &other))
        }
    }
}

fn missing(at: &str, field: &str) -> ApiError {
    let param = format!("{at}.{field}");
    let message = format!("`{param}` is missing");
    ApiError::field(param, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(messages: Value) -> Result<Vec<ChatMessage>, String> {
        let mut fields = Fields::parse(json!({ "messages": messages }).to_string().as_bytes());
        super::messages(fields.as_mut().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_conversation_is_read() {
        let read = read(json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
            {"role": "assistant", "content": "", "refusal": null},
        ]));
        let mut user = ChatMessage::new("user", "ab");
        user.name = Some("ann".to_owned());
        assert_eq!(
            read,
            Ok(vec![
                ChatMessage::new("system", "Be brief."),
                user,
                ChatMessage::new("assistant", ""),
            ])
        );
    }

    #[test]
    fn what_is_no_conversation_is_refused_where_it_goes_wrong() {
        for (messages, why) in [
            (Value::Null, "`messages` is missing"),
            (
                json!([]),
                "`messages` has to be a list of at least one message, not an empty list",
            ),
            (
                json!("hi"),
                "`messages` has to be a list of at least one message, not the text `hi`",
            ),
            (
                json!(["hi"]),
                "`messages[0]` has to be an object, not the text `hi`",
            ),
            (json!([{"content": "hi"}]), "`messages[0].role` is missing"),
            (
                json!([{"role": "user"}]),
                "`messages[0].content` is missing",
            ),
            (
                json!([{"role": 1, "content": "hi"}]),
                "`messages[0].role` has to be a text, not 1",
            ),
            (
                json!([{"role": "tool", "content": "hi"}]),
                "`messages[0].role` has to be `system`, `developer`, `user` or `assistant`, not the text `tool`",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{}]}]),
                "`messages[0].tool_calls` is not built; leave it out",
            ),
            (
                json!([{"role": "user", "content": 5}]),
                "`messages[0].content` has to be a text or a list of text parts, not 5",
            ),
            (
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
                "`messages[0].content[0]` has to be a part of type `text`, which alone is built, not the text `image_url`",
            ),
            (
                json!([{"role": "user", "content": ["hi"]}]),
                "`messages[0].content[0]` has to be a part of type `text`, which alone is built, not null",
            ),
            (
                json!([{"role": "user", "content": [{"type": "text"}]}]),
                "`messages[0].content[0].text` has to be a text, not null",
            ),
            (
                json!([{"role": "user", "content": "hi", "name": {}}]),
                "`messages[0].name` has to be a text, not an object",
            ),
        ] {
            assert_eq!(read(messages), Err(why.to_owned()));
        }
    }
}
