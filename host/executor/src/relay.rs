//! Requests that are passed on to another server, and the responses that come back through the host.
//!
//! A [`RemoteCall`] is a client's request as it came. The response of the server is a
//! [`RelayedResponse`]: status and headers at once, then the body, frame by frame, as it comes.
//!
//! # Bounds
//! [`FRAMES_MAX`] frames wait for a client. Where it reads no further the executor reads no further
//! either, and the server feels it.
//!
//! # Cancellation
//! The executor sees that the response was dropped: each send fails.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{HeaderMap, Method, StatusCode};
use tokio::sync::mpsc;

/// The most frames of a response that wait for its client.
pub const FRAMES_MAX: usize = 64;

/// Headers that are about a connection, and are passed on in neither direction.
pub const CONNECTION_HEADERS: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// A client's request as it came, to be passed on byte for byte.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteCall {
    /// The request's method.
    pub method: Method,
    /// The path with its query, from the first slash.
    pub path: String,
    /// The headers that the client means for the server; nothing about the connection and no key.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// The model that it names; absent: none.
    pub model: Option<String>,
    /// Tokens of the prompt, as well as they can be told from its bytes.
    pub prompt_tokens: u32,
    /// The room for it on the executors that it may go to.
    pub rooms: Rooms,
}

/// The contexts of the executors that a request may go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rooms {
    /// Longest sequence on each executor, in tokens, by the executor's name; those of which it is not known are
    /// left out.
    pub contexts: Arc<BTreeMap<String, u32>>,
    /// Names of the executors that it may go to; absent: any.
    pub allowed: Option<Vec<String>>,
}

/// The response of another server, under way to a client.
#[derive(Debug)]
pub struct RelayedResponse {
    /// The status of the response.
    pub status: StatusCode,
    /// The headers of the response; nothing about the connection.
    pub headers: HeaderMap,
    /// The frames of the body.
    pub frames: mpsc::Receiver<RelayFrame>,
}

/// A piece of a relayed body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayFrame {
    /// Bytes after which more may follow.
    More(Bytes),
    /// The last bytes of the body, possibly none.
    Last(Bytes),
    /// The body breaks off here: the server failed. In words for the client.
    Broken(String),
}

/// The executor's end of a relayed body.
#[derive(Clone, Debug)]
pub struct RelaySender(mpsc::Sender<RelayFrame>);

/// The error of a frame that nobody waits for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client has left")]
pub struct ClientGone;

/// The beginning of a relayed response: its head, and its first frame, which goes with it.
#[derive(Debug)]
pub struct RelayBeginning {
    /// The status of the response.
    pub status: StatusCode,
    /// The headers of the response; nothing about the connection.
    pub headers: HeaderMap,
    /// The first frame of the body.
    pub first: RelayFrame,
}

/// A stream of a chat whose server failed, as far as its client has it: whole lines.
#[derive(Debug)]
pub struct BrokenStream {
    /// The way to the client.
    pub sender: RelaySender,
    /// The id that its chunks have; absent: none had one.
    pub id: Option<String>,
    /// The text so far.
    pub text: String,
    /// The tokens of the text, as well as they can be told: its chunks.
    pub tokens: u32,
    /// True if it broke off between two lines of one event.
    pub is_within_event: bool,
}

/// True if the body after these headers is a stream of events.
#[must_use]
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

/// A path and the query behind it, which is empty where there is none.
#[must_use]
pub fn path_and_query(path: &str) -> (&str, &str) {
    path.split_once('?').unwrap_or((path, ""))
}

/// The texts of a field in JSON that was cut anywhere, in their order. `name` is the field's name with its quotes, which
/// are escaped where they are part of a text.
pub fn field_texts<'a>(json: &'a [u8], name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> {
    let ends = json.windows(name.len()).zip(name.len()..);
    let ends = ends.filter(move |(found, _)| *found == name);
    ends.filter_map(move |(_, end)| {
        let value = json[end..].trim_ascii_start();
        let value = value.strip_prefix(b":")?.trim_ascii_start();
        let text = value.strip_prefix(b"\"")?;
        let end = text.iter().position(|byte| *byte == b'"')?;
        Some(&text[..end])
    })
}

/// Makes a response with this beginning, and the sender of its other frames.
#[must_use]
pub(crate) fn response(beginning: RelayBeginning) -> (RelaySender, RelayedResponse) {
    let RelayBeginning {
        status,
        headers,
        first,
    } = beginning;
    let (sender, frames) = mpsc::channel(FRAMES_MAX);
    let sent = sender.try_send(first);
    sent.expect("a new channel has room and its receiver");
    let response = RelayedResponse {
        status,
        headers,
        frames,
    };
    (RelaySender(sender), response)
}

// === impl Rooms ===

impl Rooms {
    /// Names of the executors that it may go to whose context is known to be longer than the one of `executor`.
    #[must_use]
    pub fn longer_than(&self, executor: &str) -> Vec<String> {
        let Some(own) = self.contexts.get(executor) else {
            return Vec::new();
        };
        let is_allowed = |name: &String| {
            let allowed = self.allowed.as_ref();
            allowed.is_none_or(|allowed| allowed.contains(name))
        };
        let longer = self.contexts.iter().filter(|(_, tokens)| *tokens > own);
        let names = longer.map(|(name, _)| name);
        names.filter(|name| is_allowed(name)).cloned().collect()
    }
}

// === impl RelaySender ===

impl RelaySender {
    /// A sender whose client has left.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn to_nobody() -> Self {
        Self(mpsc::channel(1).0)
    }

    /// Sends a frame, once the client has room for it.
    ///
    /// # Cancellation
    /// The frame is not sent.
    ///
    /// # Errors
    /// If the client has left.
    pub async fn send(&self, frame: RelayFrame) -> Result<(), ClientGone> {
        let sent = self.0.send(frame).await;
        sent.map_err(|_unsent| ClientGone)
    }
}

impl fmt::Debug for RemoteCall {
    /// Writes no header and no byte of the body: keys and prompts are nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteCall")
            .field("method", &self.method)
            .field("bytes", &self.body.len())
            .field("prompt_tokens", &self.prompt_tokens)
            .finish_non_exhaustive()
    }
}
