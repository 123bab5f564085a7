//! The order of requests that wait elsewhere than in the queue: outside it, and in the queue of an
//! executor.

use anyhow::{Context, Result, ensure};
use pointsman_driver::provider::ExecutorTerms;
use pointsman_policy_cli::Verdict;
use pointsman_server::config::{Config, JournalPlace};
use pointsman_tests::client::Client;
use pointsman_tests::journal::{replay_args, replay_said};
use pointsman_tests::serving::Serving;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task;

use super::{ask, endless, over, running};

/// A server in which those that came last go first, and which records that in `journal`.
async fn last_come_first(journal: &TempDir, tune: impl FnOnce(&mut Config)) -> Result<Serving> {
    let place = JournalPlace::Folder(journal.path().to_owned());
    let serving = Serving::start(|config| {
        config.journal.place = place;
        tune(config);
    })
    .await?;
    serving
        .decide_by("queue-order", "queue-order", "discipline = \"lcfs\"")
        .await?;
    Ok(serving)
}

/// Has a short request answered on a task of its own, which then tells its name.
fn short(client: Client, name: &'static str, done: &Sender<(&'static str, Result<String>)>) {
    let done = done.clone();
    task::spawn(async move {
        let answer = client
            .post("/v1/chat/completions", &ask("demo", json!({})))
            .await;
        let text = answer.and_then(|answer| answer.text());
        drop(done.send((name, text)).await);
    });
}

/// Expects these to be answered, in this order.
async fn expect_order(
    mut done: Receiver<(&'static str, Result<String>)>,
    order: &[&str],
) -> Result<()> {
    for expected in order {
        let (name, text) = done.recv().await.context("no answer")?;
        ensure!(!text?.is_empty());
        ensure!(name == *expected, "{name} before {expected}");
    }
    Ok(())
}

/// The end of a test: what was recorded is replayed.
async fn replayed(serving: Serving, journal: TempDir) -> Result<()> {
    over(serving).await?;
    let said = move || replay_said(&replay_args(journal.path()));
    let (said, verdict) = task::spawn_blocking(said).await??;
    ensure!(verdict == Verdict::Good, "{said}");
    Ok(())
}

#[tokio::test]
async fn an_executors_queue_starts_in_the_order_of_the_policy() -> Result<()> {
    let journal = tempfile::tempdir()?;
    let serving = last_come_first(&journal, |config| {
        config.executors[0].terms = ExecutorTerms {
            slots: 1,
            queue: 3,
            ..ExecutorTerms::default()
        };
    })
    .await?;
    let client = serving.client;
    let stream = running(client, endless("demo", json!({}))).await?;
    let (done, order) = mpsc::channel(3);
    for (at, name) in ["first", "second", "third"].into_iter().enumerate() {
        short(client, name, &done);
        // Each has its place before the next one comes, so the queue has no order to give.
        let listed = |listed: &serde_json::Value| listed["executors"][0]["queued"] == at + 1;
        super::until(client, "/admin/executors", listed).await?;
    }
    drop(stream);
    expect_order(order, &["third", "second", "first"]).await?;
    replayed(serving, journal).await
}

#[tokio::test]
async fn requests_outside_the_queue_enter_it_in_the_order_of_the_policy() -> Result<()> {
    let journal = tempfile::tempdir()?;
    let serving = last_come_first(&journal, |config| {
        config.executors[0].terms.slots = 1;
        config.core.queue_max = 1;
        config.core.parking_max = 3;
    })
    .await?;
    let client = serving.client;
    let stream = running(client, endless("demo", json!({}))).await?;
    let (done, order) = mpsc::channel(4);
    short(client, "queued", &done);
    serving.load_until(|load| load.queued == 1).await?;
    for (at, name) in ["first", "second", "third"].into_iter().enumerate() {
        short(client, name, &done);
        serving.load_until(|load| load.parked == at + 1).await?;
    }
    drop(stream);
    expect_order(order, &["queued", "third", "second", "first"]).await?;
    replayed(serving, journal).await
}
