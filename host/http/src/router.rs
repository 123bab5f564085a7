//! The way of a request: its route is found, its sender's rights are checked, its function is run.

use bytes::Bytes;
use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderValue};

use super::answer::Reply;
use super::auth::Listener;
use super::error::ApiError;
use super::routes::Resource;
use super::{App, body};

/// A request on its way to the function of its route.
pub(super) struct Call<'a> {
    pub(super) app: &'a App,
    /// The tenant that asks; the default one where the route is not for clients.
    pub(super) tenant: &'a str,
    /// The text at the path's parameter, unescaped; empty where the path has none.
    pub(super) parameter: String,
    pub(super) request: Request<Incoming>,
}

/// Answers one request.
///
/// # Cancellation
/// A completion under way is cancelled.
pub(super) async fn answer(app: &App, listener: Listener, request: Request<Incoming>) -> Reply {
    let sends_body = !request.body().is_end_stream();
    let found = Resource::find(request.uri().path());
    let endpoint = found.as_ref().map_or("unknown", |found| found.label());
    let answered = match found {
        Ok(resource) => run(app, listener, resource, request).await,
        Err(error) => Err(error),
    };
    let reply = answered.unwrap_or_else(|error| {
        let is_unread = sends_body && error.leaves_body_unread();
        let mut reply = error.into_reply();
        if is_unread {
            // hyper reads on only for bytes that are there already, and closes otherwise.
            let close = HeaderValue::from_static("close");
            reply.headers_mut().insert(header::CONNECTION, close);
        }
        reply
    });
    let status = reply.status().as_u16();
    app.watched.metrics.http_response(endpoint, status);
    tracing::debug!(endpoint, status, "response begins");
    reply
}

async fn run(
    app: &App,
    listener: Listener,
    resource: Resource,
    request: Request<Incoming>,
) -> Result<Reply, ApiError> {
    let route = resource.route(request.method())?;
    let keys = &app.settings.keys;
    let tenant = keys.admit(route.access, listener, request.headers())?;
    let call = Call {
        app,
        tenant,
        parameter: resource.parameter,
        request,
    };
    route.function.run(call, route.status).await
}

// === impl Call ===

impl Call<'_> {
    /// Reads the whole body of the request.
    ///
    /// # Cancellation
    /// The part that was read is dropped.
    pub(super) async fn body(self) -> Result<Bytes, ApiError> {
        body::read(self.request, &self.app.settings).await
    }
}
