//! The answers of routes' functions: their writing, and their description in the OpenAPI document.
//!
//! The type that a function returns writes the body and describes it, so that the two agree.

use std::pin::Pin;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::openai::{EventStream, RelayBody};
use super::router::Call;

/// A response that is sent all at once, or as it comes: from an engine, or from another server.
pub(super) type Reply = Response<Either<Full<Bytes>, Either<EventStream, RelayBody>>>;

/// The responses of an operation in the document, by status.
pub(super) type Responses = Map<String, Value>;

/// An answer under way.
pub(super) type Answering<'a, A> = Pin<Box<dyn Future<Output = Result<A, ApiError>> + Send + 'a>>;

/// A function of a route, with the type of its answer.
pub(super) struct Run<A>(pub(super) for<'a> fn(Call<'a>) -> Answering<'a, A>);

/// A [`Run`] of any type.
pub(super) trait Function: Sync {
    /// Answers `call`, with `status` unless the answer has its own.
    fn run<'a>(&self, call: Call<'a>, status: StatusCode) -> Answering<'a, Reply>;

    /// Describes the responses that are no errors.
    fn responses(&self, status: StatusCode, schemas: &mut SchemaGenerator) -> Responses;
}

/// An answer of a route's function.
pub(super) trait Answer {
    /// Writes the response, with `status` unless the answer has its own.
    fn into_reply(self, status: StatusCode) -> Reply;

    /// Describes every response that [`Self::into_reply`] writes.
    fn responses(status: StatusCode, schemas: &mut SchemaGenerator) -> Responses;
}

/// A body of JSON.
pub(super) struct Json<T>(pub(super) T);

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A response sent all at once, with this status, content type and body.
pub(super) fn reply(
    status: StatusCode,
    content_type: HeaderValue,
    body: impl Into<Bytes>,
) -> Reply {
    let mut reply = Response::new(Either::Left(Full::new(body.into())));
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    reply
}

/// The text of a JSON body with `value`.
pub(super) fn json_text(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value)
        .expect("maps with text keys, texts and numbers can be written as JSON")
}

/// A response as the document has it, with the schema of each media type.
pub(super) fn response<const N: usize>(
    status: StatusCode,
    contents: [(HeaderValue, Schema); N],
) -> (String, Value) {
    let contents = contents.into_iter().map(|(content_type, schema)| {
        let media_type = content_type.to_str().expect("ours are ASCII");
        (media_type.to_owned(), json!({ "schema": schema }))
    });
    let description = status.canonical_reason().unwrap_or_default();
    let content: Map<_, _> = contents.collect();
    let response = json!({"description": description, "content": content});
    (status.as_str().to_owned(), response)
}

// === impl Run ===

impl<A: Answer + 'static> Function for Run<A> {
    fn run<'a>(&self, call: Call<'a>, status: StatusCode) -> Answering<'a, Reply> {
        let answering = (self.0)(call);
        Box::pin(async move { Ok(answering.await?.into_reply(status)) })
    }

    fn responses(&self, status: StatusCode, schemas: &mut SchemaGenerator) -> Responses {
        A::responses(status, schemas)
    }
}

// === impl Json ===

impl<T: Serialize + JsonSchema> Answer for Json<T> {
    fn into_reply(self, status: StatusCode) -> Reply {
        reply(status, JSON, json_text(&self.0))
    }

    fn responses(status: StatusCode, schemas: &mut SchemaGenerator) -> Responses {
        Responses::from_iter([response(status, [(JSON, schemas.subschema_for::<T>())])])
    }
}
