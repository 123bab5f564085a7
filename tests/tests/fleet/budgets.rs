//! Tokens of a step, divided among the engines of a device, and blocks taken from one engine for
//! another.

use anyhow::{Result, ensure};
use pointsman_driver::provider::{ExecutorConfig, ExecutorTerms};
use pointsman_server::config::Config;
use pointsman_tests::client::Client;
use pointsman_tests::serving::Serving;
use serde_json::json;

use super::{ask, asked, endless, executor, over, running, second, until};

/// An executor for the demo model, then others for `second`, with these shares.
fn weighted(config: &mut Config, weights: &[u32]) {
    config.models.push(second());
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
    config.executors = executors.collect();
}

/// Waits until the executors have these tokens per step.
async fn shares(client: Client, wanted: &[u64]) -> Result<()> {
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
async fn an_engine_gives_up_blocks_for_more_urgent_work_of_another() -> Result<()> {
    let serving = Serving::start(|config| {
        weighted(config, &[1, 1]);
        // There are 21 blocks of 16 tokens.
        config.devices[0].kv_bytes = Some(1 << 20);
    })
    .await?;
    let client = serving.client;
    let mut low = endless("demo", json!({"priority": -5}));
    low["max_tokens"] = json!(280);
    let mut low = running(client, low).await?;
    until(client, "/admin/executors", |listed| {
        listed["executors"][0]["kv_blocks_used"].as_u64() >= Some(16)
    })
    .await?;
    // Six blocks and more, of which there are not so many.
    let mut urgent = ask("second", json!({"priority": 5}));
    urgent["messages"][0]["content"] = json!("one two three four five ".repeat(16));
    ensure!(asked(client, urgent).await?? == "e1");
    let metrics = client.get("/metrics").await?;
    let metrics = String::from_utf8(metrics.body)?;
    let mut lines = metrics.lines();
    let evicted = lines.any(|line| line.contains("evict") && line.contains("e0"));
    low.first_text().await?;
    let streamed = low.finish().await?;
    ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
    ensure!(evicted, "{metrics}");
    over(serving).await
}
