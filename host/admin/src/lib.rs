//! Questions and orders of operators, at `/admin`, and the monitor.
//!
//! [`routes`] has the rows of all of them, which `pointsman-server` puts into the table.
//!
//! # Invariants
//! 1. Nothing here is answered before `ApiKeys::admit` has let the request in (`router` of `pointsman-http`).
//!
//! # Not here
//! The check that the sender is an operator (`pointsman-http`).

#![forbid(unsafe_code)]

mod addition;
mod backend;
mod decisions;
mod devices;
mod dumps;
mod executors;
mod journal;
mod kept;
mod loads;
mod models;
mod monitor;
mod orders;
mod policies;
mod route;
mod routes;
mod tenants;
mod words;

use std::sync::Arc;
use std::time::Duration;

use pointsman_http::Call;
use pointsman_http::answer::Json;
use pointsman_http::error::ApiError;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

pub use kept::KeptExecutors;
pub use policies::PolicyListing;
pub use routes::routes;

/// State that the functions of operators share.
#[derive(Debug)]
struct Desk {
    /// A permit for each draft of the driver that may be finished at once.
    drafts: Arc<Semaphore>,
    /// The newest numbers of the monitor.
    newest: monitor::Newest,
    /// The executors that operators have added.
    kept: Arc<KeptExecutors>,
}

/// The questions and orders there are.
#[derive(Serialize, JsonSchema)]
struct AdminIndex {
    /// Methods and paths.
    paths: Vec<String>,
}

/// The most drafts of the driver that are finished at a time: each asks a copy of a policy, which
/// has the time and the memory of a policy in force.
const DRAFTS_MAX: usize = 2;

/// The longest wait for an answer of the driver.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);

async fn index(call: Call<'_>) -> Result<Json<AdminIndex>, ApiError> {
    let paths = call.app.routes().admin_paths();
    Ok(Json(AdminIndex { paths }))
}

/// Waits for the driver's answer, at most [`DRIVER_TIMEOUT`]. A driver that has ended gives none.
async fn in_time<T>(asked: impl Future<Output = Option<T>>) -> Result<T, ApiError> {
    match timeout(DRIVER_TIMEOUT, asked).await {
        Ok(answer) => answer.ok_or_else(ApiError::draining),
        Err(_elapsed) => {
            tracing::error!("the driver does not answer an operator");
            Err(ApiError::Internal)
        }
    }
}

/// Waits for the driver's draft, and finishes it on a thread that no connection waits for. Work that
/// has begun goes on, and counts, when its client leaves.
async fn finished<Draft: Send + 'static, T: Send + 'static>(
    desk: &Desk,
    asked: impl Future<Output = Option<Draft>>,
    finish: impl FnOnce(Draft) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let permit = Arc::clone(&desk.drafts).acquire_owned().await;
    let permit = permit.expect("the semaphore is never closed");
    let draft = in_time(asked).await?;
    let work = spawn_blocking(move || {
        let finished = finish(draft);
        drop(permit);
        finished
    });
    work.await.map_err(|error| {
        tracing::error!(%error, "asking a copy of a policy panicked");
        ApiError::Internal
    })
}

// === impl Desk ===

impl Desk {
    fn new(kept: Arc<KeptExecutors>) -> Self {
        Self {
            drafts: Arc::new(Semaphore::new(DRAFTS_MAX)),
            newest: monitor::Newest::default(),
            kept,
        }
    }
}
