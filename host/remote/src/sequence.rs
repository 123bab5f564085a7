//! One request at a server: passed on, and its response brought back.
//!
//! # Whole answers
//! Another server can serve a request as long as its client has nothing of a response. So a whole answer in JSON goes to the client once
//! all of it is here, unless it is longer than [`GATHERED_BYTES_MAX`]. Bodies of other kinds go through as they come.
//!
//! # Cancellation
//! The connection's request ends with the task, and the server hears of it.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use memchr::memmem;
use pointsman_events::SequenceRef;
use pointsman_executor::delivery::TextSink;
use pointsman_executor::relay::{
    BrokenStream, CONNECTION_HEADERS, ClientGone, RelayBeginning, RelayFrame, RelaySender,
    RemoteCall, path_and_query,
};
use pointsman_executor::server::{BrokenStreams, ServerAnswer};
use pointsman_executor::trace::TraceHeaders;
use pointsman_notation::Time;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::client::{CallError, ServerClient};
use crate::continuation::{self, Follower};
use crate::executor::News;
use crate::residency::{Attendance, Residency};
use crate::watch::{BodyWatch, Form, Usage};

/// The longest time for which a server may ask to be left alone.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// The times after which a server is taken to have read a prompt whose answer comes as a whole: nothing tells of that before the
/// end. The least, and the time for each token.
const READING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_micros(100));
/// The most bytes of a whole answer that are gathered before any of it is passed on.
const GATHERED_BYTES_MAX: usize = 64 << 10;
/// The longest wait for the end of a response whose last byte has come.
const END_WAIT: Duration = Duration::from_millis(100);
/// The name of the field by which a request asks for a stream.
const STREAM: &[u8] = br#""stream""#;

/// A request under way.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) name: SequenceRef,
    /// The executor's name.
    pub(crate) executor: String,
    pub(crate) call: Arc<RemoteCall>,
    pub(crate) sink: TextSink,
    /// The trace that the server is told, in the place of the client's; absent: the client's.
    pub(crate) trace: Option<TraceHeaders>,
    pub(crate) client: ServerClient,
    pub(crate) residency: Arc<Residency>,
    pub(crate) broken_streams: BrokenStreams,
    /// The stream that it is to go on with; absent: none.
    pub(crate) broken: Option<Box<BrokenStream>>,
    pub(crate) timeouts: Timeouts,
    /// Tokens generated so far, for the executor to read.
    pub(crate) generated: Arc<AtomicU32>,
    pub(crate) news: mpsc::Sender<News>,
}

/// The times for which a response is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// From the request to the first byte.
    pub(crate) first_byte: Duration,
    /// Between two pieces of the response.
    pub(crate) stall: Duration,
}

/// The end of a request at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SequenceEnd {
    /// The whole response has gone through. The server's words about it are looked for where a trace is recorded.
    Served(Usage, Option<ServerAnswer>),
    /// The server has no room now. It may say when it will have.
    TurnedBack {
        why: String,
        retry_after: Option<Duration>,
    },
    /// The prompt is too long for the server, and not for the executors of these names, as far as is known.
    TooLong(Vec<String>),
    /// No connection to the server could be made: nothing of the request has reached it.
    Unreachable(String),
    /// The server failed before anything of a response was passed on.
    Failed(String),
    /// The server failed when a part of a stream had been passed on, with which another one can go on.
    Interrupted(String),
    /// The server failed when a part of its response had been passed on.
    Broken(String, Usage),
    /// The client has left.
    ClientGone,
}

/// A response on its way through.
struct Passing {
    body: Incoming,
    watch: BodyWatch,
    /// Absent: it goes through as it comes.
    follower: Option<Follower>,
    /// The bytes that are gathered before any is passed on, unless it ends before that.
    gathered: usize,
}

/// A response, as far as its status tells what is to be done with it.
enum Verdict {
    Relay,
    TurnBack,
    Fail(String),
}

impl Sequence {
    /// Runs the request to its end, and tells the executor.
    pub(crate) async fn run(mut self) {
        let mut broken = self.broken.take();
        let end = self.serve(&mut broken).await;
        let news = News::Ended(self.name, end, broken);
        // Without an executor there is nobody to tell.
        drop(self.news.send(news).await);
    }

    /// Serves the request. `broken` is the stream that it is to go on with, and then the one that somebody
    /// else can go on with.
    async fn serve(&self, broken: &mut Option<Box<BrokenStream>>) -> SequenceEnd {
        let call = &self.call;
        let attendance = call.model.as_deref().map(|it| self.residency.attend(it));
        if let Some(attendance) = &attendance
            && let Err(why) = self.bring(attendance).await
        {
            return SequenceEnd::Failed(why);
        }
        let what = (call.method.clone(), &*call.path);
        let mut headers = call.headers.clone();
        if let Some(trace) = &self.trace {
            trace.write(&mut headers);
        }
        let body = match broken {
            None => Some(call.body.clone()),
            Some(broken) => continuation::body(&call.body, broken),
        };
        let Some(body) = body else {
            return SequenceEnd::Failed("nobody can go on with the stream".to_owned());
        };
        let sent = self.client.send(what, headers, body);
        let sent = pin!(timeout(self.timeouts.first_byte, sent));
        let response = match self.head(sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(CallError::Unreachable(why))) => return SequenceEnd::Unreachable(why),
            Ok(Err(error)) => return SequenceEnd::Failed(error.to_string()),
            Err(_elapsed) => {
                let patience = Time(self.timeouts.first_byte);
                return SequenceEnd::Failed(format!("no response within {patience}"));
            }
        };
        match self.unserved(response.status(), response.headers()) {
            Some(end) => end,
            None => self.relay(response, broken).await,
        }
    }

    /// Waits for the head of the response. Where that comes with the whole answer, the prompt is taken to be read after a while.
    async fn head<T>(&self, mut sent: Pin<&mut impl Future<Output = T>>) -> T {
        let (least, each) = READING;
        let reading = (each * self.call.prompt_tokens).max(least);
        if let Ok(head) = timeout(reading, sent.as_mut()).await {
            return head;
        }
        if !asks_for_stream(&self.call.body) {
            drop(self.news.send(News::TakenAsRead(self.name)).await);
        }
        sent.await
    }

    /// The end of a request that the server does not serve, as this status says; absent: its answer is for the client.
    fn unserved(&self, status: StatusCode, headers: &HeaderMap) -> Option<SequenceEnd> {
        match self.verdict(status) {
            Verdict::Relay => None,
            Verdict::TurnBack => Some(SequenceEnd::TurnedBack {
                why: format!("it answers {status}"),
                retry_after: retry_after(headers),
            }),
            Verdict::Fail(why) => Some(SequenceEnd::Failed(why)),
        }
    }

    /// Has the model loaded that the request is for.
    async fn bring(&self, attendance: &Attendance) -> Result<(), String> {
        let is_swap = attendance.is_lacking();
        let brought = attendance.loaded().await;
        if is_swap {
            drop(self.news.send(News::Swapped).await);
        }
        brought
    }

    /// The verdict about a response: a client's fault is the client's to hear, and no failure of the
    /// server; so is that the server was not built for what is asked.
    fn verdict(&self, status: StatusCode) -> Verdict {
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Verdict::TurnBack,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Verdict::Fail(format!(
                "it answers {status}: it asks for a key, or does not know the one it is given"
            )),
            StatusCode::NOT_FOUND if self.is_completion() => {
                Verdict::Fail(format!("it answers {status}, though it listed the model"))
            }
            StatusCode::REQUEST_TIMEOUT => Verdict::Fail(format!("it answers {status}")),
            status if is_failure(status) => Verdict::Fail(format!("it answers {status}")),
            _ => Verdict::Relay,
        }
    }

    /// The path that is asked for, without its query.
    fn path(&self) -> &str {
        path_and_query(&self.call.path).0
    }

    /// True for a path that every server has.
    fn is_completion(&self) -> bool {
        self.path().ends_with("/completions")
    }

    /// True for a path whose prompt is read though no usage is told: the answer may be made in the background.
    fn is_response(&self) -> bool {
        self.path().ends_with("/responses")
    }

    /// Passes a response on. Its head goes with its first bytes: until then the request may go elsewhere.
    async fn relay(
        &self,
        response: Response<Incoming>,
        broken: &mut Option<Box<BrokenStream>>,
    ) -> SequenceEnd {
        let (head, body) = response.into_parts();
        let watch = BodyWatch::of(&self.call.method, &head.headers, head.status);
        let follower = self.follower(watch.form, broken.as_deref());
        if broken.is_some() && follower.is_none() {
            return SequenceEnd::Failed(format!("it answers {} and no stream", head.status));
        }
        let mut passing = Passing {
            gathered: self.gathered(&head.headers, &body),
            body,
            watch,
            follower,
        };
        let first = match self.first(&mut passing).await {
            Ok(first) => first,
            Err(why) => return SequenceEnd::Failed(why),
        };
        // Some servers begin a stream before they know that they cannot serve it.
        let status = passing.watch.first_error();
        if let Some(end) = status.and_then(|status| self.unserved(status, &head.headers)) {
            return end;
        }
        if passing.watch.says_too_long() {
            let longer = self.call.rooms.longer_than(&self.executor);
            if !longer.is_empty() {
                return SequenceEnd::TooLong(longer);
            }
        }
        let is_whole = is_last(&first);
        let begun = match broken.take() {
            None => self.begin(head, first, &passing),
            Some(broken) => go_on(*broken, first).await,
        };
        let Ok(sender) = begun else {
            return SequenceEnd::ClientGone;
        };
        if passing.watch.form == Form::Events {
            drop(self.news.send(News::Began(self.name)).await);
        }
        if is_whole {
            return self.served(&mut passing).await;
        }
        loop {
            let next = match self.next(&mut passing, self.timeouts.stall).await {
                Ok(next) => next,
                Err(why) => {
                    *broken = passing.broken(&sender, &self.call.body);
                    if broken.is_some() {
                        return SequenceEnd::Interrupted(why);
                    }
                    drop(sender.send(RelayFrame::Broken(why.clone())).await);
                    return SequenceEnd::Broken(why, Usage::default());
                }
            };
            let is_last = is_last(&next);
            if sender.send(next).await.is_err() {
                return SequenceEnd::ClientGone;
            }
            if is_last {
                return self.served(&mut passing).await;
            }
        }
    }

    /// The end of the request, whose whole response has gone through.
    async fn served(&self, passing: &mut Passing) -> SequenceEnd {
        // A server that speaks HTTP/2 would take a body that is left before its end for one that is not wanted.
        if !passing.body.is_end_stream() {
            drop(timeout(END_WAIT, passing.body.frame()).await);
        }
        let watch = &passing.watch;
        let mut usage = watch.usage();
        let is_answer = matches!(watch.form, Form::Events | Form::Whole);
        usage.is_prompt_read |= is_answer && (self.is_completion() || self.is_response());
        if let Some(status) = watch.last_error().filter(|status| is_failure(*status)) {
            let why = format!("its stream ends with an error, {status}");
            return SequenceEnd::Broken(why, usage);
        }
        let trace = self.trace.as_ref();
        let is_recorded = trace.is_some_and(|trace| trace.parent.is_sampled());
        SequenceEnd::Served(usage, is_recorded.then(|| watch.answer()))
    }

    /// Follows a streamed chat, where another server may have to go on with it.
    fn follower(&self, form: Form, broken: Option<&BrokenStream>) -> Option<Follower> {
        let may_go_on = self.broken_streams == BrokenStreams::GoOn
            && form == Form::Events
            && self.path().ends_with("/chat/completions");
        may_go_on.then(|| Follower::new(broken))
    }

    /// Begins the client's response.
    fn begin(
        &self,
        mut head: Parts,
        first: RelayFrame,
        passing: &Passing,
    ) -> Result<RelaySender, ClientGone> {
        for name in CONNECTION_HEADERS {
            head.headers.remove(name);
        }
        if passing.follower.is_some() {
            // Who goes on with it may have more to say, or less.
            head.headers.remove(header::CONTENT_LENGTH);
        }
        self.sink.relay(RelayBeginning {
            status: head.status,
            headers: head.headers,
            first,
        })
    }

    /// The bytes of a body after these headers that are gathered before any is passed on. None are where a stream was asked for, whose
    /// client reads what has come, whatever it is called.
    fn gathered(&self, headers: &HeaderMap, body: &Incoming) -> usize {
        let told = usize::try_from(body.size_hint().lower());
        let is_short = told.is_ok_and(|bytes| bytes <= GATHERED_BYTES_MAX);
        if is_short && is_json(headers) && !asks_for_stream(&self.call.body) {
            GATHERED_BYTES_MAX
        } else {
            0
        }
    }

    /// The first frame for the client: of a stream with its first event, and of a whole answer with all of it, as long as these
    /// are not long. Several pieces are copied: each of them would keep the whole buffer that it was read into.
    async fn first(&self, passing: &mut Passing) -> Result<RelayFrame, String> {
        let mut begun = BytesMut::new();
        let mut patience = self.timeouts.first_byte;
        loop {
            let next = self.next(passing, patience).await?;
            let (RelayFrame::More(piece) | RelayFrame::Last(piece)) = &next else {
                return Ok(next);
            };
            let is_last = is_last(&next);
            let is_enough = is_last || !passing.awaits_more(begun.len() + piece.len());
            if is_enough && begun.is_empty() {
                return Ok(next);
            }
            begun.extend_from_slice(piece);
            match (is_enough, is_last) {
                (true, true) => return Ok(RelayFrame::Last(begun.freeze())),
                (true, false) => return Ok(RelayFrame::More(begun.freeze())),
                (false, _) => patience = self.timeouts.stall,
            }
        }
    }

    /// The next frame for the client. The one with the last byte is the last, though by HTTP/2 the end of a body may come later:
    /// the client has all then.
    async fn next(&self, passing: &mut Passing, patience: Duration) -> Result<RelayFrame, String> {
        loop {
            let bytes = next_bytes(&mut passing.body, patience).await?;
            let left = passing.body.size_hint().exact();
            let is_last = bytes.is_none() || passing.body.is_end_stream() || left == Some(0);
            let mut passed = passing.pass(bytes.unwrap_or_default());
            if is_last {
                passed = passing.finish(passed);
            }
            let generated = passing.watch.generated();
            self.generated.store(generated, Ordering::Relaxed);
            match (is_last, passed.is_empty()) {
                (true, _) => return Ok(RelayFrame::Last(passed)),
                (false, false) => return Ok(RelayFrame::More(passed)),
                (false, true) => {}
            }
        }
    }
}

// === impl Passing ===

impl Passing {
    /// Takes the next bytes of the body. Returns those for the client.
    fn pass(&mut self, bytes: Bytes) -> Bytes {
        self.watch.see(&bytes);
        match &mut self.follower {
            Some(follower) => follower.pass(&bytes),
            None => bytes,
        }
    }

    /// The last bytes for the client, of which `passed` are the first.
    fn finish(&mut self, passed: Bytes) -> Bytes {
        match &mut self.follower {
            Some(follower) => [passed, follower.finish()].concat().into(),
            None => passed,
        }
    }

    /// True if more has to come before anything is passed on, of which so many bytes have come.
    fn awaits_more(&self, bytes: usize) -> bool {
        self.watch.awaits_first_event() || bytes < self.gathered
    }

    /// The stream as its client has it, for another server to go on with; absent: none can.
    fn broken(&mut self, sender: &RelaySender, original: &Bytes) -> Option<Box<BrokenStream>> {
        let follower = self.follower.take()?;
        follower.broken(sender.clone(), original).map(Box::new)
    }
}

/// True if the body after these headers is one text in JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type.map_or(&b""[..], HeaderValue::as_bytes);
    let mut parts = content_type.split(|byte| *byte == b';');
    let kind = parts.next().unwrap_or_default().trim_ascii();
    kind.eq_ignore_ascii_case(b"application/json")
}

/// True for a status by which a server says that it has failed. One that was not built or started for what is asked has
/// not: another request it serves.
pub(crate) fn is_failure(status: StatusCode) -> bool {
    let lacking = [
        StatusCode::NOT_IMPLEMENTED,
        StatusCode::HTTP_VERSION_NOT_SUPPORTED,
    ];
    status.is_server_error() && !lacking.contains(&status)
}

/// True for a request in JSON that asks for a stream, as all interfaces have it. A field of this name within another one is taken for
/// it: nothing is said of its prompt before something has come.
fn asks_for_stream(body: &[u8]) -> bool {
    memmem::find_iter(body, STREAM).any(|at| {
        let after = body[at + STREAM.len()..].trim_ascii_start();
        let value = after.strip_prefix(b":").map(<[u8]>::trim_ascii_start);
        value.is_some_and(|value| value.starts_with(b"true"))
    })
}

/// Goes on with a stream that broke off. An empty line ends the event that it may be in.
async fn go_on(broken: BrokenStream, first: RelayFrame) -> Result<RelaySender, ClientGone> {
    let sender = broken.sender;
    if broken.is_within_event {
        let empty = RelayFrame::More(Bytes::from_static(b"\n"));
        sender.send(empty).await?;
    }
    sender.send(first).await?;
    Ok(sender)
}

/// The next bytes of a body; absent: it has ended.
async fn next_bytes(body: &mut Incoming, patience: Duration) -> Result<Option<Bytes>, String> {
    loop {
        let frame = timeout(patience, body.frame()).await;
        let frame = frame.map_err(|_elapsed| format!("nothing came for {}", Time(patience)))?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(format!("the response broke off: {error}")),
            // Trailers are not passed on.
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data()
                    && !data.is_empty()
                {
                    return Ok(Some(data));
                }
            }
        }
    }
}

fn is_last(frame: &RelayFrame) -> bool {
    match frame {
        RelayFrame::Last(_) => true,
        RelayFrame::More(_) | RelayFrame::Broken(_) => false,
    }
}

/// The time for which the server asks to be left alone; absent: it does not say so in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let secs: u64 = value.trim().parse().ok()?;
    Some(Duration::from_secs(secs).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests;
