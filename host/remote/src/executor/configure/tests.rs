//! Tests of a server that takes the place of another one.

use std::io;
use std::iter::repeat;

use pointsman_events::{Availability, RequestId, RetryClass};
use pointsman_executor::contract::{Command, Events};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;
use crate::test_util::{hold_clock, passed_on, settle, started};

/// The answers of a server to its first question, and to all others.
const REFUSAL: (&str, &str) = ("401 Unauthorized", "");
const LIST: (&str, &str) = ("200 OK", r#"{"data": [{"id": "demo"}]}"#);

/// Answers the question on a connection, and closes it.
async fn answer(mut socket: TcpStream, (status, body): (&str, &str)) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && socket.read_buf(&mut head).await? > 0 {}
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n");
    let answer = format!("{head}\r\n{body}");
    socket.write_all(answer.as_bytes()).await
}

/// Starts a server that refuses the first question, which is asked again at once.
async fn refuses_at_first() -> ServerConfig {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for given in [REFUSAL].into_iter().chain(repeat(LIST)) {
            let (socket, _) = listener.accept().await.unwrap();
            // Whoever asked may have left.
            drop(answer(socket, given).await);
        }
    });
    let mut server = ServerConfig::new(url.parse().unwrap());
    server.poll = Duration::ZERO;
    server
}

/// Waits until the server takes requests. Returns what the driver is told of its answers until then.
async fn opens(events: &mut mpsc::Receiver<Events>) -> Vec<ServerChange> {
    let open = ServerChange::Availability(Availability::Open);
    let mut told = Vec::new();
    while !told.contains(&open) {
        for event in events.recv().await.unwrap().list {
            if let Event::Changed(change) = event
                && matches!(
                    change,
                    ServerChange::Availability(_) | ServerChange::Replaced
                )
            {
                told.push(change);
            }
        }
    }
    told
}

#[tokio::test(start_paused = true)]
async fn a_server_in_the_place_of_another_one_is_told_of_that_takes_nothing() {
    tokio::spawn(hold_clock());
    let (executor, mut events) = started(refuses_at_first().await);
    let [busy, open] = [Availability::Busy, Availability::Open].map(ServerChange::Availability);
    assert_eq!(opens(&mut events).await, [busy.clone(), open.clone()]);
    let order = Command::Configure {
        server: Box::new(refuses_at_first().await),
        models_max: None,
    };
    executor.commands.send(order).await.unwrap();
    let told = opens(&mut events).await;
    assert_eq!(told, [ServerChange::Replaced, busy, open]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_not_reached_a_server_says_nothing_of_the_one_in_its_place() {
    tokio::spawn(hold_clock());
    // Whoever connects to it waits for its part of the handshake.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (executor, mut events) = started(ServerConfig::new(url.parse().unwrap()));
    let (start, _client) = passed_on(RequestId(1));
    executor.commands.send(start).await.unwrap();
    settle().await;
    let order = Command::Configure {
        server: Box::new(refuses_at_first().await),
        models_max: None,
    };
    executor.commands.send(order).await.unwrap();
    opens(&mut events).await;
    drop(listener);
    let mut told = Vec::new();
    let is_end = |event: &Event| matches!(event, Event::Failed { .. });
    while !told.iter().any(is_end) {
        told.extend(events.recv().await.unwrap().list);
    }
    let [.., Event::Failed { retry, .. }] = &*told else {
        panic!("{told:?}");
    };
    assert_eq!(*retry, RetryClass::Anywhere);
    let silent = ServerChange::Availability(Availability::Silent);
    let is_silent = |event: &Event| matches!(event, Event::Changed(change) if *change == silent);
    assert!(!told.iter().any(is_silent), "{told:?}");
}
