//! Engines that die while they answer, over HTTP: the answer goes on elsewhere, word for word, and
//! an executor that keeps failing is left alone for a while.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use pointsman_config::Config;
use pointsman_core::Micros;
use pointsman_driver::provider::ExecutorTerms;
use pointsman_tests::client::{Answer, Client, chat, streamed_chat};
use pointsman_tests::fate::{Death, Fate};
use pointsman_tests::serving::{Serving, serve_demo};
use serde_json::{Value, json};

/// Two executors of the demo model.
fn twins(config: &mut Config) {
    serve_demo(
        config,
        ["left", "right"].map(|name| (name, ExecutorTerms::default())),
    );
}

/// Makes a chat one of 60 drawn tokens.
fn long(mut body: Value) -> Value {
    for (field, value) in [
        ("temperature", json!(0.9)),
        ("seed", json!(7)),
        ("ignore_eos", json!(true)),
        ("max_tokens", json!(60)),
    ] {
        body[field] = value;
    }
    body
}

async fn ask(client: Client, body: &Value) -> Result<Answer> {
    client.post("/v1/chat/completions", body).await
}

async fn metrics(client: Client) -> Result<String> {
    Ok(String::from_utf8(client.get("/metrics").await?.body)?)
}

/// The number behind the name of a metric.
fn count(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

/// Placements on both executors.
fn placed(metrics: &str) -> [u64; 2] {
    ["left", "right"].map(|name| {
        let of = format!("pointsman_requests_placed_total{{executor=\"{name}\"");
        let lines = metrics.lines().filter(|line| line.starts_with(&of));
        let numbers = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        numbers.sum()
    })
}

#[tokio::test]
async fn an_answer_whose_engine_dies_goes_on_elsewhere_word_for_word() -> Result<()> {
    for death in [Death::DeviceError, Death::Panic] {
        let fate = Fate::new(death);
        let serving = Serving::start_with(twins, fate.backends()).await?;
        let client = serving.client;
        let undisturbed = ask(client, &long(chat("Tell me a story"))).await?;
        let (text, usage) = (undisturbed.text()?, undisturbed.json()?["usage"].clone());
        ensure!(usage["completion_tokens"] == 60, "{usage}");
        // Before the first token, in the middle, and at the last step but one.
        for steps in [0, 1, 30, 58] {
            fate.after(steps);
            let answer = ask(client, &long(chat("Tell me a story"))).await?;
            ensure!(answer.text()? == text, "{steps}: {:?}", answer.json());
            ensure!(answer.json()?["usage"] == usage, "{:?}", answer.json());
            fate.after(steps);
            let stream = client
                .stream(&long(streamed_chat("Tell me a story")))
                .await?;
            let read = stream.finish().await?;
            ensure!(read.text == text && read.done, "{steps}: {read:?}");
            ensure!(read.finish_reason.as_deref() == Some("length"), "{read:?}");
        }
        let metrics = metrics(client).await?;
        let requeued = "pointsman_requests_requeued_total{why=\"lost\"}";
        ensure!(count(&metrics, requeued) == 8, "{metrics}");
        // Each try is counted to the executor that made it, the failed ones too.
        ensure!(placed(&metrics).iter().sum::<u64>() == 17, "{metrics}");
        serving.idle().await?;
        serving.server.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_no_other_executor_can_go_on_with_ends_in_an_error() -> Result<()> {
    let fate = Fate::new(Death::DeviceError);
    let serving = Serving::start_with(|_| (), fate.backends()).await?;
    fate.after(30);
    let stream = serving.client.stream(&long(streamed_chat("Hi"))).await?;
    let read = stream.finish().await?;
    let error = read.error.context("no error")?;
    ensure!(error["code"] == "nowhere_left", "{error}");
    ensure!(!read.text.is_empty() && !read.done);
    fate.after(30);
    let answer = ask(serving.client, &long(chat("Hi"))).await?;
    ensure!(answer.status == 502, "{:?}", answer.json());
    serving.idle().await?;
    serving.server.stop().await
}

/// Waits until the first executor is seen to be in this health.
async fn is_seen(client: Client, health: &str) -> Result<()> {
    let mut seen = Value::Null;
    for _ in 0..6000 {
        seen = client.get("/admin/executors").await?.json()?;
        if seen["executors"][0]["health"] == health {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    bail!("not {health}: {seen}")
}

/// Has the only engine die at the second step of a request, which fails with it.
async fn fails(client: Client, fate: &Fate) -> Result<()> {
    fate.after(1);
    let answer = ask(client, &long(chat("Hi"))).await?;
    ensure!(answer.status == 502, "{:?}", answer.json());
    Ok(())
}

fn brittle(config: &mut Config) {
    config.core.degraded_after = 1;
    config.core.down_after = 1;
    config.core.down_for = Micros(500_000);
}

#[tokio::test]
async fn an_executor_that_keeps_failing_is_degraded_and_then_rests() -> Result<()> {
    let fate = Fate::new(Death::DeviceError);
    let rests = Micros(3_600_000_000);
    let serving = Serving::start_with(
        |config| {
            brittle(config);
            config.core.down_for = rests;
        },
        fate.backends(),
    )
    .await?;
    let client = serving.client;
    is_seen(client, "up").await?;
    fails(client, &fate).await?;
    is_seen(client, "degraded").await?;
    fails(client, &fate).await?;
    is_seen(client, "down").await?;
    // Nobody serves the model, and by default nobody waits for that to change.
    let refused = ask(client, &chat("Hi")).await?;
    ensure!(refused.status == 503, "{:?}", refused.json());
    ensure!(refused.json()?["error"]["code"] == "unserved");
    ensure!(refused.header("retry-after").parse::<u32>()? > 0);
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_request_that_may_waits_for_an_executor_that_rests_and_its_answer_makes_it_whole()
-> Result<()> {
    let fate = Fate::new(Death::DeviceError);
    let serving = Serving::start_with(
        |config| {
            brittle(config);
            config.core.unserved_max = Micros(60_000_000);
        },
        fate.backends(),
    )
    .await?;
    let client = serving.client;
    fails(client, &fate).await?;
    fails(client, &fate).await?;
    ask(client, &chat("Hi")).await?.text()?;
    is_seen(client, "up").await?;
    serving.idle().await?;
    serving.server.stop().await
}

/// A server with two executors, of which the first is degraded. A policy of the pack chooses, or the
/// default one.
async fn half_degraded(policy: Option<&str>, fate: &Arc<Fate>) -> Result<Serving> {
    let tune = |config: &mut Config| {
        twins(config);
        brittle(config);
        config.core.down_after = 100;
    };
    let serving = Serving::start_with(tune, fate.backends()).await?;
    if let Some(policy) = policy {
        serving.decide_by(policy, policy, "").await?;
    }
    fate.after(1);
    let mut pinned = long(chat("Hi"));
    pinned["pointsman"] = json!({"executors": ["left"]});
    let answer = ask(serving.client, &pinned).await?;
    ensure!(answer.status == 502, "{:?}", answer.json());
    is_seen(serving.client, "degraded").await?;
    Ok(serving)
}

#[tokio::test]
async fn a_degraded_executor_is_taken_where_no_other_is_up() -> Result<()> {
    let policies = [
        None,
        Some("round-robin"),
        Some("least-loaded"),
        Some("sticky"),
    ];
    for policy in policies {
        let fate = Fate::new(Death::DeviceError);
        let serving = half_degraded(policy, &fate).await?;
        let client = serving.client;
        for n in 0..6 {
            let mut body = chat("Hi");
            body["pointsman"] = json!({"session": format!("session {n}")});
            let answer = ask(client, &body).await?;
            let placed = answer.header("x-pointsman-executor");
            ensure!(placed == "right", "{policy:?}: {placed}");
        }
        is_seen(client, "degraded").await?;
        client
            .post("/admin/executors/right/drain", &json!({}))
            .await?;
        let answer = ask(client, &chat("Hi")).await?;
        ensure!(answer.header("x-pointsman-executor") == "left");
        is_seen(client, "up").await?;
        serving.idle().await?;
        serving.server.stop().await?;
    }
    Ok(())
}
