//! Arrivals that are refused at once because they would wait for too long.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pointsman_config::Config;
use pointsman_core::Micros;
use pointsman_tests::PATIENCE;
use pointsman_tests::client::{Answer, Client, chat};
use pointsman_tests::liveness::passes;
use pointsman_tests::overload::{goodput, served_of_batch};
use pointsman_tests::serving::{Serving, set};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The body of a request that takes so many tokens.
fn of_length(tokens: u32) -> Value {
    let mut body = chat("Hello");
    body["ignore_eos"] = json!(true);
    body["max_tokens"] = json!(tokens);
    body
}

/// Keeps a line before the one slot of a server until an arrival is refused. Returns that answer.
async fn refused_behind_a_line(serving: &Serving) -> Result<Answer> {
    let body = of_length(200);
    let mut clients = JoinSet::new();
    for _ in 0..12 {
        let (client, body) = (serving.client, body.clone());
        clients.spawn(async move {
            loop {
                let answer = client.post("/v1/chat/completions", &body).await?;
                if answer.status != 200 {
                    return anyhow::Ok(answer);
                }
            }
        });
    }
    let refused = clients.join_next().await.context("there are clients")?;
    refused?
}

#[tokio::test]
async fn a_request_that_would_wait_too_long_is_refused_at_once_by_the_measured_pace() -> Result<()>
{
    let serving = Serving::start(|config| {
        config.local.executors[0].terms.slots = 1;
        set(
            config,
            "budget",
            &json!({"wait-max": "1ms", "late-tolerance": 0}),
        );
    })
    .await?;
    let answer = refused_behind_a_line(&serving).await?;
    ensure!(answer.status == 429, "{answer:?}");
    ensure!(
        answer.header("x-pointsman-policy") == "budget",
        "{answer:?}"
    );
    ensure!(answer.json()?["error"]["code"] == "no_room", "{answer:?}");
    // Ten or eleven that take well under a second each.
    let secs: u32 = answer.header("retry-after").parse()?;
    ensure!((1..60).contains(&secs), "{answer:?}");
    serving.idle().await?;
    Ok(())
}

/// Sends forty requests a second, far more than are answered, until one of them is refused. Returns that answer, and the requests
/// that are not answered yet.
async fn refused_in_a_surge(client: Client) -> Result<(Answer, JoinSet<Result<Answer>>)> {
    let mut coming = JoinSet::new();
    loop {
        let body = of_length(400);
        coming.spawn(async move { client.post("/v1/chat/completions", &body).await });
        sleep(Duration::from_millis(25)).await;
        while let Some(answer) = coming.try_join_next() {
            let answer = answer??;
            if answer.status != 200 {
                return Ok((answer, coming));
            }
        }
    }
}

/// Sets up one slot. However slow the server, nobody waits for too long but by the bound of a surge.
fn slow_and_patient(config: &mut Config) {
    config.local.executors[0].terms.slots = 1;
    config.core.wait_max = Micros(24 * 3_600_000_000);
    set(config, "budget", &json!({"wait-max": "24h"}));
}

#[tokio::test]
async fn in_a_surge_who_is_in_a_hurry_is_refused_and_who_can_wait_waits() -> Result<()> {
    let serving = Serving::start(slow_and_patient).await?;
    let client = serving.client;
    let surge = refused_in_a_surge(client);
    let (refused, coming) = timeout(PATIENCE, surge).await??;
    ensure!(refused.status == 429, "{refused:?}");
    let said = ["x-pointsman-policy", "x-pointsman-reason"].map(|name| refused.header(name));
    let surge =
        "far more come than get a place, and it would wait longer than it may while they do";
    ensure!(said == ["budget", surge], "{refused:?}");
    let mut patient = of_length(2);
    patient["pointsman"] = json!({"class": "throughput"});
    let patient = tokio::spawn(async move { client.post("/v1/chat/completions", &patient).await });
    serving
        .load_until(|load| load.queued_by_class.throughput == 1)
        .await?;
    // The others leave, those in the line too.
    drop(coming);
    let patient = patient.await??;
    ensure!(patient.status == 200, "{patient:?}");
    serving.idle().await?;
    // The surge has ended with its line, though the policy is only asked now.
    passes(client, Micros(6_000_000)).await?;
    let mut clients = JoinSet::new();
    for _ in 0..40 {
        let body = of_length(50);
        clients.spawn(async move { client.post("/v1/chat/completions", &body).await });
    }
    while let Some(answer) = clients.join_next().await {
        let answer = answer??;
        ensure!(answer.status == 200, "{answer:?}");
    }
    Ok(())
}

/// A hundred clients wait for one slot, each with its next request once it has the answer to the one before.
#[tokio::test]
async fn clients_that_began_together_and_ask_again_once_answered_are_no_surge() -> Result<()> {
    let serving = Serving::start(slow_and_patient).await?;
    let client = serving.client;
    let body = of_length(200);
    let mut clients = JoinSet::new();
    for _ in 0..100 {
        let body = body.clone();
        clients.spawn(async move {
            loop {
                let answer = client.post("/v1/chat/completions", &body).await?;
                ensure!(answer.status == 200, "{answer:?}");
            }
        });
    }
    // Who begins together is counted for ten seconds.
    tokio::select! {
        over = passes(client, Micros(11_000_000)) => over?,
        Some(ended) = clients.join_next() => return ended?,
    }
    drop(clients);
    serving.idle().await?;
    Ok(())
}

/// In logical time: the last of them waits for more than four minutes.
#[test]
fn a_batch_that_is_sent_at_once_is_served_to_its_end() -> Result<()> {
    let served = served_of_batch(3000)?;
    ensure!(served == 3000, "{served} of 3000");
    Ok(())
}

/// In logical time: what is refused at once keeps nobody else from being served in good time.
#[test]
fn three_times_as_many_requests_as_a_fleet_can_serve_take_nothing_from_its_goodput() -> Result<()> {
    let at_capacity = goodput(11, "")?;
    for settings in ["", ",surge-wait-max=24h,wait-max=500ms"] {
        let overloaded = goodput(33, settings)?;
        ensure!(
            overloaded >= 0.8 * at_capacity,
            "{settings}: {overloaded} of {at_capacity} a second"
        );
    }
    let unbounded = goodput(33, ",surge-wait-max=24h")?;
    ensure!(
        unbounded < 0.5 * at_capacity,
        "{unbounded} of {at_capacity} a second"
    );
    Ok(())
}
