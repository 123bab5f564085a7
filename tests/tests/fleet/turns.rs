//! The order of requests for warm and cold models, the turns of executors, and sessions that are hashed to
//! an executor of their group.

use anyhow::{Context, Result, ensure};
use pointsman_config::{Config, PrefixCache, UnnamedModel};
use pointsman_core::Micros;
use pointsman_driver::provider::{ExecutorConfig, ExecutorTerms, ModelConfig, ModelSource};
use pointsman_tests::client::{Answer, Client};
use pointsman_tests::gate::Gate;
use pointsman_tests::serving::{Serving, set};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::pools::{BLOCK, answered, completed, of_blocks, places};
use super::{active, executor, folder, get, order, over, second};

const HOUR: Micros = Micros(3_600_000_000);

/// An executor with one slot, on which models stay loaded.
fn of_one_slot(name: &str, models: &[&str]) -> ExecutorConfig {
    ExecutorConfig {
        terms: ExecutorTerms {
            slots: 1,
            model_unload_delay: HOUR,
            ..ExecutorTerms::default()
        },
        ..executor(name, models)
    }
}

/// The number of the decision that placed a request which was answered.
async fn decision(sent: JoinHandle<Result<Answer>>) -> Result<u64> {
    let answer = sent.await??;
    ensure!(answer.status == 200, "{answer:?}");
    let decision = answer.header("x-pointsman-decision");
    decision.parse().context("no decision")
}

/// The decisions about two requests that wait for the drained executor `free`, one after the other, once it
/// takes something again.
async fn decisions(serving: &Serving, gate: &Gate, bodies: [Value; 2]) -> Result<[u64; 2]> {
    let client = serving.client;
    let path = |order: &str| format!("/admin/executors/free/{order}");
    order(client, &path("drain"), &json!({})).await?;
    let [earlier, later] = bodies;
    let earlier = answered(client, earlier);
    serving.load_until(|load| load.queued == 1).await?;
    let later = answered(client, later);
    serving.load_until(|load| load.queued == 2).await?;
    order(client, &path("resume"), &json!({})).await?;
    serving.load_until(|load| load.queued == 1).await?;
    gate.open();
    Ok([decision(earlier).await?, decision(later).await?])
}

/// The decisions about a request of the demo model, which runs on an executor without a free slot, and about a later one of
/// `second`, which runs nowhere, where the executor was given these orders.
async fn while_one_is_full(orders: &[&str]) -> Result<[u64; 2]> {
    let gate = Gate::default();
    let tune = |config: &mut Config| {
        config.local.models.push(second());
        let full = of_one_slot("full", &["demo"]);
        config.local.executors = vec![full, of_one_slot("free", &["demo", "second"])];
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    gate.shut();
    let one = |model: &str| of_blocks(1, model, &json!({}));
    let on_full = of_blocks(1, "demo", &json!({"executors": ["full"]}));
    let (_, running) = places(client, || completed(client, on_full)).await?;
    for name in orders {
        let path = format!("/admin/executors/full/{name}");
        order(client, &path, &json!({})).await?;
    }
    let decided = decisions(&serving, &gate, [one("demo"), one("second")]).await?;
    running.await??;
    over(serving).await?;
    Ok(decided)
}

#[tokio::test]
async fn a_model_is_warm_though_no_slot_is_free_where_it_is() -> Result<()> {
    // If it were cold the older one would go first.
    let [warm, cold] = while_one_is_full(&[]).await?;
    ensure!(cold < warm, "{cold} is after {warm}");
    Ok(())
}

#[tokio::test]
async fn a_model_is_not_warm_that_runs_only_where_nothing_new_is_taken() -> Result<()> {
    let [earlier, later] = while_one_is_full(&["drain"]).await?;
    ensure!(earlier < later, "{earlier} is after {later}");
    Ok(())
}

#[tokio::test]
async fn where_the_first_request_of_a_cold_model_finds_no_room_the_next_one_starts_it() -> Result<()>
{
    let gate = Gate::default();
    let tune = |config: &mut Config| {
        let third = ModelConfig::new("third", ModelSource::Path(folder()));
        config.local.models.extend([second(), third]);
        let mut free = executor("free", &["demo", "second", "third"]);
        free.terms.slots = 2;
        config.local.executors = vec![of_one_slot("full", &["demo"]), free];
        config.local.devices[0].kv_bytes = Some(20 * BLOCK);
        config.http.prefix_cache = PrefixCache::Off;
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    gate.shut();
    let on_full = of_blocks(1, "demo", &json!({"executors": ["full"]}));
    let (_, running) = places(client, || completed(client, on_full)).await?;
    order(client, "/admin/executors/free/drain", &json!({})).await?;
    // The warm model's came first. Each of the others has room alone, but the two large ones have none together.
    let waiting = [(1, "demo"), (10, "second"), (10, "third"), (1, "third")];
    let mut sent = vec![running];
    for (queued, (blocks, model)) in (1..).zip(waiting) {
        sent.push(completed(client, of_blocks(blocks, model, &json!({}))));
        serving.load_until(|load| load.queued == queued).await?;
    }
    order(client, "/admin/executors/free/resume", &json!({})).await?;
    serving.load_until(|load| load.queued == 2).await?;
    let listed = get(client, "/admin/executors").await?;
    ensure!(active(&listed, 1) == ["second", "third"], "{listed}");
    gate.open();
    for task in sent {
        task.await??;
    }
    over(serving).await
}

#[tokio::test]
async fn a_request_that_names_no_model_is_never_warm() -> Result<()> {
    let gate = Gate::default();
    let tune = |config: &mut Config| {
        config.http.unnamed_model = UnnamedModel::Any;
        config.local.executors = vec![of_one_slot("free", &["demo"])];
    };
    let serving = Serving::start_with(tune, gate.backends()).await?;
    let client = serving.client;
    completed(client, of_blocks(1, "demo", &json!({}))).await??;
    serving.idle().await?;
    gate.shut();
    let named = of_blocks(1, "demo", &json!({}));
    let mut unnamed = named.clone();
    unnamed.as_object_mut().context("a table")?.remove("model");
    let [unnamed, named] = decisions(&serving, &gate, [unnamed, named]).await?;
    ensure!(named < unnamed, "{named} is after {unnamed}");
    over(serving).await
}

/// The executor of a request that is served while no other one is there.
async fn served(serving: &Serving, body: Value) -> Result<String> {
    let answer = answered(serving.client, body).await??;
    ensure!(answer.status == 200, "{answer:?}");
    serving.idle().await?;
    Ok(answer.header("x-pointsman-executor").to_owned())
}

#[tokio::test]
async fn executors_with_equal_shares_take_turns_for_each_model_on_its_own() -> Result<()> {
    let serving = Serving::start(|config| {
        config.local.models.push(second());
        config.http.prefix_cache = PrefixCache::Off;
        let executors = ["a", "b", "c"].map(|name| executor(name, &["demo", "second"]));
        config.local.executors = executors.to_vec();
        set(config, "memory-aware", &json!({"balance": "slots"}));
    })
    .await?;
    for (model, wanted) in [
        ("demo", "a"),
        ("demo", "b"),
        ("second", "a"),
        ("demo", "c"),
        ("second", "b"),
        ("demo", "a"),
        ("second", "c"),
        ("second", "a"),
    ] {
        let placed = served(&serving, of_blocks(1, model, &json!({}))).await?;
        ensure!(placed == wanted, "{model}: {placed} is not {wanted}");
    }
    over(serving).await
}

const SESSIONS: usize = 24;

/// The executors of one request each of many sessions in group 1.
async fn homes(client: Client) -> Result<Vec<String>> {
    let mut homes = Vec::new();
    for n in 0..SESSIONS {
        let hints = json!({"group": 1, "session": format!("session {n}")});
        let answer = answered(client, of_blocks(1, "demo", &hints)).await??;
        ensure!(answer.status == 200, "{answer:?}");
        homes.push(answer.header("x-pointsman-executor").to_owned());
    }
    Ok(homes)
}

#[tokio::test]
async fn an_executor_that_joins_a_group_is_given_few_of_its_sessions_and_no_other_moves()
-> Result<()> {
    let serving = Serving::start(|config| {
        config.http.prefix_cache = PrefixCache::Off;
        let groups = [("a", 1), ("b", 1), ("c", 1), ("other", 2)];
        let executors = groups.map(|(name, group)| ExecutorConfig {
            terms: ExecutorTerms {
                group,
                ..ExecutorTerms::default()
            },
            ..executor(name, &["demo"])
        });
        config.local.executors = executors.to_vec();
        // Where they were served is not asked.
        set(
            config,
            "memory-aware",
            &json!({"session-preference": false}),
        );
    })
    .await?;
    let client = serving.client;
    let before = homes(client).await?;
    ensure!(homes(client).await? == before, "{before:?}");
    ensure!(
        ["a", "b", "c"]
            .iter()
            .all(|name| before.iter().any(|home| home == name)),
        "{before:?}"
    );
    let table = json!({"models": ["demo"], "executor": "joins", "group": 1});
    order(client, "/admin/executors", &table).await?;
    let after = homes(client).await?;
    let moved = before.iter().zip(&after).filter(|(was, is)| was != is);
    let moved: Vec<_> = moved.map(|(_, is)| is).collect();
    ensure!(
        moved.iter().all(|home| *home == "joins"),
        "{before:?} {after:?}"
    );
    // A quarter is its due.
    ensure!(
        !moved.is_empty() && moved.len() <= SESSIONS / 2,
        "{after:?}"
    );
    over(serving).await
}
