//! Chat completions: the conversation read, and the shapes of answers.

use pointsman_executor::delivery::StopReason;
use pointsman_executor::prompt::ChatMessage;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::envelope::{Choice, FinishReason};
use super::inflow::WholeText;
use super::logprobs::{ChatLogprobs, Told};
use crate::error::ApiError;
use crate::fields::{Fields, mismatch, object, read};
use crate::openapi::named;

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
    content: &'a str,
    refusal: Option<()>,
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
}

const ROLE: &str = "assistant";

impl Choice for ChatChoice<'_> {
    const OBJECT: &'static str = "chat.completion";
}

impl Choice for ChunkChoice<'_> {
    const OBJECT: &'static str = "chat.completion.chunk";
}

pub(super) fn whole(index: u32, answer: &WholeText) -> ChatChoice<'_> {
    ChatChoice {
        index,
        message: Message {
            role: ROLE,
            content: &answer.text,
            refusal: None,
        },
        logprobs: answer.told.of_chat(),
        finish_reason: answer.stop.into(),
    }
}

pub(super) fn opening(index: u32) -> ChunkChoice<'static> {
    let delta = Delta {
        role: Some(ROLE),
        content: Some(""),
    };
    chunk(index, delta, None, None)
}

pub(super) fn delta<'a>(index: u32, text: &'a str, told: &Told) -> ChunkChoice<'a> {
    let delta = Delta {
        role: None,
        content: Some(text),
    };
    chunk(index, delta, told.of_chat(), None)
}

pub(super) fn stop(index: u32, stop: StopReason, told: &Told) -> ChunkChoice<'static> {
    chunk(index, Delta::default(), told.of_chat(), Some(stop.into()))
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
    properties.extend(UNBUILT.map(|field| (field, json!({"enum": [[]]}))));
    let message = object(&["role", "content"], properties);
    let message = named(schemas, "ChatMessage", message);
    json!({"type": "array", "items": message, "minItems": 1})
}

/// Roles of messages. `developer` is OpenAI's newer word for `system`, which templates do not know.
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// Fields of messages that would change the answer if they were built.
const UNBUILT: [&str; 3] = ["tool_calls", "function_call", "audio"];

/// Reads the conversation of a request.
pub(super) fn messages(fields: &mut Fields<'_>) -> Result<Vec<ChatMessage>, ApiError> {
    let given = fields.take("messages");
    let given = given.ok_or(ApiError::Missing("messages"))?;
    let list: Vec<&RawValue> = read(given).unwrap_or_default();
    if list.is_empty() {
        let wanted = "a list of at least one message";
        return Err(mismatch("messages".to_owned(), wanted, given));
    }
    let messages = list.into_iter().enumerate();
    let messages = messages.map(|(index, value)| message(&format!("messages[{index}]"), value));
    messages.collect()
}

fn message(at: &str, value: &RawValue) -> Result<ChatMessage, ApiError> {
    let fields = Fields::of(value, str::to_owned)?;
    let mut fields = fields.ok_or_else(|| mismatch(at.to_owned(), "an object", value))?;
    let role = fields.take("role").ok_or_else(|| missing(at, "role"))?;
    let role = role_of_template(&format!("{at}.role"), role)?;
    for unbuilt in UNBUILT {
        if fields
            .take(unbuilt)
            .is_some_and(|value| !is_empty_list(value))
        {
            let param = format!("{at}.{unbuilt}");
            let message = format!("`{param}` is not built; leave it out");
            return Err(ApiError::field(param, message));
        }
    }
    let content = fields.take("content");
    let content = content.ok_or_else(|| missing(at, "content"))?;
    let content = text_of(&format!("{at}.content"), content)?;
    let name = fields.take("name");
    let name = name.map(|name| text(format!("{at}.name"), name));
    Ok(ChatMessage {
        role,
        content,
        name: name.transpose()?,
    })
}

/// True of what clients write for "none", also where they mean tool calls.
fn is_empty_list(value: &RawValue) -> bool {
    read::<Vec<&RawValue>>(value).is_some_and(|list| list.is_empty())
}

fn text(at: String, value: &RawValue) -> Result<String, ApiError> {
    read(value).ok_or_else(|| mismatch(at, "a text", value))
}

fn role_of_template(at: &str, value: &RawValue) -> Result<String, ApiError> {
    let role = text(at.to_owned(), value)?;
    match &*role {
        "developer" => Ok("system".to_owned()),
        known if ROLES.contains(&known) => Ok(role),
        _ => {
            let wanted = "`system`, `developer`, `user` or `assistant`";
            Err(mismatch(at.to_owned(), wanted, value))
        }
    }
}

/// The text of a content: a text, or parts whose texts follow one another.
fn text_of(at: &str, content: &RawValue) -> Result<String, ApiError> {
    if let Some(text) = read(content) {
        return Ok(text);
    }
    let Some(parts) = read::<Vec<&RawValue>>(content) else {
        let wanted = "a text or a list of text parts";
        return Err(mismatch(at.to_owned(), wanted, content));
    };
    let mut whole = String::new();
    for (index, part) in parts.into_iter().enumerate() {
        whole.push_str(&text_of_part(format!("{at}[{index}]"), part)?);
    }
    Ok(whole)
}

fn text_of_part(at: String, part: &RawValue) -> Result<String, ApiError> {
    let mut fields = Fields::of(part, str::to_owned)?.unwrap_or(Fields::none(str::to_owned));
    let kind = fields.take("type").unwrap_or(RawValue::NULL);
    if read::<String>(kind).as_deref() != Some("text") {
        let wanted = "a part of type `text`, which alone is built";
        return Err(mismatch(at, wanted, kind));
    }
    let given = fields.take("text").unwrap_or(RawValue::NULL);
    text(format!("{at}.text"), given)
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
        let body = json!({ "messages": messages }).to_string();
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        super::messages(&mut fields).map_err(|error| error.to_string())
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
