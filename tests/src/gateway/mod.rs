//! What a gateway costs: the same requests straight to a server, through Pointsman, and through others, in
//! one run.
//!
//! The server and the clients are in this process; each gateway is a process of its own, whose time on
//! processors is read from the system. Every chunk of a stream carries the time at which the server wrote
//! it, so that its way is measured by one clock.

pub mod idle;
pub mod peers;
mod server;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use server::StampServer;

/// A load to put on a gateway.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of the prompt.
    pub prompt_bytes: usize,
    /// Chunks of a streamed answer; 0: whole answers.
    pub chunks: usize,
    pub arrivals: Arrivals,
    pub requests: usize,
}

/// The way in which requests arrive.
#[derive(Clone, Copy, Debug)]
pub enum Arrivals {
    /// So many clients, each of which sends its next request after its last answer.
    Closed(usize),
    /// So many requests a second, whatever becomes of them.
    Open(u32),
}

/// The times of one load.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Microseconds from the request to the first byte of the answer's body.
    pub first: Vec<u64>,
    /// Microseconds of a chunk's way from the server to the client; the first one of each stream is left
    /// out.
    pub chunks: Vec<u64>,
    /// The longest time between two chunks of a stream, in microseconds.
    pub gap_max: u64,
    /// The time of all requests together.
    pub elapsed: Duration,
}

/// A connection of a client.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

// === Measuring ===

/// Puts a load on the server or gateway at `addr`.
///
/// # Errors
/// If a request fails.
pub async fn measure(addr: SocketAddr, load: Load) -> Result<Measured> {
    let body = body(load);
    let begun = Instant::now();
    let mut measured = match load.arrivals {
        Arrivals::Closed(clients) => closed(addr, &body, (clients, load.requests)).await?,
        Arrivals::Open(rate) => open(addr, &body, (rate, load.requests)).await?,
    };
    measured.elapsed = begun.elapsed();
    Ok(measured)
}

fn body(load: Load) -> Bytes {
    let text = "word ".repeat(load.prompt_bytes.div_ceil(5));
    let body = json!({
        "model": "bench",
        "stream": load.chunks > 0,
        "max_tokens": load.chunks.max(1),
        "messages": [{"role": "user", "content": text}],
    });
    Bytes::from(body.to_string())
}

async fn closed(
    addr: SocketAddr,
    body: &Bytes,
    (clients, requests): (usize, usize),
) -> Result<Measured> {
    let mut running = JoinSet::new();
    for number in 0..clients {
        let body = body.clone();
        let share = requests / clients + usize::from(number < requests % clients);
        running.spawn(async move {
            let mut connection = Connection::open(addr).await?;
            let mut measured = Measured::default();
            for _ in 0..share {
                connection.ask(&body, &mut measured).await?;
            }
            anyhow::Ok(measured)
        });
    }
    let mut all = Measured::default();
    while let Some(measured) = running.join_next().await {
        all.add(measured??);
    }
    Ok(all)
}

async fn open(addr: SocketAddr, body: &Bytes, (rate, requests): (u32, usize)) -> Result<Measured> {
    let mut running = JoinSet::new();
    let mut clock = tokio::time::interval(Duration::from_secs(1) / rate);
    let mut idle: Vec<Connection> = Vec::new();
    let mut all = Measured::default();
    for _ in 0..requests {
        clock.tick().await;
        while let Some(done) = running.try_join_next() {
            let (connection, measured): (Connection, Measured) = done??;
            idle.push(connection);
            all.add(measured);
        }
        let (body, connection) = (body.clone(), idle.pop());
        running.spawn(async move {
            let mut connection = match connection {
                Some(connection) => connection,
                None => Connection::open(addr).await?,
            };
            let mut measured = Measured::default();
            connection.ask(&body, &mut measured).await?;
            anyhow::Ok((connection, measured))
        });
    }
    while let Some(done) = running.join_next().await {
        all.add(done??.1);
    }
    Ok(all)
}

// === impl Connection ===

impl Connection {
    async fn open(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // A connection that breaks shows in the answer.
            drop(connection.await);
        });
        Ok(Self {
            sender,
            host: addr.to_string(),
        })
    }

    /// Sends a request, and returns the body of its answer.
    async fn send(&mut self, body: Bytes) -> Result<Incoming> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = "/v1/chat/completions".parse()?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.host.parse()?);
        headers.insert(header::CONTENT_TYPE, "application/json".parse()?);
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        ensure!(status.is_success(), "{status}");
        Ok(response.into_body())
    }

    /// Sends a request, and reads its whole answer.
    async fn ask(&mut self, body: &Bytes, measured: &mut Measured) -> Result<()> {
        let sent = Instant::now();
        let mut body = self.send(body.clone()).await?;
        let mut last: Option<Instant> = None;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            let now = Instant::now();
            match last {
                None => measured.first.push(micros(now - sent)),
                Some(last) => {
                    measured.gap_max = measured.gap_max.max(micros(now - last));
                    let stamps = server::stamps(&data).map(|stamp| micros_now() - stamp);
                    measured.chunks.extend(stamps);
                }
            }
            last = Some(now);
        }
        last.map(drop).context("an answer without a body")
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds on the clock of this process.
fn micros_now() -> u64 {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    micros(BEGAN.get_or_init(Instant::now).elapsed())
}

// === impl Measured ===

impl Measured {
    /// Adds what another client, or another round, has measured.
    pub fn add(&mut self, other: Measured) {
        self.first.extend(other.first);
        self.chunks.extend(other.chunks);
        self.gap_max = self.gap_max.max(other.gap_max);
        self.elapsed += other.elapsed;
    }
}
