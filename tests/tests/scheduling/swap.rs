//! What evicted sequences hold is moved to host memory and comes back from there, over HTTP.

use anyhow::{Context, Result, ensure};
use pointsman_config::Config;
use pointsman_tests::client::{Client, chat};
use pointsman_tests::exposition::{Sample, samples};
use pointsman_tests::serving::{Serving, set};
use serde_json::{Value, json};
use tokio::task;

/// Bytes of a block: 16 tokens of the demo model.
const BLOCK: u64 = 48 << 10;

/// A server with 16 blocks, room for two whole answers of the eight that are asked for, and with so many
/// blocks of host memory. `budget` swaps whatever it can.
async fn small(host_blocks: u64) -> Result<Serving> {
    Serving::start(|config: &mut Config| {
        let device = &mut config.local.devices[0];
        device.kv_bytes = Some(16 * BLOCK);
        device.swap_bytes = host_blocks * BLOCK;
        set(config, "budget", &json!({"swap-from": 1}));
    })
    .await
}

/// A chat with a prompt of its own, so that nobody's is cached.
fn counting(n: usize) -> Value {
    let mut body = chat(&format!("{n} Count from 1 to 30."));
    body["max_tokens"] = json!(90);
    body["ignore_eos"] = json!(true);
    body
}

/// Asks for eight answers, one after the other and then all at once: they must be the same.
async fn eight_at_once_are_as_alone(client: Client) -> Result<()> {
    let mut alone = Vec::new();
    for n in 0..8 {
        alone.push(ask(client, n).await?);
    }
    let mut asked = task::JoinSet::new();
    for n in 0..8 {
        asked.spawn(async move { anyhow::Ok((n, ask(client, n).await?)) });
    }
    while let Some(answer) = asked.join_next().await {
        let (n, text) = answer??;
        ensure!(text == alone[n], "{text:?} is not {:?}", alone[n]);
    }
    Ok(())
}

async fn ask(client: Client, n: usize) -> Result<String> {
    let answer = client.post("/v1/chat/completions", &counting(n)).await?;
    answer.text()
}

/// The sum of a metric over the samples with these labels.
fn sum(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let name = format!("pointsman_{name}");
    let has = |sample: &&Sample| {
        let mut labels = labels.iter();
        sample.name == name
            && labels.all(|(key, value)| sample.labels.get(*key).is_some_and(|it| it == value))
    };
    samples.iter().filter(has).map(|sample| sample.value).sum()
}

#[tokio::test]
async fn what_is_swapped_out_goes_on_as_it_was_and_is_computed_once() -> Result<()> {
    let serving = small(60).await?;
    let client = serving.client;
    eight_at_once_are_as_alone(client).await?;
    serving.idle().await?;
    let samples = samples(client).await?;
    let evicted = |labels: &[_]| sum(&samples, "requests_evicted_total", labels);
    let swapped = evicted(&[("how", "swap")]);
    ensure!(swapped > 3.0, "{swapped} swapped");
    let recomputed = evicted(&[("how", "recompute"), ("policy", "budget")]);
    ensure!(recomputed == 0.0, "{recomputed} recomputed");
    // Each prompt was computed once in either round, and after a swap one token of the answer; two where it had to
    // leave again before the host had heard that it was back, since it goes on from the copy that is still there.
    // Where the policy named no victim, the built-in rule had one computed again.
    let prompts = sum(&samples, "prompt_tokens_total", &[]);
    let computed = prompts - sum(&samples, "cached_tokens_total", &[]);
    let decisions = client.get("/admin/decisions?last=20").await?.json()?;
    let early = swapped_before_their_start(&decisions)?;
    let one = usage(client).await?;
    let again = evicted(&[("how", "recompute")]) * (one + 90.0);
    let most = 16.0 * one + swapped + early + again;
    ensure!(
        computed <= most,
        "{computed} tokens of prompts were computed, {most} at most, with {swapped} swaps, {early} before the start, and {again} \
         tokens computed again"
    );
    let said = decisions.to_string();
    ensure!(said.contains("\"swap\""), "{said}");
    let devices = client.get("/admin/devices").await?.json()?;
    let device = &devices["devices"][0];
    ensure!(
        device["host_blocks_total"] == 60 && device["host_blocks_free"] == 60,
        "{device}"
    );
    serving.server.stop().await
}

/// Swaps that were ordered before the host had heard of the sequence's start.
fn swapped_before_their_start(decisions: &Value) -> Result<f64> {
    let mut early = 0.0;
    for request in decisions["decisions"].as_array().context("no decisions")? {
        let mut is_here = false;
        for step in request["steps"].as_array().context("no steps")? {
            match step["what"].as_str() {
                Some("placed") => is_here = false,
                Some("started") => is_here = true,
                Some("evicted") if step["how"] == "swap" && !is_here => early += 1.0,
                Some(_) | None => {}
            }
        }
    }
    Ok(early)
}

/// The tokens of the longest of the prompts.
async fn usage(client: Client) -> Result<f64> {
    let answer = client.post("/v1/chat/completions", &counting(7)).await?;
    let tokens = answer.json()?["usage"]["prompt_tokens"].as_f64();
    tokens.context("no usage")
}

#[tokio::test]
async fn without_host_memory_it_is_computed_again() -> Result<()> {
    let serving = small(0).await?;
    eight_at_once_are_as_alone(serving.client).await?;
    let samples = samples(serving.client).await?;
    let evicted = |how| sum(&samples, "requests_evicted_total", &[("how", how)]);
    ensure!(evicted("swap") == 0.0 && evicted("recompute") > 3.0);
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_policy_that_swaps_more_than_there_is_room_for_is_refused_and_all_are_answered()
-> Result<()> {
    let serving = small(3).await?;
    serving
        .decide_by("swapper", "test/hostile", "answers = \"swap-newest\"")
        .await?;
    eight_at_once_are_as_alone(serving.client).await?;
    let samples = samples(serving.client).await?;
    let refused = sum(
        &samples,
        "interlock_refusals_total",
        &[("hook", "preemption")],
    );
    ensure!(refused > 0.0, "nothing was refused");
    serving.idle().await?;
    serving.server.stop().await
}
