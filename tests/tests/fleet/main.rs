//! A fleet of several devices, executors and models, as clients and operators meet it over HTTP.
//!
//! | file | rules of |
//! |---|---|
//! | `devices` | processor pools of their own, and the requests that are forced to them |
//! | `models` | executors of several models, models kept loaded, limits of models |
//! | `budgets` | tokens of a step among engines, and blocks from one engine for another |
//! | `routing` | several executors of one model |
//! | `scales` | the order of executors by KV pressure, depth, free blocks and placements |
//! | `queues` | the order of those who wait outside the queue, and at an executor |
//! | `drains` | executors left to run empty for a cold model, and warm holds |
//! | `turns` | which of those that wait goes first, turns of executors, sessions hashed to an executor |
//! | `rebinding` | policies that take over while engines stay busy and requests wait |
//! | `unnamed` | requests that name no model |
//! | `strategies` | round robin, least loaded and sticky; warm and cold models, drains, sessions |

mod budgets;
mod devices;
mod drains;
mod models;
mod pools;
mod queues;
mod rebinding;
mod routing;
mod scales;
mod strategies;
mod turns;
mod unnamed;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use pointsman_driver::provider::{ExecutorConfig, ExecutorTerms, ModelConfig, ModelSource};
use pointsman_tests::client::{Answer, Client, Stream, chat, endless_chat};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};
use tokio::task::{self, JoinHandle};

/// The demo model's folder: a second model is the same under another name.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/demo-model")
}

/// The demo model once more, as `second`.
fn second() -> ModelConfig {
    ModelConfig::new("second", ModelSource::Path(folder()))
}

/// An executor of that name for these models, with default terms.
fn executor(name: &str, models: &[&str]) -> ExecutorConfig {
    ExecutorConfig {
        name: Some(name.to_owned()),
        models: models.iter().map(|model| (*model).to_owned()).collect(),
        device: None,
        terms: ExecutorTerms::default(),
    }
}

/// A chat with `model`, with hints.
fn ask(model: &str, hints: Value) -> Value {
    let mut body = chat("Hello");
    body["model"] = json!(model);
    body["pointsman"] = hints;
    body
}

/// A streamed chat with `model` that runs until its client leaves.
fn endless(model: &str, hints: Value) -> Value {
    let mut body = endless_chat("Hello", 1900);
    body["model"] = json!(model);
    body["pointsman"] = hints;
    body
}

/// Starts a stream and waits for its first text.
async fn running(client: Client, body: Value) -> Result<Stream> {
    client.running(&body).await
}

fn place(stream: &Stream) -> &str {
    let executor = stream.headers.get("x-pointsman-executor");
    executor.and_then(|name| name.to_str().ok()).unwrap_or("")
}

/// A chat that is answered on a task of its own, with its executor.
fn asked(client: Client, body: Value) -> JoinHandle<Result<String>> {
    task::spawn(async move {
        let answer = client.post("/v1/chat/completions", &body).await?;
        answer.text()?;
        Ok(answer.header("x-pointsman-executor").to_owned())
    })
}

async fn get(client: Client, path: &str) -> Result<Value> {
    let answer = client.get(path).await?;
    ensure!(answer.status.is_success(), "{path}: {:?}", answer.json());
    answer.json()
}

async fn order(client: Client, path: &str, body: &Value) -> Result<Value> {
    let answer = client.post(path, body).await?;
    ensure!(answer.status.is_success(), "{path}: {:?}", answer.json());
    answer.json()
}

fn error(answer: &Answer) -> Result<(u16, String)> {
    let json = answer.json()?;
    let message = json["error"]["message"].as_str().context("no message")?;
    Ok((answer.status.as_u16(), message.to_owned()))
}

/// Looks at `path` until it shows what is `wanted`.
async fn until(client: Client, path: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = Value::Null;
    for _ in 0..6000 {
        last = get(client, path).await?;
        if wanted(&last) {
            return Ok(last);
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    bail!("{path} stays {last}")
}

/// The models with sequences on an executor of a list.
fn active(listed: &Value, at: usize) -> Vec<&str> {
    let present = listed["executors"][at]["models_present"].as_array();
    let present = present.into_iter().flatten();
    let active = present.filter(|model| model["sequences"] != 0);
    active.filter_map(|model| model["model"].as_str()).collect()
}

/// The end of a test: everything is given back.
async fn over(serving: Serving) -> Result<()> {
    serving.idle().await?;
    serving.server.stop().await
}
