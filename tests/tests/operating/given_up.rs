//! A server whose only engine has given up, and that is stopped.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_driver::provider::ExecutorTerms;
use pointsman_engine::thread::Recovery;
use pointsman_tests::fate::{Death, Fate};
use pointsman_tests::otlp::MockCollector;
use pointsman_tests::serving::{Serving, serve_demo};

/// The kind of the span of a request.
const SERVER: u64 = 2;

/// A server whose engine has died at each of its steps, until it gave up. The collector is told of the requests that it
/// failed when the server ends.
async fn given_up(collector: &MockCollector) -> Result<Serving> {
    let losses_max = Recovery::default().losses_max;
    let fate = Fate::new(Death::DeviceError);
    fate.after_each(&vec![0; usize::try_from(losses_max)?]);
    let mut settings = collector.settings()?;
    settings.spans_every = Duration::from_secs(3600);
    let serving = Serving::start_with(
        |config| {
            serve_demo(config, [("engine", ExecutorTerms::default())]);
            config.core.degraded_after = 1 << 20;
            config.core.down_after = 1 << 20;
            config.telemetry = Some(settings);
        },
        fate.backends(),
    );
    let serving = serving.await?;
    for _ in 0..losses_max {
        let answer = serving.client.chat("Hello").await?;
        ensure!(answer.status.is_server_error(), "{:?}", answer.json());
    }
    serving.load_until(|load| load.executors_up == 0).await?;
    Ok(serving)
}

/// Checks that the collector has heard of each request.
fn check_told(collector: &MockCollector) -> Result<()> {
    let spans = collector.spans()?;
    let requests = spans.iter().filter(|span| span.kind == SERVER).count();
    ensure!(requests == 5, "{requests} requests are told");
    Ok(())
}

#[tokio::test]
async fn a_server_whose_engine_has_given_up_says_so_once_all_else_has_ended() -> Result<()> {
    let collector = MockCollector::start().await?;
    let serving = given_up(&collector).await?;
    let stopped = serving.server.stop().await;
    let why = stopped.err().context("nothing had failed")?.to_string();
    let is_told = why.contains("`engine`") && why.contains("given up after 5 losses");
    ensure!(is_told, "{why}");
    check_told(&collector)
}

#[tokio::test]
async fn an_engine_that_had_given_up_is_no_failure_once_its_executor_was_removed() -> Result<()> {
    let collector = MockCollector::start().await?;
    let serving = given_up(&collector).await?;
    let removed = serving.client.delete("/admin/executors/engine").await?;
    ensure!(removed.status.is_success(), "{:?}", removed.json());
    serving.server.stop().await?;
    check_told(&collector)
}
