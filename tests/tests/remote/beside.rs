//! Engines of this host beside servers elsewhere that serve the same model.

use anyhow::{Result, ensure};
use pointsman_driver::provider::{ExecutorConfig, ModelConfig, ModelSource};
use pointsman_tests::backend::MockBackend;
use pointsman_tests::client::chat;
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

use super::{backend, over, serving_with};

const CHAT: &str = "/v1/chat/completions";
const TEXTS: &str = "/v1/completions";

/// An engine of the demo model, `here`, and this server, `elsewhere`, whose context is twice as long.
async fn beside(mock: &MockBackend) -> Result<Serving> {
    let serving = serving_with([backend("elsewhere", mock)?], |config| {
        config.local.models = vec![ModelConfig::new("demo", ModelSource::Embedded)];
        config.local.executors = vec![ExecutorConfig {
            name: Some("here".to_owned()),
            ..ExecutorConfig::new("demo")
        }];
    });
    serving.await
}

/// A prompt of these tokens that may go to the engine alone.
fn kept_here(tokens: &[u32], tokens_max: u32) -> Value {
    let hints = json!({"executors": ["here"]});
    json!({"model": "demo", "prompt": tokens, "max_tokens": tokens_max, "pointsman": hints})
}

#[tokio::test]
async fn a_request_for_engines_is_measured_by_their_contexts_though_a_server_has_a_longer_one()
-> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = beside(&mock).await?;
    let client = serving.client.for_others();
    let long = vec![5; 3000];
    for (path, body) in [
        ("/v1/embeddings", json!({"model": "demo", "input": long})),
        (TEXTS, kept_here(&long, 1)),
        (TEXTS, kept_here(&[5], 3000)),
    ] {
        let answer = client.post(path, &body).await?;
        let error = answer.json()?["error"].clone();
        let is_too_long = error["code"] == "context_length_exceeded";
        ensure!(answer.status == 400 && is_too_long, "{path}: {error}");
    }
    // A chat may have as long an answer as the engine has room for.
    let forecast = client.post("/admin/route", &chat("Hello")).await?.json()?;
    let tokens_max = forecast["request"]["output_tokens_max"].as_u64();
    ensure!(
        tokens_max.is_some_and(|tokens| (1000..2048).contains(&tokens)),
        "{forecast}"
    );
    // What may go to the server goes there.
    let body = json!({"model": "demo", "prompt": long});
    let forecast = client.post("/admin/route", &body).await?.json()?;
    ensure!(forecast["executor"] == "elsewhere", "{forecast}");
    let answer = client.post(TEXTS, &body).await?;
    ensure!(answer.status == 200, "{answer:?}");
    ensure!(answer.header("x-pointsman-executor") == "elsewhere");
    over(serving).await
}

#[tokio::test]
async fn several_answers_to_one_request_are_the_engines_where_they_may_give_them() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = beside(&mock).await?;
    let client = serving.client.for_others();
    let mut choices = chat("Hello");
    (choices["n"], choices["max_tokens"]) = (json!(2), json!(4));
    let prompts = json!({"model": "demo", "prompt": ["One", "Two"], "max_tokens": 4});
    for (path, mut body) in [(CHAT, choices), (TEXTS, prompts)] {
        let forecast = client.post("/admin/route", &body).await?.json()?;
        ensure!(forecast["executor"] == "here", "{path}: {forecast}");
        for _ in 0..4 {
            let answer = client.post(path, &body).await?;
            let count = answer.json()?["choices"].as_array().map(Vec::len);
            ensure!(count == Some(2), "{path}: {answer:?}");
            ensure!(answer.header("x-pointsman-executor") == "here", "{path}");
        }
        ensure!(mock.seen(path).is_empty(), "{path}");
        body["pointsman"] = json!({"executors": ["elsewhere"]});
        let answer = client.post(path, &body).await?;
        let executor = answer.header("x-pointsman-executor");
        ensure!(executor == "elsewhere", "{path}: {answer:?}");
        ensure!(mock.seen(path).len() == 1, "{path}");
    }
    over(serving).await
}
