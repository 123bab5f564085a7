//! A collector that fails while its host ends.

use std::time::Duration;

use anyhow::{Result, ensure};
use pointsman_tests::backend::{Conduct, head};
use pointsman_tests::exposition::{samples, total};
use pointsman_tests::otlp::MockCollector;
use pointsman_tests::serving::Serving;

/// Time between two looks at the numbers.
const LOOK: Duration = Duration::from_millis(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_another_try_goes_out_when_the_host_ends() -> Result<()> {
    let collector = MockCollector::start().await?;
    let later = head(503, &[("retry-after", "30")], 0);
    collector.server.does(Conduct::Bytes(later.into_bytes()));
    let settings = collector.settings()?;
    let serving = Serving::start(|config| config.telemetry = Some(settings)).await?;
    serving.client.chat("Hello").await?.text()?;
    collector.server.heard("/v1/traces", 1).await?;
    // Whatever was sent before these exports of metrics is answered by now.
    let failed = async || {
        let exported = samples(serving.client).await?;
        let labels = [("outcome", "dropped")];
        anyhow::Ok(total(&exported, "pointsman_metric_exports_total", &labels))
    };
    let before = failed().await?;
    while failed().await? < before + 2.0 {
        tokio::time::sleep(LOOK).await;
    }
    ensure!(collector.messages("/v1/traces").len() == 1);
    let takes = head(200, &[("content-type", "application/json")], 2) + "{}";
    collector.server.does(Conduct::Bytes(takes.into_bytes()));
    serving.server.stop().await?;
    ensure!(collector.messages("/v1/traces").len() == 2);
    Ok(())
}
