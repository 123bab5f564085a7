//! The client of one server: its address, its key, and connections that are kept.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::response::Parts;
use http::uri::{InvalidUri, Uri};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use pointsman_executor::server::ServerConfig;
use pointsman_notation::chain;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::time::timeout;

/// The most bytes of a server's answer to a question of ours.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;
/// The longest time for a connection to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a connection that is not used is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The connections to servers. Cheap to clone; one serves all servers.
#[derive(Clone, Debug)]
pub struct Connections(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

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

/// The reason why a server was not heard.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No connection, or it broke before an answer.
    #[error("{0}")]
    Connection(String),
    /// Nothing came for too long.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The answer is longer than an answer to such a question is.
    #[error("its answer has more than {bytes_max} bytes, or broke off")]
    Answer {
        /// The most bytes that it may have.
        bytes_max: usize,
    },
    /// The path cannot be asked for.
    #[error("the path is none: {0}")]
    Path(#[from] InvalidUri),
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
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_keepalive(Some(IDLE_TIMEOUT));
        let tls = HttpsConnectorBuilder::new().with_tls_config(tls_config(trust)?);
        let connector = tls
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self(client))
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
            let Self(client) = self;
            let response = client.request(request.map(Full::new)).await;
            let response = response.map_err(|error| CallError::Connection(chain(&error)))?;
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
        let Self(client) = self;
        let asked = client.request(request.map(|()| Full::default()));
        let answered = timeout(patience, asked).await;
        let answered = answered.map_err(|_late| CallError::Timeout(patience))?;
        let response = answered.map_err(|error| CallError::Connection(chain(&error)))?;
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
        (method, path): (Method, &str),
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, CallError> {
        let uri: Uri = format!("{}{path}", self.base).parse()?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        // They take the place of those of the same name.
        request.headers_mut().extend(self.headers.clone());
        let Connections(client) = &self.connections;
        let response = client.request(request).await;
        response.map_err(|error| CallError::Connection(chain(&error)))
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
        let is_told = status.is_success();
        let json = is_told.then(|| serde_json::from_slice(&body).ok());
        Ok(json.flatten())
    }

    /// Sends a request of the host's own, and returns the whole answer.
    pub(crate) async fn ask(
        &self,
        call: (Method, &str),
        (headers, body): (HeaderMap, Bytes),
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let asked = async {
            let response = self.send(call, headers, body).await?;
            let (head, body) = whole(response, ANSWER_BYTES_MAX).await?;
            Ok((head.status, body))
        };
        let answered = timeout(patience, asked).await;
        answered.unwrap_or(Err(CallError::Timeout(patience)))
    }
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
