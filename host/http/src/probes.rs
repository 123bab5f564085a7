//! `/live`, `/health`, `/ready` and `/metrics`: for supervisors, load balancers and monitoring.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::HeaderValue;
use pointsman_driver::message::Load;
use pointsman_driver::metrics::CONTENT_TYPE;
use schemars::{JsonSchema, SchemaGenerator, json_schema};
use serde::Serialize;
use tokio::time::timeout;

use super::answer::{HttpAnswer, HttpReply, JSON, Responses, json_text, reply, response};
use super::error::ApiError;
use super::router::Call;
use super::{App, ServerPhase};

/// The reason why nothing is served before there is an [`App`].
pub(super) const LOADING: &str = "models are being loaded";
/// The reason why an [`App`] does not serve yet.
pub(super) const PREPARING: &str = "executors are being waited for or policies put in force";

/// The longest wait for an answer of the driver; a slower driver is not healthy.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The answer of `/live`, `/health` and `/ready`, with 200 or 503.
#[derive(Serialize, JsonSchema)]
pub(super) struct Probe {
    status: ProbeStatus,
    /// The reason, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ProbeStatus {
    Live,
    #[serde(rename = "not live")]
    NotLive,
    Ok,
    Unhealthy,
    Ready,
    #[serde(rename = "not ready")]
    NotReady,
}

/// The metrics in OpenMetrics' text format.
pub(super) struct MetricsText(String);

/// The answer to a probe while models are being loaded, with the label of its path; absent: `path` is no probe's.
pub(super) fn while_loading(path: &str) -> Option<(&'static str, Probe)> {
    let (endpoint, status, reason) = match path {
        "/live" => ("live", ProbeStatus::Live, None),
        "/health" => ("health", ProbeStatus::Unhealthy, Some(LOADING)),
        "/ready" => ("ready", ProbeStatus::NotReady, Some(LOADING)),
        _ => return None,
    };
    Some((endpoint, Probe { status, reason }))
}

pub(super) async fn live(call: Call<'_>) -> Result<Probe, ApiError> {
    let reason = load(call.app).await.err();
    let status = reason.map_or(ProbeStatus::Live, |_| ProbeStatus::NotLive);
    Ok(Probe { status, reason })
}

pub(super) async fn health(call: Call<'_>) -> Result<Probe, ApiError> {
    let reason = match load(call.app).await {
        Ok(load) if load.executors_up > 0 => None,
        Ok(_) => Some("no executor is up"),
        Err(reason) => Some(reason),
    };
    let status = reason.map_or(ProbeStatus::Ok, |_| ProbeStatus::Unhealthy);
    Ok(Probe { status, reason })
}

/// The load, as the driver tells it in time; otherwise the reason why it does not.
async fn load(app: &App) -> Result<Load, &'static str> {
    match timeout(DRIVER_TIMEOUT, app.driver.load()).await {
        Ok(Some(load)) => Ok(load),
        Ok(None) => Err("the driver has ended"),
        Err(_elapsed) => Err("the driver does not answer"),
    }
}

pub(super) async fn ready(call: Call<'_>) -> Result<Probe, ApiError> {
    let reason = match call.app.phase() {
        ServerPhase::Serving => None,
        ServerPhase::Starting => Some(PREPARING),
        ServerPhase::Draining | ServerPhase::Ended => Some("the server is shutting down"),
    };
    let status = reason.map_or(ProbeStatus::Ready, |_| ProbeStatus::NotReady);
    Ok(Probe { status, reason })
}

/// Renders the metrics. The driver is asked for the gauges; without an answer they keep their last
/// values.
pub(super) async fn metrics(call: Call<'_>) -> Result<MetricsText, ApiError> {
    let app = call.app;
    let (metrics, catalog) = (&app.metrics, app.catalog());
    Ok(MetricsText(metrics.gather(&app.driver, &catalog).await))
}

// === impl Probe ===

impl HttpAnswer for Probe {
    fn into_reply(self, status: StatusCode) -> HttpReply {
        let status = match self.reason {
            None => status,
            Some(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        reply(status, JSON, json_text(&self))
    }

    fn responses(status: StatusCode, schemas: &mut SchemaGenerator) -> Responses {
        let statuses = [status, StatusCode::SERVICE_UNAVAILABLE];
        let responses =
            statuses.map(|status| response(status, [(JSON, schemas.subschema_for::<Self>())]));
        Responses::from_iter(responses)
    }
}

// === impl MetricsText ===

impl HttpAnswer for MetricsText {
    fn into_reply(self, status: StatusCode) -> HttpReply {
        reply(status, HeaderValue::from_static(CONTENT_TYPE), self.0)
    }

    fn responses(status: StatusCode, _: &mut SchemaGenerator) -> Responses {
        let content_type = HeaderValue::from_static(CONTENT_TYPE);
        let schema = json_schema!({"type": "string"});
        Responses::from_iter([response(status, [(content_type, schema)])])
    }
}
