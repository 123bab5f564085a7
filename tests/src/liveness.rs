//! The liveness clocks of a server, over HTTP: time that passes, and strikes.

use std::time::Duration;

use anyhow::{Context, Result};
use pointsman_core::Micros;

use crate::PATIENCE;
use crate::client::Client;
use crate::exposition::{samples, total};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Waits until the host's clock has moved on by this time.
///
/// # Errors
/// If it stands still.
pub async fn passes(client: Client, time: Micros) -> Result<()> {
    let now = async || {
        let shown = client.get("/monitor/data").await?.json()?;
        shown["at_micros"].as_u64().context("no time is shown")
    };
    let since = now().await?;
    let waited = tokio::time::timeout(PATIENCE, async {
        while now().await? < since + time.0 {
            tokio::time::sleep(LOOK).await;
        }
        anyhow::Ok(())
    });
    waited.await.context("the host's clock stands still")?
}

/// The strikes against policies so far, for requests that they left waiting.
///
/// # Errors
/// If there is no answer.
pub async fn strikes(client: Client) -> Result<f64> {
    let samples = samples(client).await?;
    Ok(total(&samples, "pointsman_liveness_strikes_total", &[]))
}
