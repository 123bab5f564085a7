//! The rules by which policies choose: strategies of routing, warm and cold models, drains, sessions.

use anyhow::{Context, Result, ensure};
use pointsman_config::{Config, PrefixCache};
use pointsman_core::Micros;
use pointsman_driver::provider::{ExecutorConfig, ExecutorTerms};
use pointsman_tests::client::{Client, Stream};
use pointsman_tests::liveness::passes;
use pointsman_tests::serving::{Serving, serve_demo, set};
use serde_json::{Value, json};
use tokio::task::{self, JoinHandle};

use super::{ask, asked, endless, executor, get, order, over, place, running, second, until};

const HOUR: Micros = Micros(3_600_000_000);

/// A server with three executors of the demo model, among which a policy of the pack chooses.
async fn three(policy: &str) -> Result<Serving> {
    let executors = ["a", "b", "c"].map(|name| (name, ExecutorTerms::default()));
    let serving = Serving::start(|config| serve_demo(config, executors)).await?;
    serving.decide_by(policy, policy, "").await?;
    Ok(serving)
}

/// The executors that serve so many requests, one after the other.
async fn served(client: Client, hints: &Value, times: usize) -> Result<Vec<String>> {
    let mut executors = Vec::new();
    for _ in 0..times {
        executors.push(asked(client, ask("demo", hints.clone())).await??);
    }
    Ok(executors)
}

#[tokio::test]
async fn round_robin_takes_executors_in_turn() -> Result<()> {
    let serving = three("round-robin").await?;
    let placed = served(serving.client, &json!({}), 7).await?;
    let mut round = placed[..3].to_vec();
    round.sort();
    ensure!(round == ["a", "b", "c"], "{placed:?}");
    ensure!(
        placed[3..6] == placed[..3] && placed[6] == placed[0],
        "{placed:?}"
    );
    over(serving).await
}

#[tokio::test]
async fn least_loaded_goes_by_depth_and_then_by_placements() -> Result<()> {
    let serving = three("least-loaded").await?;
    let client = serving.client;
    let mut streams = Vec::new();
    for executor in ["a", "a", "b"] {
        let hints = json!({"executors": [executor]});
        streams.push(running(client, endless("demo", hints)).await?);
    }
    // 2, 1 and 0 run; then 2, 1 and 1, of which the first is taken; then 2, 2 and 1.
    for executor in ["c", "b", "c"] {
        let stream = running(client, endless("demo", json!({}))).await?;
        ensure!(
            place(&stream) == executor,
            "{} for {executor}",
            place(&stream)
        );
        streams.push(stream);
    }
    drop(streams);
    over(serving).await
}

#[tokio::test]
async fn sticky_keeps_a_session_where_its_name_is_hashed_to() -> Result<()> {
    let serving = three("sticky").await?;
    let client = serving.client;
    let mut homes = Vec::new();
    for session in ["ann", "bob", "cid", "dora", "emil", "fred", "gina", "hugo"] {
        let placed = served(client, &json!({"session": session}), 3).await?;
        ensure!(
            placed.iter().all(|at| *at == placed[0]),
            "{session}: {placed:?}"
        );
        homes.push(placed[0].clone());
    }
    homes.sort();
    homes.dedup();
    ensure!(homes.len() > 1, "all sessions are on {homes:?}");
    // Without a session in turn.
    let placed = served(client, &json!({}), 6).await?;
    ensure!(
        placed[3..] == placed[..3] && placed[0] != placed[1],
        "{placed:?}"
    );
    over(serving).await
}

/// An executor of two slots for the demo model, which is loaded there and stays so, and for `second`.
/// It drains, so that what comes waits for one round.
async fn demo_is_warm(policies: Value) -> Result<Serving> {
    let serving = Serving::start(|config| {
        config.local.models.push(second());
        config.local.executors = vec![ExecutorConfig {
            terms: ExecutorTerms {
                slots: 2,
                model_unload_delay: HOUR,
                ..ExecutorTerms::default()
            },
            ..executor("both", &["demo", "second"])
        }];
        set(config, "aging", &policies);
    })
    .await?;
    asked(serving.client, ask("demo", json!({}))).await??;
    order(serving.client, "/admin/executors/both/drain", &json!({})).await?;
    Ok(serving)
}

/// Has streams of these models wait, one after the other.
async fn wait_in_order(
    serving: &Serving,
    models: &[&str],
) -> Result<Vec<JoinHandle<Result<Stream>>>> {
    let (client, mut streams) = (serving.client, Vec::new());
    let before = serving.load_until(|_| true).await?.queued;
    for (at, model) in models.iter().enumerate() {
        let body = endless(model, json!({}));
        streams.push(task::spawn(async move { client.stream(&body).await }));
        serving
            .load_until(|load| load.queued == before + at + 1)
            .await?;
    }
    Ok(streams)
}

/// Ends the drain, and looks at how many sequences of the demo model and of `second` then run.
async fn both_slots_run(serving: &Serving, wanted: [u64; 2]) -> Result<()> {
    let client = serving.client;
    order(client, "/admin/executors/both/resume", &json!({})).await?;
    serving.load_until(|load| load.slots_used == 2).await?;
    let listed = get(client, "/admin/executors").await?;
    let present = listed["executors"][0]["models_present"].as_array();
    let present = present.context("no models")?;
    let sequences = ["demo", "second"].map(|name| {
        let model = present.iter().find(|model| model["model"] == name);
        model
            .and_then(|model| model["sequences"].as_u64())
            .unwrap_or(0)
    });
    ensure!(sequences == wanted, "{sequences:?}: {listed}");
    Ok(())
}

async fn leave(serving: Serving, streams: Vec<JoinHandle<Result<Stream>>>) -> Result<()> {
    for stream in streams {
        stream.abort();
    }
    over(serving).await
}

#[tokio::test]
async fn a_cold_model_goes_first_and_then_warm_ones_before_older_requests() -> Result<()> {
    let serving = demo_is_warm(json!({})).await?;
    let streams = wait_in_order(&serving, &["second", "second", "demo"]).await?;
    // The first of the cold model; then the warm one, which came last.
    both_slots_run(&serving, [1, 1]).await?;
    leave(serving, streams).await
}

#[tokio::test]
async fn without_a_bonus_requests_go_in_order_of_arrival() -> Result<()> {
    let serving = demo_is_warm(json!({"affinity-bonus": 0})).await?;
    let streams = wait_in_order(&serving, &["second", "second", "demo"]).await?;
    both_slots_run(&serving, [0, 2]).await?;
    leave(serving, streams).await
}

#[tokio::test]
async fn waiting_outweighs_a_warm_model_in_time() -> Result<()> {
    let serving = demo_is_warm(json!({"queue-aging-equalization": "1s"})).await?;
    let mut streams = wait_in_order(&serving, &["second", "second"]).await?;
    passes(serving.client, Micros(1_100_000)).await?;
    streams.extend(wait_in_order(&serving, &["demo"]).await?);
    both_slots_run(&serving, [0, 2]).await?;
    leave(serving, streams).await
}

#[tokio::test]
async fn the_first_request_of_a_cold_model_does_not_wait_for_a_warm_one() -> Result<()> {
    let serving = Serving::start(|config| {
        config.local.models.push(second());
        config.local.executors = vec![ExecutorConfig {
            terms: ExecutorTerms {
                models_max: Some(1),
                model_unload_delay: HOUR,
                ..ExecutorTerms::default()
            },
            ..executor("both", &["demo", "second"])
        }];
        config.core.wait(HOUR);
    })
    .await?;
    let client = serving.client;
    asked(client, ask("demo", json!({}))).await??;
    until(client, "/admin/executors", |listed| {
        listed["executors"][0]["models_present"][0]["model"] == "demo"
    })
    .await?;
    // Where there is no bonus it would wait for an hour (`a_model_stays_loaded_for_the_unload_delay…`).
    ensure!(asked(client, ask("second", json!({}))).await?? == "both");
    // It ended the hold.
    let listed = get(client, "/admin/executors").await?;
    let present = &listed["executors"][0]["models_present"];
    ensure!(
        present[0]["model"] == "second" && present[1].is_null(),
        "{listed}"
    );
    over(serving).await
}

#[tokio::test]
async fn an_executor_is_drained_for_a_model_that_has_no_place() -> Result<()> {
    let serving = Serving::start(|config| {
        config.local.models.push(second());
        let with = |name: &str, slots| ExecutorConfig {
            terms: ExecutorTerms {
                slots,
                models_max: Some(1),
                ..ExecutorTerms::default()
            },
            ..executor(name, &["demo", "second"])
        };
        config.local.executors = vec![with("wide", 3), with("narrow", 2)];
        // However long the demo model took to start, it has to make way at once.
        set(config, "memory-aware", &json!({"model-tenure": 0}));
        config.core.wait(HOUR);
    })
    .await?;
    let client = serving.client;
    let on = |name: &str| running(client, endless("demo", json!({"executors": [name]})));
    let (wide, narrow) = (on("wide").await?, on("narrow").await?);
    let cold = asked(client, ask("second", json!({})));
    serving.load_until(|load| load.queued == 1).await?;
    // The one with the most free slots is left to run empty, which another executor allows.
    let more = running(client, endless("demo", json!({}))).await?;
    ensure!(place(&more) == "narrow", "{}", place(&more));
    let waits = asked(client, ask("demo", json!({})));
    serving.load_until(|load| load.queued == 2).await?;
    drop(wide);
    ensure!(cold.await?? == "wide");
    drop((narrow, more));
    waits.await??;
    over(serving).await
}

/// Two executors of one slot, which know nothing of each other's prompts.
fn pair(config: &mut Config) {
    config.http.prefix_cache = PrefixCache::Off;
    let one_slot = ExecutorTerms {
        slots: 1,
        ..ExecutorTerms::default()
    };
    serve_demo(config, [("left", one_slot), ("right", one_slot)]);
}

/// The executor of a request of the session `ann`, and the policy's reason.
async fn of_ann(client: Client, executors: Option<&str>) -> Result<[String; 2]> {
    let mut hints = json!({"session": "ann"});
    if let Some(name) = executors {
        hints["executors"] = json!([name]);
    }
    let answer = client
        .post("/v1/chat/completions", &ask("demo", hints))
        .await?;
    answer.text()?;
    Ok(["x-pointsman-executor", "x-pointsman-reason"].map(|name| answer.header(name).to_owned()))
}

const SESSIONS: &str = "the session's executor";

#[tokio::test]
async fn a_session_goes_back_to_the_executor_that_served_it() -> Result<()> {
    let serving = Serving::start(pair).await?;
    let client = serving.client;
    for home in ["right", "left", "right"] {
        let [placed, reason] = of_ann(client, Some(home)).await?;
        ensure!(placed == home, "{placed}: {reason}");
        for _ in 0..2 {
            let [placed, reason] = of_ann(client, None).await?;
            ensure!(placed == home && reason == SESSIONS, "{placed}: {reason}");
        }
    }
    // A full one is not waited for; the session then is where it was served.
    let stream = running(client, endless("demo", json!({"executors": ["right"]}))).await?;
    ensure!(of_ann(client, None).await?[0] == "left");
    drop(stream);
    serving.idle().await?;
    ensure!(of_ann(client, None).await? == ["left", SESSIONS]);
    over(serving).await
}

#[tokio::test]
async fn a_session_is_forgotten_when_it_was_idle_for_long_or_others_take_its_place() -> Result<()> {
    let idle = Serving::start(|config| {
        pair(config);
        config.hints.session_idle_max = std::time::Duration::from_micros(1);
    });
    let crowded = Serving::start(|config| {
        pair(config);
        config.hints.sessions_max = 1;
    });
    for serving in [idle.await?, crowded.await?] {
        let client = serving.client;
        of_ann(client, Some("right")).await?;
        asked(client, ask("demo", json!({"session": "bob"}))).await??;
        ensure!(of_ann(client, None).await?[1] != SESSIONS);
        over(serving).await?;
    }
    Ok(())
}
