//! Tests of the time after which a server that had no room, or took no connection, is asked again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pointsman_events::{RequestId, RetryClass};
use pointsman_executor::contract::Events;
use pointsman_executor::delivery::{Closing, Deliveries};
use pointsman_executor::handle::EngineHandle;
use pointsman_executor::server::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};
use tokio::task::AbortHandle;
use tokio::time::advance;

use super::*;
use crate::test_util::{hold_clock, passed_on, settle, started};

/// The only request at a time.
const REQUEST: RequestId = RequestId(1);
/// The most looks for a round that must come. They take a second.
const LOOKS_MAX: u32 = 1000;
/// The time that a round is not to come before its own, and the time within which it comes after that.
const JUST_BEFORE: Duration = Duration::from_millis(1);
const AFTER: Duration = Duration::from_millis(2);
/// The models of the server.
const LIST: &str = r#"{"data": [{"id": "demo"}]}"#;

/// An executor whose server lists its models, and turns every request back.
struct FullServer {
    questions: Arc<Questions>,
    /// The task that takes connections.
    listens: AbortHandle,
    executor: EngineHandle,
    events: mpsc::Receiver<Events>,
    /// The clients' ends of the requests.
    clients: Vec<(Closing, Deliveries)>,
}

/// The questions to the server, one in each round.
struct Questions {
    /// Questions that it has heard.
    heard: AtomicU32,
    /// The answer to them. Whoever has the lock keeps them waiting.
    answer: Mutex<String>,
}

/// An answer with this status and body.
fn answer(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Serves a connection. The head of a refusal has this line.
async fn converse(mut socket: TcpStream, questions: Arc<Questions>, line: &'static str) {
    let mut read = Vec::new();
    while socket.read_buf(&mut read).await.unwrap() > 0 {
        let answer = if read.starts_with(b"GET ") && read.ends_with(b"\r\n\r\n") {
            questions.heard.fetch_add(1, Ordering::Relaxed);
            questions.answer.lock().await.clone()
        } else if read.ends_with(b"}") {
            format!("HTTP/1.1 429 Full\r\n{line}content-length: 0\r\n\r\n")
        } else {
            continue;
        };
        read.clear();
        socket.write_all(answer.as_bytes()).await.unwrap();
    }
}

impl FullServer {
    /// Starts the executor, whose server has been found to take requests.
    async fn start(poll: Duration, line: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let questions = Arc::new(Questions {
            heard: AtomicU32::new(0),
            answer: Mutex::new(answer("200 OK", LIST)),
        });
        let asked = Arc::clone(&questions);
        let listens = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(converse(socket, Arc::clone(&asked), line));
            }
        });
        let mut server = ServerConfig::new(url.parse().unwrap());
        server.poll = poll;
        let (executor, events) = started(server);
        let mut full = Self {
            questions,
            listens: listens.abort_handle(),
            executor,
            events,
            clients: Vec::new(),
        };
        full.is(Availability::Open).await;
        full
    }

    /// Waits until the driver is told that the server is so.
    async fn is(&mut self, wanted: Availability) {
        let wanted = ServerChange::Availability(wanted);
        let is_it = |event: &Event| matches!(event, Event::Changed(change) if *change == wanted);
        loop {
            let told = self.events.recv().await.unwrap();
            if told.list.iter().any(is_it) {
                return;
            }
        }
    }

    /// Waits until the driver hears of a round of questions that tells nothing new.
    async fn is_as_it_was(&mut self) {
        let told = self.events.recv().await.unwrap().list;
        assert!(told.is_empty(), "{told:?}");
    }

    /// Has a request turned back, after which the server is taken to have no room.
    async fn turns_back(&mut self) {
        let (start, client) = passed_on(REQUEST);
        self.clients.push(client);
        self.executor.commands.send(start).await.unwrap();
        self.is(Availability::Busy).await;
    }

    /// Takes no connection any more. The one by which it is asked stays.
    async fn takes_no_connection(&self) {
        self.listens.abort();
        settle().await;
    }

    /// Has a request start that does not reach the server: it may go anywhere, once the driver knows that the server is silent.
    async fn is_not_reached(&mut self) {
        let (start, client) = passed_on(REQUEST);
        self.clients.push(client);
        self.executor.commands.send(start).await.unwrap();
        let told = self.events.recv().await.unwrap().list;
        assert!(matches!(&*told, [Event::Started(_)]), "{told:?}");
        let told = self.events.recv().await.unwrap().list;
        let is_told = matches!(
            &*told,
            [
                Event::Changed(ServerChange::Availability(Availability::Silent)),
                Event::Failed {
                    retry: RetryClass::Anywhere,
                    ..
                },
            ]
        );
        assert!(is_told, "{told:?}");
    }

    /// Lets so much time go, after which the server has heard so many rounds of questions.
    async fn has_heard_after(&self, time: Duration) -> u32 {
        advance(time).await;
        settle().await;
        self.questions.heard.load(Ordering::Relaxed)
    }

    /// Lets so much time go, and waits for the next round of questions, of this number. False: it does not come.
    async fn hears_after(&self, time: Duration, round: u32) -> bool {
        let mut heard = self.has_heard_after(time).await;
        for _ in 0..LOOKS_MAX {
            if heard == round {
                return true;
            }
            heard = self.has_heard_after(Duration::ZERO).await;
        }
        false
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_had_no_room_is_asked_when_it_says_and_from_then_on_as_usual() {
    tokio::spawn(hold_clock());
    let (often, seldom) = (Duration::from_secs(2), Duration::from_secs(3600));
    for (poll, line, pauses_ms) in [
        (seldom, "retry-after: 1\r\n", [1000, 1000]),
        (often, "retry-after: 30\r\n", [30_000, 30_000]),
        (seldom, "retry-after: 0\r\n", [200, 200]),
        (seldom, "", [200, 400]),
    ] {
        let mut full = FullServer::start(poll, line).await;
        let mut rounds = 1;
        for pause in pauses_ms.map(Duration::from_millis) {
            full.turns_back().await;
            let heard = full.has_heard_after(pause - JUST_BEFORE).await;
            assert_eq!(heard, rounds, "{line:?}: too soon, of {pause:?}");
            rounds += 1;
            let is_heard = full.hears_after(AFTER, rounds).await;
            assert!(is_heard, "{line:?}: not after {pause:?}");
            full.is(Availability::Open).await;
        }
        let heard = full.has_heard_after(poll - AFTER).await;
        assert_eq!(heard, rounds, "{line:?}: sooner than usual");
        let is_heard = full.hears_after(AFTER, rounds + 1).await;
        assert!(is_heard, "{line:?}: not as usual");
    }
}

#[tokio::test(start_paused = true)]
async fn a_round_that_was_on_its_way_says_nothing_of_the_room_at_a_server_that_had_none() {
    tokio::spawn(hold_clock());
    let (usual, pause) = (Duration::from_secs(2), Duration::from_secs(30));
    let mut full = FullServer::start(usual, "retry-after: 30\r\n").await;
    let questions = Arc::clone(&full.questions);
    let held = questions.answer.lock().await;
    assert!(full.hears_after(usual + JUST_BEFORE, 2).await);
    full.turns_back().await;
    drop(held);
    full.is_as_it_was().await;
    let heard = full.has_heard_after(pause - JUST_BEFORE).await;
    assert_eq!(heard, 2, "too soon");
    assert!(full.hears_after(AFTER, 3).await, "not when it says");
    full.is(Availability::Open).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_goes_on_to_refuse_questions_is_asked_as_usual() {
    tokio::spawn(hold_clock());
    let (usual, pause) = (Duration::from_secs(2), Duration::from_millis(200));
    let mut full = FullServer::start(usual, "").await;
    full.turns_back().await;
    *full.questions.answer.lock().await = answer("503 Service Unavailable", "");
    assert!(full.hears_after(pause + JUST_BEFORE, 2).await);
    full.is_as_it_was().await;
    let heard = full.has_heard_after(usual - AFTER).await;
    assert_eq!(heard, 2, "sooner than usual");
    assert!(full.hears_after(2 * AFTER, 3).await, "not as usual");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_and_takes_no_connection_is_tried_later_each_time() {
    tokio::spawn(hold_clock());
    let mut full = FullServer::start(Duration::from_secs(3600), "").await;
    full.takes_no_connection().await;
    for (round, pause_ms) in [(2, 200), (3, 400), (4, 800)] {
        let pause = Duration::from_millis(pause_ms);
        full.is_not_reached().await;
        let heard = full.has_heard_after(pause - JUST_BEFORE).await;
        assert_eq!(heard, round - 1, "too soon, of {pause:?}");
        assert!(full.hears_after(AFTER, round).await, "not after {pause:?}");
        full.is(Availability::Open).await;
    }
}
