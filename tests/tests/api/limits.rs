//! The hard limits of tenants: what a client meets that is over one, whatever policy admits its request.

use std::sync::Arc;

use anyhow::{Result, ensure};
use pointsman_config::{Config, TenantConfig};
use pointsman_driver::quota::TenantLimits;
use pointsman_tests::client::{Answer, chat, streamed_chat};
use pointsman_tests::exposition::{samples, total};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

/// A server whose tenant `default` has these limits.
async fn limited(limits: TenantLimits) -> Result<Serving> {
    Serving::start(|config| limit(config, limits)).await
}

fn limit(config: &mut Config, limits: TenantLimits) {
    config.tenants = vec![TenantConfig {
        limits,
        ..TenantConfig::new("default")
    }];
}

/// A chat whose answer has at most so many tokens, and exactly as many.
fn chat_of(tokens: u32) -> Value {
    let mut body = chat("Hello");
    body["max_tokens"] = json!(tokens);
    body["ignore_eos"] = json!(true);
    body
}

fn number(answer: &Answer, header: &str) -> Result<u64> {
    Ok(answer.header(header).parse()?)
}

fn code(answer: &Answer) -> Result<String> {
    let json = answer.json()?;
    Ok(json["error"]["code"].as_str().unwrap_or("none").to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_its_requests_of_a_minute_and_is_told_when_there_are_more() -> Result<()> {
    let serving = limited(TenantLimits {
        requests_per_minute: Some(3),
        ..TenantLimits::default()
    })
    .await?;
    let client = serving.client;
    for left in [2, 1, 0] {
        let answer = client.post("/v1/chat/completions", &chat_of(2)).await?;
        ensure!(answer.status == 200, "{answer:?}");
        ensure!(number(&answer, "x-ratelimit-limit-requests")? == 3);
        ensure!(number(&answer, "x-ratelimit-remaining-requests")? == left);
        ensure!(answer.header("x-ratelimit-reset-requests").ends_with('s'));
        ensure!(answer.header("x-ratelimit-limit-tokens").is_empty());
    }
    let refused = client.post("/v1/chat/completions", &chat_of(2)).await?;
    ensure!(refused.status == 429, "{refused:?}");
    ensure!(code(&refused)? == "requests_per_minute_exceeded");
    ensure!((1..=61).contains(&number(&refused, "retry-after")?));
    ensure!(number(&refused, "x-ratelimit-remaining-requests")? == 0);
    let exported = samples(client).await?;
    let labels = [("tenant", "default"), ("limit", "requests-per-minute")];
    ensure!(total(&exported, "pointsman_tenant_over_limit_total", &labels) == 1.0);
    serving.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_never_uses_more_tokens_than_its_limit_however_many_it_sends() -> Result<()> {
    const MAX: u64 = 500;
    let serving = limited(TenantLimits {
        tokens_per_minute_max: Some(MAX),
        ..TenantLimits::default()
    })
    .await?;
    let client = serving.client;
    let sent = (0..40).map(|_| {
        tokio::spawn(async move { client.post("/v1/chat/completions", &chat_of(40)).await })
    });
    let sent: Vec<_> = sent.collect();
    let (mut used, mut refused) = (0, 0);
    for answer in sent {
        let answer = answer.await??;
        ensure!(number(&answer, "x-ratelimit-limit-tokens")? == MAX);
        if answer.status == 429 {
            ensure!(code(&answer)? == "tokens_per_minute_exceeded");
            ensure!((1..=61).contains(&number(&answer, "retry-after")?));
            refused += 1;
        } else {
            let tokens = answer.json()?["usage"]["total_tokens"].as_u64();
            used += tokens.unwrap_or_default();
        }
    }
    serving.idle().await?;
    ensure!(refused > 0 && used <= MAX, "{refused} refused, {used} used");
    // All that may be used is used: no request as small as these finds room.
    ensure!(used > MAX - 100, "{used}");
    let listed = client.get("/admin/tenants").await?.json()?;
    let tenant = &listed["tenants"][0];
    let expected = json!({"max": MAX, "used": used});
    ensure!(
        tenant["limits"]["tokens_per_minute_max"] == expected,
        "{listed}"
    );
    ensure!(tenant["tokens_total"] == used, "{listed}");
    serving.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_longer_than_the_limit_is_refused_for_good() -> Result<()> {
    let serving = limited(TenantLimits {
        tokens_per_minute_max: Some(5),
        ..TenantLimits::default()
    })
    .await?;
    let refused = serving.client.chat("Hello, how are you today?").await?;
    ensure!(refused.status == 400, "{refused:?}");
    ensure!(code(&refused)? == "prompt_over_limit");
    ensure!(refused.header("retry-after").is_empty());
    serving.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_so_many_requests_in_hand_until_one_ends_or_its_client_leaves() -> Result<()> {
    let serving = limited(TenantLimits {
        concurrent_max: Some(2),
        ..TenantLimits::default()
    })
    .await?;
    let client = serving.client;
    let mut body = streamed_chat("Hello");
    body["max_tokens"] = json!(1900);
    body["ignore_eos"] = json!(true);
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = client.stream(&body).await?;
        stream.first_text().await?;
        streams.push(stream);
    }
    let refused = client.chat("Hello").await?;
    ensure!(refused.status == 429, "{refused:?}");
    ensure!(code(&refused)? == "concurrent_requests_exceeded");
    ensure!(number(&refused, "retry-after")? > 0);
    streams.pop();
    // It counts until its executor has let it go.
    serving
        .load_until(|load| load.live == 1 && load.slots_used == 1)
        .await?;
    let answer = client.chat("Hello").await?;
    ensure!(answer.status == 200, "{answer:?}");
    drop(streams);
    serving.idle().await?;
    serving.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_before_the_end_has_used_what_it_was_given() -> Result<()> {
    let serving = limited(TenantLimits {
        tokens_per_minute_max: Some(2000),
        ..TenantLimits::default()
    })
    .await?;
    let mut body = streamed_chat("Hello");
    body["max_tokens"] = json!(1500);
    body["ignore_eos"] = json!(true);
    let mut stream = serving.client.stream(&body).await?;
    for _ in 0..20 {
        stream.first_text().await?;
    }
    drop(stream);
    serving.idle().await?;
    let listed = serving.client.get("/admin/tenants").await?.json()?;
    let tenant = &listed["tenants"][0];
    let used = &tenant["limits"]["tokens_per_minute_max"]["used"];
    ensure!(used.as_u64() >= Some(21), "{listed}");
    ensure!(*used == tenant["tokens_total"], "{listed}");
    serving.server.stop().await
}

/// A policy that admits everything is asked after the limits, and changed limits hold at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_policy_lifts_a_limit_and_a_changed_one_holds_at_once() -> Result<()> {
    let limits = |max| TenantLimits {
        requests_per_minute: Some(max),
        ..TenantLimits::default()
    };
    let mut kept = None;
    let serving = Serving::start(|config| {
        limit(config, limits(1));
        kept = Some(config.clone());
    })
    .await?;
    let before = Arc::new(kept.expect("the configuration was changed"));
    serving.decide_by("lenient", "test/hostile", "").await?;
    let client = serving.client;
    let admitted = client.chat("Hello").await?;
    ensure!(admitted.status == 200, "{admitted:?}");
    ensure!(client.chat("Hello").await?.status == 429);
    let mut after = (*before).clone();
    limit(&mut after, limits(2));
    serving.server.reload(&before, &after).await?;
    ensure!(client.chat("Hello").await?.status == 200);
    ensure!(client.chat("Hello").await?.status == 429);
    serving.server.stop().await
}

/// A client's request that is made of several is taken whole, or told why it can never be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_come_as_one_do_not_stand_in_each_others_way() -> Result<()> {
    let serving = limited(TenantLimits {
        concurrent_max: Some(2),
        requests_per_minute: Some(100),
        tokens_per_minute_max: Some(500),
    })
    .await?;
    let client = serving.client;
    // Each may fill the context, and both together may do that alone.
    let mut two = chat("Hello");
    two["n"] = json!(2);
    let answer = client.post("/v1/chat/completions", &two).await?;
    ensure!(answer.status == 200, "{answer:?}");
    serving.idle().await?;
    let inputs = |count: usize| json!({"model": "demo", "input": vec!["a"; count]});
    let many = client.post("/v1/embeddings", &inputs(70)).await?;
    ensure!(many.status == 200, "{many:?}");
    ensure!(many.json()?["data"].as_array().map(Vec::len) == Some(70));
    serving.idle().await?;
    let mut three = chat_of(1);
    three["n"] = json!(3);
    let refusals = [
        client.post("/v1/chat/completions", &three).await?,
        client.post("/v1/embeddings", &inputs(101)).await?,
    ];
    for refused in refusals {
        ensure!(refused.status == 400, "{refused:?}");
        ensure!(code(&refused)? == "request_over_limit", "{refused:?}");
        ensure!(refused.header("retry-after").is_empty());
    }
    // More are left of the minute than came at once, but not as many as these.
    let later = client.post("/v1/embeddings", &inputs(50)).await?;
    ensure!(later.status == 429, "{later:?}");
    ensure!(code(&later)? == "requests_per_minute_exceeded");
    serving.server.stop().await
}
