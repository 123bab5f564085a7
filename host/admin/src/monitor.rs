//! `/monitor`: a page that shows the state of the whole server, and its numbers as JSON.
//!
//! # Bounds
//! The driver is asked about once a second, however many people watch: an answer is given again
//! while it is fresh, and requests that come meanwhile wait for the answer under way.

mod requests;
mod shape;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderValue};
use pointsman_core::Micros;
use pointsman_driver::operator::Operator;
use pointsman_http::answer::{HttpAnswer, HttpReply, JSON, Responses, json_text, reply, response};
use pointsman_http::error::ApiError;
use pointsman_http::{App, Call, ServerPhase};
use schemars::{JsonSchema, SchemaGenerator, json_schema};
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::Desk;
use super::executors::ExecutorList;
use super::policies::{PolicyListing, listing};
use super::tenants::{TenantShape, shapes};
use requests::EndedData;
use shape::ActivityData;

/// The page, whole: no other file belongs to it.
const PAGE: &str = concat!(
    include_str!("monitor/head.html"),
    include_str!("monitor/style.css"),
    include_str!("monitor/page.html"),
    include_str!("monitor/script.js"),
    "</script>\n</body>\n</html>\n",
);
/// The page's security policy: it loads nothing, sends nothing elsewhere and is framed by nobody.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// The time for which an answer is given again: a little less than the page waits between two
/// requests.
const FRESH: Micros = Micros(900_000);
const DRIVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The newest numbers.
#[derive(Debug, Default)]
pub(super) struct Newest {
    /// The newest answer, with its time. Locked while the driver is asked, so that one request asks
    /// for all.
    data: Mutex<Option<(Micros, Bytes)>>,
}

/// The answer of `/monitor`.
pub(super) struct Page;

/// The answer of `/monitor/data`: the text of [`MonitorData`].
pub(super) struct MonitorText(Bytes);

/// The numbers of the monitor page.
#[derive(Serialize, JsonSchema)]
struct MonitorData {
    version: &'static str,
    /// `starting`, `serving` or `draining`.
    phase: &'static str,
    /// The time of these numbers on the host's clock, which began with the process.
    at_micros: u64,
    /// The last scheduling round.
    round: String,
    /// Requests that may wait.
    queue_max: u32,
    #[serde(flatten)]
    executors: ExecutorList,
    #[serde(flatten)]
    activity: ActivityData,
    tenants: Vec<TenantShape>,
    /// The newest requests that have ended, the newest first, at most 50.
    requests: Vec<EndedData>,
    policies: PolicyListing,
}

pub(super) async fn page(_: Call<'_>) -> Result<Page, ApiError> {
    Ok(Page)
}

/// Gives the newest numbers.
///
/// # Cancellation
/// The next request that waits asks the driver anew.
pub(super) async fn data(desk: Arc<Desk>, call: Call<'_>) -> Result<MonitorText, ApiError> {
    let app = call.app;
    let mut newest = desk.newest.data.lock().await;
    let now = app.watched.clock.now();
    let fresh = newest
        .as_ref()
        .filter(|(asked, _)| now.since(*asked) < FRESH);
    let bytes = match fresh {
        Some((_, bytes)) => bytes.clone(),
        None => {
            let bytes = Bytes::from(json_text(&numbers(app).await?));
            *newest = Some((now, bytes.clone()));
            bytes
        }
    };
    Ok(MonitorText(bytes))
}

async fn numbers(app: &App) -> Result<MonitorData, ApiError> {
    let asked = async {
        let report = app.driver.operate(Operator::Monitor).await?;
        Some((report, listing(app).await?))
    };
    let Ok(answer) = timeout(DRIVER_TIMEOUT, asked).await else {
        tracing::warn!("the driver does not answer the monitor");
        return Err(ApiError::Internal);
    };
    let (report, policies) = answer.ok_or_else(ApiError::draining)?;
    let overview = &report.overview;
    Ok(MonitorData {
        version: env!("CARGO_PKG_VERSION"),
        phase: match app.phase() {
            ServerPhase::Starting => "starting",
            ServerPhase::Serving => "serving",
            ServerPhase::Draining | ServerPhase::Ended => "draining",
        },
        at_micros: overview.at.0,
        round: overview.round.to_string(),
        queue_max: app.settings.queue_max,
        executors: ExecutorList::new(&app.catalog(), overview),
        activity: ActivityData::new(&report),
        requests: report
            .finished
            .iter()
            .map(|it| EndedData::new(it))
            .collect(),
        tenants: shapes(app, report.overview.tenants),
        policies,
    })
}

// === impl Page ===

impl HttpAnswer for Page {
    fn into_reply(self, status: StatusCode) -> HttpReply {
        let mut reply = reply(status, HTML, PAGE);
        let headers = reply.headers_mut();
        let policy = HeaderValue::from_static(POLICY);
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        reply
    }

    fn responses(status: StatusCode, _: &mut SchemaGenerator) -> Responses {
        let schema = json_schema!({"type": "string"});
        Responses::from_iter([response(status, [(HTML, schema)])])
    }
}

// === impl MonitorText ===

impl HttpAnswer for MonitorText {
    fn into_reply(self, status: StatusCode) -> HttpReply {
        let mut reply = reply(status, JSON, self.0);
        let no_store = HeaderValue::from_static("no-store");
        reply.headers_mut().insert(header::CACHE_CONTROL, no_store);
        reply
    }

    fn responses(status: StatusCode, schemas: &mut SchemaGenerator) -> Responses {
        let schema = schemas.subschema_for::<MonitorData>();
        Responses::from_iter([response(status, [(JSON, schema)])])
    }
}
