//! Requests that a policy holds on purpose, over HTTP: they wait for longer than the first liveness
//! clock without a strike, and none fails for it.

use anyhow::{Result, ensure};
use pointsman_config::Config;
use pointsman_core::Micros;
use pointsman_driver::provider::ExecutorTerms;
use pointsman_tests::client::{Client, Stream, chat, endless_chat};
use pointsman_tests::liveness::{passes, strikes};
use pointsman_tests::serving::{Serving, holds, serve_demo};
use serde_json::{Value, json};
use tokio::task;

/// Time after which the built-in rule places what waits for no reason.
const UNPLACED_MAX: Micros = Micros(50_000);

/// Has the demo model served by `left`, of group 1, and `right`, of group 2, with a slot each.
fn two_groups(config: &mut Config) {
    let of_group = |group| ExecutorTerms {
        group,
        slots: 1,
        ..ExecutorTerms::default()
    };
    serve_demo(config, [("left", of_group(1)), ("right", of_group(2))]);
    config.core.unplaced_max = UNPLACED_MAX;
}

/// A chat that asks for group 1 and belongs to a session.
fn asks(mut body: Value, session: &str) -> Value {
    body["pointsman"] = json!({"group": 1, "session": session});
    body
}

/// A request that holds its slot until its client leaves.
async fn running(client: Client, session: &str) -> Result<Stream> {
    let body = asks(endless_chat("Hello", 1900), session);
    client.running(&body).await
}

/// Has a request wait for the executor `left`, which another one occupies, while `right` is idle.
async fn waits_for_left(serving: &Serving) -> Result<()> {
    let client = serving.client;
    let first = running(client, "ann").await?;
    ensure!(first.headers["x-pointsman-executor"] == "left");
    let body = asks(chat("Hello"), "ann");
    let second = task::spawn(async move { client.post("/v1/chat/completions", &body).await });
    serving.load_until(|load| load.queued == 1).await?;
    passes(client, Micros(4 * UNPLACED_MAX.0)).await?;
    ensure!(strikes(client).await? == 0.0);
    drop(first);
    let second = second.await??;
    ensure!(second.status == 200, "{second:?}");
    ensure!(
        second.header("x-pointsman-executor") == "left",
        "{second:?}"
    );
    ensure!(
        second.header("x-pointsman-policy") != "built-in",
        "{second:?}"
    );
    ensure!(strikes(client).await? == 0.0);
    serving.idle().await?;
    Ok(())
}

#[tokio::test]
async fn a_request_waits_for_its_group_and_the_default_policy_is_not_struck() -> Result<()> {
    let serving = Serving::start(two_groups).await?;
    waits_for_left(&serving).await?;
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_session_waits_for_its_executor_where_its_policy_says_so() -> Result<()> {
    let serving = Serving::start(two_groups).await?;
    serving
        .decide_by("sticky", "sticky", "when-full = \"wait\"")
        .await?;
    waits_for_left(&serving).await?;
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn what_nobody_could_serve_in_its_group_in_time_is_served_elsewhere() -> Result<()> {
    let serving = Serving::start(|config| {
        two_groups(config);
        config.core.held_max = Micros(300_000);
    })
    .await?;
    let client = serving.client;
    let first = running(client, "ann").await?;
    let body = asks(chat("Hello"), "ann");
    let second = client.post("/v1/chat/completions", &body).await?;
    ensure!(second.status == 200, "{second:?}");
    ensure!(
        second.header("x-pointsman-executor") == "right",
        "{second:?}"
    );
    ensure!(
        second.header("x-pointsman-policy") == "memory-aware",
        "{second:?}"
    );
    ensure!(strikes(client).await? == 0.0);
    drop(first);
    serving.server.stop().await?;
    Ok(())
}

#[tokio::test]
async fn a_policy_that_holds_everything_as_long_as_it_may_makes_no_request_fail() -> Result<()> {
    let serving = Serving::start(|config| config.core.wait(Micros(3_000_000))).await?;
    serving
        .decide_by("holder", "test/hostile", "answers = \"hold-for-ever\"")
        .await?;
    let client = serving.client;
    let all: Vec<_> = (0..4)
        .map(|_| task::spawn(async move { client.chat("Hello").await }))
        .collect();
    let mut built_in = 0;
    for answer in all {
        let answer = answer.await??;
        ensure!(answer.status == 200, "{answer:?}");
        built_in += usize::from(answer.header("x-pointsman-policy") == "built-in");
    }
    ensure!(built_in > 0 && strikes(client).await? > 0.0);
    // The strikes cost it its hooks.
    serving
        .report_until(|report| !holds(report, "holder"))
        .await?;
    serving.server.stop().await?;
    Ok(())
}
