//! Requests and responses that go through.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use pointsman_driver::provider::{ExecutorConfig, ModelConfig, ModelSource};
use pointsman_executor::server::{ServerKey, header_of};
use pointsman_tests::backend::{Conduct, MockBackend, head};
use pointsman_tests::client::{chat, streamed_chat};
use pointsman_tests::exposition::{samples, total};
use pointsman_tests::serving::backend_at;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{backend, executors_until, named, over, serving, serving_with};

const CHAT: &str = "/v1/chat/completions";

/// A body that no serialiser writes.
const BODY: &str = r#"{ "model":"demo","temperature" : 1.50,
    "messages": [{"role":"user","content":"caf\u00e9 é", "unknown" : [1e2]}] , "x": null,"tools":[{}]}"#;

/// Requests that came on a connection which had served one, and was closed for it.
#[derive(Debug, Default)]
struct Closed {
    /// Requests of clients.
    requests: AtomicUsize,
    /// Questions of the host.
    questions: AtomicUsize,
}

impl Closed {
    fn count(&self, request: &[u8]) {
        let counter = if request.starts_with(b"POST ") {
            &self.requests
        } else {
            &self.questions
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A way to `to` on which each connection serves one request, and ends without a word when the next one comes.
async fn serving_once(to: SocketAddr) -> Result<(SocketAddr, Arc<Closed>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (addr, closed) = (listener.local_addr()?, Arc::new(Closed::default()));
    let counting = Arc::clone(&closed);
    tokio::spawn(async move {
        while let Ok((from, _)) = listener.accept().await {
            let closed = Arc::clone(&counting);
            tokio::spawn(async move { serve_once(from, to, &closed).await });
        }
    });
    Ok((addr, closed))
}

async fn serve_once(mut from: TcpStream, to: SocketAddr, closed: &Closed) -> Result<()> {
    let mut to = TcpStream::connect(to).await?;
    let (mut asked, mut told) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut has_answered = false;
    loop {
        // Nobody speaks while the other one does: the order is irrelevant.
        tokio::select! {
            read = from.read(&mut asked) => {
                let read = read?;
                if read == 0 {
                    return Ok(());
                }
                if has_answered {
                    closed.count(&asked[..read]);
                    return Ok(());
                }
                to.write_all(&asked[..read]).await?;
            }
            read = to.read(&mut told) => {
                let read = read?;
                if read == 0 {
                    return Ok(());
                }
                has_answered = true;
                from.write_all(&told[..read]).await?;
            }
        }
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_server_closes_just_then_is_no_failure() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let (addr, closed) = serving_once(mock.addr()).await?;
    let serving = serving([backend_at("elsewhere", addr)?]).await?;
    let client = serving.client;
    // A connection is kept a little after its answer has come: some requests have a new one.
    for _ in 0..1000 {
        ensure!(client.chat("hello").await?.text()? == "t0 t1 t2 ");
        if closed.requests.load(Ordering::Relaxed) == 3 {
            break;
        }
    }
    let met = closed.requests.load(Ordering::Relaxed);
    ensure!(met == 3, "{met} connections were closed for a request");
    let is_up = |list: &[Value]| named(list, "elsewhere")["health"] == "up";
    let list = executors_until(client, |list| {
        !is_up(list) || closed.questions.load(Ordering::Relaxed) >= 3
    });
    let list = list.await?;
    ensure!(is_up(&list), "{list:?}");
    over(serving).await
}

#[tokio::test]
async fn a_request_that_is_closed_without_a_word_is_sent_twice_at_most_and_once_on_a_new_connection()
-> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving_with([backend("elsewhere", &mock)?], |config| {
        config.core.degraded_after = 1 << 20;
        config.core.down_after = 1 << 20;
    });
    let serving = serving.await?;
    let client = serving.client;
    mock.does(Conduct::Bytes(Vec::new()));
    ensure!(client.chat("hello").await?.status == 502);
    ensure!(mock.seen(CHAT).len() == 1, "{:?}", mock.seen(CHAT));
    mock.does(Conduct::Answers(3));
    ensure!(client.chat("hello").await?.status == 200);
    // Its connection may be kept.
    mock.does(Conduct::Bytes(Vec::new()));
    ensure!(client.chat("hello").await?.status == 502);
    let sent = mock.seen(CHAT).len() - 2;
    ensure!((1..=2).contains(&sent), "{sent} times");
    over(serving).await
}

#[tokio::test]
async fn a_request_and_its_response_go_through_byte_for_byte() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let mut config = backend("elsewhere", &mock)?;
    config.server.key = Some(ServerKey::new("theirs".to_owned()));
    let lines = ["x-api-key: theirs too", "X-Version: 2"];
    config.server.headers = lines.iter().filter_map(|line| header_of(line)).collect();
    let serving = serving([config]).await?;
    let answer = "{ \"odd\" :  [1.50, \"\\u00e9\"] }";
    let headers = [
        ("content-type", "application/json"),
        ("x-theirs", "1"),
        ("connection", "close"),
    ];
    let response = head(200, &headers, answer.len()) + answer;
    mock.does(Conduct::Bytes(response.into_bytes()));

    let hinted = BODY.replace(
        "{ \"model\"",
        "{ \"pointsman\": {\"priority\": 3}, \"model\"",
    );
    for (path, body) in [
        (CHAT, BODY),
        ("/v1/completions?a=b", BODY),
        (CHAT, &*hinted),
    ] {
        let sent = [
            ("authorization", "Bearer ours"),
            ("x-trace", "7"),
            ("x-version", "1"),
            ("x-api-key", "ours too"),
            ("x-pointsman-session", "s"),
        ];
        let got = serving.client.raw(path, &sent, body.to_owned()).await?;
        ensure!(got.status == 200, "{}", got.status);
        ensure!(got.body == answer.as_bytes(), "{:?}", got.body);
        ensure!(got.header("x-theirs") == "1" && got.header("connection") != "close");
        ensure!(got.header("x-pointsman-executor") == "elsewhere");
        let seen = mock.seen(path.split('?').next().unwrap_or(path));
        let seen = seen.last().context("nothing arrived")?;
        ensure!(
            seen.line == format!("POST {path} HTTP/1.1"),
            "{}",
            seen.line
        );
        let arrived = String::from_utf8(seen.body.clone())?;
        ensure!(arrived == BODY, "{arrived}");
        let header = |name: &str| seen.headers.get(name).map(String::as_str);
        ensure!(header("authorization") == Some("Bearer theirs"));
        ensure!(header("x-trace") == Some("7"));
        ensure!(header("x-api-key") == Some("theirs too") && header("x-version") == Some("2"));
        ensure!(header("x-pointsman-session").is_none());
        ensure!(header("host") == Some(&*mock.addr().to_string()));
    }
    over(serving).await
}

#[tokio::test]
async fn a_stream_goes_through_as_it_comes() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving([backend("elsewhere", &mock)?]).await?;
    mock.does(Conduct::Steps(3));
    let client = serving.client;
    let asked = tokio::spawn(async move { client.stream(&streamed_chat("hello")).await });
    mock.runs(1).await?;
    ensure!(!asked.is_finished(), "a head without a token");
    mock.allow(1);
    let mut stream = asked.await??;
    ensure!(stream.headers["x-pointsman-executor"] == "elsewhere");
    ensure!(stream.first_text().await? == "t0 ");
    mock.allow(1);
    ensure!(stream.first_text().await? == "t1 ");
    mock.allow(1);
    let rest = stream.finish().await?;
    ensure!(
        rest.text == "t2 " && rest.done && rest.error.is_none(),
        "{rest:?}"
    );
    over(serving).await
}

#[tokio::test]
async fn a_client_that_leaves_is_known_to_the_server_at_once() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving([backend("elsewhere", &mock)?]).await?;
    mock.does(Conduct::Steps(1000));
    // In the middle of its answer.
    mock.allow(2);
    let mut stream = serving.client.stream(&streamed_chat("hello")).await?;
    stream.first_text().await?;
    drop(stream);
    mock.abandoned(1).await?;
    serving.idle().await?;
    // Before the first byte.
    let client = serving.client;
    let asked = tokio::spawn(async move { client.chat("hello").await });
    mock.runs(1).await?;
    asked.abort();
    mock.abandoned(2).await?;
    over(serving).await
}

#[tokio::test]
async fn tokens_are_booked_as_the_server_counts_them() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving([backend("elsewhere", &mock)?]).await?;
    mock.does(Conduct::Answers(7));
    serving.client.chat("hello").await?;
    let mut streamed = streamed_chat("hello");
    streamed["stream_options"] = json!({"include_usage": true});
    serving.client.stream(&streamed).await?.finish().await?;
    serving.idle().await?;
    let metrics = serving.client.get("/metrics").await?;
    let metrics = String::from_utf8(metrics.body)?;
    let generated = metrics.lines().find(|line| {
        line.starts_with("pointsman_engine_tokens_total") && line.contains("phase=\"decode\"")
    });
    ensure!(
        generated.is_some_and(|line| line.ends_with(" 14")),
        "{generated:?}"
    );
    // Their prompts have 5 tokens each there, of which 4 were cached.
    for (name, count) in [("prompt", 10), ("cached", 8)] {
        let line = format!(
            "pointsman_{name}_tokens_total{{model=\"demo\",executor=\"elsewhere\"}} {count}\n"
        );
        ensure!(metrics.contains(&line), "no {line} in {metrics}");
    }
    over(serving).await
}

#[tokio::test]
async fn the_pace_of_answers_is_measured_where_they_are_streams() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving([backend("elsewhere", &mock)?]).await?;
    let client = serving.client.for_others();
    client.chat("hello").await?.text()?;
    for kind in ["application/json", "text/event-stream"] {
        let refused = head(400, &[("content-type", kind)], 2) + "{}";
        mock.does(Conduct::Bytes(refused.into_bytes()));
        let answer = client.raw(CHAT, &[], streamed_chat("hello").to_string());
        ensure!(answer.await?.status == 400);
    }
    let measured = async |count: f64| -> Result<()> {
        let exported = samples(serving.client).await?;
        let name = "pointsman_time_to_first_token_seconds_count";
        let seen = total(&exported, name, &[("executor", "elsewhere")]);
        ensure!(seen == count, "{seen} instead of {count}");
        Ok(())
    };
    measured(0.0).await?;
    mock.does(Conduct::Answers(3));
    let stream = client.stream(&streamed_chat("hello")).await?;
    stream.finish().await?;
    measured(1.0).await?;
    over(serving).await
}

/// Tokens of a tenant are what servers tell, however few its client seemed to ask for.
#[tokio::test]
async fn a_tenant_pays_for_what_servers_tell_though_no_bound_was_given() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving([backend("elsewhere", &mock)?]).await?;
    let client = serving.client.for_others();
    let paid = async || -> Result<u64> {
        serving.idle().await?;
        let listed = client.get("/admin/tenants").await?.json()?;
        let total = listed["tenants"][0]["tokens_total"].as_u64();
        total.context("no total")
    };
    let usage = r#"{"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 20000}}"#;
    let native = r#"{"done": true, "prompt_eval_count": 30, "eval_count": 500}"#;
    let silent = r#"{"choices": []}"#;
    let error = r#"{"error": {"message": "no"}}"#;
    // Where a server tells nothing the prompt's bytes are counted, four a token.
    for (path, status, told, tokens) in [
        ("/v1/completions", 200, usage, 20_040),
        ("/v1/completions", 200, silent, 26),
        ("/v1/completions", 400, error, 0),
        ("/api/generate", 200, native, 530),
        ("/tokenize", 200, "{}", 0),
    ] {
        let before = paid().await?;
        let headers = [("content-type", "application/json")];
        let answer = head(status, &headers, told.len()) + told;
        mock.does(Conduct::Bytes(answer.into_bytes()));
        let body = json!({"model": "demo", "prompt": "word".repeat(25), "n": 2});
        client.raw(path, &[], body.to_string()).await?;
        let booked = paid().await? - before;
        ensure!(booked == tokens, "{path} {status} {told}: {booked}");
    }
    over(serving).await
}

#[tokio::test]
async fn a_clients_fault_is_the_clients_to_hear() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving([backend("elsewhere", &mock)?]).await?;
    for status in [400, 409, 413, 422] {
        mock.does(Conduct::Status(status, &[("x-theirs", "1")]));
        for _ in 0..10 {
            let got = serving
                .client
                .raw(CHAT, &[], chat("hello").to_string())
                .await?;
            ensure!(got.status.as_u16() == status, "{}", got.status);
            ensure!(got.json()?["error"]["message"] == format!("mock {status}"));
        }
    }
    let executors = executors_until(serving.client, |_| true).await?;
    ensure!(
        named(&executors, "elsewhere")["health"] == "up",
        "{executors:?}"
    );
    over(serving).await
}

#[tokio::test]
async fn an_engine_and_a_server_serve_one_model_side_by_side() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = serving_with([backend("elsewhere", &mock)?], |config| {
        config.local.models = vec![ModelConfig::new("demo", ModelSource::Embedded)];
        config.local.executors = vec![ExecutorConfig {
            name: Some("here".to_owned()),
            ..ExecutorConfig::new("demo")
        }];
    });
    let serving = serving.await?;
    for (executor, from) in [("here", None), ("elsewhere", Some("mock"))] {
        let mut body = chat("hello");
        body["pointsman"] = json!({"executors": [executor]});
        let answer = serving.client.post(CHAT, &body).await?;
        ensure!(answer.header("x-pointsman-executor") == executor);
        ensure!(answer.json()?["from"].as_str() == from);
    }
    // What an engine does not build goes to the server, unless the client forbids it.
    let mut body = chat("hello");
    body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    let answer = serving.client.raw(CHAT, &[], body.to_string()).await?;
    ensure!(answer.header("x-pointsman-executor") == "elsewhere");
    let seen = mock.seen(CHAT);
    let arrived: Value = serde_json::from_slice(&seen.last().context("nothing")?.body)?;
    ensure!(arrived["tools"] == body["tools"]);
    body["pointsman"] = json!({"executors": ["here"]});
    let answer = serving.client.post(CHAT, &body).await?;
    ensure!(answer.status == 400 && answer.json()?["error"]["param"] == "tools");
    over(serving).await
}

#[tokio::test]
async fn models_come_and_go_with_their_servers() -> Result<()> {
    let (one, two) = (
        MockBackend::start(&["a"]).await?,
        MockBackend::start(&["a"]).await?,
    );
    let serving = serving([backend("one", &one)?, backend("two", &two)?]).await?;
    let client = serving.client;
    let ask = |model: &'static str| async move {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "hi"}]});
        client.post(CHAT, &body).await
    };
    let listed = client.get("/v1/models").await?.json()?;
    ensure!(listed["data"][0]["max_model_len"] == 4096, "{listed}");
    ensure!(ask("b").await?.status == 404);
    two.has_models("openai", &["b"]);
    executors_until(client, |list| named(list, "two")["models"] == json!(["b"])).await?;
    for (model, executor) in [("a", "one"), ("b", "two"), ("a", "one"), ("b", "two")] {
        let answer = ask(model).await?;
        ensure!(
            answer.header("x-pointsman-executor") == executor,
            "{:?}",
            answer.json()
        );
    }
    one.has_models("openai", &["b", "c"]);
    executors_until(client, |list| {
        named(list, "one")["models"] == json!(["b", "c"])
    })
    .await?;
    let listed = client.get("/v1/models").await?.json()?;
    let names: Vec<&str> = listed["data"]
        .as_array()
        .context("no list")?
        .iter()
        .filter_map(|model| model["id"].as_str())
        .collect();
    ensure!(names == ["b", "c"], "{names:?}");
    ensure!(ask("a").await?.status == 404);
    over(serving).await
}
