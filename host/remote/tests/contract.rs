//! A server elsewhere keeps the executor contract, before a mock whose answers go on as the suite looks at them.
//!
//! The executor and the mock run on the test's own thread, and only while events are waited for. The clock stands still
//! but for the time in which tokens are reported.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::{HeaderMap, Method};
use pointsman_events::{RequestId, SequenceRef};
use pointsman_executor::contract::{Command, Event, Events, Start};
use pointsman_executor::contract_suite;
use pointsman_executor::delivery::StopReason;
use pointsman_executor::handle::EngineHandle;
use pointsman_executor::job::Job;
use pointsman_executor::relay::{RemoteCall, Rooms};
use pointsman_executor::server::ServerConfig;
use pointsman_executor::test_util::{
    EXECUTOR, ExecutorUnderTest, FIRST_LIFE, SLOTS, WholeAnswer, reference,
};
use pointsman_remote::client::{Connections, Trust};
use pointsman_remote::{RemoteSpec, spawn};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::yield_now;
use tokio::time::advance;

contract_suite!(server_elsewhere, Elsewhere::new(), 20);

/// Reports of the executor that may wait for the suite.
const EVENTS_MAX: usize = 16;
/// The most looks for something that must happen. They take many seconds.
const LOOKS_MAX: u32 = 10_000_000;
/// The time from a look for tokens to the next one. All looks together take less than [`FOREVER`].
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A time after which nothing of the executor's happens in a test.
const FOREVER: Duration = Duration::from_hours(24 * 365);
/// Tokens in a block of which each sequence has one and needs no other.
const TOKENS_PER_BLOCK: u32 = 1024;
/// The mock's models.
const MODELS: &str = r#"{"object": "list", "data": [{"id": "demo", "object": "model"}]}"#;

/// Waits until there is something, while the clock stands still.
async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..LOOKS_MAX {
        if let Some(found) = look() {
            return found;
        }
        yield_now().await;
    }
    panic!("it has not come")
}

/// The sequence that ended with this event; absent: none did.
fn ended(event: &Event) -> Option<SequenceRef> {
    match event {
        Event::Finished { sequence, .. }
        | Event::Failed { sequence, .. }
        | Event::Left { sequence, .. } => Some(*sequence),
        Event::Started(_)
        | Event::Stepped(_)
        | Event::PromptCounted(..)
        | Event::Answered(..)
        | Event::Lost { .. }
        | Event::Changed(_) => None,
    }
}

// === The executor ===

/// An executor before the mock.
struct Elsewhere {
    runtime: Runtime,
    executor: EngineHandle,
    events: mpsc::Receiver<Events>,
    mock: Arc<Mock>,
    /// The number of each request's newest start.
    starts: BTreeMap<RequestId, u64>,
    starts_total: u64,
}

impl Elsewhere {
    fn new() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let mock = Arc::new(Mock::new());
        let (sender, mut events) = mpsc::channel(EVENTS_MAX);
        let executor = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            tokio::spawn(Arc::clone(&mock).serve(listener));
            let spec = RemoteSpec {
                executor: EXECUTOR,
                incarnation: FIRST_LIFE,
                server: described(&url),
                models_max: None,
                connections: Connections::trusting(Trust::Nobody).unwrap(),
                events: sender,
            };
            let executor = spawn(&Handle::current(), spec);
            // The server has been asked, and is not asked again.
            until(|| events.try_recv().ok()).await;
            executor
        });
        Self {
            runtime,
            executor,
            events,
            mock,
            starts: BTreeMap::new(),
            starts_total: 0,
        }
    }

    /// Gives a job its call, which the mock is to await.
    fn call(&mut self, start: &mut Start) {
        self.starts_total += 1;
        let job = &start.sequence.job;
        let mut body = asked(job);
        body["start"] = self.starts_total.into();
        let path = if job.is_to_embed() {
            "/v1/embeddings"
        } else {
            "/v1/completions"
        };
        let call = RemoteCall {
            method: Method::POST,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body: body.to_string().into(),
            model: None,
            prompt_tokens: job.prompt_tokens(),
            rooms: Rooms::default(),
        };
        start.sequence.job = Arc::new(Job {
            call: Some(Arc::new(call)),
            ..Job::clone(job)
        });
        let request = start.order.sequence.request;
        self.starts.insert(request, self.starts_total);
        self.mock.state().coming.insert(self.starts_total);
    }

    /// Expects the request of a sequence no more that is told to leave.
    fn expect_no_more(&self, sequence: SequenceRef) {
        let start = self.starts.get(&sequence.request);
        if let Some(start) = start.filter(|_| sequence == reference(sequence.request)) {
            self.mock.state().coming.remove(start);
        }
    }
}

/// The server at this address: it is asked once, and may take its time.
fn described(url: &str) -> ServerConfig {
    ServerConfig {
        slots: Some(SLOTS),
        poll: FOREVER,
        first_byte_timeout: FOREVER,
        stall_timeout: FOREVER,
        ..ServerConfig::new(url.parse().unwrap())
    }
}

/// Waits for events of the executor. Where none come by themselves, all answers go on by a token.
async fn next(events: &mut mpsc::Receiver<Events>, mock: &Mock) -> Events {
    let mut has_stepped = false;
    for _ in 0..LOOKS_MAX {
        if let Ok(told) = events.try_recv() {
            return told;
        }
        if mock.awaits_requests() {
            // No connection is given up meanwhile.
            yield_now().await;
            continue;
        }
        if !has_stepped {
            mock.step();
            has_stepped = true;
        }
        advance(LOOK_EVERY).await;
    }
    panic!("nothing has happened")
}

impl ExecutorUnderTest for Elsewhere {
    fn send(&mut self, mut command: Command) {
        match &mut command {
            Command::Start(start) => self.call(start),
            Command::Evict { sequence, .. } | Command::Cancel(sequence) => {
                self.expect_no_more(*sequence);
            }
            Command::Grant { .. }
            | Command::SetBudget { .. }
            | Command::Arrange(_)
            | Command::Load(_)
            | Command::Configure { .. } => {}
        }
        self.executor.commands.try_send(command).unwrap();
    }

    /// Returns the next events, once the server has nothing more of the sequences that ended with them: it was told to
    /// the end, or the connection is closed.
    fn events(&mut self) -> Events {
        let Self {
            runtime,
            events,
            mock,
            starts,
            ..
        } = self;
        runtime.block_on(async {
            let told = next(events, mock).await;
            for sequence in told.list.iter().filter_map(ended) {
                let start = &starts[&sequence.request];
                until(|| (!mock.state().open.contains(start)).then_some(())).await;
            }
            told
        })
    }

    fn is_stepped(&self) -> bool {
        true
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn tokens_per_block(&self) -> u32 {
        TOKENS_PER_BLOCK
    }

    fn blocks_total(&self) -> u32 {
        SLOTS
    }

    fn alone(&self, job: &Job) -> WholeAnswer {
        let asked = asked(job);
        let (tokens, _) = length(&asked);
        WholeAnswer {
            ids: (0..tokens).collect(),
            text: pieces(&asked).concat(),
            stop: StopReason::Stop,
            embedding: None,
        }
    }

    fn prompts_that_end(&self) -> Vec<Vec<u32>> {
        vec![vec![20], vec![27, 31], vec![907]]
    }
}

// === Requests and answers ===

/// The body of the request for a job.
fn asked(job: &Job) -> Value {
    json!({"prompt": job.prompt, "max_tokens": job.output_tokens_max, "stop": job.stop,
        "ignore_eos": job.ignore_eos})
}

/// The sum of a prompt's tokens, by which answers differ.
fn prompt_sum(asked: &Value) -> u64 {
    let prompt = asked["prompt"].as_array().unwrap();
    prompt.iter().filter_map(Value::as_u64).sum()
}

/// The tokens of an answer, and the reason why it ends there. A stop string comes up in its middle, whatever it is.
fn length(asked: &Value) -> (u32, &'static str) {
    let tokens_max = asked["max_tokens"].as_u64().unwrap();
    let has_stop = asked["stop"] != json!([]);
    let eos_at = prompt_sum(asked) % 20 + 1;
    let ends = asked["ignore_eos"] == json!(false) && eos_at < tokens_max;
    let (tokens, reason) = match (has_stop, ends) {
        (true, _) => (tokens_max.div_ceil(2), "stop"),
        (false, true) => (eos_at, "stop"),
        (false, false) => (tokens_max, "length"),
    };
    (u32::try_from(tokens).unwrap(), reason)
}

/// The pieces of the body of an answer: an event for each token, or one piece with the embedding.
fn pieces(asked: &Value) -> Vec<String> {
    let (tokens, reason) = length(asked);
    let sum = prompt_sum(asked);
    let prompt_tokens = asked["prompt"].as_array().unwrap().len();
    if tokens == 0 {
        let usage = json!({"prompt_tokens": prompt_tokens});
        let answer = json!({"data": [{"embedding": [sum, 1]}], "usage": usage});
        return vec![answer.to_string()];
    }
    let event = |token: u32| {
        let mut event = json!({"choices": [{"text": format!(" {token} of {sum}")}]});
        if token == tokens {
            event["choices"][0]["finish_reason"] = reason.into();
            event["usage"] = json!({"prompt_tokens": prompt_tokens, "completion_tokens": tokens});
        }
        format!("data: {event}\n\n")
    };
    (1..=tokens).map(event).collect()
}

// === The mock ===

/// A server whose answers go on by a token with each step.
#[derive(Debug)]
struct Mock {
    /// Changes with each step.
    steps: watch::Sender<()>,
    state: Mutex<MockState>,
}

/// The mock's requests, by the numbers of their starts.
#[derive(Debug, Default)]
struct MockState {
    /// The starts whose requests are on their way.
    coming: BTreeSet<u64>,
    /// The starts whose requests are being answered.
    open: BTreeSet<u64>,
}

impl Mock {
    fn new() -> Self {
        Self {
            steps: watch::Sender::new(()),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, MockState> {
        self.state.lock().unwrap()
    }

    /// True while requests are on their way.
    fn awaits_requests(&self) -> bool {
        !self.state().coming.is_empty()
    }

    /// Lets each answer go on by a token.
    fn step(&self) {
        self.steps.send_modify(|_step| {});
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let mock = Arc::clone(&self);
            tokio::spawn(async move {
                // A connection that breaks is no fault of the mock's.
                drop(mock.converse(stream).await);
            });
        }
    }

    /// Answers the requests of a connection, one after the other.
    ///
    /// # Errors
    /// If the client leaves in the middle of an answer.
    async fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut read = Vec::new();
        while let Some(asked) = request(&mut stream, &mut read).await? {
            let Some(start) = asked["start"].as_u64() else {
                stream.write_all(list().as_bytes()).await?;
                continue;
            };
            // Each step from its arrival on is its own.
            let steps = self.steps.subscribe();
            self.state().open.insert(start);
            self.state().coming.remove(&start);
            let answered = answer(&mut stream, steps, &asked).await;
            self.state().open.remove(&start);
            answered?;
        }
        Ok(())
    }
}

/// The next request's body; absent: the client has left. A request without one has none.
async fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> io::Result<Option<Value>> {
    loop {
        if let Some((asked, bytes)) = first_request(read) {
            read.drain(..bytes);
            return Ok(Some(asked));
        }
        if stream.read_buf(read).await? == 0 {
            return Ok(None);
        }
    }
}

/// The body of the first request, and the bytes of all of the request; absent: not all of it has come.
fn first_request(read: &[u8]) -> Option<(Value, usize)> {
    let head = read.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let lines = str::from_utf8(&read[..head]).unwrap().lines();
    let mut lengths = lines.filter_map(|line| line.strip_prefix("content-length: "));
    let length: usize = lengths.next().map_or(0, |length| length.parse().unwrap());
    let body = read.get(head..head + length)?;
    let asked = serde_json::from_slice(body).unwrap_or_default();
    Some((asked, head + length))
}

/// The response with the models.
fn list() -> String {
    let length = MODELS.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{MODELS}"
    )
}

/// Answers a request, a piece with each step.
///
/// # Errors
/// If the client leaves meanwhile.
async fn answer(
    stream: &mut TcpStream,
    mut steps: watch::Receiver<()>,
    asked: &Value,
) -> io::Result<()> {
    let form = match asked["max_tokens"].as_u64() {
        Some(0) => "application/json",
        Some(_) | None => "text/event-stream",
    };
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {form}\r\ntransfer-encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    for piece in pieces(asked) {
        let mut byte = [0];
        tokio::select! {
            _ = steps.changed() => {}
            // The client says nothing more on this connection, unless it closes it.
            _ = stream.read(&mut byte) => return Err(io::ErrorKind::ConnectionAborted.into()),
        }
        let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
        stream.write_all(chunk.as_bytes()).await?;
    }
    stream.write_all(b"0\r\n\r\n").await
}
