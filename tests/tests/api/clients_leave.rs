//! Clients that leave, stall or send nonsense, in every phase: the server answers clearly or closes
//! the connection, and holds nothing for them afterwards.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_config::Config;
use pointsman_tests::client::endless_chat;
use pointsman_tests::serving::Serving;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Leaves one slot, so that a second request waits.
fn one_slot(config: &mut Config) {
    config.local.executors[0].terms.slots = 1;
}

/// The body of a request that runs for long.
fn long() -> Value {
    endless_chat("Tell me a long story about a fox and an owl.", 1800)
}

#[tokio::test]
async fn in_the_queue() -> Result<()> {
    let serving = Serving::start(one_slot).await?;
    let stream = serving.client.running(&long()).await?;
    let client = serving.client;
    let waiting = tokio::spawn(async move { client.stream(&long()).await });
    serving.load_until(|load| load.queued == 1).await?;
    waiting.abort();
    serving.load_until(|load| load.queued == 0).await?;
    drop(stream);
    serving.idle().await?;
    Ok(())
}

#[tokio::test]
async fn during_prefill() -> Result<()> {
    // With one token per step, the prompt takes many steps.
    let serving = Serving::start(|config| {
        one_slot(config);
        config.local.devices[0].tokens_per_step = 1;
    })
    .await?;
    let mut body = long();
    body["messages"][0]["content"] = json!("count and count ".repeat(200));
    body["max_tokens"] = json!(10);
    let client = serving.client;
    let prefilling = tokio::spawn(async move { client.stream(&body).await });
    serving.load_until(|load| load.slots_used == 1).await?;
    prefilling.abort();
    serving.idle().await?;
    Ok(())
}

#[tokio::test]
async fn in_the_middle_of_a_stream() -> Result<()> {
    let serving = Serving::start(one_slot).await?;
    drop(serving.client.running(&long()).await?);
    let load = serving.idle().await?;
    ensure!(load.executors_up == 1, "{load:?}");
    // The slot is free for the next one.
    let text = serving.client.chat("Hello").await?.text()?;
    ensure!(!text.is_empty());
    Ok(())
}

#[tokio::test]
async fn between_two_requests() -> Result<()> {
    let serving = Serving::start(one_slot).await?;
    let mut socket = TcpStream::connect(serving.server.addr()).await?;
    socket
        .write_all(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await?;
    let answer = read_until(&mut socket, "\"demo\"").await?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(socket);
    serving.idle().await?;
    Ok(())
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_no_slot() -> Result<()> {
    let serving = Serving::start(one_slot).await?;
    let stream = serving.client.running(&long()).await?;
    // Nobody reads the stream, and yet the request ends: its text waits, its slot does not.
    serving.idle().await?;
    let streamed = stream.finish().await?;
    ensure!(streamed.done, "{streamed:?}");
    Ok(())
}

#[tokio::test]
async fn half_a_request_is_closed_and_holds_nothing() -> Result<()> {
    let serving = Serving::start(|config| {
        config.http.read_timeout = Duration::from_millis(300);
    })
    .await?;
    let halves = [
        "POST /v1/chat/comp",
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"model\":",
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"mod",
    ];
    for half in halves {
        // A client that stops sending is closed, with an error where a request can be answered.
        let mut socket = TcpStream::connect(serving.server.addr()).await?;
        socket.write_all(half.as_bytes()).await?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await?;
        let answer = String::from_utf8(answer)?;
        let expected = if half.contains("\r\n\r\n") {
            "HTTP/1.1 408"
        } else {
            ""
        };
        ensure!(answer.starts_with(expected), "{half:?}: {answer}");
        // A client that closes in the middle gets no answer.
        let mut socket = TcpStream::connect(serving.server.addr()).await?;
        socket.write_all(half.as_bytes()).await?;
        drop(socket);
    }
    serving.idle().await?;
    Ok(())
}

#[tokio::test]
async fn nonsense_is_answered_clearly() -> Result<()> {
    let serving = Serving::start(|config| config.http.body_bytes_max = 1000).await?;
    let oversized = format!("{{\"model\": \"{}\"}}", "x".repeat(2000));
    let cases: [(&[u8], &str, &str); 4] = [
        (b"{\"model\": \"demo\", ", "400", "JSON"),
        (b"\xff\xfe{}", "400", "UTF-8"),
        (b"[1, 2]", "400", "object"),
        (oversized.as_bytes(), "413", "1000"),
    ];
    for (body, status, word) in cases {
        let mut socket = TcpStream::connect(serving.server.addr()).await?;
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).await?;
        socket.write_all(body).await?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await?;
        let answer = String::from_utf8(answer)?;
        ensure!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        ensure!(answer.contains(word), "{word}: {answer}");
    }
    serving.idle().await?;
    Ok(())
}

async fn read_until(socket: &mut TcpStream, end: &str) -> Result<String> {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains(end) {
        let read = socket.read(&mut buffer).await?;
        ensure!(read > 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&buffer[..read]).context("half a character")?);
    }
    Ok(text)
}
