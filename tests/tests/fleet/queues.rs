//! The order of requests that wait elsewhere than in the queue: outside it, and in the queue of an
//! executor.

use anyhow::{Context, Result, bail, ensure};
use pointsman_config::{Config, JournalPlace};
use pointsman_driver::provider::ExecutorTerms;
use pointsman_policy_cli::Verdict;
use pointsman_tests::client::{Client, Stream};
use pointsman_tests::gate::Gate;
use pointsman_tests::journal::{replay_args, replay_said};
use pointsman_tests::serving::{Serving, set};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::{self, JoinHandle};

use super::pools::{answered, completed, of_blocks};
use super::{endless, over, running};

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

/// Requests that run until their client leaves, and wait for one slot: those that start, in their
/// order, which none but the server decides, as the next one starts when a client leaves.
struct Line {
    client: Client,
    start: Sender<(&'static str, Result<Stream>)>,
    started: Receiver<(&'static str, Result<Stream>)>,
}

impl Line {
    fn new(client: Client) -> Self {
        let (start, started) = mpsc::channel(4);
        Self {
            client,
            start,
            started,
        }
    }

    fn join(&self, name: &'static str, hints: Value) {
        let (client, start) = (self.client, self.start.clone());
        task::spawn(async move {
            let stream = running(client, endless("demo", hints)).await;
            drop(start.send((name, stream)).await);
        });
    }

    /// Expects these to start, in this order.
    async fn expect(mut self, order: &[&str]) -> Result<()> {
        for expected in order {
            let (name, stream) = self.started.recv().await.context("nobody starts")?;
            ensure!(name == *expected, "{name} before {expected}");
            drop(stream?);
        }
        Ok(())
    }
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
        config.local.executors[0].terms = ExecutorTerms {
            slots: 1,
            queue: 3,
            ..ExecutorTerms::default()
        };
    })
    .await?;
    let client = serving.client;
    let stream = running(client, endless("demo", json!({}))).await?;
    let line = Line::new(client);
    for (at, name) in ["first", "second", "third"].into_iter().enumerate() {
        line.join(name, json!({}));
        // Each has its place before the next one comes, so the queue has no order to give.
        let listed = |listed: &Value| listed["executors"][0]["queued"] == at + 1;
        super::until(client, "/admin/executors", listed).await?;
    }
    drop(stream);
    line.expect(&["third", "second", "first"]).await?;
    replayed(serving, journal).await
}

#[tokio::test]
async fn requests_outside_the_queue_enter_it_in_the_order_of_the_policy() -> Result<()> {
    let journal = tempfile::tempdir()?;
    let serving = last_come_first(&journal, |config| {
        config.local.executors[0].terms.slots = 1;
        config.core.queue_max = 1;
        config.core.parking_max = 3;
    })
    .await?;
    let client = serving.client;
    let stream = running(client, endless("demo", json!({}))).await?;
    let line = Line::new(client);
    line.join("queued", json!({}));
    serving.load_until(|load| load.queued == 1).await?;
    for (at, name) in ["first", "second", "third"].into_iter().enumerate() {
        line.join(name, json!({}));
        serving.load_until(|load| load.parked == at + 1).await?;
    }
    drop(stream);
    line.expect(&["queued", "third", "second", "first"]).await?;
    replayed(serving, journal).await
}

#[tokio::test]
async fn an_executors_queue_starts_latency_critical_requests_first() -> Result<()> {
    let serving = Serving::start(|config| {
        config.local.executors[0].terms = ExecutorTerms {
            slots: 1,
            queue: 1,
            ..ExecutorTerms::default()
        };
    })
    .await?;
    let client = serving.client;
    let stream = running(client, endless("demo", json!({}))).await?;
    let line = Line::new(client);
    for (at, class) in ["throughput", "latency-critical"].into_iter().enumerate() {
        line.join(class, json!({"class": class}));
        // Each waits at the executor, in its class's own queue, which has room for one.
        let listed = |listed: &Value| listed["executors"][0]["queued"] == at + 1;
        super::until(client, "/admin/executors", listed).await?;
    }
    drop(stream);
    line.expect(&["latency-critical", "throughput"]).await?;
    over(serving).await
}

/// The end of each of a line of requests: the third in the line and the fourth, which found all full.
const OVERFLOWS: [(&str, [u16; 2]); 3] = [
    ("block", [200, 200]),
    ("drop-newest", [200, 429]),
    ("drop-oldest", [429, 200]),
];

#[tokio::test]
async fn behind_a_full_queue_of_an_executor_each_overflow_says_who_is_refused() -> Result<()> {
    for (overflow, wanted) in OVERFLOWS {
        let gate = Gate::default();
        let tune = |config: &mut Config| {
            config.local.executors[0].terms = ExecutorTerms {
                slots: 1,
                queue: 1,
                ..ExecutorTerms::default()
            };
            config.core.queue_max = 1;
            set(config, "budget", &json!({"overflow": overflow}));
        };
        let serving = Serving::start_with(tune, gate.backends()).await?;
        let client = serving.client;
        gate.shut();
        let short = |hints: Value| of_blocks(1, "demo", &hints);
        let first = completed(client, short(json!({})));
        serving.load_until(|load| load.slots_used == 1).await?;
        let second = completed(client, short(json!({})));
        let full = |listed: &Value| listed["executors"][0]["queued"] == 1;
        super::until(client, "/admin/executors", full).await?;
        // There is room to wait, but not at the executor.
        let background = answered(client, short(json!({"may_wait": false}))).await??;
        ensure!(background.status == 429, "{overflow}: {background:?}");
        let third = answered(client, short(json!({})));
        serving.load_until(|load| load.queued == 1).await?;
        let fourth = answered(client, short(json!({})));
        let ended = match wanted {
            [200, 200] => serving.load_until(|load| load.parked == 1).await.map(drop),
            [429, _] => over_soon(&third).await,
            [_, _] => over_soon(&fourth).await,
        };
        ended?;
        gate.open();
        first.await??;
        second.await??;
        let statuses = [third.await??, fourth.await??].map(|answer| answer.status.as_u16());
        ensure!(statuses == wanted, "{overflow}: {statuses:?}");
        over(serving).await?;
    }
    Ok(())
}

/// Waits until a request is answered while no engine moves.
async fn over_soon<T>(task: &JoinHandle<T>) -> Result<()> {
    for _ in 0..6000 {
        if task.is_finished() {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    bail!("nobody is refused")
}
