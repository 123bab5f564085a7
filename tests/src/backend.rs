//! A server with OpenAI's API that does what it is told: answers, and fails in every way in which a server
//! can.
//!
//! It speaks HTTP/1.1 in bytes of its own, so that it can break its rules too.

mod answers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pointsman_sim::Micros;
use pointsman_sim::latency::EachCost;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use answers::{ANY_PROMPT, PromptTokens, chunk, ending, event, whole};

use crate::PATIENCE;

/// A server elsewhere, in this process. Dropping it closes all of its connections.
#[derive(Debug)]
pub struct MockBackend {
    addr: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Method and path.
    pub line: String,
    /// Headers, with their names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Seen {
    /// The path without its query.
    fn path(&self) -> &str {
        let asked = self.line.split(' ').nth(1).unwrap_or_default();
        asked.split('?').next().unwrap_or_default()
    }
}

/// The way in which completions are answered.
#[derive(Clone, Debug)]
pub enum Conduct {
    /// A whole answer, or a stream of so many tokens where one is asked for.
    Answers(usize),
    /// A stream of so many tokens, each after a permit of [`MockBackend::allow`].
    Steps(usize),
    /// A stream of as many tokens as are asked for, in the time that they take.
    Paced(Pace),
    /// These bytes, and the end of the connection.
    Bytes(Vec<u8>),
    /// These bytes, one after the other, and the end of the connection.
    Trickle(Vec<u8>),
    /// These bytes, and nothing more until the connection ends.
    BytesThenNothing(Vec<u8>),
    /// A status with a body of OpenAI's kind, and these headers.
    Status(u16, &'static [(&'static str, &'static str)]),
}

/// The pace of a server whose requests do not wait for each other.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub cost: EachCost,
    /// Requests with which it is full.
    pub places: u32,
}

/// The way in which the tokens of a stream come.
#[derive(Clone, Copy, Debug)]
enum Coming {
    /// Each after a permit.
    Allowed,
    /// The next one at this time.
    At(Instant, Pace),
}

/// The two kinds of completions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Chat,
    Text,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// A permit for each token of [`Conduct::Steps`].
    steps: Semaphore,
}

#[derive(Debug)]
struct State {
    conduct: Conduct,
    /// Bodies and status of other paths.
    paths: BTreeMap<String, (u16, String)>,
    /// The same of paths at which orders arrive.
    orders: BTreeMap<String, (u16, String)>,
    /// Paths whose next request is left without an answer.
    ignored: BTreeSet<String>,
    seen: Vec<Seen>,
    /// Completions under way, and the most there ever were.
    running: usize,
    running_max: usize,
    /// Connections that the other side closed during a completion.
    abandoned: usize,
}

/// A completion under way, until it is dropped.
struct Counted<'a>(&'a Shared);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(2);

// === impl MockBackend ===

impl MockBackend {
    /// Starts a server with these models.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn start(models: &[&str]) -> Result<Self> {
        Self::start_at("127.0.0.1:0".parse()?, models).await
    }

    /// Starts a server at this address.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub async fn start_at(addr: SocketAddr, models: &[&str]) -> Result<Self> {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        let listener = socket.listen(1024)?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                conduct: Conduct::Answers(3),
                paths: BTreeMap::new(),
                orders: BTreeMap::new(),
                ignored: BTreeSet::new(),
                seen: Vec::new(),
                running: 0,
                running_max: 0,
                abandoned: 0,
            }),
            steps: Semaphore::new(0),
        });
        let mock = Self {
            addr,
            serving: tokio::spawn(serve(listener, Arc::clone(&shared))),
            shared,
        };
        mock.has_models("openai", models);
        Ok(mock)
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Lists these models from now on, as a server of this owner does.
    pub fn has_models(&self, owner: &str, models: &[&str]) {
        self.has_models_with_context((owner, models), 4096);
    }

    /// The same, with a context of so many tokens.
    pub fn has_models_with_context(&self, (owner, models): (&str, &[&str]), tokens: u32) {
        let data = models.iter().map(|name| {
            json!({"id": name, "object": "model", "created": 1, "owned_by": owner,
                "max_model_len": tokens})
        });
        let list = json!({"object": "list", "data": data.collect::<Vec<_>>()});
        self.answers("/v1/models", 200, &list.to_string());
    }

    /// Answers `GET path` with this from now on.
    pub fn answers(&self, path: &str, status: u16, body: &str) {
        let answer = (status, body.to_owned());
        self.state().paths.insert(path.to_owned(), answer);
    }

    /// Answers `POST path` with this from now on, and takes it for no completion.
    pub fn obeys(&self, path: &str, status: u16, body: &str) {
        let answer = (status, body.to_owned());
        self.state().orders.insert(path.to_owned(), answer);
    }

    /// Leaves the next request at `path` without an answer.
    pub fn ignores_once(&self, path: &str) {
        self.state().ignored.insert(path.to_owned());
    }

    /// Answers `POST path` as a completion again.
    pub fn obeys_no_more(&self, path: &str) {
        self.state().orders.remove(path);
    }

    /// Waits until so many requests have arrived at `path`.
    ///
    /// # Errors
    /// If they do not.
    pub async fn heard(&self, path: &str, count: usize) -> Result<()> {
        let arrived = |state: &State| {
            let at_path = |seen: &&Seen| seen.path() == path;
            state.seen.iter().filter(at_path).count() >= count
        };
        self.until(arrived, path).await
    }

    /// Answers completions in this way from now on.
    pub fn does(&self, conduct: Conduct) {
        self.state().conduct = conduct;
    }

    /// Lets so many more tokens of [`Conduct::Steps`] go.
    pub fn allow(&self, tokens: usize) {
        self.shared.steps.add_permits(tokens);
    }

    /// All requests that arrived at `path`.
    #[must_use]
    pub fn seen(&self, path: &str) -> Vec<Seen> {
        let state = self.state();
        let seen = state.seen.iter().filter(|seen| seen.path() == path);
        seen.cloned().collect()
    }

    /// The most completions that were ever under way at once.
    #[must_use]
    pub fn running_max(&self) -> usize {
        self.state().running_max
    }

    /// Waits until so many completions are under way.
    ///
    /// # Errors
    /// If that does not happen.
    pub async fn runs(&self, count: usize) -> Result<()> {
        self.until(|state| state.running == count, "running").await
    }

    /// Waits until so many completions were abandoned by their clients.
    ///
    /// # Errors
    /// If that does not happen.
    pub async fn abandoned(&self, count: usize) -> Result<()> {
        self.until(|state| state.abandoned == count, "abandoned")
            .await
    }

    async fn until(&self, wanted: impl Fn(&State) -> bool, what: &str) -> Result<()> {
        for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
            if wanted(&self.state()) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        let state = self.state();
        bail!(
            "{what}: {} run, {} abandoned",
            state.running,
            state.abandoned
        )
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Drop for MockBackend {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Counted<'_> {
        let mut state = self.state();
        state.running += 1;
        state.running_max = state.running_max.max(state.running);
        Counted(self)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.state().running -= 1;
    }
}

// === Connections ===

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    // A connection that breaks is the other side's to notice.
                    drop(converse(stream, &shared).await);
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Answers the requests of a connection, one after the other.
async fn converse(mut stream: TcpStream, shared: &Shared) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::new();
    while let Some(seen) = request(&mut stream, &mut read).await? {
        let mut line = seen.line.split(' ');
        let (method, path) = (line.next(), line.next().context("no path")?.to_owned());
        shared.state().seen.push(seen.clone());
        if shared.state().ignored.remove(&path) {
            // Until the other side gives up.
            stream.read_buf(&mut read).await?;
            return Ok(());
        }
        let told = match method {
            Some("GET") => {
                let answer = shared.state().paths.get(&path).cloned();
                Some(answer.unwrap_or((404, "{}".to_owned())))
            }
            Some(_) | None => shared.state().orders.get(seen.path()).cloned(),
        };
        if let Some((status, body)) = told {
            let head = head(status, &[("content-type", "application/json")], body.len());
            stream
                .write_all(&[head.as_bytes(), body.as_bytes()].concat())
                .await?;
            continue;
        }
        let conduct = shared.state().conduct.clone();
        let counted = shared.begin();
        let answered = answer(&mut stream, shared, conduct, &seen);
        let goes_on = answered.await;
        drop(counted);
        if !goes_on? {
            return Ok(());
        }
    }
    Ok(())
}

/// The next request; absent: the connection has ended.
async fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> Result<Option<Seen>> {
    let head_end = loop {
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(read).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8(read[..head_end].to_vec())?;
    let mut lines = head.lines();
    let line = lines.next().unwrap_or_default().to_owned();
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers
        .get("content-length")
        .map_or(Ok(0), |text| text.parse())?;
    while read.len() < head_end + length {
        if stream.read_buf(read).await? == 0 {
            return Ok(None);
        }
    }
    let body = read[head_end..head_end + length].to_vec();
    read.drain(..head_end + length);
    Ok(Some(Seen {
        line,
        headers,
        body,
    }))
}

/// Answers a completion. False: the connection is to end.
async fn answer(
    stream: &mut TcpStream,
    shared: &Shared,
    conduct: Conduct,
    seen: &Seen,
) -> Result<bool> {
    let asked: Value = serde_json::from_slice(&seen.body).unwrap_or(Value::Null);
    let kind = if seen.line.contains("chat") {
        Kind::Chat
    } else {
        Kind::Text
    };
    match conduct {
        Conduct::Answers(tokens) if asked["stream"] == json!(true) => {
            let events = (0..tokens).map(|token| event(&chunk(kind, &asked, Some(token))));
            let events: String = events
                .chain([ending(kind, &asked, ANY_PROMPT, tokens)])
                .collect();
            let head = stream_head();
            let body = format!("{:x}\r\n{events}\r\n0\r\n\r\n", events.len());
            stream.write_all(format!("{head}{body}").as_bytes()).await?;
            Ok(true)
        }
        Conduct::Answers(tokens) => {
            let body = whole(kind, &asked, tokens).to_string();
            let head = head(200, &[("content-type", "application/json")], body.len());
            stream
                .write_all(&[head.as_bytes(), body.as_bytes()].concat())
                .await?;
            Ok(true)
        }
        Conduct::Steps(tokens) => {
            steps(stream, shared, (kind, &asked), (tokens, Coming::Allowed)).await
        }
        Conduct::Paced(pace) => {
            let took = pace.cost.prefill(words(&asked), pace.factor(shared));
            let coming = Coming::At(Instant::now() + time(took), pace);
            let tokens = asked["max_tokens"].as_u64().context("no max_tokens")?;
            let tokens = usize::try_from(tokens)?;
            steps(stream, shared, (kind, &asked), (tokens, coming)).await
        }
        Conduct::Bytes(bytes) => {
            stream.write_all(&bytes).await?;
            Ok(false)
        }
        Conduct::Trickle(bytes) => {
            for byte in bytes {
                stream.write_all(&[byte]).await?;
                sleep_until(Instant::now() + LOOK).await;
            }
            Ok(false)
        }
        Conduct::BytesThenNothing(bytes) => {
            stream.write_all(&bytes).await?;
            wait_for_end(stream, shared).await?;
            Ok(false)
        }
        Conduct::Status(status, headers) => {
            let body = json!({"error": {"message": format!("mock {status}"), "type": "mock",
                "param": null, "code": null}});
            let body = body.to_string();
            let headers = [headers, &[("content-type", "application/json")]].concat();
            let head = head(status, &headers, body.len());
            stream
                .write_all(&[head.as_bytes(), body.as_bytes()].concat())
                .await?;
            Ok(true)
        }
    }
}

// === impl Pace ===

impl Pace {
    /// The factor of all times at present.
    fn factor(&self, shared: &Shared) -> f64 {
        let running = u32::try_from(shared.state().running).unwrap_or(u32::MAX);
        self.cost.factor(running, self.places)
    }
}

/// The number of words in a request, each of which is a token of the prompt.
fn words(asked: &Value) -> u32 {
    let messages = asked["messages"].as_array().into_iter().flatten();
    let texts = messages.filter_map(|message| message["content"].as_str());
    let words: usize = texts.map(|text| text.split_whitespace().count()).sum();
    u32::try_from(words).unwrap_or(u32::MAX)
}

fn time(micros: Micros) -> Duration {
    Duration::from_micros(micros.0)
}

/// Streams tokens as they come. False: the other side has left.
async fn steps(
    stream: &mut TcpStream,
    shared: &Shared,
    (kind, asked): (Kind, &Value),
    (tokens, mut coming): (usize, Coming),
) -> Result<bool> {
    stream.write_all(stream_head().as_bytes()).await?;
    for token in 0..tokens {
        let mut byte = [0];
        tokio::select! {
            come = coming.next(shared) => come?,
            // The other side says nothing more on this connection, unless it closes it.
            _ = stream.read(&mut byte) => {
                shared.state().abandoned += 1;
                return Ok(false);
            }
        }
        let event = event(&chunk(kind, asked, Some(token)));
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            shared.state().abandoned += 1;
            return Ok(false);
        }
    }
    let event = ending(kind, asked, coming.prompt_tokens(asked), tokens);
    let last = format!("{:x}\r\n{event}\r\n0\r\n\r\n", event.len());
    stream.write_all(last.as_bytes()).await?;
    Ok(true)
}

// === impl Coming ===

impl Coming {
    /// The tokens of the prompt by which the time goes, where one goes by them.
    fn prompt_tokens(&self, asked: &Value) -> PromptTokens {
        match self {
            Self::Allowed => ANY_PROMPT,
            Self::At(..) => PromptTokens {
                all: words(asked) as usize,
                cached: 0,
            },
        }
    }

    async fn next(&mut self, shared: &Shared) -> Result<()> {
        match self {
            Self::Allowed => shared.steps.acquire().await?.forget(),
            Self::At(at, pace) => {
                sleep_until(*at).await;
                *at += time(pace.cost.decode(pace.factor(shared)));
            }
        }
        Ok(())
    }
}

async fn wait_for_end(stream: &mut TcpStream, shared: &Shared) -> Result<()> {
    let mut byte = [0];
    if !matches!(stream.read(&mut byte).await, Ok(1)) {
        shared.state().abandoned += 1;
    }
    Ok(())
}

// === Answers ===

/// The head of a response with a body of so many bytes.
#[must_use]
pub fn head(status: u16, headers: &[(&str, &str)], length: usize) -> String {
    let mut head = format!("HTTP/1.1 {status} Mock\r\ncontent-length: {length}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + "\r\n"
}

/// The head of a stream of events.
#[must_use]
pub fn stream_head() -> &'static str {
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
}

/// A chunk of the transfer coding.
#[must_use]
pub fn coded(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// The event of a stream with the token of this number.
#[must_use]
pub fn token(number: usize) -> String {
    event(&chunk(Kind::Chat, &json!({"model": "demo"}), Some(number)))
}
