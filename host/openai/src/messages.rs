//! The conversation of a chat, read.

use pointsman_executor::prompt::ChatMessage;
use pointsman_executor::tools::{CalledFunction, ToolCall, ToolKind};
use pointsman_http::error::{ApiError, quoted};
use pointsman_http::fields::{Fields, mismatch, object, read};
use pointsman_http::openapi::named;
use schemars::SchemaGenerator;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The schema of [`messages`].
pub(super) fn messages_schema(schemas: &mut SchemaGenerator) -> Value {
    let text_part = object(
        &["type", "text"],
        vec![
            ("type", json!({"type": "string", "enum": ["text"]})),
            ("text", json!({"type": "string"})),
        ],
    );
    let function = object(
        &["name", "arguments"],
        vec![
            ("name", json!({"type": "string"})),
            (
                "arguments",
                json!({"type": "string", "description": "A JSON object, as text."}),
            ),
        ],
    );
    let call = object(
        &["id", "function"],
        vec![
            ("id", json!({"type": "string"})),
            ("type", json!({"type": "string", "const": "function"})),
            ("function", function.to_value()),
        ],
    );
    let mut properties = vec![
        ("role", json!({"type": "string", "enum": ROLES})),
        (
            "content",
            json!({
                "description": "May be left out of a message with calls.",
                "anyOf": [{"type": "string"}, {"type": "array", "items": text_part}],
            }),
        ),
        ("name", json!({"type": "string"})),
        ("tool_calls", json!({"type": "array", "items": call})),
        (
            "tool_call_id",
            json!({
                "type": "string",
                "description": "Of the role `tool`: the call whose result the message is. Each call before has one.",
            }),
        ),
    ];
    properties.extend(UNBUILT.map(|field| (field, json!({"enum": [[]]}))));
    let message = object(&["role"], properties);
    let message = named(schemas, "ChatMessage", message);
    json!({"type": "array", "items": message, "minItems": 1})
}

/// Roles of messages. `developer` is OpenAI's newer word for `system`, which templates do not know.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Fields of messages that would change the answer if they were built.
const UNBUILT: [&str; 2] = ["function_call", "audio"];

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
    let messages: Vec<ChatMessage> = messages.collect::<Result<_, _>>()?;
    check_results(&messages)?;
    Ok(messages)
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
    let tool_calls = match fields.take("tool_calls") {
        Some(calls) => tool_calls(&format!("{at}.tool_calls"), calls)?,
        None => Vec::new(),
    };
    if !tool_calls.is_empty() && role != "assistant" {
        let param = format!("{at}.tool_calls");
        let message = format!("`{param}` is for messages of the role `assistant`");
        return Err(ApiError::field(param, message));
    }
    let content = match fields.take("content") {
        Some(content) => Some(text_of(&format!("{at}.content"), content)?),
        None if tool_calls.is_empty() => return Err(missing(at, "content")),
        None => None,
    };
    let name = fields.take("name");
    let name = name.map(|name| text(format!("{at}.name"), name));
    let result_of = fields.take("tool_call_id");
    let result_of = result_of.map(|id| text(format!("{at}.tool_call_id"), id));
    let tool_call_id = match (&*role, result_of.transpose()?) {
        ("tool", None) => return Err(missing(at, "tool_call_id")),
        ("tool", id) => id,
        // Of no call: the template is told of none.
        (_, _) => None,
    };
    Ok(ChatMessage {
        role,
        content,
        name: name.transpose()?,
        tool_calls,
        tool_call_id,
    })
}

/// Checks that each result is of a call in the message before the results, and that each call has one
/// before the conversation goes on: a model that is told otherwise makes things up.
fn check_results(messages: &[ChatMessage]) -> Result<(), ApiError> {
    let (mut caller, mut open): (usize, Vec<&str>) = Default::default();
    for (index, message) in messages.iter().enumerate() {
        if let Some(id) = &message.tool_call_id {
            let call = open.iter().position(|call| call == id);
            open.swap_remove(call.ok_or_else(|| no_call(index, id))?);
            continue;
        }
        check_answered(caller, &open)?;
        caller = index;
        open = message.tool_calls.iter().map(|call| &*call.id).collect();
    }
    check_answered(caller, &open)
}

/// Checks that of the calls of a message none is without its result.
fn check_answered(index: usize, open: &[&str]) -> Result<(), ApiError> {
    let Some(id) = open.first() else {
        return Ok(());
    };
    let param = format!("messages[{index}].tool_calls");
    let message = format!(
        "`{param}` has the call `{}`, whose result is missing: behind it there has to be a message of the \
         role `tool` with this `tool_call_id`",
        quoted(id)
    );
    Err(ApiError::field(param, message))
}

/// The error of a result at a place of the conversation that is of no call.
fn no_call(index: usize, id: &str) -> ApiError {
    let param = format!("messages[{index}].tool_call_id");
    let message = format!(
        "`{param}`: there is no call `{}` without a result in the message before the results",
        quoted(id)
    );
    ApiError::field(param, message)
}

/// The calls of a message.
fn tool_calls(at: &str, value: &RawValue) -> Result<Vec<ToolCall>, ApiError> {
    let list: Option<Vec<&RawValue>> = read(value);
    let list = list.ok_or_else(|| mismatch(at.to_owned(), "a list of calls", value))?;
    let calls = list.into_iter().enumerate();
    let calls = calls.map(|(index, value)| tool_call(&format!("{at}[{index}]"), value));
    calls.collect()
}

fn tool_call(at: &str, value: &RawValue) -> Result<ToolCall, ApiError> {
    let wanted = "an object whose `type` is `function`, with a `function`";
    let wrong = || mismatch(at.to_owned(), wanted, value);
    let mut fields = Fields::of(value, str::to_owned)?.ok_or_else(wrong)?;
    let kind = fields.take("type").and_then(read::<String>);
    let function = fields.take("function");
    let function = function.filter(|_| kind.is_none_or(|kind| kind == "function"));
    let mut function = Fields::of(function.ok_or_else(wrong)?, str::to_owned)?.ok_or_else(wrong)?;
    let id = needed_text(at, "id", &mut fields)?;
    let at = format!("{at}.function");
    let name = needed_text(&at, "name", &mut function)?;
    let arguments = function.take("arguments").unwrap_or(RawValue::NULL);
    Ok(ToolCall {
        id,
        kind: ToolKind::Function,
        function: CalledFunction {
            name,
            arguments: arguments_of(format!("{at}.arguments"), arguments)?,
        },
    })
}

/// The arguments of a call: a JSON object as text, which is empty where there are none.
fn arguments_of(at: String, value: &RawValue) -> Result<String, ApiError> {
    let written: Option<String> = read(value);
    let written = written.map(|text| match text.is_empty() {
        true => "{}".to_owned(),
        false => text,
    });
    let is_object =
        |text: &String| serde_json::from_str(text).is_ok_and(|it: Value| it.is_object());
    let object = written.filter(is_object);
    object.ok_or_else(|| mismatch(at, "a JSON object, as text", value))
}

/// True of what clients write for "none", also where they mean tool calls.
fn is_empty_list(value: &RawValue) -> bool {
    read::<Vec<&RawValue>>(value).is_some_and(|list| list.is_empty())
}

fn needed_text(at: &str, field: &str, fields: &mut Fields<'_>) -> Result<String, ApiError> {
    let value = fields.take(field).ok_or_else(|| missing(at, field))?;
    text(format!("{at}.{field}"), value)
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
            let wanted = "`system`, `developer`, `user`, `assistant` or `tool`";
            Err(mismatch(at.to_owned(), wanted, value))
        }
    }
}

/// The text of a content: a text, or parts each of which begins a line, as at other servers.
fn text_of(at: &str, content: &RawValue) -> Result<String, ApiError> {
    if let Some(text) = read(content) {
        return Ok(text);
    }
    let Some(parts) = read::<Vec<&RawValue>>(content) else {
        let wanted = "a text or a list of text parts";
        return Err(mismatch(at.to_owned(), wanted, content));
    };
    let parts = parts.into_iter().enumerate();
    let texts: Result<Vec<String>, ApiError> = parts
        .map(|(index, part)| text_of_part(format!("{at}[{index}]"), part))
        .collect();
    Ok(texts?.join("\n"))
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
        let mut user = ChatMessage::new("user", "a\nb");
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
    fn calls_and_their_results_are_read() {
        let read = read(json!([
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "one", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}},
                {"id": "two", "type": "function", "function": {"name": "now", "arguments": ""}},
            ]},
            {"role": "tool", "tool_call_id": "two", "content": [{"type": "text", "text": "noon"}]},
            {"role": "tool", "tool_call_id": "one", "name": "add", "content": "2"},
        ]));
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.to_owned(),
            kind: ToolKind::Function,
            function: CalledFunction {
                name: name.to_owned(),
                arguments: arguments.to_owned(),
            },
        };
        let called = ChatMessage {
            content: None,
            tool_calls: vec![call("one", "add", "{\"a\": 1}"), call("two", "now", "{}")],
            ..ChatMessage::new("assistant", "")
        };
        let noon = ChatMessage {
            tool_call_id: Some("two".to_owned()),
            ..ChatMessage::new("tool", "noon")
        };
        let sum = ChatMessage {
            name: Some("add".to_owned()),
            tool_call_id: Some("one".to_owned()),
            ..ChatMessage::new("tool", "2")
        };
        assert_eq!(read, Ok(vec![called, noon, sum]));
    }

    /// A message with one call.
    fn called(id: &str, arguments: &str) -> Value {
        let function = json!({"name": "a", "arguments": arguments});
        json!({"role": "assistant", "tool_calls": [{"id": id, "function": function}]})
    }

    #[test]
    fn calls_and_results_that_do_not_belong_together_are_refused() {
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "4"});
        let lacking = "`messages[0].tool_calls` has the call `one`, whose result is missing: behind it there \
                       has to be a message of the role `tool` with this `tool_call_id`";
        let unknown = |index: usize, id: &str| {
            format!(
                "`messages[{index}].tool_call_id`: there is no call `{id}` without a result in the message \
                 before the results"
            )
        };
        let user = json!({"role": "user", "content": "hi"});
        for (messages, why) in [
            (json!([called("one", "{}")]), lacking.to_owned()),
            (json!([called("one", "{}"), user]), lacking.to_owned()),
            (
                json!([called("one", "{}"), called("two", "{}")]),
                lacking.to_owned(),
            ),
            (json!([result("one")]), unknown(0, "one")),
            (
                json!([called("one", "{}"), result("two")]),
                unknown(1, "two"),
            ),
            (
                json!([called("one", "{}"), result("one"), result("one")]),
                unknown(2, "one"),
            ),
            (
                json!([called("one", "{}"), result("one"), user, result("one")]),
                unknown(3, "one"),
            ),
            (
                json!([{"role": "tool", "content": "4"}]),
                "`messages[0].tool_call_id` is missing".to_owned(),
            ),
            (
                json!([{"role": "user", "content": "", "tool_calls": called("one", "{}")["tool_calls"]}]),
                "`messages[0].tool_calls` is for messages of the role `assistant`".to_owned(),
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": ""}}]}]),
                "`messages[0].tool_calls[0].id` is missing".to_owned(),
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"id": "one", "function": {}}]}]),
                "`messages[0].tool_calls[0].function.name` is missing".to_owned(),
            ),
        ] {
            assert_eq!(read(messages), Err(why));
        }
        let two_rounds = [
            called("one", "{}"),
            result("one"),
            called("one", "{}"),
            result("one"),
        ];
        assert_eq!(read(json!(two_rounds)).map(|read| read.len()), Ok(4));
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
                json!([{"role": "narrator", "content": "hi"}]),
                "`messages[0].role` has to be `system`, `developer`, `user`, `assistant` or `tool`, not the \
                 text `narrator`",
            ),
            (
                json!([{"role": "assistant", "function_call": {}}]),
                "`messages[0].function_call` is not built; leave it out",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{}]}]),
                "`messages[0].tool_calls[0]` has to be an object whose `type` is `function`, with a \
                 `function`, not an object",
            ),
            (
                json!([called("one", "[]")]),
                "`messages[0].tool_calls[0].function.arguments` has to be a JSON object, as text, not the \
                 text `[]`",
            ),
            (
                json!([{"role": "assistant", "content": null, "tool_calls": []}]),
                "`messages[0].content` is missing",
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
