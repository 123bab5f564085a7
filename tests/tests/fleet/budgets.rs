//! Tokens of a step, divided among the engines of a device, and blocks taken from one engine for
//! another.

use anyhow::{Result, ensure};
use pointsman_config::Config;
use pointsman_driver::provider::{ExecutorConfig, ExecutorTerms};
use pointsman_tests::client::Client;
use pointsman_tests::exposition::{samples, total};
use pointsman_tests::gate::Gate;
use pointsman_tests::serving::{Serving, set};
use serde_json::json;
use tokio::task::JoinHandle;

use super::pools::{BLOCK, completed, of_blocks, used};
use super::{endless, executor, get, order, over, running, second, until};

/// An executor for the demo model, then others for `second`, with these shares.
pub(super) fn weighted(config: &mut Config, weights: &[u32]) {
    config.local.models.push(second());
    let models = ["demo"].into_iter().chain(std::iter::repeat("second"));
    let executors = weights.iter().zip(models).enumerate();
    let executors = executors.map(|(at, (share_weight, model))| ExecutorConfig {
        terms: ExecutorTerms {
            slots: 2,
            share_weight: *share_weight,
            ..ExecutorTerms::default()
        },
        ..executor(&format!("e{at}"), &[model])
    });
    config.local.executors = executors.collect();
}

/// Waits until the executors have these tokens per step.
pub(super) async fn shares(client: Client, wanted: &[u64]) -> Result<()> {
    until(client, "/admin/executors", |listed| {
        let executors = listed["executors"].as_array().into_iter().flatten();
        let shares = executors.map(|executor| executor["tokens_per_step_max"].as_u64());
        shares.eq(wanted.iter().map(|tokens| Some(*tokens)))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn engines_of_two_models_share_by_weight_and_an_idle_one_has_nothing() -> Result<()> {
    let serving = Serving::start(|config| weighted(config, &[1, 3])).await?;
    let client = serving.client;
    // Of 256 tokens one engine has at most 900 permille, though it is alone.
    let demo = running(client, endless("demo", json!({}))).await?;
    shares(client, &[230, 0]).await?;
    let other = running(client, endless("second", json!({}))).await?;
    shares(client, &[64, 192]).await?;
    drop(demo);
    shares(client, &[0, 230]).await?;
    drop(other);
    // Where none is active, all count as active.
    shares(client, &[64, 192]).await?;
    over(serving).await
}

#[tokio::test]
async fn what_is_above_the_cap_goes_to_the_others_by_weight() -> Result<()> {
    let serving = Serving::start(|config| weighted(config, &[98, 1, 1])).await?;
    let client = serving.client;
    let mut streams = Vec::new();
    for (model, executor) in [("demo", "e0"), ("second", "e1"), ("second", "e2")] {
        let hints = json!({"executors": [executor]});
        streams.push(running(client, endless(model, hints)).await?);
    }
    shares(client, &[230, 13, 13]).await?;
    drop(streams);
    over(serving).await
}

#[tokio::test]
async fn what_rounding_leaves_goes_to_the_largest_remainders_and_then_in_attach_order() -> Result<()>
{
    for (weights, wanted) in [
        // 85.3 each.
        ([1, 1, 1], [86, 85, 85]),
        // 36.6, 73.1 and 146.3.
        ([1, 2, 4], [37, 73, 146]),
        // 36.6 and 109.7 twice.
        ([1, 3, 3], [36, 110, 110]),
    ] {
        let serving = Serving::start(|config| weighted(config, &weights)).await?;
        let client = serving.client;
        let mut streams = Vec::new();
        for (model, executor) in [("demo", "e0"), ("second", "e1"), ("second", "e2")] {
            let hints = json!({"executors": [executor]});
            streams.push(running(client, endless(model, hints)).await?);
        }
        shares(client, &wanted).await?;
        drop(streams);
        over(serving).await?;
    }
    Ok(())
}

/// Three engines on a pool of a hundred blocks, the last two with a sequence of this priority and so many
/// blocks each, and then one that needs so many blocks on the first.
struct Short {
    others: [(i32, usize); 2],
    needs: usize,
}

/// Sequences that had to give way on each engine for the needy one, while no engine moved. All are
/// answered in the end.
async fn give_way(short: Short) -> Result<[f64; 3]> {
    let gate = Gate::default();
    let tune = |config: &mut Config| {
        weighted(config, &[1, 1, 1]);
        config.local.devices[0].kv_bytes = Some(100 * BLOCK);
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    gate.shut();
    let mut sent = Vec::new();
    let mut held = 0;
    for ((priority, blocks), executor) in short.others.into_iter().zip(["e1", "e2"]) {
        let hints = json!({"executors": [executor], "priority": priority});
        sent.push(completed(client, of_blocks(blocks, "second", &hints)));
        held += blocks as u64;
        until(client, "/admin/devices", |listed| used(listed) == [held]).await?;
    }
    let body = of_blocks(short.needs, "demo", &json!({"priority": 5}));
    sent.push(completed(client, body));
    serving.load_until(|load| load.queued > 0).await?;
    let samples = samples(client).await?;
    let evicted = ["e0", "e1", "e2"].map(|name| {
        let labels = [("executor", name)];
        total(&samples, "pointsman_requests_evicted_total", &labels)
    });
    gate.open();
    for task in sent {
        task.await??;
    }
    over(serving).await?;
    Ok(evicted)
}

#[tokio::test]
async fn of_two_engines_that_could_give_blocks_the_one_with_the_least_urgent_work_does()
-> Result<()> {
    for (others, wanted) in [
        ([(0, 45), (-5, 45)], [0.0, 0.0, 1.0]),
        ([(-5, 45), (0, 45)], [0.0, 1.0, 0.0]),
        // Equals in attach order.
        ([(0, 45), (0, 45)], [0.0, 1.0, 0.0]),
        // The least urgent holds too little.
        ([(0, 60), (-5, 20)], [0.0, 1.0, 0.0]),
    ] {
        let evicted = give_way(Short { others, needs: 50 }).await?;
        ensure!(evicted == wanted, "{others:?}: {evicted:?}");
    }
    Ok(())
}

#[tokio::test]
async fn where_no_engine_alone_could_give_enough_blocks_the_needy_one_waits() -> Result<()> {
    for (others, needs) in [
        // Both together could.
        ([(0, 30), (-5, 30)], 90),
        // Neither is less urgent.
        ([(5, 45), (6, 45)], 40),
    ] {
        let evicted = give_way(Short { others, needs }).await?;
        ensure!(evicted == [0.0; 3], "{others:?}: {evicted:?}");
    }
    Ok(())
}

/// A request of one engine has 16 of 21 blocks of the device, and goes on; one of the other is more urgent, and has
/// waited for six of them, where the server is set up as `set_up` says. Returns both, the urgent one last.
async fn an_urgent_one_lacks_blocks(
    set_up: impl FnOnce(&mut Config),
) -> Result<(Serving, JoinHandle<Result<()>>, JoinHandle<Result<()>>)> {
    let gate = Gate::default();
    let tune = |config: &mut Config| {
        weighted(config, &[1, 1]);
        config.local.devices[0].kv_bytes = Some(21 * BLOCK);
        set_up(config);
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    gate.shut();
    let low = of_blocks(16, "demo", &json!({"priority": -5}));
    let low = completed(client, low);
    until(client, "/admin/devices", |listed| used(listed) == [16]).await?;
    let urgent = of_blocks(6, "second", &json!({"priority": 5}));
    let urgent = completed(client, urgent);
    serving.load_until(|load| load.queued > 0).await?;
    gate.open();
    Ok((serving, low, urgent))
}

#[tokio::test]
async fn an_engine_gives_up_blocks_for_more_urgent_work_of_another() -> Result<()> {
    let (serving, low, urgent) = an_urgent_one_lacks_blocks(|_| {}).await?;
    urgent.await??;
    // The other one begins anew, and is answered too.
    low.await??;
    let samples = samples(serving.client).await?;
    for (name, wanted) in [("requests_evicted", 1.0), ("kv_blocks_evicted", 16.0)] {
        let name = format!("pointsman_{name}_total");
        let evicted = ["e0", "e1"].map(|at| total(&samples, &name, &[("executor", at)]));
        ensure!(evicted == [wanted, 0.0], "{name}: {evicted:?}");
    }
    over(serving).await
}

#[tokio::test]
async fn what_an_engine_gives_up_for_another_one_is_kept_in_host_memory() -> Result<()> {
    let (serving, low, urgent) = an_urgent_one_lacks_blocks(|config| {
        config.local.devices[0].swap_bytes = 20 * BLOCK;
        set(config, "budget", &json!({"swap-from": 1}));
    })
    .await?;
    urgent.await??;
    low.await??;
    let samples = samples(serving.client).await?;
    let evicted = |executor: &str, how: &str| {
        let labels = [("executor", executor), ("how", how)];
        total(&samples, "pointsman_requests_evicted_total", &labels)
    };
    let swapped = ["e0", "e1"].map(|executor| evicted(executor, "swap"));
    let recomputed = ["e0", "e1"].map(|executor| evicted(executor, "recompute"));
    ensure!(
        (swapped, recomputed) == ([1.0, 0.0], [0.0, 0.0]),
        "{swapped:?} and {recomputed:?}"
    );
    until(serving.client, "/admin/devices", |listed| {
        listed["devices"][0]["host_blocks_free"] == 20
    })
    .await?;
    over(serving).await
}

#[tokio::test]
async fn nobody_gives_way_on_an_executor_that_is_not_preemptible() -> Result<()> {
    let (serving, low, urgent) = an_urgent_one_lacks_blocks(|config| {
        config.local.executors[0].terms.preemptible = false;
    })
    .await?;
    low.await??;
    urgent.await??;
    let samples = samples(serving.client).await?;
    let evicted = total(&samples, "pointsman_requests_evicted_total", &[]);
    ensure!(evicted == 0.0, "{evicted}");
    over(serving).await
}

#[tokio::test]
pub(super) async fn shares_follow_engines_that_come_and_leave() -> Result<()> {
    let gate = Gate::default();
    let tune = |config: &mut Config| weighted(config, &[1, 1]);
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    gate.shut();
    let on = |model: &str, name: &str| {
        let hints = json!({"executors": [name]});
        completed(client, of_blocks(1, model, &hints))
    };
    let mut sent = vec![on("demo", "e0"), on("second", "e1")];
    shares(client, &[128, 128]).await?;
    let table = json!({"models": ["second"], "executor": "e2", "share-weight": 2});
    order(client, "/admin/executors", &table).await?;
    shares(client, &[128, 128, 0]).await?;
    sent.push(on("second", "e2"));
    shares(client, &[64, 64, 128]).await?;
    client.delete("/admin/executors/e1").await?;
    gate.open();
    for task in sent {
        task.await??;
    }
    // None is active, so all that are left count as active.
    shares(client, &[85, 171]).await?;
    over(serving).await
}

/// The tokens of the steps of the first two engines since the last allotment.
async fn since_allotment(client: Client) -> Result<[Option<u64>; 2]> {
    let listed = get(client, "/admin/executors").await?;
    let used = |at: usize| listed["executors"][at]["tokens_since_allotment"].as_u64();
    Ok([0, 1].map(used))
}

#[tokio::test]
async fn the_tokens_that_engines_used_are_counted_from_one_allotment_to_the_next() -> Result<()> {
    let gate = Gate::default();
    let tune = |config: &mut Config| weighted(config, &[1, 1]);
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    let busy = running(client, endless("demo", json!({}))).await?;
    gate.shut();
    gate.stands(1).await?;
    // The steps so far, of which the first has a prompt.
    let used = since_allotment(client).await?;
    ensure!(
        used[0] > Some(0) && used[1] == Some(0),
        "one works alone: {used:?}"
    );
    let other = completed(client, of_blocks(1, "second", &json!({})));
    shares(client, &[128, 128]).await?;
    let used = since_allotment(client).await?;
    ensure!(used == [Some(0); 2], "no step was made since: {used:?}");
    gate.open();
    other.await??;
    drop(busy);
    over(serving).await
}
