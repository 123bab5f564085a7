//! Requests that name no model.

use anyhow::{Context, Result, ensure};
use pointsman_config::{Config, UnnamedModel};
use pointsman_tests::client::{chat, streamed_chat};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

use super::{error, executor, order, over, second};

/// The demo model and `second` on an executor each, and both on a third one.
fn open(config: &mut Config) {
    config.http.unnamed_model = UnnamedModel::Any;
    config.local.models.push(second());
    config.local.executors = vec![
        executor("both", &["demo", "second"]),
        executor("one", &["demo"]),
        executor("two", &["second"]),
    ];
}

/// A body without a model, with hints.
fn unnamed(mut body: Value, hints: Value) -> Value {
    if let Some(body) = body.as_object_mut() {
        body.remove("model");
    }
    body["pointsman"] = hints;
    body
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_request_without_a_model_goes_to_any_executor_and_is_told_which_model_answers()
-> Result<()> {
    let serving = Serving::start(open).await?;
    let client = serving.client;
    for (name, model) in [("one", "demo"), ("two", "second")] {
        let hints = json!({"executors": [name]});
        let answer = client
            .post(CHAT, &unnamed(chat("Hello"), hints.clone()))
            .await?;
        answer.text()?;
        ensure!(answer.header("x-pointsman-executor") == name);
        ensure!(answer.json()?["model"] == model, "{:?}", answer.json());
        let mut stream = client
            .stream(&unnamed(streamed_chat("Hello"), hints))
            .await?;
        let event = stream.event().await?.context("no event")?;
        let event: Value = serde_json::from_str(&event)?;
        ensure!(event["model"] == model, "{event}");
    }
    // One on which two models are served has room for neither of them alone.
    let only = json!({"executors": ["both"]});
    let refused = client.post(CHAT, &unnamed(chat("Hello"), only)).await?;
    ensure!(refused.status == 400, "{:?}", refused.json());
    serving.idle().await?;
    // Whichever is free takes the next one.
    for (drained, free) in [("one", "two"), ("two", "one")] {
        let path = |change: &str| format!("/admin/executors/{drained}/{change}");
        order(client, &path("drain"), &json!({})).await?;
        let answer = client
            .post(CHAT, &unnamed(chat("Hello"), json!({})))
            .await?;
        let placed = answer.header("x-pointsman-executor");
        ensure!(placed == free, "{placed}: {:?}", answer.json());
        let forecast = unnamed(chat("Hello"), json!({}));
        let forecast = client.post("/admin/route", &forecast).await?.json()?;
        ensure!(forecast["request"]["model"].is_null(), "{forecast}");
        order(client, &path("resume"), &json!({})).await?;
    }
    over(serving).await
}

#[tokio::test]
async fn a_request_without_a_model_is_refused_where_it_has_to_name_one() -> Result<()> {
    let asked = unnamed(chat("Hello"), json!({}));
    let by_default = Serving::start(|_| ()).await?;
    let answer = by_default.client.post(CHAT, &asked).await?;
    ensure!(error(&answer)? == (400, "`model` is missing".to_owned()));
    over(by_default).await?;
    let shared = Serving::start(|config| {
        open(config);
        config.local.executors.truncate(1);
    })
    .await?;
    let said =
        "`model` is missing, and no executor serves one model alone; name one of: demo, second";
    let answer = shared.client.post(CHAT, &asked).await?;
    ensure!(error(&answer)? == (400, said.to_owned()));
    over(shared).await
}
