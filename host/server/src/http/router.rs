//! What is asked for: paths, methods, and who may.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use tokio::time::timeout;

use super::auth::Door;
use super::error::{ApiError, quoted};
use super::openai::{self, Asker, Kind};
use super::{App, JSON, Phase, Reply, admin, body, monitor};
use crate::metrics::{CONTENT_TYPE, EngineTotals};

/// Something that can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Route {
    Complete(Kind),
    Models,
    Model(String),
    Health,
    Ready,
    Metrics,
    Admin(admin::Target),
    Monitor,
    MonitorData,
}

/// What a client that missed them is told.
const PATHS: &str = "POST /v1/chat/completions, POST /v1/completions, GET /v1/models, \
                     GET /v1/models/NAME, GET /health, GET /ready, GET /metrics; for operators \
                     GET /admin, GET /monitor, GET /monitor/data";

/// A driver that takes longer than this over a question is not healthy.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The answer of `/health` and `/ready`.
#[derive(Serialize)]
struct State {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// Answers one request.
///
/// # Cancellation
/// A completion under way is cancelled.
pub(super) async fn answer(app: &App, door: Door, request: Request<Incoming>) -> Reply {
    let sends_body = !request.body().is_end_stream();
    let route = Route::find(request.uri().path());
    let endpoint = route.as_ref().map_or("unknown", Route::name);
    let replied = match route {
        Ok(route) => follow(app, door, route, request).await,
        Err(error) => Err(error),
    };
    let reply = replied.unwrap_or_else(|error| {
        let unread = sends_body && error.leaves_body_unread();
        let mut reply = error.into_reply();
        if unread {
            // hyper reads on only for what is there already, and closes otherwise.
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

async fn follow(
    app: &App,
    door: Door,
    route: Route,
    request: Request<Incoming>,
) -> Result<Reply, ApiError> {
    route.check_method(request.method())?;
    let headers = request.headers();
    match route {
        Route::Complete(kind) => {
            door.check_clients()?;
            complete(app, kind, request).await
        }
        Route::Models => {
            door.check_clients()?;
            app.keys.tenant(headers)?;
            Ok(json(StatusCode::OK, &app.catalog().list()))
        }
        Route::Model(name) => {
            door.check_clients()?;
            app.keys.tenant(headers)?;
            Ok(json(StatusCode::OK, &app.catalog().model(&name)?.object()))
        }
        Route::Health => Ok(health(app).await),
        Route::Ready => Ok(ready(app)),
        Route::Metrics => {
            app.keys.may_see_metrics(headers)?;
            Ok(metrics(app).await)
        }
        Route::Admin(target) => {
            app.keys.may_administer(headers, door)?;
            admin::answer(app, target, request).await
        }
        Route::Monitor => {
            // It says nothing by itself, and asks for the key where one is needed.
            app.keys.opens_to_operators(door)?;
            Ok(monitor::page())
        }
        Route::MonitorData => {
            app.keys.may_administer(headers, door)?;
            monitor::data(app).await
        }
    }
}

async fn complete(app: &App, kind: Kind, request: Request<Incoming>) -> Result<Reply, ApiError> {
    let tenant = app.keys.tenant(request.headers())?;
    app.check_serving()?;
    let headers = request.headers().clone();
    let body = body::read(request, &app.http).await?;
    let asker = Asker {
        tenant,
        headers: &headers,
    };
    openai::complete(app, kind, asker, body).await
}

async fn health(app: &App) -> Reply {
    let load = timeout(DRIVER_TIMEOUT, app.driver.load()).await;
    let reason = match load {
        Ok(Some(load)) if load.executors_up > 0 => return state(StatusCode::OK, "ok", None),
        Ok(Some(_)) => "no executor is up",
        Ok(None) => "the driver has ended",
        Err(_elapsed) => "the driver does not answer",
    };
    state(StatusCode::SERVICE_UNAVAILABLE, "unhealthy", Some(reason))
}

fn ready(app: &App) -> Reply {
    let reason = match app.phase() {
        Phase::Serving => return state(StatusCode::OK, "ready", None),
        Phase::Starting => "models are being loaded or policies put in force",
        Phase::Draining | Phase::Ended => "the server is shutting down",
    };
    state(StatusCode::SERVICE_UNAVAILABLE, "not ready", Some(reason))
}

/// What is merely a state is asked for now; where the driver does not answer it is as it was.
async fn metrics(app: &App) -> Reply {
    let metrics = &app.watched.metrics;
    if let Ok(Some(load)) = timeout(DRIVER_TIMEOUT, app.driver.load()).await {
        metrics.load(&load);
    }
    if let Ok(Some(policies)) = timeout(DRIVER_TIMEOUT, app.driver.policies()).await {
        metrics.policies_in_force(policies);
    }
    for (executor, stats) in &app.catalog().engines {
        let totals = EngineTotals {
            steps: stats.steps.get(),
            prefill_tokens: stats.prefill_tokens.get(),
            decode_tokens: stats.generated_tokens.get(),
            busy: Duration::from_nanos(stats.busy_nanos.get()),
            sat_out: stats.sat_out.get(),
        };
        metrics.engine(executor, totals);
    }
    whole(HeaderValue::from_static(CONTENT_TYPE), metrics.render())
}

fn state(code: StatusCode, status: &'static str, reason: Option<&'static str>) -> Reply {
    json(code, &State { status, reason })
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    let text = serde_json::to_vec(value).expect("lists and strings can be written as JSON");
    let mut reply = whole(JSON, text);
    *reply.status_mut() = status;
    reply
}

pub(super) fn whole(content_type: HeaderValue, text: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Either::Left(Full::new(text.into())));
    reply
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    reply
}

// === impl Route ===

impl Route {
    fn find(path: &str) -> Result<Self, ApiError> {
        match path {
            "/v1/chat/completions" => Ok(Route::Complete(Kind::Chat)),
            "/v1/completions" => Ok(Route::Complete(Kind::Text)),
            "/v1/models" => Ok(Route::Models),
            "/health" => Ok(Route::Health),
            "/ready" => Ok(Route::Ready),
            "/metrics" => Ok(Route::Metrics),
            "/monitor" => Ok(Route::Monitor),
            "/monitor/data" => Ok(Route::MonitorData),
            _ => Self::find_named(path),
        }
    }

    fn find_named(path: &str) -> Result<Self, ApiError> {
        if let Some(rest) = path.strip_prefix("/admin") {
            return admin::Target::find(rest).map(Route::Admin);
        }
        match path.strip_prefix("/v1/models/") {
            // Names have slashes, which some clients escape and some do not.
            Some(name) if !name.is_empty() => Ok(Route::Model(unescaped(name))),
            Some(_) | None => Err(ApiError::UnknownPath {
                path: quoted(path),
                known: PATHS,
            }),
        }
    }

    /// Its name in metrics and logs.
    fn name(&self) -> &'static str {
        match self {
            Route::Complete(Kind::Chat) => "chat_completions",
            Route::Complete(Kind::Text) => "completions",
            Route::Models | Route::Model(_) => "models",
            Route::Health => "health",
            Route::Ready => "ready",
            Route::Metrics => "metrics",
            Route::Admin(_) => "admin",
            Route::Monitor => "monitor",
            Route::MonitorData => "monitor_data",
        }
    }

    fn check_method(&self, method: &Method) -> Result<(), ApiError> {
        let allow = match self {
            Route::Complete(_) => "POST",
            Route::Models
            | Route::Model(_)
            | Route::Health
            | Route::Ready
            | Route::Metrics
            | Route::Monitor
            | Route::MonitorData => "GET, HEAD",
            Route::Admin(target) => target.allow(),
        };
        if allow.split(", ").any(|allowed| allowed == method.as_str()) {
            Ok(())
        } else {
            Err(ApiError::MethodNotAllowed { allow })
        }
    }
}

/// `%2F` is `/`. What is no escape stays as it is.
pub(super) fn unescaped(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'%').then(|| after.get(..2)).flatten();
        let escaped = escaped.and_then(|hex| std::str::from_utf8(hex).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_name_may_have_slashes_escaped_or_not() {
        for path in ["/v1/models/org/name", "/v1/models/org%2fname"] {
            assert_eq!(Route::find(path), Ok(Route::Model("org/name".to_owned())));
        }
        assert_eq!(unescaped("100%"), "100%");
        assert_eq!(unescaped("%zz%4"), "%zz%4");
        assert_eq!(unescaped("%c3%a4"), "ä");
    }
}
