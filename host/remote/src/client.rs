//! The client of one server: its address, its key, and connections that are kept.
//!
//! # Kept connections
//! Servers close connections that nobody uses, some of them after seconds, and a request may be on its way just then. It
//! ends without a word of an answer, which says nothing about the server: it is sent once more, on a new connection. A
//! request that ends so on a new one has failed, and so has one that the server had for longer than a moment.
//! A request that a server says it has not begun with, as one that stops does by HTTP/2, is sent once more, too.
//!
//! # HTTP/2
//! All requests to a server share a connection. An answer whose client does not read keeps its stream waiting, and no
//! other one, as long as no more than 4096 do so. Questions of the host have a connection of their
//! own, so that they do not wait where a server takes no more streams. A connection may be gone without a word, as when
//! a router on the way has forgotten it. One on which nothing comes while requests wait is asked (`PING`), and given up
//! where that has no answer: its requests have failed, and the next ones go over another.

mod error;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::response::Parts;
use http::uri::{InvalidUri, Uri};
use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::{HttpConnector, HttpInfo};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use pointsman_executor::server::ServerConfig;
use pointsman_notation::{causes, chain};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::time::{Instant, timeout};

pub use error::CallError;

/// The most bytes of a server's answer to a question of ours.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;
/// The longest time for a connection to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a connection that is not used is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The time within which a connection ends that its server had closed before it read the request.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);
/// The time without a word after which a connection by HTTP/2 on which requests run is asked whether its server is there.
const PING_AFTER: Duration = Duration::from_secs(10);
/// The longest time for the answer to that. A server that has much to do is late with it, too.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The most connections of which it is known that they have answered. A request on another one is never sent twice.
const ANSWERED_MAX: usize = 8192;
/// The time between two looks at all of them for those that are forgotten.
const SWEPT_EVERY: Duration = Duration::from_secs(1);
/// The bytes of an answer by HTTP/2 that come before its client has read any.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// The bytes that all answers on a connection may have unread together: enough for 4096 whose clients read nothing.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;

/// The connections to servers. Cheap to clone; one serves all servers.
#[derive(Clone, Debug)]
pub struct Connections {
    /// For requests that are passed on.
    requests: HttpClient,
    /// For questions of the host, whose answers it reads at once, and for addresses that are no executor's.
    questions: HttpClient,
    /// For requests whose connection was closed. It keeps none.
    fresh: HttpClient,
    answered: Arc<Answered>,
}

type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The connections that have answered a request: each may be one that was kept.
#[derive(Debug, Default)]
struct Answered {
    /// The time of each one's last answer. Guarded by a lock and no message: requests note it in tasks of their own, as soon
    /// as the head of an answer has come. One that has the connection before that is not sent twice.
    last: Mutex<LastAnswers>,
}

#[derive(Debug, Default)]
struct LastAnswers {
    at: BTreeMap<Ends, Instant>,
    /// The time at which those of long ago were forgotten; absent: never yet.
    swept: Option<Instant>,
}

/// The two ends of a connection, by which it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ends {
    here: SocketAddr,
    there: SocketAddr,
}

/// The certificates by which servers at `https://` are known.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// The certificates of the system.
    System,
    /// These certificates, in PEM, and no others.
    Pem(&'a [u8]),
    /// No certificate: for addresses at which nobody shows one.
    Nobody,
}

/// A client of one server.
#[derive(Clone)]
pub(crate) struct ServerClient {
    connections: Connections,
    /// Scheme, authority and prefix, before every path.
    base: String,
    /// Headers of each request, the one with the key among them.
    headers: HeaderMap,
}

/// An answer that is read as it comes, however long it is.
#[derive(Debug)]
pub struct Download {
    /// The head of the answer.
    pub head: Parts,
    body: Incoming,
    /// The longest time without a byte.
    patience: Duration,
}

impl Connections {
    /// Connections with TLS where an address asks for it, by the certificates of the system.
    ///
    /// # Errors
    /// If the certificates of the system cannot be read.
    pub fn new() -> io::Result<Self> {
        Self::trusting(Trust::System)
    }

    /// Connections with TLS where an address asks for it, to servers that these certificates know.
    ///
    /// # Errors
    /// If the certificates of the system cannot be read, or the others are none.
    pub fn trusting(trust: Trust<'_>) -> io::Result<Self> {
        Self::of(trust, passing)
    }

    /// The same, with such clients for requests that are passed on.
    fn of(trust: Trust<'_>, passing: fn() -> legacy::Builder) -> io::Result<Self> {
        let tls = HttpsConnectorBuilder::new().with_tls_config(tls_config(trust)?);
        let connector = tls
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(tcp());
        Ok(Self {
            requests: passing().build(connector.clone()),
            questions: keeping().build(connector.clone()),
            fresh: passing().pool_max_idle_per_host(0).build(connector),
            answered: Arc::default(),
        })
    }

    /// Sends a request by a client that keeps connections. Returns the response as soon as its head has come.
    ///
    /// # Cancellation
    /// The request ends.
    async fn send(
        &self,
        kept: &HttpClient,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, CallError> {
        let again = request.clone();
        let begun = Instant::now();
        let error = match kept.request(request).await {
            Ok(response) => {
                self.answered.note(&response, Instant::now());
                return Ok(response);
            }
            Err(error) => error,
        };
        let now = Instant::now();
        if is_refused(&error) {
            let response = self.fresh.request(again).await;
            return response.map_err(|error| CallError::of(&error));
        }
        let is_early = now.duration_since(begun) < CLOSED_WITHIN;
        if is_early && has_ended(&error) && self.answered.knows(&error, now) {
            let response = self.fresh.request(again).await;
            // The server may have read it before, and have ended by it.
            return response.map_err(|error| CallError::of_sent(&error));
        }
        Err(CallError::of(&error))
    }
}

impl Connections {
    /// Sends bytes to an address that is no executor's. Returns the head of the answer and, of its body, as
    /// much as an answer may have.
    ///
    /// # Cancellation
    /// The request ends.
    ///
    /// # Errors
    /// If there is no whole answer in time.
    pub async fn post(
        &self,
        url: &str,
        (headers, body): (HeaderMap, Bytes),
        patience: Duration,
    ) -> Result<(Parts, Bytes), CallError> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = url.parse()?;
        *request.headers_mut() = headers;
        self.exchange(request, (ANSWER_BYTES_MAX, patience)).await
    }

    /// Sends a request to an address that is no executor's. Returns the head of the answer and its body, of
    /// at most so many bytes.
    ///
    /// # Cancellation
    /// The request ends.
    ///
    /// # Errors
    /// If there is no whole answer in time.
    pub async fn exchange(
        &self,
        request: Request<Bytes>,
        (bytes_max, patience): (usize, Duration),
    ) -> Result<(Parts, Bytes), CallError> {
        let asked = async {
            let response = self.questions.request(request.map(Full::new)).await;
            let response = response.map_err(|error| CallError::of(&error))?;
            whole(response, bytes_max).await
        };
        let answered = timeout(patience, asked).await;
        answered.unwrap_or(Err(CallError::Timeout(patience)))
    }
}

impl Connections {
    /// Sends a request without a body to an address that is no executor's. Returns the answer as soon as its
    /// head has come.
    ///
    /// # Cancellation
    /// The request ends.
    ///
    /// # Errors
    /// If no head comes in time.
    pub async fn download(
        &self,
        request: Request<()>,
        patience: Duration,
    ) -> Result<Download, CallError> {
        let asked = self.questions.request(request.map(|()| Full::default()));
        let answered = timeout(patience, asked).await;
        let answered = answered.map_err(|_late| CallError::Timeout(patience))?;
        let response = answered.map_err(|error| CallError::of(&error))?;
        let (head, body) = response.into_parts();
        Ok(Download {
            head,
            body,
            patience,
        })
    }
}

impl Download {
    /// The next bytes; absent: that was all.
    ///
    /// # Cancellation
    /// Nothing is lost.
    ///
    /// # Errors
    /// If the answer breaks off, or nothing comes in time.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            let frame = timeout(self.patience, self.body.frame()).await;
            match frame.map_err(|_late| CallError::Timeout(self.patience))? {
                None => return Ok(None),
                Some(Err(error)) => return Err(CallError::Connection(chain(&error))),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

impl ServerClient {
    pub(crate) fn new(connections: Connections, server: &ServerConfig) -> Self {
        let authorization = server.key.as_ref().and_then(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.reveal())).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let mut headers = server.headers.clone();
        if let Some(authorization) = authorization {
            headers.insert(header::AUTHORIZATION, authorization);
        }
        Self {
            connections: match &server.ca {
                Some(pem) => Connections::trusting(Trust::Pem(pem))
                    .expect("certificates were read when the configuration was checked"),
                None => connections,
            },
            base: server.url.to_string(),
            headers,
        }
    }

    /// Sends a request, and returns the response as soon as its head has come.
    ///
    /// # Cancellation
    /// The request ends, and the server hears of it.
    pub(crate) async fn send(
        &self,
        call: (Method, &str),
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, CallError> {
        let request = self.request(call, headers, body)?;
        let connections = &self.connections;
        connections.send(&connections.requests, request).await
    }

    /// A request to the server, with its key.
    fn request(
        &self,
        (method, path): (Method, &str),
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, InvalidUri> {
        let uri: Uri = format!("{}{path}", self.base).parse()?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        // They take the place of those of the same name.
        request.headers_mut().extend(self.headers.clone());
        Ok(request)
    }

    /// Asks the server for `path`, and returns its whole answer.
    pub(crate) async fn get(
        &self,
        path: &str,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let nothing = (HeaderMap::new(), Bytes::new());
        self.ask((Method::GET, path), nothing, patience).await
    }

    /// The JSON at a path; absent: the server does not tell now.
    pub(crate) async fn json(
        &self,
        path: &str,
        patience: Duration,
    ) -> Result<Option<Value>, CallError> {
        let (status, body) = self.get(path, patience).await?;
        Ok(json_of(status, &body))
    }

    /// Sends a request of the host's own, and returns the whole answer.
    pub(crate) async fn ask(
        &self,
        call: (Method, &str),
        (headers, body): (HeaderMap, Bytes),
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let asked = async {
            let request = self.request(call, headers, body)?;
            let connections = &self.connections;
            let response = connections.send(&connections.questions, request).await?;
            let (head, body) = whole(response, ANSWER_BYTES_MAX).await?;
            Ok((head.status, body))
        };
        let answered = timeout(patience, asked).await;
        answered.unwrap_or(Err(CallError::Timeout(patience)))
    }
}

// === impl Answered ===

impl Answered {
    /// Notes an answer, unless its connection is not kept. Where too many connections are known, its own stays unknown.
    fn note(&self, response: &Response<Incoming>, now: Instant) {
        let connection = response.headers().get(header::CONNECTION);
        if connection.is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"close")) {
            return;
        }
        let Some(ends) = Ends::of(response.extensions()) else {
            return;
        };
        let LastAnswers { at, swept } = &mut *self.last();
        let was_swept = swept.is_some_and(|swept| now.duration_since(swept) < SWEPT_EVERY);
        if at.len() >= ANSWERED_MAX && !was_swept {
            at.retain(|_, at| now.duration_since(*at) < IDLE_TIMEOUT);
            *swept = Some(now);
        }
        if at.len() < ANSWERED_MAX || at.contains_key(&ends) {
            at.insert(ends, now);
        }
    }

    /// True for an error on a connection that has answered, and may have been kept since.
    fn knows(&self, error: &legacy::Error, now: Instant) -> bool {
        let mut extensions = Extensions::new();
        if let Some(connected) = error.connect_info() {
            connected.get_extras(&mut extensions);
        }
        let last = self.last();
        let at = Ends::of(&extensions).and_then(|ends| last.at.get(&ends));
        at.is_some_and(|at| now.duration_since(*at) < IDLE_TIMEOUT)
    }

    fn last(&self) -> MutexGuard<'_, LastAnswers> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Ends ===

impl Ends {
    /// The ends that the connector has told; absent: it has not.
    fn of(extensions: &Extensions) -> Option<Self> {
        let told: &HttpInfo = extensions.get()?;
        Some(Self {
            here: told.local_addr(),
            there: told.remote_addr(),
        })
    }
}

/// The way to make connections. What is written to one is sent at once, however little it is.
fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(IDLE_TIMEOUT));
    tcp
}

/// The settings of a client that keeps connections. One by HTTP/2 whose server is gone without a word is found by asking.
fn keeping() -> legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// The same of one whose answers are read as fast as clients read them.
fn passing() -> legacy::Builder {
    let mut builder = keeping();
    builder
        .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    builder
}

/// True for an error of a connection that ended before the head of an answer had come.
fn has_ended(error: &legacy::Error) -> bool {
    causes(error).any(is_end)
}

/// True for a request that the server has not begun with, as it says by HTTP/2: it refuses the stream, or goes away and
/// serves those before it (RFC 9113, section 8.7).
fn is_refused(error: &legacy::Error) -> bool {
    let mut said = causes(error).filter_map(|cause| cause.downcast_ref::<h2::Error>());
    said.any(|error| {
        let reason = error.reason();
        let is_stream = error.is_reset() && reason == Some(h2::Reason::REFUSED_STREAM);
        let is_connection = error.is_go_away() && reason == Some(h2::Reason::NO_ERROR);
        error.is_remote() && (is_stream || is_connection)
    })
}

fn is_end(cause: &(dyn Error + 'static)) -> bool {
    if let Some(error) = cause.downcast_ref::<hyper::Error>() {
        return error.is_incomplete_message() || error.is_canceled();
    }
    let error = cause.downcast_ref::<io::Error>();
    error.is_some_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        )
    })
}

fn tls_config(trust: Trust<'_>) -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let config = match trust {
        Trust::System => config.with_native_roots()?,
        Trust::Nobody => config.with_root_certificates(RootCertStore::empty()),
        Trust::Pem(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(io::Error::other)?;
                roots.add(certificate).map_err(io::Error::other)?;
            }
            if roots.is_empty() {
                return Err(io::Error::other("there is none"));
            }
            config.with_root_certificates(roots)
        }
    };
    Ok(config.with_no_client_auth())
}

/// The JSON of an answer; absent: there is none, or it tells of an error.
pub(crate) fn json_of(status: StatusCode, body: &[u8]) -> Option<Value> {
    let is_told = status.is_success();
    is_told.then(|| serde_json::from_slice(body).ok()).flatten()
}

/// A response with its whole body.
async fn whole(
    response: Response<Incoming>,
    bytes_max: usize,
) -> Result<(Parts, Bytes), CallError> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, bytes_max).collect().await;
    let body = body.map_err(|_broken| CallError::Answer { bytes_max })?;
    Ok((head, body.to_bytes()))
}

impl fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerClient")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
