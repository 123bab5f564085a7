//! Models that servers load and unload on order.

mod loading;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_config::{BackendConfig, JournalPlace};
use pointsman_driver::message::Load;
use pointsman_policy_cli::Verdict;
use pointsman_tests::backend::{Conduct, MockBackend, Seen};
use pointsman_tests::client::{Client, chat, streamed_chat};
use pointsman_tests::journal::{replay_args, replay_said};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_blocking};

use super::{backend, executors_until, named, over, serving, serving_with};

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

/// A server in front of one of vLLM that sleeps, and is sent to sleep again once it is idle.
async fn before_sleeper(mock: &MockBackend) -> Result<Serving> {
    mock.answers("/is_sleeping", 200, r#"{"is_sleeping": true}"#);
    mock.obeys("/wake_up", 200, "");
    mock.obeys("/sleep", 200, "");
    let mut config = backend("vllm", mock)?;
    config.server.unload_after = Some(Duration::from_millis(10));
    serving([config]).await
}

/// A server of Ollama with these models, which loads them at once and lists none of them as loaded.
async fn ollama(models: &[&str]) -> Result<MockBackend> {
    let mock = MockBackend::start(&[]).await?;
    mock.has_models("library", models);
    mock.answers("/api/version", 200, "{}");
    mock.obeys("/api/generate", 200, r#"{"done": true}"#);
    ollama_lists(&mock, &[]);
    Ok(mock)
}

/// Lists these models of a server of Ollama as loaded.
fn ollama_lists(mock: &MockBackend, models: &[&str]) {
    let models: Vec<Value> = models.iter().map(|name| json!({"name": name})).collect();
    let list = json!({"models": models});
    mock.answers("/api/ps", 200, &list.to_string());
}

/// The bodies of the orders that a server of Ollama was given.
fn ollama_orders(mock: &MockBackend) -> Result<Vec<Value>> {
    let mut orders = Vec::new();
    for seen in mock.seen("/api/generate") {
        orders.push(serde_json::from_slice(&seen.body)?);
    }
    Ok(orders)
}

/// Waits until a server of Ollama has told what is loaded, and is asked again.
async fn ollama_has_told(mock: &MockBackend) -> Result<()> {
    let rounds = mock.seen("/api/ps").len();
    mock.heard("/api/ps", rounds + 2).await
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
    let mock = ollama(&["small"]).await?;
    ollama_lists(&mock, &["small"]);
    let mut config = backend("ollama", &mock)?;
    config.server.unload_after = Some(Duration::from_millis(10));
    let serving = serving([config]).await?;
    mock.heard("/api/generate", 1).await?;
    ollama_lists(&mock, &[]);
    let unload: Value = serde_json::from_slice(&mock.seen("/api/generate")[0].body)?;
    ensure!(
        unload == json!({"model": "small", "keep_alive": 0}),
        "{unload}"
    );

    let asked = asks(serving.client, "small");
    mock.heard("/api/generate", 2).await?;
    ollama_lists(&mock, &["small"]);
    ensure!(asked.await?? == 200);
    let load: Value = serde_json::from_slice(&mock.seen("/api/generate")[1].body)?;
    ensure!(load == json!({"model": "small"}), "{load}");
    over(serving).await
}

#[tokio::test]
async fn a_model_that_ollama_does_not_list_is_ready_once_its_order_is_answered() -> Result<()> {
    // Both are of the same weights, which are listed by one name.
    let mock = ollama(&["first", "copy"]).await?;
    ollama_lists(&mock, &["first"]);
    let mut config = backend("ollama", &mock)?;
    config.server.load_timeout = Duration::from_secs(20);
    let serving = serving([config]).await?;
    let client = serving.client;
    let is_ready = |list: &[Value]| loaded(list, "ollama").iter().any(|it| it == "copy");
    for _ in 0..2 {
        ensure!(asks(client, "copy").await?? == 200);
        // It stays so, however often it is not listed.
        ollama_has_told(&mock).await?;
        executors_until(client, is_ready).await?;
    }
    let orders = mock.seen("/api/generate");
    ensure!(orders.len() == 1 && ordered(&orders[0])? == "copy");
    over(serving).await
}

#[tokio::test]
async fn a_model_is_not_unloaded_while_requests_run_by_its_other_name() -> Result<()> {
    let mock = ollama(&["first", "copy"]).await?;
    let mut config = backend("ollama", &mock)?;
    config.server.unload_after = Some(Duration::from_millis(10));
    let serving = serving([config]).await?;
    mock.does(Conduct::Steps(1));
    let asked = asks(serving.client, "copy");
    mock.runs(1).await?;
    // Its weights are listed by their other name.
    ollama_lists(&mock, &["first"]);
    ollama_has_told(&mock).await?;
    let load = json!({"model": "copy"});
    let orders = ollama_orders(&mock)?;
    ensure!(orders == [load.clone()], "{orders:?}");

    mock.allow(1);
    ensure!(asked.await?? == 200);
    mock.heard("/api/generate", 2).await?;
    ollama_lists(&mock, &[]);
    let orders = ollama_orders(&mock)?;
    let unload = json!({"model": "first", "keep_alive": 0});
    ensure!(orders == [load, unload], "{orders:?}");
    over(serving).await
}

/// A server with an Ollama of these models that has room for two.
async fn before_ollama(mock: &MockBackend) -> Result<Serving> {
    let mut config = backend("ollama", mock)?;
    config.terms.models_max = Some(2);
    serving([config]).await
}

#[tokio::test]
async fn no_model_makes_room_while_requests_run_by_a_name_that_is_not_listed() -> Result<()> {
    let mock = ollama(&["first", "copy", "other", "third", "fourth"]).await?;
    let serving = before_ollama(&mock).await?;
    let client = serving.client;
    mock.does(Conduct::Steps(1));
    let copy = asks(client, "copy");
    mock.runs(1).await?;
    ollama_lists(&mock, &["first", "other"]);
    ollama_has_told(&mock).await?;
    let third = asks(client, "third");
    mock.heard("/api/generate", 2).await?;
    let orders = ollama_orders(&mock)?;
    let expected = [json!({"model": "copy"}), json!({"model": "third"})];
    ensure!(orders == expected, "{orders:?}");
    mock.allow(2);
    for answered in [copy, third] {
        ensure!(answered.await?? == 200);
    }

    // Nobody needs the weights any more.
    serving.idle().await?;
    let fourth = asks(client, "fourth");
    mock.heard("/api/generate", 3).await?;
    ollama_lists(&mock, &["other"]);
    mock.allow(1);
    ensure!(fourth.await?? == 200);
    let orders = ollama_orders(&mock)?;
    let unload = json!({"model": "first", "keep_alive": 0});
    ensure!(
        orders[2..] == [unload, json!({"model": "fourth"})],
        "{orders:?}"
    );
    over(serving).await
}

#[tokio::test]
async fn a_model_that_is_used_by_its_other_name_before_it_has_left_keeps_nobody_waiting()
-> Result<()> {
    let mock = ollama(&["first", "copy", "other", "third"]).await?;
    let serving = before_ollama(&mock).await?;
    let client = serving.client;
    ensure!(asks(client, "copy").await?? == 200);
    ollama_lists(&mock, &["first", "other"]);
    ollama_has_told(&mock).await?;
    let third = asks(client, "third");
    mock.heard("/api/generate", 2).await?;
    // It does not leave now.
    mock.does(Conduct::Steps(1));
    let copy = asks(client, "copy");
    mock.heard("/api/generate", 3).await?;
    let orders = ollama_orders(&mock)?;
    let unload = json!({"model": "first", "keep_alive": 0});
    ensure!(
        orders[1..] == [unload, json!({"model": "third"})],
        "{orders:?}"
    );
    mock.allow(2);
    for answered in [copy, third] {
        ensure!(answered.await?? == 200);
    }
    over(serving).await
}

#[tokio::test]
async fn a_model_that_ollama_does_not_load_on_order_is_loaded_by_its_requests() -> Result<()> {
    let mock = ollama(&["embed"]).await?;
    let refusal = json!({"error": "\"embed\" does not support generate"});
    mock.obeys("/api/generate", 400, &refusal.to_string());
    let serving = serving([backend("ollama", &mock)?]).await?;
    let client = serving.client;
    let body = json!({"model": "embed", "input": "text"}).to_string();
    let is_ready = |list: &[Value]| loaded(list, "ollama") == ["embed"];
    for orders in [1, 2] {
        for _ in 0..2 {
            let got = client.raw("/v1/embeddings", &[], body.clone()).await?;
            ensure!(got.status == 200, "{got:?}");
        }
        ensure!(mock.seen("/api/generate").len() == orders, "one for both");
        executors_until(client, is_ready).await?;
        // The first request has it loaded, until nobody has asked for it for a while.
        ollama_lists(&mock, &["embed"]);
        ollama_has_told(&mock).await?;
        ollama_lists(&mock, &[]);
        executors_until(client, |list| !is_ready(list)).await?;
    }
    over(serving).await
}

#[tokio::test]
async fn a_server_that_sleeps_is_woken_by_a_request() -> Result<()> {
    let mock = vllm().await?;
    let serving = before_sleeper(&mock).await?;
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
async fn a_server_does_not_sleep_while_requests_run_by_another_name_of_its_model() -> Result<()> {
    let mock = vllm().await?;
    mock.has_models("vllm", &["big", "adapter"]);
    let serving = before_sleeper(&mock).await?;
    mock.does(Conduct::Steps(1));
    let asked = asks(serving.client, "adapter");
    mock.heard("/wake_up", 1).await?;
    mock.answers("/is_sleeping", 200, r#"{"is_sleeping": false}"#);
    mock.runs(1).await?;
    let rounds = mock.seen("/is_sleeping").len();
    mock.heard("/is_sleeping", rounds + 3).await?;
    ensure!(mock.seen("/sleep").is_empty(), "it is in use");
    mock.allow(1);
    ensure!(asked.await?? == 200);
    mock.heard("/sleep", 1).await?;
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

/// A server in front of two routers, of which the first is chosen first.
async fn before_two(
    one: &MockBackend,
    two: &MockBackend,
    journal: Option<&Path>,
) -> Result<Serving> {
    let backends = [backend("one", one)?, backend("two", two)?];
    serving_with(backends, |config| {
        if let Some(folder) = journal {
            config.journal.place = JournalPlace::Folder(folder.to_owned());
        }
    })
    .await
}

/// The models that are loaded on an executor, by the word of its server.
fn loaded(list: &[Value], name: &str) -> Vec<String> {
    let present = named(list, name)["models_present"].as_array();
    let present = present.into_iter().flatten();
    let loaded = present.filter(|it| it["loaded"] == true);
    let names = loaded.filter_map(|it| it["model"].as_str());
    names.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_model_that_a_server_has_loaded_by_itself_is_used_there_and_replayed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let unloaded = [("a", "unloaded"), ("b", "unloaded")];
    let (one, two) = (router(&unloaded).await?, router(&unloaded).await?);
    let serving = before_two(&one, &two, Some(folder.path())).await?;
    let client = serving.client;
    // Somebody else has it loaded there.
    router_has(&two, &[("a", "loaded"), ("b", "unloaded")]);
    executors_until(client, |list| loaded(list, "two") == ["a"]).await?;
    for _ in 0..2 {
        ensure!(asks(client, "a").await?? == 200);
    }
    ensure!(two.seen(CHAT).len() == 2 && one.seen(CHAT).is_empty());
    // It is moved.
    router_has(&one, &[("a", "loaded"), ("b", "unloaded")]);
    router_has(&two, &unloaded);
    let is_moved = |list: &[Value]| loaded(list, "one") == ["a"] && loaded(list, "two").is_empty();
    executors_until(client, is_moved).await?;
    ensure!(asks(client, "a").await?? == 200);
    ensure!(two.seen(CHAT).len() == 2 && one.seen(CHAT).len() == 1);
    for mock in [&one, &two] {
        ensure!(mock.seen("/models/load").is_empty(), "no order was given");
    }
    over(serving).await?;
    let args = replay_args(folder.path());
    let (said, verdict) = spawn_blocking(move || replay_said(&args)).await??;
    ensure!(verdict == Verdict::Good, "{said}");
    Ok(())
}

#[tokio::test]
async fn requests_wait_for_a_model_that_is_being_loaded_and_hold_no_slots() -> Result<()> {
    let unloaded = [("a", "loaded"), ("b", "unloaded")];
    let (one, two) = (router(&unloaded).await?, router(&unloaded).await?);
    for mock in [&one, &two] {
        model_has(mock, "a", 4, 0);
        model_has(mock, "b", 4, 0);
    }
    let serving = before_two(&one, &two, None).await?;
    let client = serving.client;
    let slots = |list: &[Value]| named(list, "one")["slots_total"] == 5;
    executors_until(client, slots).await?;
    let waiting = [(); 4].map(|()| asks(client, "b"));
    let waits = |load: &Load| (load.queued, load.slots_used) == (3, 1);
    serving.load_until(waits).await?;
    one.heard("/models/load", 1).await?;
    // The operator sees why.
    let shown = client.get("/monitor/data").await?.json()?;
    let why = &shown["queue"][0]["why"];
    let told = "held by memory-aware: its model is being loaded where there is room";
    ensure!(why["kind"] == "held" && why["text"] == told, "{why}");
    // Others are served meanwhile.
    for _ in 0..3 {
        ensure!(asks(client, "a").await?? == 200);
    }
    router_has(&one, &[("a", "loaded"), ("b", "loading")]);
    serving.load_until(waits).await?;
    router_has(&one, &[("a", "loaded"), ("b", "loaded")]);
    for answered in waiting {
        ensure!(answered.await?? == 200);
    }
    ensure!(one.seen("/models/load").len() == 1, "one order for all");
    ensure!(two.seen("/models/load").is_empty(), "it is loaded once");
    over(serving).await
}

#[tokio::test]
async fn what_waits_for_a_model_that_cannot_be_loaded_goes_elsewhere() -> Result<()> {
    let (cannot, can) = (
        router(&[("a", "unloaded")]).await?,
        router(&[("a", "unloaded")]).await?,
    );
    let serving = before_two(&cannot, &can, None).await?;
    let client = serving.client;
    let waiting = [(); 3].map(|()| asks(client, "a"));
    cannot.heard("/models/load", 1).await?;
    serving.load_until(|load| load.queued == 2).await?;
    router_has(&cannot, &[("a", "failed")]);
    can.heard("/models/load", 1).await?;
    router_has(&can, &[("a", "loaded")]);
    for answered in waiting {
        ensure!(answered.await?? == 200);
    }
    ensure!(cannot.seen(CHAT).is_empty() && can.seen(CHAT).len() == 3);
    over(serving).await
}
