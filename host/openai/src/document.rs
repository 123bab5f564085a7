//! Completions in the OpenAPI document: the bodies of requests, and the answers.

use http::StatusCode;
use http::header::HeaderValue;
use pointsman_http::answer::{HttpAnswer, HttpReply, JSON, Responses, response};
use pointsman_http::error::ErrorBody;
use pointsman_http::fields::{Properties, object};
use pointsman_http::openapi::named;
use pointsman_http::{authorship, limits};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::chat::{ChatChoice, ChunkChoice};
use super::completions::{self, TextChoice};
use super::envelope::Object;
use super::params::{self, Params};
use super::{BODY_FIELD, CompletionKind, EVENT_STREAM, messages, sampling, tools};
use crate::hints;

/// The answer of `/v1/chat/completions`.
pub(crate) struct ChatAnswer(pub(super) HttpReply);

/// The answer of `/v1/completions`.
pub(crate) struct TextAnswer(pub(super) HttpReply);

/// The schema of the body of a chat.
pub(crate) fn chat_body(schemas: &mut SchemaGenerator) -> Schema {
    let required = ["messages"];
    let messages = ("messages", messages::messages_schema(schemas));
    let prompt = [vec![messages], tools::properties()].concat();
    let body = body(schemas, CompletionKind::Chat, &required, prompt);
    named(schemas, "ChatCompletionRequest", body)
}

/// The schema of the body of a completion.
pub(crate) fn text_body(schemas: &mut SchemaGenerator) -> Schema {
    let required = ["prompt"];
    let prompt = vec![
        ("prompt", completions::prompt_schema()),
        completions::special_tokens_property(),
    ];
    let body = body(schemas, CompletionKind::Text, &required, prompt);
    named(schemas, "CompletionRequest", body)
}

/// The schema of the body that [`route_query`](super::route_query) reads, with fields of the
/// caller's own.
pub fn route_query_schema(schemas: &mut SchemaGenerator, own: Properties) -> Schema {
    let mut properties = shared_properties(schemas);
    properties.extend(own);
    let length = json!({"type": "integer", "minimum": 1, "maximum": u32::MAX});
    let prompts = [
        ("messages", messages::messages_schema(schemas)),
        ("prompt", completions::prompt_schema()),
        ("prompt_tokens", length),
    ];
    let either = prompts
        .each_ref()
        .map(|(name, _)| json!({"required": [name]}));
    properties.extend(prompts);
    properties.push(completions::special_tokens_property());
    properties.extend(tools::properties());
    let mut schema = object(&[], properties);
    schema.insert("anyOf".to_owned(), json!(either));
    schema
}

fn body(
    schemas: &mut SchemaGenerator,
    kind: CompletionKind,
    required: &[&str],
    prompt: Properties,
) -> Schema {
    let mut properties = shared_properties(schemas);
    properties.extend(prompt);
    properties.extend(sampling::logprobs_properties(kind));
    properties.extend(params::unbuilt_properties(kind));
    properties.extend(params::properties_without_effect());
    object(required, properties)
}

fn shared_properties(schemas: &mut SchemaGenerator) -> Properties {
    let mut properties = Params::properties();
    let model = "A name that `/v1/models` lists. Required, unless `http.unnamed-model` is `any`.";
    properties.push(("model", json!({"type": "string", "description": model})));
    properties.push((BODY_FIELD, hints::body_schema(schemas).to_value()));
    properties
}

/// The responses of a route that answers with a `Whole`, or with an event for each `Chunk`.
fn responses<Whole: JsonSchema, Chunk: JsonSchema>(schemas: &mut SchemaGenerator) -> Responses {
    let whole = schemas.subschema_for::<Whole>();
    let event = json_schema!({
        "description": "The data of each event; the last one is `[DONE]`. After an error comes none.",
        "anyOf": [schemas.subschema_for::<Chunk>(), schemas.subschema_for::<ErrorBody>()],
    });
    Responses::from_iter([placed_response([(JSON, whole), (EVENT_STREAM, event)])])
}

/// The response of a request that was placed, with headers that say where.
pub(super) fn placed_response<const N: usize>(
    contents: [(HeaderValue, Schema); N],
) -> (String, Value) {
    let (status, mut response) = response(StatusCode::OK, contents);
    let authorship = authorship::HEADERS.map(|(name, about)| (name.to_string(), about));
    let limits = limits::HEADERS.map(|(name, about)| (name.to_owned(), about));
    let headers = authorship.into_iter().chain(limits);
    let headers = headers.map(|(name, about)| {
        let header = json!({"description": about, "schema": {"type": "string"}});
        (name, header)
    });
    response["headers"] = Value::from_iter(headers);
    (status, response)
}

// === impl ChatAnswer ===

impl HttpAnswer for ChatAnswer {
    fn into_reply(self, _: StatusCode) -> HttpReply {
        self.0
    }

    fn responses(_: StatusCode, schemas: &mut SchemaGenerator) -> Responses {
        responses::<Object<'_, ChatChoice<'_>>, Object<'_, ChunkChoice<'_>>>(schemas)
    }
}

// === impl TextAnswer ===

impl HttpAnswer for TextAnswer {
    fn into_reply(self, _: StatusCode) -> HttpReply {
        self.0
    }

    fn responses(_: StatusCode, schemas: &mut SchemaGenerator) -> Responses {
        responses::<Object<'_, TextChoice<'_>>, Object<'_, TextChoice<'_>>>(schemas)
    }
}
