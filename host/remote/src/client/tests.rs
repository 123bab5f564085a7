//! Tests of what a client of requests grants a server that speaks HTTP/2.

use tokio::net::{TcpListener, TcpStream};

use super::*;

/// The first bytes of a client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a frame's head.
const HEAD_BYTES: usize = 9;
/// The kinds of frames that grant something.
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
/// The setting with the window of a stream.
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
/// The window of a connection before anything is granted.
const FIRST_WINDOW_BYTES: u32 = 65_535;

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

/// The windows in the first bytes of a client; absent: they have not all come.
fn windows_in(read: &[u8]) -> Option<Windows> {
    let mut rest = read.strip_prefix(PREFACE)?;
    let (mut stream, mut connection) = (None, None);
    while let Some((head, after)) = rest.split_at_checked(HEAD_BYTES) {
        let length = number(&[0, head[0], head[1], head[2]]) as usize;
        let (body, after) = after.split_at_checked(length)?;
        let stream_id = number(&head[5..]);
        if head[3] == SETTINGS {
            let mut settings = body.chunks_exact(6);
            let found = settings.find(|setting| setting[..2] == INITIAL_WINDOW_SIZE);
            stream = stream.or(found.map(|setting| number(&setting[2..])));
        } else if head[3] == WINDOW_UPDATE && stream_id == 0 {
            connection = Some(FIRST_WINDOW_BYTES + number(body));
        }
        rest = after;
    }
    Some(Windows {
        stream: stream?,
        connection: connection?,
    })
}

/// The windows that the client at the other end grants.
async fn windows_of(socket: &TcpStream) -> Windows {
    let (mut read, mut part) = (Vec::new(), [0; 1024]);
    loop {
        socket.readable().await.unwrap();
        match socket.try_read(&mut part) {
            Ok(count) => {
                assert!(count > 0, "the client has left");
                read.extend_from_slice(&part[..count]);
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        if let Some(windows) = windows_in(&read) {
            return windows;
        }
    }
}

#[tokio::test]
async fn a_connection_takes_what_thousands_of_streams_take_that_nobody_reads() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let client: Client<HttpConnector, Full<Bytes>> = passing().http2_only(true).build_http();
    let request = Request::get(url).body(Full::default()).unwrap();
    let asked = tokio::spawn(client.request(request));
    let (socket, _) = listener.accept().await.unwrap();
    let expected = Windows {
        stream: 256 << 10,
        connection: 1 << 30,
    };
    assert_eq!(windows_of(&socket).await, expected);
    asked.abort();
}
