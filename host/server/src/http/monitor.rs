//! `/monitor`: a page that shows how everything stands, and its numbers as JSON.
//!
//! # Bounds
//! However many watch, the driver is asked about once a second: an answer is given again while it
//! is fresh, and whoever comes meanwhile waits for the one that is asked for.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use pointsman_core::Micros;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::admin::{self, show};
use super::error::ApiError;
use super::router::whole;
use super::{App, JSON, Phase, Reply};
use crate::driver::operator::Operator;

/// The page, whole: no other file belongs to it.
const PAGE: &str = include_str!("monitor.html");
/// It loads nothing, sends nothing elsewhere and is framed by nobody.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// For so long an answer is given again; a little less than the page waits between two.
const FRESH: Micros = Micros(900_000);
const DRIVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The newest numbers.
#[derive(Debug, Default)]
pub(super) struct Newest {
    /// Held while the driver is asked, so that one asks for all.
    data: Mutex<Option<(Micros, Bytes)>>,
}

/// The page.
pub(super) fn page() -> Reply {
    let mut reply = whole(HTML, PAGE);
    let headers = reply.headers_mut();
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(POLICY),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    reply
}

/// Its numbers.
///
/// # Cancellation
/// Whoever waits next asks anew.
pub(super) async fn data(app: &App) -> Result<Reply, ApiError> {
    let mut newest = app.monitor.data.lock().await;
    let now = app.clock.now();
    let fresh = newest
        .as_ref()
        .filter(|(asked, _)| now.since(*asked) < FRESH);
    let bytes = match fresh {
        Some((_, bytes)) => bytes.clone(),
        None => {
            let bytes: Bytes = serde_json::to_vec(&numbers(app).await?)
                .expect("texts and numbers can be written as JSON")
                .into();
            *newest = Some((now, bytes.clone()));
            bytes
        }
    };
    let mut reply = whole(JSON, bytes);
    *reply.status_mut() = StatusCode::OK;
    reply
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(reply)
}

async fn numbers(app: &App) -> Result<Value, ApiError> {
    let asked = async {
        let overview = app.driver.operate(Operator::Overview).await?;
        Some((overview, admin::told(app).await?))
    };
    let Ok(answer) = timeout(DRIVER_TIMEOUT, asked).await else {
        tracing::warn!("the driver does not answer the monitor");
        return Err(ApiError::Internal);
    };
    let (overview, policies) = answer.ok_or_else(ApiError::draining)?;
    let catalog = app.catalog();
    let executors = overview.executors.iter().map(|row| {
        let mut engines = catalog.engines.iter();
        let engine = engines.find(|(name, _)| *name == row.name);
        show::executor(row, engine.map(|(_, stats)| &**stats))
    });
    let phase = match app.phase() {
        Phase::Starting => "starting",
        Phase::Serving => "serving",
        Phase::Draining | Phase::Ended => "draining",
    };
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "phase": phase,
        "at_micros": overview.at.0,
        "round": overview.round.to_string(),
        "load": show::load(&overview.load),
        "queue_max": app.queue_max,
        "executors": executors.collect::<Value>(),
        "executors_total": overview.executors_total,
        "devices": overview.devices.iter().map(show::device).collect::<Value>(),
        "policies": policies,
    }))
}
