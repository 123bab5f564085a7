//! The way of a request: its route is found, its sender's rights are checked, its function is run.

use std::sync::Arc;

use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::header;
use pointsman_driver::catalog::Catalog;
use pointsman_driver::metrics::Metrics;
use pointsman_driver::spans::Operation;

use super::answer::HttpReply;
use super::audit::{Audit, OrderBody};
use super::auth::{RouteAccess, Visitor};
use super::body::{RequestBody, Uncounted};
use super::connection::{CLOSE, EntryPoint, Seat};
use super::error::ApiError;
use super::front::Front;
use super::rights::KeyHolder;
use super::routes::{Resource, Route};
use super::settings::AccessRules;
use super::trace::Refusable;
use super::{App, ServerPhase, body, cors, reached};

/// A request on its way to the function of its route.
#[derive(Debug)]
pub struct Call<'a> {
    /// The state of the server.
    pub app: &'a Arc<App>,
    /// The keys and rules that the request goes by.
    pub rules: &'a Arc<AccessRules>,
    /// The holder of the key that asks; anybody where the route is not for clients.
    pub holder: &'a Arc<KeyHolder>,
    /// The operation that the route is in a trace.
    pub operation: Operation,
    /// The text at the path's parameter, unescaped; empty where the path has none.
    pub parameter: String,
    /// The request, whose body [`Call::body`] reads.
    pub request: Request<Incoming>,
    /// The place for the body of an order, which the audit line has; absent: it is none.
    order_body: Option<OrderBody>,
    /// The bytes of bodies that are not counted, of the request's connection.
    uncounted: Uncounted,
}

/// Answers one request.
///
/// # Cancellation
/// A completion under way is cancelled. An order that has begun goes on, and has its line.
pub(super) async fn answer(
    front: &Front,
    entry: EntryPoint,
    request: Request<Incoming>,
) -> HttpReply {
    let Some(app) = front.app() else {
        return front.answer_while_loading(&request);
    };
    let sends_body = !request.body().is_end_stream();
    let found = app
        .routes
        .find_or_pass_on(request.uri().path(), &app.catalog());
    let endpoint = found.as_ref().map_or("unknown", |found| found.label());
    let rules = app.rules();
    let origins = &rules.origins;
    let is_for_clients = found.as_ref().is_ok_and(|found| !found.is_for_operators());
    let cors = is_for_clients.then(|| origins.answer_headers(request.headers()));
    let for_models = found.as_ref().ok().filter(|found| found.is_for_models());
    let operation = for_models.map(Resource::operation);
    let refusable = operation.map(|operation| Refusable::arrives(app, operation, &request));
    let is_order = |found: &Resource<'_>| found.is_order(request.method());
    let audit = found.as_ref().is_ok_and(is_order);
    let audit = audit.then(|| Audit::begin(&rules.keys, Some(entry.peer), &request));
    let admitted = found.and_then(|resource| admit((app, &rules), entry, resource, request));
    let mut tenant = None;
    let answered = match admitted {
        Ok(Admitted::Runs(mut call, route)) => {
            call.order_body = audit.as_ref().map(Audit::body);
            let holder = Arc::clone(call.holder);
            let answered = route.function.run(call, route.status).await;
            tenant = Some(holder).filter(|_| operation.is_some());
            answered.map(|mut reply| {
                cors::remove_others(reply.headers_mut());
                reply
            })
        }
        Ok(Admitted::Answered(reply)) => Ok(reply),
        Err(error) => Err(error),
    };
    let mut reply = answered.unwrap_or_else(|error| {
        if let Some(refusable) = refusable {
            let tenant = tenant.as_ref().map(|holder| &*holder.rights().tenant);
            refusable.refused(tenant, &error);
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
    if let Some(holder) = tenant {
        let limits = app.limit_headers(&holder.rights().tenant);
        reply.headers_mut().extend(limits);
    }
    if let Some(audit) = audit {
        audit.end(reply.status().as_u16());
    }
    count(&app.metrics, endpoint, &reply);
    reply
}

/// Counts an answer, which begins.
pub(super) fn count(metrics: &Metrics, endpoint: &'static str, reply: &HttpReply) {
    let status = reply.status().as_u16();
    metrics.http_response(endpoint, status);
    tracing::debug!(endpoint, status, "response begins");
}

/// A request that was let in.
enum Admitted<'a> {
    /// The request is on its way to the function of its route.
    Runs(Call<'a>, &'a Route),
    /// The request was a browser's question, and has its answer.
    Answered(HttpReply),
}

/// Lets a request in by the rule of its route.
fn admit<'a>(
    (app, rules): (&'a Arc<App>, &'a Arc<AccessRules>),
    entry: EntryPoint,
    resource: Resource<'a>,
    request: Request<Incoming>,
) -> Result<Admitted<'a>, ApiError> {
    let origins = &rules.origins;
    if let Some(reply) = origins.preflight(&request, &resource) {
        return Ok(Admitted::Answered(reply));
    }
    let route = resource.route(request.method())?;
    if entry.seat == Seat::Spare && route.access != RouteAccess::Open {
        let retry_after = app.settings.retry_after_secs;
        return Err(ApiError::ConnectionsFull { retry_after });
    }
    let visitor = Visitor {
        listener: entry.listener,
        headers: request.headers(),
        origins,
    };
    let holder = rules.keys.admit(route.access, visitor)?;
    let call = Call {
        app,
        rules,
        holder,
        operation: route.operation,
        parameter: resource.parameter,
        request,
        order_body: None,
        uncounted: entry.uncounted,
    };
    Ok(Admitted::Runs(call, route))
}

// === impl Call ===

impl Call<'_> {
    /// The names that the client may use now.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        self.holder.view(self.app.catalog())
    }

    /// Reads the whole body of the request. A server that drains waits no longer for the rest of it.
    ///
    /// # Errors
    /// If the body is too large, takes too long or breaks off, or if the server drains before it is whole.
    ///
    /// # Cancellation
    /// The part that was read is dropped.
    pub async fn body(self) -> Result<RequestBody, ApiError> {
        let mut phase = self.app.phase.clone();
        let memory = (&self.app.bodies, &self.uncounted);
        // A body that is there is read: it is not refused for what is missing.
        let body = tokio::select! {
            biased;
            body = body::read(self.request, &self.app.settings, memory) => body?,
            () = reached(&mut phase, ServerPhase::Draining) => return Err(ApiError::draining()),
        };
        if let Some(order) = &self.order_body {
            order.keep(&body);
        }
        Ok(body)
    }
}
