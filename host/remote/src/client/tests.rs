//! Tests of a client of requests before a server that speaks HTTP/2: what it grants, what it sends once more, and when it
//! takes a server to be gone. And of the connections that all clients make.

use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::advance;

use super::error::{NO_FILES, is_own_fault};
use super::*;
use crate::test_util::{hold_clock, settle};

/// The first bytes of a client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a frame's head.
const HEAD_BYTES: usize = 9;
/// The kind of frames that begin a request.
const HEADERS: u8 = 1;
/// The kinds of frames that grant something.
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
/// The setting with the window of a stream.
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
/// The window of a connection before anything is granted.
const FIRST_WINDOW_BYTES: u32 = 65_535;

/// The first frame of a server: it has no settings.
const NO_SETTINGS: &[u8] = &[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0];
/// An answer of status 200 to the first request, without a body.
const SERVED: &[u8] = &[0, 0, 1, HEADERS, 5, 0, 0, 0, 1, 0x88];
/// A server takes no more requests, and has not begun with any.
const GOES_AWAY: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// A server has not begun with the first request.
const REFUSED: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7];
/// A server could not go on with the first request.
const FAILED: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 2];

/// A frame of a client.
struct Frame<'a> {
    kind: u8,
    stream: u32,
    body: &'a [u8],
}

/// The windows that a client grants before it has an answer.
#[derive(Debug, PartialEq, Eq)]
struct Windows {
    stream: u32,
    connection: u32,
}

/// The number in four bytes.
fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().unwrap())
}

/// The frames in the first bytes of a client, as far as they have come.
fn frames(read: &[u8]) -> Vec<Frame<'_>> {
    let mut rest = read.strip_prefix(PREFACE).unwrap_or_default();
    let mut frames = Vec::new();
    while let Some((head, after)) = rest.split_at_checked(HEAD_BYTES) {
        let length = number(&[0, head[0], head[1], head[2]]) as usize;
        let Some((body, after)) = after.split_at_checked(length) else {
            break;
        };
        frames.push(Frame {
            kind: head[3],
            stream: number(&head[5..]),
            body,
        });
        rest = after;
    }
    frames
}

/// The windows that these frames grant; absent: they do not grant both.
fn windows_in(frames: &[Frame<'_>]) -> Option<Windows> {
    let (mut stream, mut connection) = (None, None);
    for frame in frames {
        if frame.kind == SETTINGS {
            let mut settings = frame.body.chunks_exact(6);
            let found = settings.find(|setting| setting[..2] == INITIAL_WINDOW_SIZE);
            stream = stream.or(found.map(|setting| number(&setting[2..])));
        } else if frame.kind == WINDOW_UPDATE && frame.stream == 0 {
            connection = Some(FIRST_WINDOW_BYTES + number(frame.body));
        }
    }
    Some(Windows {
        stream: stream?,
        connection: connection?,
    })
}

/// Reads the frames of the client at the other end until `find` has found something in them.
async fn read<T>(socket: &mut TcpStream, find: impl Fn(&[Frame<'_>]) -> Option<T>) -> T {
    let mut read = Vec::new();
    loop {
        let count = socket.read_buf(&mut read).await.unwrap();
        assert!(count > 0, "the client has left");
        if let Some(found) = find(&frames(&read)) {
            return found;
        }
    }
}

/// The next connection to a server, once its first request has begun.
async fn begun(listener: &TcpListener) -> TcpStream {
    let (mut socket, _) = listener.accept().await.unwrap();
    socket.write_all(NO_SETTINGS).await.unwrap();
    let begins = |frames: &[Frame<'_>]| frames.iter().any(|it| it.kind == HEADERS);
    read(&mut socket, |frames| begins(frames).then_some(())).await;
    socket
}

/// A client of requests that speaks HTTP/2 to whoever it reaches.
fn http2() -> legacy::Builder {
    let mut builder = passing();
    builder.http2_only(true);
    builder
}

/// Asks a server whose connections answer the first request with these frames, one after the other. Returns the
/// status, and the number of connections that were made.
async fn asked(answers: [&'static [u8]; 2]) -> (Result<StatusCode, CallError>, usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let connections = Connections::of(Trust::Nobody, http2).unwrap();
    let request = Request::get(url).body(Full::default()).unwrap();
    let mut sockets = Vec::new();
    let serving = async {
        for answer in answers {
            let mut socket = begun(&listener).await;
            socket.write_all(answer).await.unwrap();
            sockets.push(socket);
        }
        std::future::pending::<()>().await;
    };
    let response = tokio::select! {
        response = connections.send(&connections.requests, request) => response,
        () = serving => unreachable!("a server serves for ever"),
    };
    (response.map(|it| it.status()), sockets.len())
}

#[tokio::test]
async fn a_connection_takes_what_thousands_of_streams_take_that_nobody_reads() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let client: Client<HttpConnector, Full<Bytes>> = http2().build_http();
    let request = Request::get(url).body(Full::default()).unwrap();
    let asked = tokio::spawn(client.request(request));
    let (mut socket, _) = listener.accept().await.unwrap();
    let expected = Windows {
        stream: 256 << 10,
        connection: 1 << 30,
    };
    assert_eq!(read(&mut socket, windows_in).await, expected);
    asked.abort();
}

#[tokio::test]
async fn a_request_that_a_server_has_not_begun_with_is_sent_once_more() {
    for refusal in [GOES_AWAY, REFUSED] {
        let (status, connections) = asked([refusal, SERVED]).await;
        assert_eq!(status.unwrap(), StatusCode::OK, "{refusal:?}");
        assert_eq!(connections, 2);
    }
}

#[tokio::test]
async fn a_request_is_sent_once_more_only_where_it_was_not_begun_with_and_only_once() {
    let (status, connections) = asked([FAILED, SERVED]).await;
    assert!(status.is_err(), "{status:?}");
    assert_eq!(connections, 1);
    let (status, connections) = asked([REFUSED, REFUSED]).await;
    assert!(status.is_err(), "{status:?}");
    assert_eq!(connections, 2);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_gone_without_a_word_is_given_up_for_another() {
    tokio::spawn(hold_clock());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let connections = Connections::of(Trust::Nobody, http2).unwrap();
    let send = || {
        let connections = connections.clone();
        let request = Request::get(&*url).body(Full::default()).unwrap();
        tokio::spawn(async move { connections.send(&connections.requests, request).await })
    };
    let first = send();
    let gone = begun(&listener).await;
    for time in [PING_AFTER, PING_TIMEOUT] {
        assert!(!first.is_finished());
        advance(time + Duration::from_millis(1)).await;
        settle().await;
    }
    assert!(first.is_finished(), "it waits for a server that is gone");
    assert!(first.await.unwrap().is_err());
    let second = send();
    let mut other = begun(&listener).await;
    other.write_all(SERVED).await.unwrap();
    assert_eq!(second.await.unwrap().unwrap().status(), StatusCode::OK);
    drop(gone);
}

#[tokio::test]
async fn a_request_with_which_a_kept_connection_and_its_server_end_may_have_reached_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        for answer in ["HTTP/1.1 204 No Content\r\n\r\n", ""] {
            while !read.ends_with(b"\r\n\r\n") {
                assert!(socket.read_buf(&mut read).await.unwrap() > 0);
            }
            read.clear();
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
        drop(listener);
    });
    let connections = Connections::trusting(Trust::Nobody).unwrap();
    let send = || {
        let request = Request::get(&*url).body(Full::default()).unwrap();
        connections.send(&connections.requests, request)
    };
    assert_eq!(send().await.unwrap().status(), StatusCode::NO_CONTENT);
    // The connection is kept.
    settle().await;
    let error = send().await.unwrap_err();
    assert!(matches!(error, CallError::Connection(_)), "{error:?}");
}

#[tokio::test]
async fn a_fault_of_this_machine_is_not_taken_for_a_server_that_is_not_there() {
    let mut connector = tcp();
    // It is for documents: no machine has it, as none has an address of a kind that is off.
    connector.set_local_address(Some("192.0.2.1".parse().unwrap()));
    let client: Client<HttpConnector, Full<Bytes>> = keeping().build(connector);
    let asked = client.get(Uri::from_static("http://127.0.0.1:9/"));
    let error = CallError::of(&asked.await.unwrap_err());
    assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
    let memory = io::Error::from(io::ErrorKind::OutOfMemory);
    assert!(is_own_fault(&memory));
    for number in NO_FILES {
        assert!(is_own_fault(&io::Error::from_raw_os_error(number)));
    }
    let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
    assert!(!is_own_fault(&refused));
}

#[tokio::test]
async fn what_is_written_to_a_server_is_sent_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let connected = TowerToHyperService::new(tcp()).call(url.parse::<Uri>().unwrap());
    assert!(connected.await.unwrap().inner().nodelay().unwrap());
}
