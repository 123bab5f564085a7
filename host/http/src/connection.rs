//! One client's connection, from its first byte to its last; `http2` has those by HTTP/2.
//!
//! # Cancellation
//! Dropping the future closes the socket and cancels the request under way.
//!
//! # Invariants
//! 1. The drain waits for no request that has come in part
//!    (`a_draining_server_waits_for_no_request_that_has_come_in_part`, in `host/server/tests/http`).

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::auth::Listener;
use super::body::Uncounted;
use super::error::ApiError;
use super::front::Front;
use super::socket::{self, Socket, Watch};
use super::tls::{Opened, Tls, Transport};
use super::{ServerPhase, http2, reached, router};

/// The most bytes of a request's head.
pub(super) const HEAD_BYTES_MAX: usize = 64 << 10;
/// The most bytes that are buffered for a slow client. Beyond, no text is taken from the channel of
/// the client's executor.
pub(super) const BUFFER_BYTES_MAX: usize = 64 << 10;

/// The value of the header `connection` of an answer that is the connection's last.
pub(super) const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// The place of a connection among those of all clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// The connection has one of the places, and brings any requests, one after another.
    Regular,
    /// All places were taken: the connection brings one request, which may be a probe.
    Spare,
}

/// The way in of a connection's requests.
#[derive(Clone, Debug)]
pub(super) struct EntryPoint {
    pub(super) listener: Listener,
    pub(super) seat: Seat,
    /// The client's address.
    pub(super) peer: SocketAddr,
    /// The bytes of the connection's bodies that are not counted.
    pub(super) uncounted: Uncounted,
}

/// Answers the requests of one connection.
pub(super) async fn run(
    stream: TcpStream,
    front: Arc<Front>,
    entry: EntryPoint,
    transport: Transport,
) {
    let (socket, watch) = match open(stream, front.settings.write_timeout) {
        Ok(opened) => opened,
        Err(error) => {
            tracing::debug!(%error, "a client left before it was served");
            return;
        }
    };
    let served = match transport {
        Transport::Plain => serve(socket, &watch, Arc::clone(&front), entry).await,
        Transport::Tls(tls) => secured((socket, &tls), &watch, Arc::clone(&front), entry).await,
    };
    let lingers = match served {
        // A drain does not wait for clients that have their answer.
        Served::Whole => front.phase() < ServerPhase::Draining,
        Served::Early => true,
        Served::Broken => false,
    };
    if lingers {
        watch.linger().await;
    }
}

/// Splits a client's stream. What is written to it is sent at once, however little it is.
///
/// # Errors
/// If the client has left.
fn open(stream: TcpStream, write_timeout: Duration) -> io::Result<(Socket, Watch)> {
    stream.set_nodelay(true)?;
    Ok(socket::split(stream, write_timeout))
}

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// The connection ended with an answer, or between two.
    Whole,
    /// The same, and an answer did not wait for the rest of its request: by HTTP/1 the last one, by HTTP/2 any.
    Early,
    /// The client or a timeout broke the connection off.
    Broken,
}

/// Serves a client that has to shake hands first. The drain does not wait for handshakes.
async fn secured(
    (socket, tls): (Socket, &Tls),
    watch: &Watch,
    front: Arc<Front>,
    entry: EntryPoint,
) -> Served {
    let mut phase = front.phase.clone();
    let opened = tokio::select! {
        biased;
        opened = tls.open(socket, watch) => opened,
        () = reached(&mut phase, ServerPhase::Draining) => return Served::Broken,
    };
    match opened {
        Ok(Opened::Http1(stream)) => serve(stream, watch, front, entry).await,
        Ok(Opened::Http2(stream)) => http2::serve(stream, watch, front, entry).await,
        Ok(Opened::Plain(socket)) => refuse(socket).await,
        Err(error) => {
            tracing::debug!(%error, "a handshake was not finished");
            Served::Broken
        }
    }
}

/// Tells a client that does not speak TLS that this is what is spoken here.
async fn refuse(mut socket: Socket) -> Served {
    let body = ApiError::NotTls.json();
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    let answer = [head.into_bytes(), body].concat();
    let written = async {
        socket.write_all(&answer).await?;
        socket.shutdown().await
    };
    match written.await {
        Ok(()) => Served::Whole,
        Err(error) => {
            tracing::debug!(%error, "a connection broke off");
            Served::Broken
        }
    }
}

async fn serve(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    watch: &Watch,
    front: Arc<Front>,
    entry: EntryPoint,
) -> Served {
    let mut phase = front.phase.clone();
    let read_timeout = front.settings.read_timeout;
    let requests_max = front.settings.connection_requests_max;
    let (brought, is_early) = (AtomicU32::new(0), AtomicBool::new(false));
    let (brought, is_early) = (&brought, &is_early);
    let seat = entry.seat;
    let service = service_fn(move |request| {
        let (front, entry) = (Arc::clone(&front), entry.clone());
        let is_last = brought.fetch_add(1, Ordering::Relaxed) + 1 >= requests_max;
        async move {
            let mut reply = router::answer(&front, entry, request).await;
            // The router closes where it answers before the whole request has come.
            let closes = reply.headers().contains_key(header::CONNECTION);
            is_early.store(closes, Ordering::Relaxed);
            if is_last {
                reply.headers_mut().insert(header::CONNECTION, CLOSE);
            }
            Ok::<_, Infallible>(reply)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(seat == Seat::Regular)
        .header_read_timeout(read_timeout)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(socket), service);
    let mut connection = pin!(connection);
    let mut left = pin!(watch.left());
    // Answers first; a client that is gone needs no notice of the drain.
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = left.as_mut() => return Served::Broken,
        () = reached(&mut phase, ServerPhase::Draining) => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                biased;
                ended = connection.as_mut() => ended,
                () = left => return Served::Broken,
                // Of the first request a part of the head has come at most: it could only be refused. Where there
                // were others, such a part ends the connection by itself.
                () = ready(()), if brought.load(Ordering::Relaxed) == 0 => return Served::Broken,
            }
        }
    };
    match ended {
        Ok(()) if is_early.load(Ordering::Relaxed) => Served::Early,
        Ok(()) => Served::Whole,
        Err(error) if error.is_parse() => {
            tracing::debug!(%error, "a client sent what is not HTTP");
            Served::Whole
        }
        Err(error) => {
            tracing::debug!(%error, "a connection broke off");
            Served::Broken
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_is_written_to_a_client_is_sent_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let _client = client.await.unwrap();
        let stream = listener.accept().await.unwrap().0.into_std().unwrap();
        let same = stream.try_clone().unwrap();
        let stream = TcpStream::from_std(stream).unwrap();
        assert!(!same.nodelay().unwrap());
        let _opened = open(stream, Duration::from_secs(1)).unwrap();
        assert!(same.nodelay().unwrap());
    }
}
