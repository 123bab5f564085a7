//! One request at a server: passed on, and its response brought back.
//!
//! # Cancellation
//! The connection's request ends with the task, and the server hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use pointsman_core::SequenceRef;
use pointsman_executor::delivery::TextSink;
use pointsman_executor::relay::{CONNECTION_HEADERS, RelayBeginning, RelayFrame, RemoteCall};
use pointsman_executor::trace::TraceHeaders;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::client::ServerClient;
use crate::executor::News;
use crate::residency::Residency;
use crate::watch::{BodyWatch, Form, Usage};

/// The longest time for which a server may ask to be left alone.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// A request under way.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) name: SequenceRef,
    pub(crate) call: Arc<RemoteCall>,
    pub(crate) sink: TextSink,
    /// The trace that the server is told, in the place of the client's; absent: the client's.
    pub(crate) trace: Option<TraceHeaders>,
    pub(crate) client: ServerClient,
    pub(crate) residency: Arc<Residency>,
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
    /// The whole response has gone through.
    Served(Usage),
    /// The server has no room now. It may say when it will have.
    TurnedBack {
        why: String,
        retry_after: Option<Duration>,
    },
    /// The server failed before anything of a response was passed on.
    Failed(String),
    /// The server failed when a part of its response had been passed on.
    Broken(String),
    /// The client has left.
    ClientGone,
}

/// A response, as far as its status tells what is to be done with it.
enum Verdict {
    Relay,
    TurnBack,
    Fail(String),
}

impl Sequence {
    /// Runs the request to its end, and tells the executor.
    pub(crate) async fn run(self) {
        let end = self.serve().await;
        let news = News::Ended(self.name, end);
        // Without an executor there is nobody to tell.
        drop(self.news.send(news).await);
    }

    async fn serve(&self) -> SequenceEnd {
        let call = &self.call;
        let attendance = call.model.as_deref().map(|it| self.residency.attend(it));
        if let Some(attendance) = &attendance
            && let Err(why) = attendance.loaded().await
        {
            return SequenceEnd::Failed(why);
        }
        let what = (call.method.clone(), &*call.path);
        let mut headers = call.headers.clone();
        if let Some(trace) = &self.trace {
            trace.write(&mut headers);
        }
        let sent = self.client.send(what, headers, call.body.clone());
        let response = match timeout(self.timeouts.first_byte, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return SequenceEnd::Failed(error.to_string()),
            Err(_elapsed) => {
                let patience = self.timeouts.first_byte;
                return SequenceEnd::Failed(format!("no response within {patience:?}"));
            }
        };
        match self.verdict(response.status()) {
            Verdict::Relay => self.relay(response).await,
            Verdict::TurnBack => SequenceEnd::TurnedBack {
                why: format!("it answers {}", response.status()),
                retry_after: retry_after(response.headers()),
            },
            Verdict::Fail(why) => SequenceEnd::Failed(why),
        }
    }

    /// The verdict about a response: a client's fault is the client's to hear, and no failure of the
    /// server.
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
            status if status.is_server_error() => Verdict::Fail(format!("it answers {status}")),
            _ => Verdict::Relay,
        }
    }

    /// True for a path that every server has.
    fn is_completion(&self) -> bool {
        let path = self.call.path.split('?').next().unwrap_or_default();
        path.ends_with("/completions")
    }

    /// Passes a response on. Its head goes with its first byte: until then the request may go elsewhere.
    async fn relay(&self, response: Response<Incoming>) -> SequenceEnd {
        let (mut head, mut body) = response.into_parts();
        let first = match self.next(&mut body, self.timeouts.first_byte).await {
            Ok(first) => first,
            Err(why) => return SequenceEnd::Failed(why),
        };
        for name in CONNECTION_HEADERS {
            head.headers.remove(name);
        }
        let mut watch = BodyWatch::of(&head.headers, head.status);
        let first = self.frame(first, &body, &mut watch);
        let is_whole = is_last(&first);
        let begun = self.sink.relay(RelayBeginning {
            status: head.status,
            headers: head.headers,
            first,
        });
        let Ok(sender) = begun else {
            return SequenceEnd::ClientGone;
        };
        if watch.form == Form::Events {
            drop(self.news.send(News::Began(self.name)).await);
        }
        if is_whole {
            return SequenceEnd::Served(watch.usage());
        }
        loop {
            let next = match self.next(&mut body, self.timeouts.stall).await {
                Ok(next) => self.frame(next, &body, &mut watch),
                Err(why) => {
                    drop(sender.send(RelayFrame::Broken(why.clone())).await);
                    return SequenceEnd::Broken(why);
                }
            };
            let is_last = is_last(&next);
            if sender.send(next).await.is_err() {
                return SequenceEnd::ClientGone;
            }
            if is_last {
                return SequenceEnd::Served(watch.usage());
            }
        }
    }

    /// The frame with the next bytes of a body; absent: it has ended.
    fn frame(&self, bytes: Option<Bytes>, body: &Incoming, watch: &mut BodyWatch) -> RelayFrame {
        let Some(bytes) = bytes else {
            return RelayFrame::Last(Bytes::new());
        };
        watch.see(&bytes);
        self.generated.store(watch.generated(), Ordering::Relaxed);
        if body.is_end_stream() {
            RelayFrame::Last(bytes)
        } else {
            RelayFrame::More(bytes)
        }
    }

    /// The next bytes of a body; absent: it has ended.
    async fn next(&self, body: &mut Incoming, patience: Duration) -> Result<Option<Bytes>, String> {
        loop {
            let frame = timeout(patience, body.frame()).await;
            let frame = frame.map_err(|_elapsed| format!("nothing came for {patience:?}"))?;
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
