//! The ways in which a server can fail: for each, the answer that its client gets, and the books after
//! it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pointsman_core::Micros;
use pointsman_tests::backend::{Conduct, MockBackend, coded, head, stream_head, token};
use pointsman_tests::client::{chat, streamed_chat};
use pointsman_tests::serving::Serving;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{backend, begun, executors_until, named, over, serving_with, two_servers};

const CHAT: &str = "/v1/chat/completions";

/// A failure before anything of a response has come.
fn early() -> Vec<(&'static str, Conduct)> {
    let bytes = |text: &str| text.as_bytes().to_vec();
    let cut = head(200, &[("content-type", "application/json")], 100);
    vec![
        ("closes without a word", Conduct::Bytes(Vec::new())),
        ("no HTTP", Conduct::Bytes(bytes("hello\r\n\r\n"))),
        (
            "half a head",
            Conduct::Bytes(bytes("HTTP/1.1 200 OK\r\ncontent-")),
        ),
        ("dies after the head", Conduct::Bytes(bytes(&cut))),
        (
            "a stream that dies after its head",
            Conduct::Bytes(bytes(stream_head())),
        ),
        ("accepts and hangs", Conduct::BytesThenNothing(Vec::new())),
        (
            "a head and then nothing",
            Conduct::BytesThenNothing(bytes(&cut)),
        ),
        ("500", Conduct::Status(500, &[])),
        (
            "500 in a stream",
            Conduct::Bytes(bytes(&stream_of(&error_event(500)))),
        ),
        ("502", Conduct::Status(502, &[])),
        ("504", Conduct::Status(504, &[])),
        ("asks for a key", Conduct::Status(401, &[])),
        ("does not know the model", Conduct::Status(404, &[])),
    ]
}

/// A stream with these events, as it is sent.
fn stream_of(events: &str) -> String {
    stream_head().to_owned() + &coded(events) + "0\r\n\r\n"
}

/// The events of a stream that ends with an error, in the words of vLLM and SGLang.
fn error_event(code: u16) -> String {
    let error = serde_json::json!({"object": "error", "message": "no", "code": code});
    format!("data: {{\"error\": {error}}}\n\ndata: [DONE]\n\n")
}

/// A failure when something of the response has come.
fn late() -> Vec<(&'static str, Conduct)> {
    let begun = stream_head().to_owned() + &coded(&token(0));
    let bytes = |rest: &str| (begun.clone() + rest).into_bytes();
    vec![
        ("dies in the middle", Conduct::Bytes(bytes(""))),
        (
            "dies within an event",
            Conduct::Bytes(bytes(&coded("data: {\"cho"))),
        ),
        ("breaks the coding", Conduct::Bytes(bytes("xyz\r\n"))),
        ("stalls", Conduct::BytesThenNothing(bytes(""))),
    ]
}

/// A whole answer that breaks off after its first bytes, and tells that it has so many.
fn breaks_off(bytes: usize) -> Conduct {
    let kind = [("content-type", "application/json; charset=utf-8")];
    Conduct::Bytes((head(200, &kind, bytes) + "{\"id\":").into_bytes())
}

/// A whole answer in pieces that breaks off after so many bytes.
fn breaks_off_after(bytes: usize) -> Conduct {
    let head = stream_head().replace("text/event-stream", "application/json");
    let pieces = coded("{\"id\":") + &coded(&" ".repeat(bytes));
    Conduct::Bytes((head + &pieces).into_bytes())
}

/// An answer that is strange, and no failure: it goes through as it is.
fn strange() -> Vec<(&'static str, Conduct, String)> {
    let events = token(0) + "data: {\"cho\n\nno field\n\ndata: [DONE]\n\n";
    let stream = stream_of(&events);
    let json = "{\"id\": nonsense".to_owned();
    let whole = head(200, &[("content-type", "application/json")], json.len()) + &json;
    let trickled = token(0) + "data: [DONE]\n\n";
    let trickle = stream_of(&trickled);
    // The server serves, and the client asked for what cannot be.
    let refusal = error_event(400);
    vec![
        (
            "malformed events",
            Conduct::Bytes(stream.into_bytes()),
            events,
        ),
        (
            "an error of the client's in a stream",
            Conduct::Bytes(stream_of(&refusal).into_bytes()),
            refusal,
        ),
        ("malformed JSON", Conduct::Bytes(whole.into_bytes()), json),
        ("trickles", Conduct::Trickle(trickle.into_bytes()), trickled),
    ]
}

/// Waits for what the breaker makes of the server `bad`.
async fn judged(serving: &Serving, what: &str, health: &str) -> Result<()> {
    let is_so = |list: &[Value]| named(list, "bad")["health"] == health;
    let judged = executors_until(serving.client, is_so).await;
    judged.with_context(|| format!("{what}: is not {health}"))?;
    Ok(())
}

/// Has the server `bad` serve one request, which makes it whole. Its prompt takes nearly all blocks of [`tells_blocks`].
async fn made_whole(serving: &Serving, bad: &MockBackend, what: &str) -> Result<()> {
    bad.does(Conduct::Answers(3));
    let long = pinned(chat(&"word ".repeat(28))).to_string();
    let answer = serving.client.raw(CHAT, &[], long).await?;
    ensure!(answer.text()? == "t0 t1 t2 ", "{what}");
    judged(serving, what, "up").await
}

/// Has a server tell that it has twelve blocks of four tokens, of which none is in use.
fn tells_blocks(mock: &MockBackend) {
    mock.has_models("vllm", &["demo"]);
    mock.answers("/health", 200, "");
    let told = "vllm:kv_cache_usage_perc 0\n\
        vllm:cache_config_info{block_size=\"4\",num_gpu_blocks=\"12\"} 1\n";
    mock.answers("/metrics", 200, told);
}

/// A request that only the server `bad` may serve.
fn pinned(mut body: Value) -> Value {
    body["pointsman"] = serde_json::json!({"executors": ["bad"]});
    body
}

/// A server with the failing backend `bad`, which comes first, and perhaps the backend `good`. One failure makes a
/// server degraded; nothing rests, so that each failure is met.
async fn judging(bad: &MockBackend, good: Option<&MockBackend>) -> Result<Serving> {
    with(bad, good, 1).await
}

/// The same with so many failures in a row that make a server degraded.
async fn with(
    bad: &MockBackend,
    good: Option<&MockBackend>,
    degraded_after: u32,
) -> Result<Serving> {
    let mut first = backend("bad", bad)?;
    first.server.first_byte_timeout = Duration::from_millis(300);
    first.server.stall_timeout = Duration::from_millis(300);
    // It is asked after a failure. Blocks that it tells while requests run would hide those that stay taken.
    first.server.poll = Duration::from_secs(3600);
    // The first in order is taken.
    let others = good.map(|good| backend("good", good)).transpose()?;
    let serving = serving_with([first], |config| {
        config.backends.extend(others);
        config.core.degraded_after = degraded_after;
        config.core.down_after = 1 << 20;
        config.core.unserved_max = Micros(100_000);
    });
    let serving = serving.await?;
    executors_until(serving.client, |list| {
        list.iter()
            .all(|executor| executor["models"] != Value::Array(Vec::new()))
    })
    .await?;
    Ok(serving)
}

#[tokio::test]
async fn a_failure_before_the_first_byte_is_made_good_by_another_server() -> Result<()> {
    let [bad, good] = two_servers().await?;
    let serving = with(&bad, Some(&good), 1 << 20).await?;
    for (what, conduct) in early() {
        bad.does(conduct);
        let met = bad.seen(CHAT).len();
        // The least loaded is chosen, which is either.
        for time in 0..2 {
            // No conversation that a server would be preferred for.
            let hello = format!("hello, {what}, {time}");
            let answer = serving.client.chat(&hello).await?;
            ensure!(answer.text()? == "t0 t1 t2 ", "{what}");
            ensure!(answer.header("x-pointsman-executor") == "good", "{what}");
            let streamed = serving
                .client
                .stream(&streamed_chat(&hello))
                .await?
                .finish()
                .await?;
            ensure!(
                streamed.text == "t0 t1 t2 " && streamed.done,
                "{what}: {streamed:?}"
            );
        }
        ensure!(bad.seen(CHAT).len() > met, "{what}: was not met");
        serving.idle().await?;
    }
    over(serving).await
}

#[tokio::test]
async fn a_failure_that_nobody_makes_good_is_a_clean_error() -> Result<()> {
    let bad = MockBackend::start(&["demo"]).await?;
    tells_blocks(&bad);
    let serving = judging(&bad, None).await?;
    serving.load_until(|load| load.blocks_total == 12).await?;
    for (what, conduct) in early() {
        bad.does(conduct);
        for body in [chat("hello"), streamed_chat("hello")] {
            let answer = serving.client.raw(CHAT, &[], body.to_string()).await?;
            ensure!(answer.status == 502, "{what}: {}", answer.status);
            ensure!(answer.json()?["error"]["type"] == "server_error", "{what}");
        }
        serving.idle().await?;
        bad.runs(0).await?;
        judged(&serving, what, "degraded").await?;
        made_whole(&serving, &bad, what).await?;
    }
    over(serving).await
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_with_an_error_event() -> Result<()> {
    let [bad, good] = two_servers().await?;
    tells_blocks(&bad);
    let serving = judging(&bad, Some(&good)).await?;
    serving.load_until(|load| load.blocks_total == 12).await?;
    for (what, conduct) in late() {
        bad.does(conduct);
        let body = pinned(streamed_chat("hello"));
        let answer = serving.client.raw(CHAT, &[], body.to_string()).await?;
        ensure!(answer.status == 200, "{what}");
        let text = String::from_utf8(answer.body)?;
        ensure!(text.starts_with(&token(0)), "{what}: {text}");
        let last = text.trim_end().rsplit("\n\n").next().unwrap_or_default();
        let error: Value = serde_json::from_str(last.trim_start_matches("data: "))?;
        ensure!(
            error["error"]["code"] == "server_broke_off",
            "{what}: {text}"
        );
        ensure!(!text.contains("[DONE]"), "{what}: {text}");
        serving.idle().await?;
        bad.runs(0).await?;
        judged(&serving, what, "degraded").await?;
        made_whole(&serving, &bad, what).await?;
    }
    // One that says itself that it has failed goes through, and is no answer.
    let failed = token(0) + &error_event(500);
    bad.does(Conduct::Bytes(stream_of(&failed).into_bytes()));
    let body = pinned(streamed_chat("hello")).to_string();
    let answer = serving.client.for_others().raw(CHAT, &[], body).await?;
    ensure!(answer.status == 200 && answer.body == failed.as_bytes());
    judged(&serving, "an error at the end", "degraded").await?;
    made_whole(&serving, &bad, "an error at the end").await?;
    over(serving).await
}

#[tokio::test]
async fn a_whole_answer_that_breaks_off_is_made_good_by_another_server_as_long_as_it_is_short()
-> Result<()> {
    let [bad, good] = two_servers().await?;
    let serving = with(&bad, Some(&good), 1 << 20).await?;
    for (what, conduct) in [
        ("of a length", breaks_off(1000)),
        ("in pieces", breaks_off_after(1000)),
    ] {
        bad.does(conduct);
        let met = bad.seen(CHAT).len();
        for time in 0..4 {
            // No conversation that a server would be preferred for.
            let prompt = format!("hello, {what}, {time}");
            let answer = serving.client.chat(&prompt).await?;
            ensure!(answer.text()? == "t0 t1 t2 ", "{what}");
            ensure!(answer.header("x-pointsman-executor") == "good", "{what}");
        }
        ensure!(bad.seen(CHAT).len() > met, "{what}: was not met");
        serving.idle().await?;
    }
    over(serving).await
}

#[tokio::test]
async fn a_whole_answer_that_breaks_off_has_no_end_where_it_is_long_and_is_an_error_where_not()
-> Result<()> {
    let bad = MockBackend::start(&["demo"]).await?;
    let serving = judging(&bad, None).await?;
    let ask = || serving.client.raw(CHAT, &[], chat("hello").to_string());
    for (what, conduct) in [
        ("of a length", breaks_off(1000)),
        ("in pieces", breaks_off_after(1000)),
    ] {
        bad.does(conduct);
        let answer = ask().await?;
        ensure!(answer.status == 502, "{what}: {}", answer.status);
        judged(&serving, what, "degraded").await?;
        made_whole(&serving, &bad, what).await?;
    }
    for (what, conduct) in [
        ("of a length", breaks_off(100_000)),
        ("in pieces", breaks_off_after(100_000)),
    ] {
        bad.does(conduct);
        ensure!(ask().await.is_err(), "{what}");
        judged(&serving, what, "degraded").await?;
        made_whole(&serving, &bad, what).await?;
    }
    over(serving).await
}

#[tokio::test]
async fn a_server_that_says_in_a_stream_that_it_is_full_has_the_request_wait_for_another()
-> Result<()> {
    let [bad, good] = two_servers().await?;
    let serving = judging(&bad, Some(&good)).await?;
    bad.does(Conduct::Bytes(stream_of(&error_event(503)).into_bytes()));
    let stream = serving.client.stream(&streamed_chat("hello")).await?;
    let streamed = stream.finish().await?;
    ensure!(
        streamed.text == "t0 t1 t2 " && streamed.done,
        "{streamed:?}"
    );
    ensure!(bad.seen(CHAT).len() == 1, "was not met");
    // It is full, and has not failed.
    judged(&serving, "full", "up").await?;
    over(serving).await
}

#[tokio::test]
async fn a_stream_of_messages_that_breaks_off_ends_with_an_error_that_its_clients_see() -> Result<()>
{
    let bad = MockBackend::start(&["demo"]).await?;
    let serving = judging(&bad, None).await?;
    let begun = "event: message_start\ndata: {\"type\": \"message_start\"}\n\n";
    let cut = stream_head().to_owned() + &coded(begun) + &coded("event: content_blo");
    bad.does(Conduct::Bytes(cut.into_bytes()));
    let mut body = streamed_chat("hello");
    body["max_tokens"] = serde_json::json!(5);
    let answer = serving.client.for_others();
    let answer = answer.raw("/v1/messages", &[], body.to_string()).await?;
    let text = String::from_utf8(answer.body)?;
    let last = text.trim_end().rsplit("\n\n").next().unwrap_or_default();
    let (name, data) = last.split_once('\n').context("one line")?;
    let data: Value = serde_json::from_str(data.trim_start_matches("data: "))?;
    ensure!(name == "event: error" && data["type"] == "error", "{text}");
    ensure!(data["error"]["type"] == "api_error", "{text}");
    let message = data["error"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("broke off"), "{text}");
    over(serving).await
}

#[tokio::test]
async fn an_answer_that_is_strange_goes_through_and_is_held_against_nobody() -> Result<()> {
    let bad = MockBackend::start(&["demo"]).await?;
    let serving = judging(&bad, None).await?;
    for (what, conduct, expected) in strange() {
        bad.does(conduct);
        let body = streamed_chat("hello").to_string();
        let answer = serving.client.raw(CHAT, &[], body).await?;
        ensure!(answer.status == 200, "{what}: {}", answer.status);
        let text = String::from_utf8(answer.body)?;
        ensure!(text == expected, "{what}: {text}");
        serving.idle().await?;
        bad.runs(0).await?;
        judged(&serving, what, "up").await?;
    }
    over(serving).await
}

/// llama.cpp says so of a path for which it was not started.
#[tokio::test]
async fn a_request_that_a_server_was_not_built_for_is_no_failure_of_the_server() -> Result<()> {
    let bad = MockBackend::start(&["demo"]).await?;
    let serving = judging(&bad, None).await?;
    let client = serving.client.for_others();
    for status in [501, 505] {
        bad.does(Conduct::Status(status, &[]));
        for body in [chat("hello"), streamed_chat("hello")] {
            let answer = client.raw(CHAT, &[], body.to_string()).await?;
            ensure!(answer.status == status, "{status}: {answer:?}");
            let told = answer.json()?["error"]["message"].clone();
            ensure!(told == format!("mock {status}"), "{told}");
        }
    }
    let told = error_event(501);
    bad.does(Conduct::Bytes(stream_of(&told).into_bytes()));
    let body = streamed_chat("hello").to_string();
    let answer = client.raw(CHAT, &[], body).await?;
    ensure!(answer.status == 200 && answer.body == told.as_bytes());
    ensure!(bad.seen(CHAT).len() == 5, "each was tried once");
    serving.idle().await?;
    let list = executors_until(serving.client, |_| true).await?;
    ensure!(named(&list, "bad")["health"] == "up", "{list:?}");
    over(serving).await
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_down_and_others_are_asked() -> Result<()> {
    let [bad, good] = two_servers().await?;
    let mut first = backend("bad", &bad)?;
    // Nobody looks, until a request has failed there.
    first.server.poll = Duration::from_secs(3600);
    let serving = serving_with([first, backend("good", &good)?], |_| ()).await?;
    drop(bad);
    for time in 0..4 {
        let hello = format!("hello, {time}");
        let answer = serving.client.chat(&hello).await?;
        ensure!(answer.text()? == "t0 t1 t2 ");
        ensure!(answer.header("x-pointsman-executor") == "good");
    }
    judged(&serving, "refuses", "down").await?;
    serving.idle().await?;
    let body = pinned(chat("hello")).to_string();
    let alone = serving.client.raw(CHAT, &[], body).await?;
    ensure!(alone.status == 503, "{}", alone.status);
    over(serving).await
}

#[tokio::test]
async fn requests_that_are_refused_a_connection_wait_for_their_server_as_later_ones_do()
-> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let addr = mock.addr();
    let mut config = backend("away", &mock)?;
    // The requests find out before it is asked.
    config.server.poll = Duration::from_secs(2);
    let serving = serving_with([config], |config| {
        config.core.unserved_max = Micros(30_000_000);
    });
    let serving = serving.await?;
    let client = serving.client;
    drop(mock);
    // Its listener is closed a little later.
    while TcpStream::connect(addr).await.is_ok() {}
    let asked: Vec<_> = (0..3)
        .map(|_| tokio::spawn(async move { client.chat("hello").await }))
        .collect();
    executors_until(client, |list| named(list, "away")["health"] == "down").await?;
    serving.load_until(|load| load.queued == 3).await?;
    let back = MockBackend::start_at(addr, &["demo"]).await?;
    for answered in asked {
        ensure!(answered.await??.status == 200);
    }
    ensure!(back.seen(CHAT).len() == 3);
    over(serving).await
}

#[tokio::test]
async fn a_server_that_is_late_with_an_answer_is_not_down_and_nobody_is_told_503() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let mut config = backend("late", &mock)?;
    config.server.slots = Some(1);
    let serving = serving_with([config], |_| ()).await?;
    let client = serving.client;
    let stream = begun(client, &mock, &streamed_chat("hello")).await?;
    let waits = tokio::spawn(async move { client.chat("hello").await });
    serving.load_until(|load| load.live == 2).await?;
    // It is at work, and has no time for questions.
    mock.ignores_once("/v1/models");
    let asked = mock.seen("/v1/models").len();
    mock.heard("/v1/models", asked + 4).await?;
    executors_until(client, |list| named(list, "late")["health"] == "up").await?;
    mock.allow(3);
    ensure!(stream.finish().await?.done);
    ensure!(waits.await??.status == 200);
    over(serving).await
}

#[tokio::test]
async fn a_server_that_keeps_failing_rests_and_is_tried_again() -> Result<()> {
    let [bad, good] = two_servers().await?;
    let serving = serving_with([backend("bad", &bad)?, backend("good", &good)?], |config| {
        config.core.degraded_after = 1;
        config.core.down_after = 2;
        config.core.down_for = Micros(300_000);
    });
    let serving = serving.await?;
    bad.does(Conduct::Status(500, &[]));
    let mut healths = Vec::new();
    for _ in 0..200 {
        ensure!(serving.client.chat("hello").await?.text()? == "t0 t1 t2 ");
        let executors = executors_until(serving.client, |_| true).await?;
        let health = named(&executors, "bad")["health"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let is_down = health == "down";
        if healths.last() != Some(&health) {
            healths.push(health);
        }
        if is_down {
            break;
        }
        // The degraded one is chosen while the other one is busy only.
        good.does(Conduct::Steps(1));
        let client = serving.client;
        let slow = tokio::spawn(async move { client.chat("slow").await });
        drop(slow);
        good.does(Conduct::Answers(3));
    }
    ensure!(
        healths.iter().any(|health| health == "degraded"),
        "{healths:?}"
    );
    bad.does(Conduct::Answers(3));
    executors_until(serving.client, |list| {
        named(list, "bad")["health"] != "down"
    })
    .await?;
    good.allow(1000);
    over(serving).await
}

#[tokio::test]
async fn a_server_that_has_rested_is_sent_one_request_until_it_has_served_one() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving_with([backend("one", &mock)?], |config| {
        config.core.degraded_after = 1;
        config.core.down_after = 1;
        config.core.down_for = Micros(300_000);
        config.core.unserved_max = Micros(60_000_000);
    });
    let serving = serving.await?;
    let client = serving.client;
    mock.does(Conduct::Status(500, &[]));
    for _ in 0..2 {
        ensure!(client.chat("hello").await?.status == 502);
    }
    executors_until(client, |list| named(list, "one")["health"] == "down").await?;
    mock.does(Conduct::Steps(1));
    let asked = mock.seen(CHAT).len();
    let waiting: Vec<_> = (0..4)
        .map(|_| tokio::spawn(async move { client.chat("hello").await }))
        .collect();
    // The one that goes first is under way: the others wait, though there are slots.
    mock.runs(1).await?;
    let rounds = mock.seen("/v1/models").len();
    mock.heard("/v1/models", rounds + 3).await?;
    let list = executors_until(client, |_| true).await?;
    let one = named(&list, "one");
    ensure!(one["slots_used"] == 1 && one["slots_total"] == 64, "{one}");
    ensure!(mock.seen(CHAT).len() == asked + 1);
    // It has served: all of them go.
    mock.allow(1);
    mock.runs(3).await?;
    mock.allow(3);
    for answered in waiting {
        ensure!(answered.await??.status == 200);
    }
    over(serving).await
}
