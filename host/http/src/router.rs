//! The way of a request: its route is found, its sender's rights are checked, its function is run.

use std::sync::Arc;

use hyper::body::{Body as _, Incoming};
use hyper::header;
use hyper::{HeaderMap, Request};
use pointsman_driver::catalog::Catalog;

use super::answer::Reply;
use super::auth::{Access, Listener, Visitor};
use super::body::Body;
use super::connection::{CLOSE, Seat};
use super::error::ApiError;
use super::openai::trace::Refusable;
use super::rights::Holder;
use super::routes::{Resource, Route};
use super::settings::AccessRules;
use super::{App, body};

/// A request on its way to the function of its route.
pub(super) struct Call<'a> {
    pub(super) app: &'a Arc<App>,
    /// The keys and rules that the request goes by.
    pub(super) rules: &'a Arc<AccessRules>,
    /// The holder of the key that asks; anybody where the route is not for clients.
    pub(super) holder: &'a Arc<Holder>,
    /// The text at the path's parameter, unescaped; empty where the path has none.
    pub(super) parameter: String,
    pub(super) request: Request<Incoming>,
}

/// Answers one request.
///
/// # Cancellation
/// A completion under way is cancelled.
pub(super) async fn answer(
    app: &Arc<App>,
    entry: (Listener, Seat),
    request: Request<Incoming>,
) -> Reply {
    let sends_body = !request.body().is_end_stream();
    let found = Resource::find_or_pass_on(request.uri().path(), &app.catalog());
    let endpoint = found.as_ref().map_or("unknown", |found| found.label());
    let rules = app.rules();
    let origins = &rules.origins;
    let is_for_clients = found.as_ref().is_ok_and(|found| !found.is_for_operators());
    let cors = is_for_clients.then(|| origins.answer_headers(request.headers()));
    let for_models = found.as_ref().is_ok_and(|found| found.is_for_models());
    let refusable = for_models.then(|| Refusable::arrives(app, &request));
    let admitted = found.and_then(|resource| admit((app, &rules), entry, resource, request));
    let mut limits = HeaderMap::new();
    let answered = match admitted {
        Ok(Admitted::Runs(call, route)) => {
            let holder = Arc::clone(call.holder);
            let answered = route.function.run(call, route.status).await;
            if for_models {
                limits = app.limit_headers(&holder.rights().tenant);
            }
            answered
        }
        Ok(Admitted::Answered(reply)) => Ok(reply),
        Err(error) => Err(error),
    };
    let mut reply = answered.unwrap_or_else(|error| {
        if let Some(refusable) = refusable.flatten() {
            refusable.refused(&error);
        }
        let is_unread = sends_body && error.leaves_body_unread();
        let mut reply = error.into_reply();
        if is_unread {
            // hyper reads on only for bytes that are there already, and closes otherwise.
            reply.headers_mut().insert(header::CONNECTION, CLOSE);
        }
        reply
    });
    reply.headers_mut().extend(cors.unwrap_or_default());
    reply.headers_mut().extend(limits);
    let status = reply.status().as_u16();
    app.watched.metrics.http_response(endpoint, status);
    tracing::debug!(endpoint, status, "response begins");
    reply
}

/// A request that was let in.
enum Admitted<'a> {
    /// The request is on its way to the function of its route.
    Runs(Call<'a>, &'static Route),
    /// The request was a browser's question, and has its answer.
    Answered(Reply),
}

/// Lets a request in by the rule of its route.
fn admit<'a>(
    (app, rules): (&'a Arc<App>, &'a Arc<AccessRules>),
    (listener, seat): (Listener, Seat),
    resource: Resource,
    request: Request<Incoming>,
) -> Result<Admitted<'a>, ApiError> {
    let origins = &rules.origins;
    if let Some(reply) = origins.preflight(&request, &resource) {
        return Ok(Admitted::Answered(reply));
    }
    let route = resource.route(request.method())?;
    if seat == Seat::Spare && route.access != Access::Open {
        let retry_after = app.settings.retry_after_secs;
        return Err(ApiError::ConnectionsFull { retry_after });
    }
    let visitor = Visitor {
        listener,
        headers: request.headers(),
        origins,
    };
    let holder = rules.keys.admit(route.access, visitor)?;
    let call = Call {
        app,
        rules,
        holder,
        parameter: resource.parameter,
        request,
    };
    Ok(Admitted::Runs(call, route))
}

// === impl Call ===

impl Call<'_> {
    /// The names that the client may use now.
    pub(super) fn catalog(&self) -> Arc<Catalog> {
        self.holder.view(self.app.catalog())
    }

    /// Reads the whole body of the request.
    ///
    /// # Cancellation
    /// The part that was read is dropped.
    pub(super) async fn body(self) -> Result<Body, ApiError> {
        body::read(self.request, &self.app.settings, &self.app.bodies).await
    }
}
