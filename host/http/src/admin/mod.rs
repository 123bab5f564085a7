//! Questions and orders of operators, at `/admin`.
//!
//! # Invariants
//! 1. Nothing here is answered before [`ApiKeys::admit`](super::auth::ApiKeys) has let the request
//!    in (`router`).
//!
//! # Not here
//! The check that the sender is an operator (`auth`).

pub(super) mod addition;
mod backend;
pub(super) mod decisions;
pub(super) mod devices;
pub(super) mod dumps;
pub(super) mod executors;
pub(super) mod journal;
pub(super) mod loads;
pub(super) mod models;
pub(super) mod orders;
pub(super) mod policies;
pub(super) mod route;
pub(super) mod tenants;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::App;
use super::answer::Json;
use super::error::ApiError;
use super::router::Call;
use super::routes;

/// The questions and orders there are.
#[derive(Serialize, JsonSchema)]
pub(super) struct AdminIndex {
    /// Methods and paths.
    paths: Vec<String>,
}

/// The most drafts of the driver that are finished at a time: each asks a copy of a policy, which
/// has the time and the memory of a policy in force.
pub(super) const DRAFTS_MAX: usize = 2;

/// The longest wait for an answer of the driver.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn index(_: Call<'_>) -> Result<Json<AdminIndex>, ApiError> {
    let paths = routes::admin_paths();
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
    app: &App,
    asked: impl Future<Output = Option<Draft>>,
    finish: impl FnOnce(Draft) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let permit = Arc::clone(&app.drafts).acquire_owned().await;
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
