//! Tests of what is told of a prompt before anything has come, where the clock stands still but for `advance`; and of
//! what is gathered.

use std::collections::VecDeque;

use pointsman_events::RequestId;
use pointsman_executor::contract::{Command, Event, Events};
use pointsman_executor::delivery::{Closing, Deliveries};
use pointsman_executor::handle::EngineHandle;
use pointsman_executor::job::Job;
use pointsman_executor::server::ServerConfig;
use pointsman_executor::test_util::reference;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::advance;

use super::*;
use crate::test_util::{hold_clock, passed_on, settle, started};

/// The models of the server.
const LIST: &str = r#"{"data": [{"id": "demo"}]}"#;
/// An answer of five tokens to a prompt of three.
const ANSWER: &str = r#"{"usage": {"prompt_tokens": 3, "completion_tokens": 5}}"#;
/// A request for an answer as a whole.
const WHOLE: &str = r#"{"stream": false}"#;
/// Just less than a second.
const ALMOST: Duration = Duration::from_millis(998);

/// The news of a request that counts here.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// Tokens of the prompt, and those that were generated.
    Tokens(u32, u32),
    /// The tokens of the prompt, as counted.
    Prompt(u32),
    Ended,
}

/// An executor whose server answers a request once it may.
struct SlowServer {
    /// A request has come.
    has_heard: Arc<Notify>,
    may_answer: Arc<Notify>,
    executor: EngineHandle,
    events: mpsc::Receiver<Events>,
    told: VecDeque<Told>,
    /// The clients' ends of the requests.
    clients: Vec<(Closing, Deliveries)>,
}

/// Serves a connection. Requests of clients are answered so.
async fn converse(
    mut socket: TcpStream,
    (has_heard, may_answer): (Arc<Notify>, Arc<Notify>),
    (status, body): (u16, &'static str),
) {
    let mut read = Vec::new();
    while socket.read_buf(&mut read).await.unwrap() > 0 {
        let (status, body) = if read.starts_with(b"GET ") && read.ends_with(b"\r\n\r\n") {
            (200, LIST)
        } else if read.ends_with(b"}") {
            has_heard.notify_one();
            may_answer.notified().await;
            (status, body)
        } else {
            continue;
        };
        read.clear();
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} Mock\r\ncontent-length: {length}\r\n\r\n{body}");
        socket.write_all(answer.as_bytes()).await.unwrap();
    }
}

fn told(event: &Event) -> Option<Told> {
    match event {
        Event::Stepped(step) => {
            let made = step.progress.first()?;
            Some(Told::Tokens(made.prefilled, made.generated))
        }
        Event::PromptCounted(_, count) => Some(Told::Prompt(count.tokens)),
        Event::Finished { .. } | Event::Failed { .. } | Event::Left { .. } => Some(Told::Ended),
        Event::Started(_) | Event::Answered(..) | Event::Lost { .. } | Event::Changed(_) => None,
    }
}

impl SlowServer {
    /// Starts the executor of a server that answers so.
    async fn start(answer: (u16, &'static str)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (has_heard, may_answer) = <(Arc<Notify>, Arc<Notify>)>::default();
        let notifies = (Arc::clone(&has_heard), Arc::clone(&may_answer));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(converse(socket, notifies.clone(), answer));
            }
        });
        let mut server = ServerConfig::new(url.parse().unwrap());
        server.poll = Duration::from_secs(3600);
        let (executor, events) = started(server);
        Self {
            has_heard,
            may_answer,
            executor,
            events,
            told: VecDeque::new(),
            clients: Vec::new(),
        }
    }

    /// Passes a request of this body on, and waits until the server has it.
    async fn asked(&mut self, body: &'static str) {
        let (mut command, client) = passed_on(RequestId(1));
        if let Command::Start(start) = &mut command {
            let job = &start.sequence.job;
            let mut call = RemoteCall::clone(job.call.as_ref().unwrap());
            call.body = Bytes::from_static(body.as_bytes());
            start.sequence.job = Arc::new(Job {
                call: Some(Arc::new(call)),
                ..Job::clone(job)
            });
        }
        self.clients.push(client);
        self.executor.commands.send(command).await.unwrap();
        self.has_heard.notified().await;
    }

    /// The next news.
    async fn next(&mut self) -> Told {
        loop {
            if let Some(told) = self.told.pop_front() {
                return told;
            }
            let events = self.events.recv().await.unwrap();
            self.told.extend(events.list.iter().filter_map(told));
        }
    }

    /// Lets so much time go. True: there was no news.
    async fn is_quiet_for(&mut self, time: Duration) -> bool {
        advance(time).await;
        settle().await;
        while let Ok(events) = self.events.try_recv() {
            self.told.extend(events.list.iter().filter_map(told));
        }
        self.told.is_empty()
    }

    /// Has the server answer, after which these are the last news.
    async fn ends_with(&mut self, last: &[Told]) {
        self.may_answer.notify_one();
        for expected in last {
            assert_eq!(self.next().await, *expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_is_taken_to_be_read_after_a_second_where_the_answer_comes_as_a_whole() {
    tokio::spawn(hold_clock());
    let mut server = SlowServer::start((200, ANSWER)).await;
    server.asked(WHOLE).await;
    assert!(server.is_quiet_for(ALMOST).await);
    advance(Duration::from_millis(4)).await;
    assert_eq!(server.next().await, Told::Tokens(1, 0));
    let last = [Told::Tokens(0, 5), Told::Prompt(3), Told::Ended];
    server.ends_with(&last).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_of_a_prompt_before_its_stream_begins_or_an_answer_that_comes_soon() {
    tokio::spawn(hold_clock());
    let last = [Told::Tokens(1, 5), Told::Prompt(3), Told::Ended];
    for (body, time) in [(r#"{"stream" : true}"#, 10 * ALMOST), (WHOLE, ALMOST)] {
        let mut server = SlowServer::start((200, ANSWER)).await;
        server.asked(body).await;
        assert!(server.is_quiet_for(time).await, "{body}");
        server.ends_with(&last).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_pays_for_a_prompt_that_was_taken_to_be_read_and_is_not_served() {
    tokio::spawn(hold_clock());
    for status in [400, 429, 500] {
        let mut server = SlowServer::start((status, "{}")).await;
        server.asked(WHOLE).await;
        advance(2 * ALMOST).await;
        assert_eq!(server.next().await, Told::Tokens(1, 0), "{status}");
        server.ends_with(&[Told::Prompt(0), Told::Ended]).await;
    }
    // Its client leaves before there is an answer.
    let mut server = SlowServer::start((200, ANSWER)).await;
    server.asked(WHOLE).await;
    advance(2 * ALMOST).await;
    assert_eq!(server.next().await, Told::Tokens(1, 0));
    let cancel = Command::Cancel(reference(RequestId(1)));
    server.executor.commands.send(cancel).await.unwrap();
    for expected in [Told::Prompt(0), Told::Ended] {
        assert_eq!(server.next().await, expected);
    }
}

#[test]
fn a_stream_is_asked_for_by_a_field_of_that_name() {
    for (body, asks) in [
        (r#"{"model": "demo", "stream":true}"#, true),
        (r#"{"stream" : true, "messages": []}"#, true),
        (r#"{"stream": false}"#, false),
        (r#"{"stream_options": true}"#, false),
        (r#"{"prompt": "\"stream\": true"}"#, false),
        (r#"{"stream""#, false),
        ("", false),
    ] {
        assert_eq!(asks_for_stream(body.as_bytes()), asks, "{body}");
    }
}

#[test]
fn one_text_in_json_is_told_from_many_and_from_anything_else() {
    for (kind, is_one) in [
        ("application/json", true),
        ("Application/JSON ; charset=utf-8", true),
        ("application/jsonl", false),
        ("application/x-ndjson", false),
        ("text/event-stream", false),
        ("audio/mpeg", false),
        ("", false),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        assert_eq!(is_json(&headers), is_one, "{kind}");
    }
    assert!(!is_json(&HeaderMap::new()));
}
