//! A client's socket as hyper sees it, which watches over three things that hyper does not: a
//! client that leaves bytes unread, one that leaves while hyper is not reading, and one that still
//! writes after the answer has come.
//!
//! # Invariants
//! Held by `host/server/tests/http`.
//! 1. A write that makes no progress for the write timeout fails
//!    (`a_client_that_does_not_read_is_cut_off`).
//! 2. A client that closes its side has left, whatever it sent before
//!    (`a_client_that_leaves_behind_a_pipelined_request_is_noticed`).
//! 3. The last answer is not destroyed by bytes that the client went on sending
//!    (`an_oversized_body_is_answered_before_the_connection_closes`).

use std::future::pending;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Sleep, sleep, timeout};

/// The longest time for reading and throwing away the bytes that a client still sends.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 16 << 20;

/// A socket whose writes must make progress.
#[derive(Debug)]
pub(super) struct Socket {
    // Shared with the client's `Watch`.
    read: Arc<OwnedReadHalf>,
    // Owned.
    write: OwnedWriteHalf,
    write_timeout: Duration,
    /// Runs while a write waits for the client.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// A view of a client whose [`Socket`] was given away.
#[derive(Debug)]
pub(super) struct Watch(Arc<OwnedReadHalf>);

/// Splits a client's stream into its socket and a view of the client.
pub(super) fn split(stream: TcpStream, write_timeout: Duration) -> (Socket, Watch) {
    let (read, write) = stream.into_split();
    let read = Arc::new(read);
    let socket = Socket {
        read: Arc::clone(&read),
        write,
        write_timeout,
        stalled: None,
    };
    (socket, Watch(read))
}

// === impl Watch ===

impl Watch {
    /// True if the client's first byte is this one, or the client has left without any; reads nothing.
    ///
    /// # Errors
    /// If the connection breaks.
    pub(super) async fn begins_with(&self, byte: u8) -> io::Result<bool> {
        let mut first = [byte];
        let stream: &TcpStream = (*self.0).as_ref();
        stream.peek(&mut first).await?;
        Ok(first == [byte])
    }

    /// Waits until the client has closed its side, reading nothing. hyper notices that only while
    /// hyper's buffer has no byte of a further request.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) async fn left(&self) {
        // Of all interests this one alone is not also roused by bytes to read. Urgent data, which
        // it is for, is not asked for when a stream is registered.
        match self.0.ready(tokio::io::Interest::PRIORITY).await {
            Ok(ready) if ready.is_read_closed() => (),
            Ok(_) | Err(_) => pending().await,
        }
    }

    /// Waits forever: only hyper's own watching tells here that a client has left.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) async fn left(&self) {
        pending().await
    }

    /// Reads on for a moment. Closing a socket with unread bytes resets the connection, and the
    /// client may then lose an answer that it has not read yet.
    pub(super) async fn linger(&self) {
        // Neither these bytes nor the end of the wait matter: the client has its answer.
        drop(timeout(LINGER, self.discard()).await);
    }

    async fn discard(&self) -> io::Result<()> {
        let mut thrown = vec![0; 16 << 10];
        let mut left = LINGER_BYTES;
        while left > 0 {
            self.0.readable().await?;
            match self.0.try_read(&mut thrown) {
                Ok(0) => break,
                Ok(read) => left = left.saturating_sub(read),
                Err(error) if error.kind() == ErrorKind::WouldBlock => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

// === impl Socket ===

impl Socket {
    /// Passes on the result of a write, unless the write has been waiting for too long.
    fn in_time<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let write_timeout = self.write_timeout;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(write_timeout)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream: &TcpStream = (*self.read).as_ref();
        loop {
            ready!(stream.poll_read_ready(cx))?;
            // Into memory that is not cleared before: hyper's buffer grows with what is sent, and each read would clear all of it.
            match stream.try_read_buf(buffer) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => (),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.write).poll_write(cx, bytes);
        self.in_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.write).poll_write_vectored(cx, slices);
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.write.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_shutdown(cx)
    }
}
