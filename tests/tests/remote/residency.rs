//! Models that servers load and unload on order.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_server::config::BackendConfig;
use pointsman_tests::backend::{Conduct, MockBackend, Seen};
use pointsman_tests::client::{Client, chat, streamed_chat};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{backend, executors_until, named, over, serving};

const CHAT: &str = "/v1/chat/completions";
const DONE: &str = r#"{"success": true}"#;

/// Lists the models of a router of llama.cpp with their states.
fn router_has(mock: &MockBackend, models: &[(&str, &str)]) {
    let data = models.iter().map(|(name, state)| {
        json!({"id": name, "object": "model", "owned_by": "llamacpp",
            "status": {"value": state, "failed": *state == "failed"}})
    });
    let list = json!({"object": "list", "data": data.collect::<Vec<_>>()});
    mock.answers("/v1/models", 200, &list.to_string());
}

/// A router of llama.cpp which takes orders. It has no slots of its own.
async fn router(models: &[(&str, &str)]) -> Result<MockBackend> {
    let mock = MockBackend::start(&[]).await?;
    router_has(&mock, models);
    mock.answers("/health", 200, "{}");
    router_holds(&mock, 4);
    mock.obeys("/models/load", 200, DONE);
    mock.obeys("/models/unload", 200, DONE);
    Ok(mock)
}

/// Has a router of llama.cpp load at most so many models at once, in the words of a real one.
fn router_holds(mock: &MockBackend, models: u32) {
    let props = json!({"role": "router", "max_instances": models, "models_autoload": true,
        "model_alias": "llama-server", "model_path": "none",
        "default_generation_settings": {"params": {}, "n_ctx": 0},
        "build_info": "b0-mock", "cors_proxy_enabled": false});
    mock.answers("/props", 200, &props.to_string());
}

/// Has the server that a router runs for a model tell of so many slots, the first `busy` of them at work.
fn model_has(mock: &MockBackend, model: &str, slots: u32, busy: u32) {
    let query = format!("?autoload=false&model={model}");
    let props = json!({"total_slots": slots, "model_alias": model});
    mock.answers(&format!("/props{query}"), 200, &props.to_string());
    let slot = |id| json!({"id": id, "is_processing": id < busy});
    let told: Vec<Value> = (0..slots).map(slot).collect();
    mock.answers(&format!("/slots{query}"), 200, &json!(told).to_string());
}

/// A server of vLLM with one model.
async fn vllm() -> Result<MockBackend> {
    let mock = MockBackend::start(&[]).await?;
    mock.has_models("vllm", &["big"]);
    mock.answers("/health", 200, "");
    Ok(mock)
}

fn asks(client: Client, model: &str) -> JoinHandle<Result<u16>> {
    let mut body = chat("hello");
    body["model"] = model.into();
    tokio::spawn(async move {
        let got = client.raw(CHAT, &[], body.to_string()).await?;
        Ok(got.status.as_u16())
    })
}

/// The model in the body of an order.
fn ordered(seen: &Seen) -> Result<String> {
    let body: Value = serde_json::from_slice(&seen.body)?;
    Ok(body["model"].as_str().context("no model")?.to_owned())
}

#[tokio::test]
async fn a_model_is_swapped_for_another_on_order_and_its_requests_wait_for_that() -> Result<()> {
    // The operator says that there is room for one, or the router does.
    for operator in [Some(1), None] {
        let mock = router(&[("a", "loaded"), ("b", "unloaded")]).await?;
        if operator.is_none() {
            router_holds(&mock, 1);
        }
        let mut config = backend("router", &mock)?;
        config.terms.models_max = operator;
        swapped(&mock, config).await?;
    }
    Ok(())
}

/// Has the model `b` take the place of `a`, which is in use.
async fn swapped(mock: &MockBackend, config: BackendConfig) -> Result<()> {
    let serving = serving([config]).await?;
    let client = serving.client;
    let holds_one = |list: &[Value]| named(list, "router")["models_max"] == 1;
    executors_until(client, holds_one).await?;
    // Somebody reads what `a` says, so it stays.
    mock.does(Conduct::Steps(2));
    let mut body = streamed_chat("hello");
    body["model"] = "a".into();
    let stream = tokio::spawn(async move { client.stream(&body).await?.finish().await });
    mock.runs(1).await?;
    let waiting = [asks(client, "b"), asks(client, "b")];
    serving.load_until(|load| load.live == 3).await?;
    ensure!(mock.seen("/models/unload").is_empty(), "`a` is in use");

    // The reader has left: `a` leaves, and then `b` comes, for both.
    mock.allow(2);
    ensure!(stream.await??.done);
    mock.does(Conduct::Answers(3));
    mock.heard("/models/unload", 1).await?;
    ensure!(mock.seen("/models/load").is_empty());
    router_has(mock, &[("a", "unloaded"), ("b", "unloaded")]);
    mock.heard("/models/load", 1).await?;
    router_has(mock, &[("a", "unloaded"), ("b", "loading")]);
    ensure!(mock.seen(CHAT).len() == 1, "`b` is not loaded yet");
    router_has(mock, &[("a", "unloaded"), ("b", "loaded")]);
    for answered in waiting {
        ensure!(answered.await?? == 200);
    }
    let (unload, load) = (mock.seen("/models/unload"), mock.seen("/models/load"));
    ensure!(unload.len() == 1 && load.len() == 1, "each is ordered once");
    ensure!(ordered(&unload[0])? == "a" && ordered(&load[0])? == "b");
    over(serving).await
}

#[tokio::test]
async fn a_router_has_the_slots_of_its_loaded_models_and_is_asked_for_no_others() -> Result<()> {
    let mock = router(&[("a", "loaded"), ("b", "unloaded")]).await?;
    router_holds(&mock, 2);
    model_has(&mock, "a", 3, 2);
    model_has(&mock, "b", 2, 0);
    let serving = serving([backend("router", &mock)?]).await?;
    let client = serving.client;
    let slots = |slots: u32| move |list: &[Value]| named(list, "router")["slots_total"] == slots;
    // One more, for a model that would be loaded.
    executors_until(client, slots(4)).await?;
    let rounds = mock.seen("/props").len();
    mock.heard("/props", rounds + 4).await?;
    let asked = |path: &str, model: &str| {
        let seen = mock.seen(path).into_iter();
        let theirs = seen.filter(|seen| seen.line.contains(&format!("model={model} ")));
        theirs.count()
    };
    ensure!(asked("/props", "a") == 1, "it is asked once");
    ensure!(asked("/props", "b") == 0, "it is not loaded");
    ensure!(mock.seen("/slots").is_empty(), "it would not sleep");

    router_has(&mock, &[("a", "sleeping"), ("b", "loaded")]);
    executors_until(client, slots(5)).await?;
    // A request of ours is there, and somebody else's beside it.
    mock.does(Conduct::Steps(1));
    let mut body = chat("hello");
    body["model"] = "a".into();
    let ours = tokio::spawn(async move { client.raw(CHAT, &[], body.to_string()).await });
    mock.runs(1).await?;
    executors_until(client, slots(4)).await?;
    ensure!(asked("/slots", "a") > 0 && asked("/slots", "b") == 0);
    mock.allow(1);
    ensure!(ours.await??.status == 200);
    executors_until(client, slots(5)).await?;
    over(serving).await
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_here_is_served_by_another_server() -> Result<()> {
    let (cannot, can) = (
        router(&[("a", "unloaded")]).await?,
        MockBackend::start(&["a"]).await?,
    );
    let second = backend("can", &can)?;
    can.has_models("openai", &["other"]);
    let serving = serving([backend("cannot", &cannot)?, second]).await?;
    let asked = asks(serving.client, "a");
    cannot.heard("/models/load", 1).await?;
    can.has_models("openai", &["a"]);
    let finds = |list: &[Value]| named(list, "can")["models"] == json!(["a"]);
    executors_until(serving.client, finds).await?;
    router_has(&cannot, &[("a", "failed")]);
    ensure!(asked.await?? == 200);
    ensure!(cannot.seen(CHAT).is_empty() && can.seen(CHAT).len() == 1);
    over(serving).await
}

#[tokio::test]
async fn a_model_that_is_not_loaded_in_time_is_an_error_that_frees_everything() -> Result<()> {
    let mock = router(&[("a", "unloaded")]).await?;
    let mut config = backend("router", &mock)?;
    config.server.load_timeout = Duration::from_millis(50);
    let serving = serving([config]).await?;
    let got = asks(serving.client, "a").await??;
    ensure!(got == 502, "{got}");
    ensure!(mock.seen(CHAT).is_empty());
    over(serving).await
}

#[tokio::test]
async fn a_model_that_nobody_asks_for_is_unloaded_and_loaded_again_when_somebody_does() -> Result<()>
{
    let mock = MockBackend::start(&[]).await?;
    mock.has_models("library", &["small"]);
    mock.answers("/api/version", 200, "{}");
    mock.answers("/api/ps", 200, r#"{"models": [{"name": "small"}]}"#);
    mock.obeys("/api/generate", 200, r#"{"done": true}"#);
    let mut config = backend("ollama", &mock)?;
    config.server.unload_after = Some(Duration::from_millis(10));
    let serving = serving([config]).await?;
    mock.heard("/api/generate", 1).await?;
    mock.answers("/api/ps", 200, r#"{"models": []}"#);
    let unload: Value = serde_json::from_slice(&mock.seen("/api/generate")[0].body)?;
    ensure!(
        unload == json!({"model": "small", "keep_alive": 0}),
        "{unload}"
    );

    let asked = asks(serving.client, "small");
    mock.heard("/api/generate", 2).await?;
    mock.answers("/api/ps", 200, r#"{"models": [{"name": "small"}]}"#);
    ensure!(asked.await?? == 200);
    let load: Value = serde_json::from_slice(&mock.seen("/api/generate")[1].body)?;
    ensure!(load == json!({"model": "small"}), "{load}");
    over(serving).await
}

#[tokio::test]
async fn a_server_that_sleeps_is_woken_by_a_request() -> Result<()> {
    let mock = vllm().await?;
    mock.answers("/is_sleeping", 200, r#"{"is_sleeping": true}"#);
    mock.obeys("/wake_up", 200, "");
    mock.obeys("/sleep", 200, "");
    let mut config = backend("vllm", &mock)?;
    config.server.unload_after = Some(Duration::from_millis(10));
    let serving = serving([config]).await?;
    let asked = asks(serving.client, "big");
    mock.heard("/wake_up", 1).await?;
    ensure!(mock.seen(CHAT).is_empty(), "it sleeps");
    mock.answers("/is_sleeping", 200, r#"{"is_sleeping": false}"#);
    ensure!(asked.await?? == 200);
    mock.heard("/sleep", 1).await?;
    ensure!(mock.seen("/sleep")[0].line.contains("level=1"));
    mock.answers("/is_sleeping", 200, r#"{"is_sleeping": true}"#);
    over(serving).await
}

#[tokio::test]
async fn a_server_that_does_not_tell_what_is_loaded_gets_no_orders() -> Result<()> {
    let mock = vllm().await?;
    let mut config = backend("vllm", &mock)?;
    config.server.unload_after = Some(Duration::from_millis(10));
    let serving = serving([config]).await?;
    ensure!(asks(serving.client, "big").await?? == 200);
    // Asked once whether it sleeps, it is not asked again.
    let rounds = mock.seen("/health").len();
    mock.heard("/health", rounds + 3).await?;
    ensure!(mock.seen("/is_sleeping").len() == 1);
    ensure!(mock.seen("/wake_up").is_empty() && mock.seen("/sleep").is_empty());
    over(serving).await
}
