//! A server that answers at once, and stamps each chunk with the time at which it was written.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::micros_now;

/// A server with OpenAI's API, as far as gateways ask. Dropped, it takes no connection any more.
#[derive(Debug)]
pub struct StampServer {
    addr: SocketAddr,
    serving: JoinHandle<()>,
}

/// The time between two chunks of a stream.
const CHUNK_EVERY: Duration = Duration::from_millis(3);
const STAMP: &[u8] = b"\"stamp\":";
const JSON: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
const EVENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const WHOLE: &str = r#"{"id":"b","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"word"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
const MODELS: &str =
    r#"{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"openai"}]}"#;

impl StampServer {
    /// Starts a server.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        Ok(Self {
            addr: listener.local_addr()?,
            serving: tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(async move {
                        // A connection that breaks is the other side's to notice.
                        drop(converse(stream).await);
                    });
                }
            }),
        })
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for StampServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn converse(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::with_capacity(64 << 10);
    loop {
        let Some((line, body)) = request(&mut stream, &mut read).await? else {
            return Ok(());
        };
        if !line.starts_with("POST") {
            let models = format!("{JSON}{}\r\n\r\n{MODELS}", MODELS.len());
            stream.write_all(models.as_bytes()).await?;
        } else if memory_has(&body, b"\"idle\":true") {
            stream.write_all(event(EVENTS).as_bytes()).await?;
            // Until the connection ends.
            while stream.read_buf(&mut read).await? > 0 {}
            return Ok(());
        } else if memory_has(&body, b"\"stream\":true") {
            stream_chunks(&mut stream, chunks(&body)).await?;
        } else {
            let whole = format!("{JSON}{}\r\n\r\n{WHOLE}", WHOLE.len());
            stream.write_all(whole.as_bytes()).await?;
        }
    }
}

/// The first line and the body of the next request; absent: the connection has ended.
async fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> Result<Option<(String, Vec<u8>)>> {
    let head_end = loop {
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(read).await? == 0 {
            return Ok(None);
        }
    };
    let head = std::str::from_utf8(&read[..head_end])?.to_owned();
    let mut lengths = head.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then_some(value.trim())
    });
    let length: usize = lengths.next().unwrap_or("0").parse()?;
    let chunked = head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    anyhow::ensure!(!chunked, "a gateway that writes bodies anew in chunks");
    while read.len() < head_end + length {
        if stream.read_buf(read).await? == 0 {
            return Ok(None);
        }
    }
    let body = read[head_end..head_end + length].to_vec();
    read.drain(..head_end + length);
    let line = head.lines().next().context("no line")?.to_owned();
    Ok(Some((line, body)))
}

fn memory_has(bytes: &[u8], wanted: &[u8]) -> bool {
    // Behind the prompt, or before it.
    let edge = bytes.len().min(512);
    let (first, last) = (&bytes[..edge], &bytes[bytes.len() - edge..]);
    [first, last]
        .iter()
        .any(|part| part.windows(wanted.len()).any(|at| at == wanted))
}

/// The number of chunks that a request asks for.
fn chunks(body: &[u8]) -> usize {
    let edge = body.len().min(512);
    let parts = [&body[..edge], &body[body.len() - edge..]];
    let mut counts = parts.iter().filter_map(|part| {
        let at = part.windows(13).position(|at| at == b"\"max_tokens\":")?;
        let digits: Vec<u8> = part[at + 13..]
            .iter()
            .copied()
            .take_while(u8::is_ascii_digit)
            .collect();
        std::str::from_utf8(&digits).ok()?.parse().ok()
    });
    counts.next().unwrap_or(1)
}

async fn stream_chunks(stream: &mut TcpStream, count: usize) -> Result<()> {
    for number in 0..count {
        let head = if number == 0 { EVENTS } else { "" };
        stream.write_all(event(head).as_bytes()).await?;
        if number + 1 < count {
            tokio::time::sleep(CHUNK_EVERY).await;
        }
    }
    let end = "data: [DONE]\n\n";
    let last = format!("{:x}\r\n{end}\r\n0\r\n\r\n", end.len());
    Ok(stream.write_all(last.as_bytes()).await?)
}

/// An event with the time, as a chunk behind `head`.
fn event(head: &str) -> String {
    let event = format!(
        "data: {{\"id\":\"b\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\",\"choices\":\
         [{{\"index\":0,\"delta\":{{\"content\":\"word\"}},\"finish_reason\":null}}],\"stamp\":{}}}\n\n",
        micros_now()
    );
    format!("{head}{:x}\r\n{event}\r\n", event.len())
}

/// The stamps in a piece of a stream.
pub(super) fn stamps(data: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let places = data.windows(STAMP.len()).enumerate();
    let found = places.filter(|(_, bytes)| *bytes == STAMP);
    found.filter_map(|(at, _)| {
        let digits = data[at + STAMP.len()..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let digits: Vec<u8> = digits.copied().collect();
        std::str::from_utf8(&digits).ok()?.parse().ok()
    })
}
