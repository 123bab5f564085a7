//! Executors that are left to run empty for a model that is warm nowhere, and models that are kept
//! out: when, and for how long.

use anyhow::{Result, ensure};
use pointsman_config::Config;
use pointsman_core::Micros;
use pointsman_driver::provider::{ExecutorConfig, ExecutorTerms, ModelConfig, ModelSource};
use pointsman_tests::client::Client;
use pointsman_tests::gate::Gate;
use pointsman_tests::liveness::{passes, strikes};
use pointsman_tests::serving::{Serving, set};
use serde_json::{Value, json};
use tokio::task::{self, JoinHandle};

use super::pools::{BLOCK, STEPS, completed, of_blocks, places, used};
use super::{active, ask, asked, executor, folder, order, over, second, until};

const HOUR: Micros = Micros(3_600_000_000);
/// Time after which the built-in rule places what waits for no reason.
const UNPLACED_MAX: Micros = Micros(50_000);

/// An executor with so many slots, on which one of these models runs at a time.
fn of_one(name: &str, slots: u32, models: &[&str]) -> ExecutorConfig {
    ExecutorConfig {
        terms: ExecutorTerms {
            slots,
            models_max: Some(1),
            ..ExecutorTerms::default()
        },
        ..executor(name, models)
    }
}

/// These executors, for the demo model, `second` and `third`. However long a model took to start, it
/// has to make way at once.
fn drained(config: &mut Config, executors: Vec<ExecutorConfig>) {
    let third = ModelConfig::new("third", ModelSource::Path(folder()));
    config.local.models.extend([second(), third]);
    config.local.executors = executors;
    config.core.wait(Micros(2 * HOUR.0));
    config.core.held_max = HOUR;
    set(config, "memory-aware", &json!({"model-tenure": 0}));
}

#[tokio::test]
async fn no_executor_is_drained_that_alone_serves_the_model_there() -> Result<()> {
    let gate = Gate::default();
    let tune = |config: &mut Config| {
        drained(config, vec![of_one("a", 4, &["demo", "second"])]);
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    gate.shut();
    let one = |model: &str| completed(client, of_blocks(1, model, &json!({})));
    let (_, first) = places(client, || one("demo")).await?;
    let cold = one("second");
    serving.load_until(|load| load.queued == 1).await?;
    let (refilled, second) = places(client, || one("demo")).await?;
    ensure!(refilled == "a", "{refilled}");
    // Another one that takes nothing does not serve it.
    let table = json!({"models": ["demo"], "executor": "b", "slots": 1});
    order(client, "/admin/executors", &table).await?;
    order(client, "/admin/executors/b/drain", &json!({})).await?;
    let (refilled, more) = places(client, || one("demo")).await?;
    ensure!(refilled == "a", "{refilled}");
    // With one that does `a` is left to run empty: `b` takes one, and the next one waits.
    order(client, "/admin/executors/b/resume", &json!({})).await?;
    let (placed, third) = places(client, || one("demo")).await?;
    ensure!(placed == "b", "{placed}");
    let waits = one("demo");
    serving.load_until(|load| load.queued == 2).await?;
    gate.allow("a", 1000);
    for task in [first, second, more, cold] {
        task.await??;
    }
    gate.open();
    third.await??;
    waits.await??;
    over(serving).await
}

/// An executor of so many models at once, with a sequence of the demo model that holds 60 of 100 blocks,
/// and the need of a cold model.
struct Needs {
    models_max: Option<u32>,
    blocks: usize,
}

/// Places a request of the demo model there while the cold one waits, while no engine moves. True if it is
/// placed.
async fn is_refilled(needs: Needs) -> Result<bool> {
    let gate = Gate::default();
    let tune = |config: &mut Config| {
        let mut executors = vec![
            of_one("a", 3, &["demo", "second"]),
            of_one("b", 1, &["demo"]),
        ];
        executors[0].terms.models_max = needs.models_max;
        drained(config, executors);
        config.local.devices[0].kv_bytes = Some(100 * BLOCK);
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    gate.shut();
    let on_a = json!({"executors": ["a"]});
    let first = completed(client, of_blocks(60, "demo", &on_a));
    until(client, "/admin/devices", |listed| used(listed) == [60]).await?;
    let cold = completed(client, of_blocks(needs.blocks, "second", &json!({})));
    serving.load_until(|load| load.queued == 1).await?;
    let more = completed(client, of_blocks(1, "demo", &on_a));
    serving.load_until(|load| load.live == 3).await?;
    // It has been asked about when one that came later has its place.
    let on_b = json!({"executors": ["b"]});
    let last = completed(client, of_blocks(1, "demo", &on_b));
    let listed = until(client, "/admin/executors", |listed| {
        listed["executors"][1]["slots_used"] == 1
    })
    .await?;
    gate.open();
    for task in [first, cold, more, last] {
        task.await??;
    }
    over(serving).await?;
    Ok(listed["executors"][0]["slots_used"] == 2)
}

#[tokio::test]
async fn an_executor_is_drained_only_where_models_max_alone_stands_in_the_way() -> Result<()> {
    for (models_max, blocks, refilled) in [
        (Some(1), 1, false),
        // Blocks are missing too.
        (Some(1), 60, true),
        // Any number of models may run there: blocks alone are missing.
        (None, 60, true),
    ] {
        let placed = is_refilled(Needs { models_max, blocks }).await?;
        ensure!(placed == refilled, "{models_max:?}, {blocks}: {placed}");
    }
    Ok(())
}

#[tokio::test]
async fn two_models_that_are_warm_nowhere_drain_an_executor_each() -> Result<()> {
    let gate = Gate::default();
    let tune = |config: &mut Config| {
        let all = ["demo", "second", "third"];
        let executors = [("a", 4), ("b", 4), ("c", 2)];
        let executors = executors.map(|(name, slots)| of_one(name, slots, &all));
        drained(config, executors.to_vec());
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    gate.shut();
    let mut sent = Vec::new();
    for name in ["a", "b", "c"] {
        let body = of_blocks(1, "demo", &json!({"executors": [name]}));
        sent.push(places(client, || completed(client, body)).await?.1);
    }
    let one = |model: &str| completed(client, of_blocks(1, model, &json!({})));
    for (at, model) in ["second", "second", "third"].into_iter().enumerate() {
        sent.push(one(model));
        serving.load_until(|load| load.queued == at + 1).await?;
    }
    // Neither of the two is refilled, with three slots free on each.
    let (placed, more) = places(client, || one("demo")).await?;
    ensure!(placed == "c", "{placed}");
    sent.extend([more, one("demo")]);
    serving.load_until(|load| load.queued == 4).await?;
    // The one that is empty first is for the model that came first, and the other one goes on.
    for (drained, at_b, left) in [("a", "demo", 2), ("b", "third", 1)] {
        gate.allow(drained, STEPS);
        until(client, "/admin/executors", |listed| {
            active(listed, 0) == ["second"] && active(listed, 1) == [at_b]
        })
        .await?;
        let load = serving.load_until(|_| true).await?;
        ensure!(load.queued == left, "the others are kept out: {load:?}");
    }
    gate.open();
    for task in sent {
        task.await??;
    }
    over(serving).await
}

/// A chat that is answered on a task of its own, with its executor and the policy that chose it.
fn told(client: Client, body: Value) -> JoinHandle<Result<[String; 2]>> {
    task::spawn(async move {
        let answer = client.post("/v1/chat/completions", &body).await?;
        answer.text()?;
        let of = |name| answer.header(name).to_owned();
        Ok(["x-pointsman-executor", "x-pointsman-policy"].map(of))
    })
}

#[tokio::test]
async fn the_default_policy_is_not_struck_for_a_drain() -> Result<()> {
    let gate = Gate::default();
    let tune = |config: &mut Config| {
        let both = ["demo", "second"];
        drained(config, vec![of_one("a", 2, &both), of_one("b", 1, &both)]);
        config.core.unplaced_max = UNPLACED_MAX;
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    gate.shut();
    let mut sent = Vec::new();
    for name in ["a", "b"] {
        let body = of_blocks(1, "demo", &json!({"executors": [name]}));
        sent.push(places(client, || completed(client, body)).await?.1);
    }
    let cold = told(client, ask("second", json!({})));
    serving.load_until(|load| load.queued == 1).await?;
    let waits = told(client, ask("demo", json!({})));
    serving.load_until(|load| load.queued == 2).await?;
    passes(client, Micros(4 * UNPLACED_MAX.0)).await?;
    serving.load_until(|load| load.queued == 2).await?;
    gate.allow("a", 1000);
    ensure!(cold.await?? == ["a", "memory-aware"]);
    gate.open();
    ensure!(waits.await??[1] == "memory-aware");
    for task in sent {
        task.await??;
    }
    ensure!(strikes(client).await? == 0.0);
    over(serving).await
}

#[tokio::test]
async fn the_default_policy_is_not_struck_for_a_warm_hold() -> Result<()> {
    let serving = Serving::start(|config| {
        let mut both = of_one("both", 2, &["demo", "second"]);
        both.terms.model_unload_delay = HOUR;
        drained(config, vec![both]);
        config.core.unplaced_max = UNPLACED_MAX;
        set(config, "memory-aware", &json!({"affinity-bonus": 0}));
    })
    .await?;
    let client = serving.client;
    asked(client, ask("demo", json!({}))).await??;
    let held = told(client, ask("second", json!({})));
    serving.load_until(|load| load.queued == 1).await?;
    passes(client, Micros(4 * UNPLACED_MAX.0)).await?;
    serving.load_until(|load| load.queued == 1).await?;
    let table = json!({"models": ["second"], "executor": "free"});
    order(client, "/admin/executors", &table).await?;
    ensure!(held.await?? == ["free", "memory-aware"]);
    ensure!(strikes(client).await? == 0.0);
    over(serving).await
}
