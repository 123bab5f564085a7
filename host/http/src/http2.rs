//! A client's connection by HTTP/2, which brings requests side by side.
//!
//! `connection` has the others, and runs this where a client chose it in the handshake of TLS. What the
//! socket watches over there is watched over for each answer here: a client may leave one of them unread
//! and read the others.
//!
//! # Bounds
//! At most [`STREAMS_MAX`] requests at once, and `http.connection-requests-max` in all. Of their bodies one at a
//! time has bytes that are not counted, as by HTTP/1.1 (`body`). Without a request in hand the connection ends
//! after `http.read-timeout`, whether it is idle or sends a head that does not end. An answer that is left
//! unread for `http.write-timeout` is given up. It goes to the connection in parts of [`PART_BYTES_MAX`]: its request is
//! in hand until the last of them is taken.
//!
//! # Cancellation
//! Dropping the future of [`serve`] aborts the tasks of its requests. A request that its client resets is
//! cancelled.
//!
//! # Invariants
//! Held by `tests/tests/http2.rs`.
//! 1. A client that leaves an answer unread takes neither the other answers nor the connection with it
//!    (`an_answer_that_is_left_unread_is_given_up_and_the_others_are_not`).
//! 2. No task outlives its connection (`a_client_that_leaves_cancels_all_its_requests`).
//! 3. An answer that its client reads slowly, and reads all the time, is sent to its end
//!    (`a_whole_answer_that_is_read_slowly_is_sent_to_its_end`).

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::connection::{BUFFER_BYTES_MAX, EntryPoint, HEAD_BYTES_MAX, Seat, Served};
use super::front::Front;
use super::settings::HttpSettings;
use super::socket::Watch;
use super::{ServerPhase, reached, router};

/// The most requests of a connection at once.
const STREAMS_MAX: u32 = 256;
/// The most bytes of bodies that a client may send before they are read: of one, and of all.
const WINDOW_BYTES: u32 = 256 << 10;
/// The most bytes of an answer that the connection gets at once: the largest frame that every client takes.
const PART_BYTES_MAX: usize = 16 << 10;

tokio::task_local! {
    /// The state of the answer that the task sends.
    static SENT: Sent;
}

/// The requests of a connection, each with a task.
#[derive(Clone, Debug)]
struct Streams {
    // Immutable.
    write_timeout: Duration,
    // Owned.
    /// The tasks of requests. Locked while one is added or all are aborted, by the connection's task
    /// alone; hyper hands out tasks through a shared reference.
    tasks: Arc<Mutex<JoinSet<()>>>,
    counts: Arc<watch::Sender<Counts>>,
}

/// Numbers of requests of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    in_hand: u32,
    all: u32,
}

/// A request in hand, counted until this is dropped.
struct InHand(Arc<watch::Sender<Counts>>);

/// The time at which the newest part of an answer was given to the connection; absent: the next part is
/// waited for.
#[derive(Clone, Debug)]
struct Sent(Arc<watch::Sender<Option<Instant>>>);

/// A body whose task knows when a part of it was taken. A connection holds what it was given, however long that is, and
/// the task of a body that was given whole would end before most of it is sent.
struct Followed<B> {
    body: B,
    /// The bytes of its newest frame that were not given yet.
    rest: Bytes,
}

/// Aborts the tasks of a connection's requests when it is dropped: each of them holds the set that it is in.
struct AbortOnDrop<'s>(&'s Streams);

/// Answers the requests of one connection.
pub(super) async fn serve(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    watch: &Watch,
    front: Arc<Front>,
    entry: EntryPoint,
) -> Served {
    let mut phase = front.phase.clone();
    let settings = &front.settings;
    let streams = Streams::new(settings);
    let _tasks = AbortOnDrop(&streams);
    let is_early = Arc::new(AtomicBool::new(false));
    let shared = (Arc::clone(&front), Arc::clone(&is_early));
    let seat = entry.seat;
    let service = service_fn(move |request| {
        let ((front, is_early), entry) = (shared.clone(), entry.clone());
        async move {
            let mut reply = router::answer(&front, entry, with_host(request)).await;
            // Only HTTP/1 has it. There may be answers after this one, which are not lost either.
            if reply.headers_mut().remove(header::CONNECTION).is_some() {
                is_early.store(true, Ordering::Relaxed);
            }
            Ok::<_, Infallible>(reply.map(Followed::new))
        }
    });
    let connection = builder(&streams, settings).serve_connection(TokioIo::new(socket), service);
    let mut connection = pin!(connection);
    let mut left = pin!(watch.left());
    let requests_max = match seat {
        Seat::Regular => settings.connection_requests_max,
        Seat::Spare => 1,
    };
    let ending = async {
        tokio::select! {
            biased;
            () = reached(&mut phase, ServerPhase::Draining) => {}
            () = streams.brought(requests_max) => {}
            () = streams.idle(settings.read_timeout) => {}
        }
    };
    // Answers first, as by HTTP/1.
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = left.as_mut() => return Served::Broken,
        () = ending => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                biased;
                ended = connection.as_mut() => ended,
                () = left => return Served::Broken,
                // The client does not read the rest.
                () = streams.idle(settings.write_timeout) => return Served::Broken,
            }
        }
    };
    match ended {
        Ok(()) if is_early.load(Ordering::Relaxed) => Served::Early,
        Ok(()) => Served::Whole,
        Err(error) => {
            tracing::debug!(%error, "a connection broke off");
            Served::Broken
        }
    }
}

/// The settings of a connection. A client that is gone without a word is found by asking now and then.
fn builder(streams: &Streams, settings: &HttpSettings) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams.clone());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_send_buf_size(BUFFER_BYTES_MAX)
        .keep_alive_interval(settings.read_timeout)
        .keep_alive_timeout(settings.write_timeout);
    builder
}

/// The request with the header `host`, which HTTP/2 writes elsewhere.
fn with_host(mut request: Request<Incoming>) -> Request<Incoming> {
    if !request.headers().contains_key(header::HOST)
        && let Some(authority) = request.uri().authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(header::HOST, host);
    }
    request
}

// === impl Streams ===

impl Streams {
    fn new(settings: &HttpSettings) -> Self {
        Self {
            write_timeout: settings.write_timeout,
            tasks: Arc::default(),
            counts: Arc::new(watch::channel(Counts::default()).0),
        }
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the client has brought so many requests.
    async fn brought(&self, requests: u32) {
        let mut counts = self.counts.subscribe();
        // The sender is this.
        drop(counts.wait_for(|counts| counts.all >= requests).await);
    }

    /// Waits until there was no request in hand for `time`.
    async fn idle(&self, time: Duration) {
        let mut counts = self.counts.subscribe();
        loop {
            drop(counts.wait_for(|counts| counts.in_hand == 0).await);
            let another = counts.wait_for(|counts| counts.in_hand > 0);
            if timeout(time, another).await.is_err() {
                return;
            }
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let sent = Sent(Arc::new(watch::channel(None).0));
        let (in_hand, write_timeout) = (InHand::count(&self.counts), self.write_timeout);
        let stream = SENT.scope(sent.clone(), stream);
        let mut tasks = self.tasks();
        // Those that have ended make room.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stream => {}
                () = sent.unread_for(write_timeout) => {
                    tracing::debug!("an answer is left unread and given up");
                }
            }
            drop(in_hand);
        });
    }
}

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        self.0.tasks().abort_all();
    }
}

// === impl InHand ===

impl InHand {
    fn count(counts: &Arc<watch::Sender<Counts>>) -> Self {
        counts.send_modify(|counts| {
            counts.in_hand += 1;
            counts.all = counts.all.saturating_add(1);
        });
        Self(Arc::clone(counts))
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        self.0.send_modify(|counts| counts.in_hand -= 1);
    }
}

// === impl Sent ===

impl Sent {
    /// Waits until the client has left a part of the answer unread for `time`.
    async fn unread_for(&self, time: Duration) {
        let mut parts = self.0.subscribe();
        loop {
            let since = parts.wait_for(Option::is_some).await.map(|since| *since);
            let Ok(Some(since)) = since else { return };
            let taken = parts.wait_for(|part| *part != Some(since));
            if timeout_at(since + time, taken).await.is_err() {
                return;
            }
        }
    }
}

// === impl Followed ===

impl<B: Body<Data = Bytes> + Unpin> Followed<B> {
    fn new(body: B) -> Self {
        let rest = Bytes::new();
        Self { body, rest }
    }

    /// The next part of the body, or of its newest frame.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let part = self.rest.split_to(self.rest.len().min(PART_BYTES_MAX));
        Poll::Ready(Some(Ok(Frame::data(part))))
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Followed<B> {
    type Data = Bytes;
    type Error = B::Error;

    /// The connection asks for the next part once the client lets it send the one before.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = self.poll_part(cx);
        let part = match &polled {
            Poll::Ready(Some(_)) => Some(Instant::now()),
            Poll::Ready(None) | Poll::Pending => None,
        };
        // A body is polled by the task of its stream, and by nobody else.
        SENT.with(|sent| sent.0.send_replace(part));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64) + self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[tokio::test]
    async fn a_long_answer_goes_to_the_connection_in_parts_of_which_the_last_ends_it() {
        let length = 2 * PART_BYTES_MAX + 1;
        let whole: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
        let mut body = Followed::new(Full::new(Bytes::from(whole.clone())));
        let left = |body: &Followed<Full<Bytes>>| body.size_hint().exact();
        assert_eq!(left(&body), Some(length as u64));
        let sent = Sent(Arc::new(watch::channel(None).0));
        let given = sent.clone();
        let parts = SENT.scope(sent, async {
            let mut parts = Vec::new();
            while !body.is_end_stream() {
                let part = body.frame().await.unwrap().unwrap().into_data().unwrap();
                assert!(given.0.borrow().is_some(), "the part is not followed");
                parts.push(part);
                let read: usize = parts.iter().map(Bytes::len).sum();
                assert_eq!(left(&body), Some((length - read) as u64));
            }
            parts
        });
        let parts = parts.await;
        let lengths: Vec<usize> = parts.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [PART_BYTES_MAX, PART_BYTES_MAX, 1]);
        let joined: Vec<u8> = parts.iter().flatten().copied().collect();
        assert!(joined == whole, "the parts are not the answer");
    }
}
