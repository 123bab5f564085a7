//! Several executors of one model: which of them a request goes to, and in which order they start
//! those that wait.

use anyhow::{Result, ensure};
use pointsman_config::Config;
use pointsman_driver::provider::{ExecutorConfig, ExecutorTerms};
use pointsman_local::DeviceConfig;
use pointsman_tests::serving::{Serving, set};
use serde_json::{Value, json};
use tokio::task;

use super::pools::BLOCK;
use super::{ask, asked, endless, executor, over, place, running};

/// The demo model on a pool of 64 blocks of 16 tokens, and on one of many more.
fn tight_and_wide(config: &mut Config) {
    config.local.devices.push(DeviceConfig {
        kv_bytes: Some(64 * BLOCK),
        ..DeviceConfig::with_processors("cpu1", 2)
    });
    config.local.executors = vec![
        ExecutorConfig {
            device: Some("cpu1".to_owned()),
            ..executor("tight", &["demo"])
        },
        executor("wide", &["demo"]),
    ];
}

/// The executor of a request that comes while a stream with this message runs on the tight pool and
/// two short ones on the wide one.
async fn goes_to(message: &str) -> Result<String> {
    let serving = Serving::start(tight_and_wide).await?;
    let client = serving.client;
    let mut body = endless("demo", json!({"device": "cpu1"}));
    body["messages"][0]["content"] = json!(message);
    body["max_tokens"] = json!(200);
    let mut streams = vec![running(client, body).await?];
    for _ in 0..2 {
        let body = endless("demo", json!({"device": "cpu0"}));
        streams.push(running(client, body).await?);
    }
    let mut short = ask("demo", json!({}));
    short["max_tokens"] = json!(4);
    let placed = asked(client, short).await??;
    drop(streams);
    over(serving).await?;
    Ok(placed)
}

#[tokio::test]
async fn a_pool_under_pressure_is_left_to_itself_though_less_runs_there() -> Result<()> {
    // One sequence there and two here.
    ensure!(goes_to("Hello").await? == "tight");
    // More than 700 permille of the blocks are in use: another tier.
    let long = "one two three four five ".repeat(160);
    ensure!(goes_to(&long).await? == "wide");
    Ok(())
}

#[tokio::test]
async fn executors_of_one_model_are_filled_by_their_share_of_slots_in_use() -> Result<()> {
    let serving = Serving::start(|config| {
        let of_slots = |name: &str, slots| ExecutorConfig {
            terms: ExecutorTerms {
                slots,
                ..ExecutorTerms::default()
            },
            ..executor(name, &["demo"])
        };
        config.local.executors = vec![of_slots("two", 2), of_slots("four", 4)];
        set(config, "memory-aware", &json!({"balance": "slots"}));
    })
    .await?;
    let client = serving.client;
    let mut streams = Vec::new();
    for _ in 0..6 {
        streams.push(running(client, endless("demo", json!({}))).await?);
    }
    let placed: Vec<&str> = streams.iter().map(place).collect();
    // The first two and the fourth and fifth are ties, which go round.
    ensure!(placed[0] != placed[1], "{placed:?}");
    ensure!(
        placed[2] == "four",
        "a quarter is less than a half: {placed:?}"
    );
    ensure!(placed[3] != placed[4] || placed[3] == "four", "{placed:?}");
    let on_two = placed.iter().filter(|name| **name == "two").count();
    ensure!(on_two == 2, "every slot is used: {placed:?}");
    drop(streams);
    over(serving).await
}

#[tokio::test]
async fn streams_wait_in_the_same_queue_as_whole_answers() -> Result<()> {
    let serving = Serving::start(|config| config.local.executors[0].terms.slots = 1).await?;
    let client = serving.client;
    let first = running(client, endless("demo", json!({}))).await?;
    let mut streamed: Value = ask("demo", json!({}));
    streamed["stream"] = json!(true);
    let waiting = task::spawn(async move { client.stream(&streamed).await?.finish().await });
    serving.load_until(|load| load.queued == 1).await?;
    drop(first);
    let streamed = waiting.await??;
    ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
    over(serving).await
}
