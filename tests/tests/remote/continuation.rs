//! Streamed chats that break off at one server and go on at another.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pointsman_config::BackendConfig;
use pointsman_executor::server::BrokenStreams;
use pointsman_tests::backend::{Conduct, MockBackend, coded, stream_head, token};
use pointsman_tests::client::{Client, Stream, Streamed, streamed_chat};
use pointsman_tests::exposition::{samples, total};
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};

use super::{backend, executors_until, named, over, serving, serving_with, two_servers};

const CHAT: &str = "/v1/chat/completions";

/// A stream of two tokens that breaks off.
fn breaks() -> Conduct {
    breaks_after("")
}

/// A stream of two tokens that breaks off after these bytes.
fn breaks_after(rest: &str) -> Conduct {
    let named = |number| coded(&token(number).replace("mock-1", "bad-1"));
    let begun = [stream_head(), &named(0), &named(1)].concat();
    let rest = if rest.is_empty() {
        String::new()
    } else {
        coded(rest)
    };
    Conduct::Bytes((begun + &rest).into_bytes())
}

fn going_on(name: &str, mock: &MockBackend) -> Result<BackendConfig> {
    let mut config = backend(name, mock)?;
    config.server.broken_streams = BrokenStreams::GoOn;
    Ok(config)
}

/// A server that is chosen first, and breaks all streams, with another one.
async fn pair() -> Result<[MockBackend; 2]> {
    let [bad, good] = two_servers().await?;
    bad.does(breaks());
    Ok([bad, good])
}

/// Asks the server `bad` first, as a client that may go elsewhere then.
async fn ask(client: Client, more: Value) -> Result<Streamed> {
    ask_first(client, "bad", more).await?.finish().await
}

/// Asks until the request is begun by this server.
async fn ask_first(client: Client, first: &str, more: Value) -> Result<Stream> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    for _ in 0..100 {
        // No conversation that a server would be preferred for.
        let number = ASKED.fetch_add(1, Ordering::Relaxed);
        let mut body = streamed_chat(&format!("hello {number}"));
        for (name, value) in more.as_object().context("no fields")? {
            body[name] = value.clone();
        }
        let stream = client.stream(&body).await?;
        if stream.headers["x-pointsman-executor"] == first {
            return Ok(stream);
        }
        stream.finish().await?;
    }
    bail!("{first} is never chosen")
}

/// The body of the newest chat that a server got.
fn asked(mock: &MockBackend) -> Result<Value> {
    let seen = mock.seen(CHAT);
    let newest = seen.last().context("nothing arrived")?;
    Ok(serde_json::from_slice(&newest.body)?)
}

/// A server whose executors are never degraded.
async fn tireless<const N: usize>(backends: [BackendConfig; N]) -> Result<Serving> {
    serving_with(backends, |config| config.core.degraded_after = 1 << 20).await
}

#[tokio::test]
async fn a_stream_that_breaks_off_goes_on_at_another_server_from_its_text() -> Result<()> {
    let [bad, good] = pair().await?;
    let serving = tireless([going_on("bad", &bad)?, going_on("good", &good)?]).await?;
    for rest in ["", "data: {\"cho"] {
        bad.does(breaks_after(rest));
        let bound = json!({"max_tokens": 9});
        let streamed = ask(serving.client, bound).await?;
        ensure!(streamed.text == "t0 t1 t0 t1 t2 ", "{rest:?}: {streamed:?}");
        ensure!(
            streamed.done && streamed.error.is_none(),
            "{rest:?}: {streamed:?}"
        );
        ensure!(streamed.finish_reason.as_deref() == Some("stop"));
        let body = asked(&good)?;
        let last = body["messages"].as_array().and_then(|list| list.last());
        let expected = json!({"role": "assistant", "content": "t0 t1 "});
        ensure!(last == Some(&expected), "{body}");
        ensure!(body["continue_final_message"] == true && body["add_generation_prompt"] == false);
        ensure!(body["max_tokens"] == 7 && body["stream"] == true, "{body}");
        serving.idle().await?;
    }
    over(serving).await
}

#[tokio::test]
async fn the_tokens_of_both_parts_are_told_and_counted_once() -> Result<()> {
    let [bad, good] = pair().await?;
    let serving = tireless([going_on("bad", &bad)?, going_on("good", &good)?]).await?;
    let more = json!({"stream_options": {"include_usage": true}});
    let mut stream = ask_first(serving.client, "bad", more).await?;
    let request = stream.headers["x-pointsman-request"].to_str()?.to_owned();
    let (mut usage, mut ids) = (Value::Null, Vec::new());
    while let Some(event) = stream.event().await? {
        if event == "[DONE]" {
            continue;
        }
        let event: Value = serde_json::from_str(&event)?;
        ids.push(event["id"].clone());
        if !event["usage"].is_null() {
            usage = event["usage"].clone();
        }
    }
    // The server that went on told 5 and 3, and has read the 2 before.
    let told = (&usage["prompt_tokens"], &usage["completion_tokens"]);
    ensure!(told == (&json!(3), &json!(5)), "{usage}");
    ensure!(usage["total_tokens"] == 8, "{usage}");
    ids.dedup();
    ensure!(ids == ["bad-1"], "{ids:?}");
    let path = format!("/admin/decisions/{request}");
    let decided = String::from_utf8(serving.client.get(&path).await?.body)?;
    ensure!(
        decided.contains("good") && decided.contains("bad"),
        "{decided}"
    );
    over(serving).await
}

#[tokio::test]
async fn a_stream_that_nobody_may_go_on_with_ends_with_an_error() -> Result<()> {
    let [bad, good] = pair().await?;
    // By default nobody does; and one that does needs another.
    for (first, second) in [
        (backend("bad", &bad)?, going_on("good", &good)?),
        (going_on("bad", &bad)?, backend("good", &good)?),
    ] {
        let serving = tireless([first, second]).await?;
        let streamed = ask(serving.client, json!({})).await?;
        ensure!(streamed.text == "t0 t1 " && !streamed.done, "{streamed:?}");
        ensure!(streamed.error.is_some(), "{streamed:?}");
        serving.idle().await?;
        serving.server.stop().await?;
    }
    // A tool's call cannot be gone on with.
    let chunk = json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]});
    bad.does(breaks_after(&format!("data: {chunk}\n\n")));
    let serving = tireless([going_on("bad", &bad)?, going_on("good", &good)?]).await?;
    let streamed = ask(serving.client.for_others(), json!({})).await?;
    ensure!(!streamed.done && streamed.error.is_some(), "{streamed:?}");
    over(serving).await
}

#[tokio::test]
async fn an_answer_in_a_form_that_breaks_off_ends_with_an_error() -> Result<()> {
    let [bad, good] = pair().await?;
    let serving = tireless([going_on("bad", &bad)?, going_on("good", &good)?]).await?;
    for form in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"guided_regex": "[a-z]+"}),
        json!({"grammar": "root ::= \"a\""}),
    ] {
        let streamed = ask(serving.client, form.clone()).await?;
        ensure!(
            streamed.text == "t0 t1 " && !streamed.done && streamed.error.is_some(),
            "{form}: {streamed:?}"
        );
    }
    let text = json!({"response_format": {"type": "text"}});
    let streamed = ask(serving.client, text).await?;
    ensure!(
        streamed.text == "t0 t1 t0 t1 t2 " && streamed.done,
        "{streamed:?}"
    );
    over(serving).await
}

#[tokio::test]
async fn engines_do_not_go_on_with_a_stream() -> Result<()> {
    let bad = MockBackend::start(&["demo"]).await?;
    bad.does(breaks());
    let backend = going_on("bad", &bad)?;
    let serving = Serving::start(|config| {
        config.backends = vec![backend];
        config.local.executors[0].terms.slots = 1;
    });
    let serving = serving.await?;
    let client = serving.client;
    executors_until(client, |list| {
        named(list, "bad")["models"] == json!(["demo"])
    })
    .await?;
    let mut long = streamed_chat("Tell me a story about a fox and an owl.");
    long["ignore_eos"] = true.into();
    long["max_tokens"] = json!(900);
    long["pointsman"] = json!({"executors": ["cpu0/demo"]});
    let mut busy = client.stream(&long).await?;
    busy.first_text().await?;
    // The engine has the model, and no room now: it would be waited for.
    let streamed = client
        .stream(&streamed_chat("hello"))
        .await?
        .finish()
        .await?;
    ensure!(
        streamed.text == "t0 t1 " && streamed.error.is_some(),
        "{streamed:?}"
    );
    let why = [("why", "nowhere-left")];
    let failed = total(&samples(client).await?, "pointsman_requests_total", &why);
    ensure!(failed == 1.0, "{failed}");
    drop(busy);
    over(serving).await
}

#[tokio::test]
async fn a_stream_may_break_off_twice_and_waits_for_room_as_any_request_does() -> Result<()> {
    let [bad, good] = pair().await?;
    let worse = MockBackend::start(&["demo"]).await?;
    worse.does(breaks());
    let serving = tireless([going_on("bad", &bad)?, going_on("worse", &worse)?]).await?;
    let client = serving.client;
    let order = json!({
        "url": good.url(), "executor": "good", "broken-streams": "go-on", "slots": 1, "poll-ms": 50,
    });
    let added = client.post("/admin/executors", &order).await?;
    ensure!(added.status == 201, "{:?}", added.json());
    let found = |list: &[Value]| named(list, "good")["models"] == json!(["demo"]);
    executors_until(client, found).await?;
    // Somebody has its only slot.
    good.does(Conduct::Steps(1));
    let mut other = streamed_chat("hello");
    other["pointsman"] = json!({"executors": ["good"]});
    let other = tokio::spawn(async move { client.stream(&other).await?.finish().await });
    good.runs(1).await?;
    good.does(Conduct::Answers(3));
    let stream = client.stream(&streamed_chat("hello")).await?;
    bad.heard(CHAT, 1).await?;
    worse.heard(CHAT, 1).await?;
    serving.load_until(|load| load.queued == 1).await?;
    good.allow(1);
    let streamed = stream.finish().await?;
    ensure!(streamed.text == "t0 t1 t0 t1 t0 t1 t2 ", "{streamed:?}");
    ensure!(streamed.done && streamed.error.is_none(), "{streamed:?}");
    let told = &asked(&good)?["messages"][1]["content"];
    ensure!(told == "t0 t1 t0 t1 ", "{told}");
    other.await??;
    over(serving).await
}

#[tokio::test]
async fn a_client_that_leaves_while_its_stream_goes_on_frees_the_second_server() -> Result<()> {
    let [bad, good] = pair().await?;
    let begun = stream_head().to_owned() + &coded(&token(0));
    bad.does(Conduct::BytesThenNothing(begun.into_bytes()));
    let mut stalls = going_on("bad", &bad)?;
    stalls.server.stall_timeout = Duration::from_millis(500);
    let serving = serving([stalls, going_on("good", &good)?]).await?;
    let stream = ask_first(serving.client, "bad", json!({})).await?;
    good.does(Conduct::Steps(1));
    good.runs(1).await?;
    ensure!(asked(&good)?["continue_final_message"] == true);
    drop(stream);
    good.abandoned(1).await?;
    over(serving).await
}
