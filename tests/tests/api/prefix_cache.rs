//! Beginnings of prompts that an executor has already are not computed again, over HTTP.

use anyhow::{Context, Result, ensure};
use pointsman_config::{ApiKey, Config, PrefixCache, Rights};
use pointsman_driver::provider::ExecutorTerms;
use pointsman_tests::client::{Answer, Client, chat, streamed_chat};
use pointsman_tests::serving::{Serving, serve_demo};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A chat whose prompt has some hundred tokens, the last few of them its own.
fn long(own: &str) -> Value {
    let mut body = chat(&format!("{}{own}", "one two three four five ".repeat(20)));
    body["max_tokens"] = json!(20);
    body
}

/// A chat on the executor of that name alone.
fn on(executor: &str, mut body: Value) -> Value {
    body["pointsman"] = json!({"executors": [executor]});
    body
}

async fn ask(client: Client, body: &Value) -> Result<Answer> {
    client.post("/v1/chat/completions", body).await
}

/// The tokens of the prompt, and those of them that were cached.
fn prompt(answer: &Answer) -> Result<(u64, u64)> {
    let usage = answer.json()?["usage"].clone();
    let total = usage["prompt_tokens"].as_u64().context("no usage")?;
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    Ok((total, cached.as_u64().context("no cached tokens")?))
}

fn cached(answer: &Answer) -> Result<u64> {
    Ok(prompt(answer)?.1)
}

/// The most of a prompt that may be cached: full blocks, and not its last token.
fn most(total: u64) -> u64 {
    (total - 1) / 16 * 16
}

#[tokio::test]
async fn a_prompt_that_was_computed_before_is_not_computed_again() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let first = ask(client, &long("six")).await?;
    let (total, none) = prompt(&first)?;
    ensure!(total > 100 && none == 0, "{:?}", first.json());
    let again = ask(client, &long("six")).await?;
    ensure!(cached(&again)? == most(total), "{:?}", again.json());
    ensure!(again.text()? == first.text()?);
    // A prompt that ends otherwise shares the blocks before its end.
    let other = ask(client, &long("seven")).await?;
    let (total, part) = prompt(&other)?;
    ensure!(part >= 64 && part <= most(total), "{:?}", other.json());
    let devices = client.get("/admin/devices").await?.json()?;
    let kept = &devices["devices"][0]["blocks_cached"];
    ensure!(kept.as_u64() >= Some(part / 16), "{devices}");
    // Streams say so in their last chunk.
    let mut body = streamed_chat(&"one two three four five ".repeat(20));
    body["stream_options"] = json!({"include_usage": true});
    let mut stream = client.stream(&body).await?;
    let mut last = Value::Null;
    while let Some(event) = stream.event().await?.filter(|event| event != "[DONE]") {
        last = serde_json::from_str(&event)?;
    }
    let tokens = &last["usage"]["prompt_tokens_details"]["cached_tokens"];
    ensure!(tokens.as_u64() >= Some(64), "{last}");
    // A forecast knows of them.
    let forecast = client.post("/admin/route", &long("six")).await?.json()?;
    let pending = forecast["candidates"][0]["prefill_tokens_pending"].as_u64();
    ensure!(pending.is_some_and(|tokens| tokens <= 16), "{forecast}");
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn requests_that_run_at_once_hold_a_common_block_once() -> Result<()> {
    let serving = Serving::start(|_| ()).await?;
    let client = serving.client;
    let mut body = streamed_chat(&"one two three four five ".repeat(200));
    body["ignore_eos"] = json!(true);
    body["max_tokens"] = json!(300);
    let mut first = client.stream(&body).await?;
    first.first_text().await?;
    let one = serving.load_until(|load| load.blocks_used > 0).await?;
    ensure!(one.blocks_used > 50, "{one:?}");
    let mut second = client.stream(&body).await?;
    second.first_text().await?;
    let both = serving.load_until(|load| load.slots_used == 2).await?;
    // Each has a few blocks of its own for what it generates, 300 tokens at most.
    ensure!(both.blocks_used < one.blocks_used + 2 * 19 + 2, "{both:?}");
    drop((first, second));
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn executors_with_memory_of_their_own_do_not_read_each_others_blocks() -> Result<()> {
    let names = ["left", "right"];
    let executors = names.map(|name| (name, ExecutorTerms::default()));
    let serving = Serving::start(|config| serve_demo(config, executors)).await?;
    let client = serving.client;
    let left = ask(client, &on("left", long("six"))).await?;
    let right = ask(client, &on("right", long("six"))).await?;
    ensure!(cached(&right)? == 0, "{:?}", right.json());
    ensure!(right.text()? == left.text()?);
    let again = ask(client, &on("right", long("six"))).await?;
    ensure!(cached(&again)? > 64, "{:?}", again.json());
    ensure!(again.text()? == left.text()?);
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_request_goes_where_its_prompt_is_cached() -> Result<()> {
    let names = ["a", "b", "c"];
    let executors = names.map(|name| (name, ExecutorTerms::default()));
    let serving = Serving::start(|config| serve_demo(config, executors)).await?;
    let client = serving.client;
    for executor in ["b", "c", "a"] {
        let own = format!("{executor} {executor} ").repeat(60);
        ask(client, &on(executor, chat(&own))).await?.text()?;
        for _ in 0..3 {
            let mut body = chat(&own);
            body["max_tokens"] = json!(4);
            let answer = ask(client, &body).await?;
            ensure!(answer.header("x-pointsman-executor") == executor);
            ensure!(cached(&answer)? > 64, "{:?}", answer.json());
        }
    }
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test]
async fn a_request_weighs_what_is_cached_by_settings_of_its_own() -> Result<()> {
    let executors = ["a", "b"].map(|name| (name, ExecutorTerms::default()));
    let serving = Serving::start(|config| {
        serve_demo(config, executors);
        config.hints.label_keys = vec!["memory-aware.device-credit".to_owned()];
    })
    .await?;
    let client = serving.client;
    ask(client, &on("b", long("six"))).await?.text()?;
    let labelled = |value: &str| {
        let mut body = long("six");
        body["pointsman"] = json!({"labels": {"memory-aware.device-credit": value}});
        body
    };
    let placed = async |body: &Value| {
        let answer = ask(client, body).await?;
        let header = |name| answer.header(name).to_owned();
        anyhow::Ok((header("x-pointsman-executor"), header("x-pointsman-reason")))
    };
    let (executor, reason) = placed(&labelled("much")).await?;
    ensure!(executor == "b" && reason.contains("of no use"), "{reason}");
    // `a` was attached first, and has had no request.
    let (executor, reason) = placed(&labelled("0")).await?;
    ensure!(executor == "a", "{executor}: {reason}");
    serving.idle().await?;
    serving.server.stop().await
}

/// Two tenants.
fn two_keys(config: &mut Config) {
    config.keys = ["one", "two"]
        .map(|key| ApiKey {
            sha256: Sha256::digest(key).into(),
            rights: Rights::of_tenant(key),
        })
        .to_vec();
}

#[tokio::test]
async fn tenants_share_a_cache_where_the_operator_lets_them() -> Result<()> {
    for (cache, own, others) in [
        (PrefixCache::Shared, true, true),
        (PrefixCache::Tenant, true, false),
        (PrefixCache::Off, false, false),
    ] {
        let serving = Serving::start(|config| {
            two_keys(config);
            config.http.prefix_cache = cache;
        })
        .await?;
        let [one, two] = ["one", "two"].map(|key| serving.client.with_key(key));
        ask(one, &long("six")).await?.text()?;
        let again = cached(&ask(one, &long("six")).await?)?;
        ensure!((again > 0) == own, "{cache:?}: {again}");
        let other = cached(&ask(two, &long("six")).await?)?;
        ensure!((other > 0) == others, "{cache:?}: {other}");
        serving.server.stop().await?;
    }
    Ok(())
}
