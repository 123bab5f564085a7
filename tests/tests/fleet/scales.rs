//! The order of executors by KV pressure and load, as the default policy has it.

use anyhow::{Result, ensure};
use pointsman_config::PrefixCache;
use pointsman_driver::provider::ExecutorTerms;
use pointsman_tests::backend::{Conduct, MockBackend};
use pointsman_tests::client::{Client, streamed_chat};
use pointsman_tests::exposition::{samples, total};
use pointsman_tests::fate::{Death, Fate};
use pointsman_tests::gate::Gate;
use pointsman_tests::serving::{Serving, backend_at, serve_demo, set};
use serde_json::{Value, json};
use tokio::task::{self, JoinHandle};

use super::pools::{completed, of_blocks, places, pools, used};
use super::{ask, asked, over, until};

/// The end of a test whose engines stood still: nobody waits for the answers any more.
async fn leave(serving: Serving, gate: &Gate, sent: Vec<JoinHandle<Result<()>>>) -> Result<()> {
    for task in sent {
        task.abort();
    }
    gate.open();
    over(serving).await
}

#[tokio::test]
async fn of_executors_as_deep_the_one_with_more_free_blocks_goes_first() -> Result<()> {
    let gate = Gate::default();
    let tune = |config: &mut _| pools(config, &[100, 300, 200]);
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    gate.shut();
    let mut sent = Vec::new();
    // The first comes to three that are empty, the second to two, as the third pool is deeper then.
    for wanted in ["b", "c", "a"] {
        let body = of_blocks(1, "demo", &json!({}));
        let (placed, task) = places(client, || completed(client, body)).await?;
        ensure!(placed == wanted, "{placed} is not {wanted}");
        sent.push(task);
    }
    leave(serving, &gate, sent).await
}

#[tokio::test]
async fn of_executors_alike_the_one_that_was_given_fewer_goes_first() -> Result<()> {
    let serving = Serving::start(|config| {
        config.http.prefix_cache = PrefixCache::Off;
        let three = ["a", "b", "c"].map(|name| (name, ExecutorTerms::default()));
        serve_demo(config, three);
    })
    .await?;
    let client = serving.client;
    // They share one pool, and each request has ended before the next one comes.
    for pinned in ["a", "a", "b"] {
        asked(client, ask("demo", json!({"executors": [pinned]}))).await??;
        serving.idle().await?;
    }
    for wanted in ["c", "b", "c", "a"] {
        let placed = asked(client, ask("demo", json!({}))).await??;
        ensure!(placed == wanted, "{placed} is not {wanted}");
        serving.idle().await?;
    }
    over(serving).await
}

/// The blocks in use of the pools `a`, by several requests, and `b`, by one: and the pool that the next
/// one goes to. Each has a hundred.
const TIERS: [([usize; 2], &str); 6] = [
    // In a lower tier the deeper one goes first.
    ([69, 70], "a"),
    ([84, 85], "a"),
    ([94, 95], "a"),
    // In the same tier the less deep one does, with more blocks in use.
    ([70, 84], "b"),
    ([85, 94], "b"),
    ([95, 98], "b"),
];

#[tokio::test]
async fn tiers_of_pressure_begin_at_700_850_and_950_permille_of_the_blocks_in_use() -> Result<()> {
    for ([deep, pressed], wanted) in TIERS {
        let gate = Gate::default();
        let tune = |config: &mut _| {
            pools(config, &[100, 100]);
            // No engine computes a prompt here, so that prompts are no load.
            set(config, "memory-aware", &json!({"prefill-scale": 0}));
        };
        let serving = Serving::start_with(tune, gate.backends()).await?;
        let client = serving.client;
        gate.shut();
        let mut sent = Vec::new();
        for (pool, blocks) in [("a", deep - 2), ("a", 1), ("a", 1), ("b", pressed)] {
            let body = of_blocks(blocks, "demo", &json!({"executors": [pool]}));
            sent.push(completed(client, body));
        }
        until(client, "/admin/devices", |listed| {
            used(listed) == [deep as u64, pressed as u64]
        })
        .await?;
        let body = of_blocks(1, "demo", &json!({}));
        let (placed, task) = places(client, || completed(client, body)).await?;
        sent.push(task);
        ensure!(placed == wanted, "{deep} and {pressed}: {placed}");
        leave(serving, &gate, sent).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_executor_that_reports_no_blocks_goes_after_all_that_do() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    mock.does(Conduct::Answers(1));
    let backend = backend_at("silent", mock.addr())?;
    let gate = Gate::default();
    let tune = |config: &mut pointsman_config::Config| {
        pools(config, &[100, 100]);
        for (executor, slots) in config.local.executors.iter_mut().zip([2, 1]) {
            executor.terms.slots = slots;
        }
        config.backends.push(backend);
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    until(client, "/admin/executors", |listed| {
        listed["executors"][2]["models"] == json!(["demo"])
    })
    .await?;
    gate.shut();
    // 80 blocks are pressure of the second tier, and every request is depth: all the same.
    let mut sent = Vec::new();
    for (blocks, wanted) in [(80, "a"), (80, "b"), (1, "a"), (1, "silent")] {
        let body = of_blocks(blocks, "demo", &json!({}));
        let (placed, task) = places(client, || completed(client, body)).await?;
        ensure!(placed == wanted, "{placed} is not {wanted}");
        sent.push(task);
    }
    for task in sent {
        task.abort();
    }
    gate.open();
    serving.idle_but_for_blocks().await?;
    serving.server.stop().await
}

/// Asks for a stream of one token of a server elsewhere.
fn streamed(client: Client, hints: Value) -> JoinHandle<Result<()>> {
    task::spawn(async move {
        let mut body = streamed_chat("Hello");
        body["pointsman"] = hints;
        let streamed = client.stream(&body).await?.finish().await?;
        ensure!(streamed.done, "{streamed:?}");
        Ok(())
    })
}

#[tokio::test]
async fn where_none_reports_blocks_the_lesser_depth_decides_and_then_fewer_placements() -> Result<()>
{
    let mut mocks = Vec::new();
    let mut backends = Vec::new();
    for name in ["a", "b", "c"] {
        let mock = MockBackend::start(&["demo"]).await?;
        mock.does(Conduct::Steps(1));
        backends.push(backend_at(name, mock.addr())?);
        mocks.push(mock);
    }
    let serving = Serving::start(|config| {
        config.local.models = Vec::new();
        config.local.executors = Vec::new();
        config.backends = backends;
        config.http.prefix_cache = PrefixCache::Off;
        // Nobody goes back to where the same was said before.
        set(
            config,
            "memory-aware",
            &json!({"session-preference": false}),
        );
    })
    .await?;
    let client = serving.client;
    until(client, "/admin/executors", |listed| {
        (0..3).all(|at| listed["executors"][at]["models"] == json!(["demo"]))
    })
    .await?;
    let mut sent = Vec::new();
    for (pinned, wanted) in [
        (Some("a"), "a"),
        (Some("a"), "a"),
        (Some("b"), "b"),
        (None, "c"),
        (None, "b"),
        (None, "c"),
    ] {
        let hints = pinned.map_or(json!({}), |name| json!({"executors": [name]}));
        let (placed, task) = places(client, || streamed(client, hints)).await?;
        ensure!(placed == wanted, "{placed} is not {wanted}");
        sent.push(task);
    }
    for mock in &mocks {
        mock.allow(100);
    }
    for task in sent {
        task.await??;
    }
    serving.idle_but_for_blocks().await?;
    // Two were placed on each. With nothing running the placements count.
    for (pinned, wanted) in [
        (Some("a"), "a"),
        (Some("b"), "b"),
        (None, "c"),
        (Some("a"), "a"),
        (None, "b"),
        (None, "c"),
    ] {
        let hints = pinned.map_or(json!({}), |name| json!({"executors": [name]}));
        let (placed, task) = places(client, || streamed(client, hints)).await?;
        ensure!(placed == wanted, "{placed} is not {wanted}");
        task.await??;
        serving.idle_but_for_blocks().await?;
    }
    serving.server.stop().await
}

#[tokio::test]
async fn what_fails_is_tried_on_the_others_in_the_same_order_and_each_try_is_counted() -> Result<()>
{
    let fate = Fate::new(Death::DeviceError);
    let tune = |config: &mut _| pools(config, &[100, 300, 200]);
    let serving = Serving::start_with(tune, fate.backends()).await?;
    let client = serving.client;
    // Before the first token, and in the middle of a stream.
    for steps in [[0, 0], [5, 5]] {
        fate.after_each(&steps);
        let mut body = streamed_chat("Hello");
        body["ignore_eos"] = json!(true);
        body["max_tokens"] = json!(20);
        let read = client.stream(&body).await?.finish().await?;
        ensure!(read.done && read.error.is_none(), "{read:?}");
        let died = fate.died();
        ensure!(died == ["b", "c"], "{steps:?}: {died:?}");
        serving.idle().await?;
    }
    let samples = samples(client).await?;
    let placed = ["a", "b", "c"].map(|name| {
        let labels = [("executor", name)];
        total(&samples, "pointsman_requests_placed_total", &labels)
    });
    ensure!(placed == [2.0, 2.0, 2.0], "{placed:?}");
    over(serving).await
}
