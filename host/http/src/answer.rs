//! The answers of routes' functions: their writing, and their description in the OpenAPI document.
//!
//! The type that a function returns writes the body and describes it, so that the two agree.

use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::Body;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::router::Call;

/// The failure of a body under way, with which its connection ends.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BodyError(Box<dyn Error + Send + Sync>);

/// A response that is sent all at once, or as it comes.
pub type HttpReply = Response<Either<Full<Bytes>, UnsyncBoxBody<Bytes, BodyError>>>;

/// The responses of an operation in the document, by status.
pub type Responses = Map<String, Value>;

/// An answer under way.
pub type Answering<'a, A> = Pin<Box<dyn Future<Output = Result<A, ApiError>> + Send + 'a>>;

/// The function of a route, with the type of its answer. [`route_function!`](crate::route_function) makes it.
pub struct RouteFunction(Box<dyn Function>);

/// An answer of a route's function.
pub trait HttpAnswer {
    /// Writes the response, with `status` unless the answer has its own.
    fn into_reply(self, status: StatusCode) -> HttpReply;

    /// Describes every response that [`Self::into_reply`] writes.
    fn responses(status: StatusCode, schemas: &mut SchemaGenerator) -> Responses;
}

/// A function whose answers are of any type.
trait Function: Send + Sync {
    /// Answers `call`, with `status` unless the answer has its own.
    fn run<'a>(&self, call: Call<'a>, status: StatusCode) -> Answering<'a, HttpReply>;

    /// Describes the responses that are no errors.
    fn responses(&self, status: StatusCode, schemas: &mut SchemaGenerator) -> Responses;
}

/// A [`Function`] whose answers are of the type `A`.
struct Run<A, F> {
    function: F,
    answer: PhantomData<fn() -> A>,
}

/// A body of JSON.
#[derive(Debug)]
pub struct Json<T>(pub T);

/// The media type of JSON.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Makes the [`RouteFunction`](crate::answer::RouteFunction) of an `async fn` of a call; one that shares
/// a state with others takes that first.
#[macro_export]
macro_rules! route_function {
    ($function:path) => {
        $crate::answer::RouteFunction::new(|call| Box::pin($function(call)))
    };
    ($function:path, $state:expr) => {{
        let state = ::std::sync::Arc::clone($state);
        $crate::answer::RouteFunction::new(move |call| {
            Box::pin($function(::std::sync::Arc::clone(&state), call))
        })
    }};
}

/// A response sent all at once, with this status, content type and body.
pub fn reply(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> HttpReply {
    let mut reply = Response::new(Either::Left(Full::new(body.into())));
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    reply
}

/// A response whose body is sent as it comes.
pub fn streamed<E>(body: impl Body<Data = Bytes, Error = E> + Send + 'static) -> HttpReply
where
    E: Error + Send + Sync + 'static,
{
    let body = body.map_err(|error| BodyError(Box::new(error)));
    Response::new(Either::Right(UnsyncBoxBody::new(body)))
}

/// The text of a JSON body with `value`.
///
/// # Panics
/// If `value` has a map whose keys are no texts.
pub fn json_text(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value)
        .expect("maps with text keys, texts and numbers can be written as JSON")
}

/// A response as the document has it, with the schema of each media type.
pub fn response<const N: usize>(
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

// === impl RouteFunction ===

impl RouteFunction {
    /// A function whose answers are of the type `A`.
    pub fn new<A: HttpAnswer + 'static>(
        function: impl for<'a> Fn(Call<'a>) -> Answering<'a, A> + Send + Sync + 'static,
    ) -> Self {
        let answer = PhantomData;
        Self(Box::new(Run { function, answer }))
    }

    /// Answers `call`, with `status` unless the answer has its own.
    pub(super) fn run<'a>(&self, call: Call<'a>, status: StatusCode) -> Answering<'a, HttpReply> {
        self.0.run(call, status)
    }

    /// Describes the responses that are no errors.
    pub(super) fn responses(&self, status: StatusCode, schemas: &mut SchemaGenerator) -> Responses {
        self.0.responses(status, schemas)
    }
}

impl fmt::Debug for RouteFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteFunction").finish_non_exhaustive()
    }
}

// === impl Run ===

impl<A, F> Function for Run<A, F>
where
    A: HttpAnswer + 'static,
    F: for<'a> Fn(Call<'a>) -> Answering<'a, A> + Send + Sync,
{
    fn run<'a>(&self, call: Call<'a>, status: StatusCode) -> Answering<'a, HttpReply> {
        let answering = (self.function)(call);
        Box::pin(async move { Ok(answering.await?.into_reply(status)) })
    }

    fn responses(&self, status: StatusCode, schemas: &mut SchemaGenerator) -> Responses {
        A::responses(status, schemas)
    }
}

// === impl Json ===

impl<T: Serialize + JsonSchema> HttpAnswer for Json<T> {
    fn into_reply(self, status: StatusCode) -> HttpReply {
        reply(status, JSON, json_text(&self.0))
    }

    fn responses(status: StatusCode, schemas: &mut SchemaGenerator) -> Responses {
        Responses::from_iter([response(status, [(JSON, schemas.subschema_for::<T>())])])
    }
}
