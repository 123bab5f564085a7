//! HTTP/2, which clients may choose in the handshake of TLS: requests side by side on one connection, and the
//! bounds that hold for each of them.

#![expect(
    clippy::panic_in_result_fn,
    reason = "a test fails by panicking, and returns the errors of its surroundings"
)]

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll, ready};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::rt::Executor;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use pointsman_config::Config;
use pointsman_http::TlsSettings;
use pointsman_tests::PATIENCE;
use pointsman_tests::client::{chat, endless_chat, streamed_chat};
use pointsman_tests::log::Log;
use pointsman_tests::serving::Serving;
use pointsman_tests::tls::Certificate;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

const CHAT: &str = "/v1/chat/completions";

/// A server with a certificate.
struct Secured {
    serving: Serving,
    certificate: Certificate,
    _folder: TempDir,
}

impl Secured {
    async fn start(tune: impl FnOnce(&mut Config)) -> Result<Self> {
        let (certificate, folder) = (Certificate::new()?, tempfile::tempdir()?);
        certificate.write(folder.path())?;
        let serving = Serving::start(|config| {
            config.tls = Some(TlsSettings {
                certificate: folder.path().join("certificate.pem"),
                key: folder.path().join("key.pem"),
                handshake_timeout: PATIENCE,
                poll: PATIENCE,
            });
            tune(config);
        });
        Ok(Self {
            serving: serving.await?,
            certificate,
            _folder: folder,
        })
    }

    /// A client that takes so many bytes of an answer before it reads.
    async fn client_with(&self, window: u32) -> Result<Client> {
        let stream = self.certificate.connect_http2(self.serving.server.addr());
        let tasks = Tasks::default();
        let mut builder = Builder::new(tasks.clone());
        builder.initial_stream_window_size(window);
        let (sender, connection) = builder.handshake(TokioIo::new(stream.await?)).await?;
        Ok(Client {
            sender,
            // However it ends.
            connection: tokio::spawn(async move { drop(connection.await) }),
            tasks,
        })
    }

    async fn client(&self) -> Result<Client> {
        self.client_with(1 << 16).await
    }
}

/// A client's connection by HTTP/2.
struct Client {
    sender: SendRequest<Sent>,
    connection: JoinHandle<()>,
    tasks: Tasks,
}

/// The body of a request.
type Sent = Either<Full<Bytes>, Halting>;

/// A body that halts after its first part.
struct Halting {
    part: Option<Bytes>,
    /// The other part, once it is there.
    rest: Option<oneshot::Receiver<Bytes>>,
}

/// A request with a body that halts.
struct Begun {
    rest: Bytes,
    go_on: oneshot::Sender<Bytes>,
    answer: JoinHandle<hyper::Result<Response<Incoming>>>,
}

impl Body for Halting {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(part) = self.part.take() {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(None);
        };
        let rest = ready!(Pin::new(rest).poll(cx));
        self.rest = None;
        Poll::Ready(rest.ok().map(|rest| Ok(Frame::data(rest))))
    }
}

impl Begun {
    /// Sends the rest of the body, and waits for the status of the answer.
    async fn end(self) -> Result<StatusCode> {
        // A server that has answered already needs no rest.
        drop(self.go_on.send(self.rest));
        Ok(self.answer.await??.status())
    }
}

/// The tasks that hyper makes for a connection.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.spawn(async move { drop(task.await) });
    }
}

impl Client {
    async fn send(&self, path: &str, body: Option<&Value>) -> Result<Response<Incoming>> {
        let request = Request::builder().uri(format!("https://localhost{path}"));
        let request = match body {
            Some(body) => request.method("POST").body(Bytes::from(body.to_string())),
            None => request.body(Bytes::new()),
        };
        let request = request?.map(|body| Either::Left(Full::new(body)));
        let mut sender = self.sender.clone();
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        assert_eq!(response.version(), Version::HTTP_2);
        Ok(response)
    }

    /// Begins to send a request, and halts within its body.
    async fn begin(&self, path: &str, body: &Value) -> Result<Begun> {
        let mut body = Bytes::from(body.to_string());
        let part = body.split_to(body.len() / 2);
        let (go_on, rest) = oneshot::channel();
        let halting = Halting {
            part: Some(part),
            rest: Some(rest),
        };
        let request = Request::post(format!("https://localhost{path}"));
        let request = request.body(Either::Right(halting))?;
        let mut sender = self.sender.clone();
        sender.ready().await?;
        // It is on its way before any later one.
        let answer = sender.send_request(request);
        Ok(Begun {
            rest: body,
            go_on,
            answer: tokio::spawn(answer),
        })
    }

    /// Asks, and reads the whole answer.
    async fn ask(&self, path: &str, body: Option<&Value>) -> Result<(StatusCode, String)> {
        let response = self.send(path, body).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8(body.to_vec())?))
    }

    /// Closes the connection without a word.
    fn leave(self) {
        let mut tasks = self.tasks.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.abort_all();
        self.connection.abort();
    }

    /// Waits until the server has closed the connection.
    async fn closed(self) -> Result<()> {
        let closed = timeout(PATIENCE, self.connection).await;
        closed.context("the connection stays")??;
        Ok(())
    }
}

/// The requests that were cancelled, as the metrics tell.
async fn cancelled(client: &Client) -> Result<u32> {
    let (_, metrics) = client.ask("/metrics", None).await?;
    let totals = metrics.lines().filter(|line| {
        line.starts_with("pointsman_requests_total{") && line.contains("outcome=\"cancelled\"")
    });
    let counts =
        totals.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<u32>()?));
    counts.sum()
}

/// The body of a request that runs for long.
fn long() -> Value {
    endless_chat("Tell me a long story.", 1800)
}

#[tokio::test]
async fn requests_of_one_connection_are_answered_side_by_side() -> Result<()> {
    let secured = Secured::start(|_| ()).await?;
    let client = secured.client().await?;
    // One that runs for as long as the others take, and longer.
    let mut running = client.send(CHAT, Some(&long())).await?.into_body();
    running.frame().await.context("no text")??;
    let (whole, streamed) = (chat("Hello"), streamed_chat("Hello"));
    for _ in 0..3 {
        let (whole, streamed, models) = tokio::try_join!(
            client.ask(CHAT, Some(&whole)),
            client.ask(CHAT, Some(&streamed)),
            client.ask("/v1/models", None),
        )?;
        assert_eq!(whole.0, StatusCode::OK, "{}", whole.1);
        assert_eq!(streamed.0, StatusCode::OK, "{}", streamed.1);
        assert!(streamed.1.ends_with("data: [DONE]\n\n"), "{}", streamed.1);
        assert_eq!(models.0, StatusCode::OK, "{}", models.1);
    }
    // A request that is refused before its body is read leaves the others alone.
    let (status, text) = client.ask("/v1/nothing", Some(&whole)).await?;
    assert_eq!(status, StatusCode::NOT_FOUND, "{text}");
    // And one whose client resets it is cancelled.
    secured.serving.load_until(|load| load.live == 1).await?;
    drop(running);
    secured.serving.idle().await?;
    assert_eq!(cancelled(&client).await?, 1);
    drop(client);
    secured.serving.server.stop().await
}

#[tokio::test]
async fn a_client_that_leaves_cancels_all_its_requests() -> Result<()> {
    let secured = Secured::start(|_| ()).await?;
    let client = secured.client().await?;
    let mut bodies = Vec::new();
    for _ in 0..3 {
        let mut body = client.send(CHAT, Some(&long())).await?.into_body();
        body.frame().await.context("no text")??;
        bodies.push(body);
    }
    client.leave();
    secured.serving.idle().await?;
    assert_eq!(cancelled(&secured.client().await?).await?, 3);
    secured.serving.server.stop().await
}

#[tokio::test]
async fn an_answer_that_is_left_unread_is_given_up_and_the_others_are_not() -> Result<()> {
    let log = Log::begin("debug")?;
    let secured = Secured::start(|config| config.http.write_timeout = Duration::from_secs(3));
    let secured = secured.await?;
    // Few bytes pass before they are read.
    let client = secured.client_with(64).await?;
    let mut unread = client.send(CHAT, Some(&long())).await?.into_body();
    log.until("an answer is left unread and given up").await?;
    let (status, text) = client.ask(CHAT, Some(&streamed_chat("Hello"))).await?;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    // What is left of the first one is an error, and not an end.
    loop {
        match unread.frame().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                assert!(
                    error.to_string().contains("error reading a body"),
                    "{error}"
                );
                break;
            }
            None => bail!("it ends as if it was whole"),
        }
    }
    secured.serving.idle().await?;
    drop(client);
    secured.serving.server.stop().await
}

/// The answer is read for longer than the timeouts are together, and never left unread for as long as one of them.
#[tokio::test]
async fn a_whole_answer_that_is_read_slowly_is_sent_to_its_end() -> Result<()> {
    const PATH: &str = "/openapi.json";
    let secured = Secured::start(|config| {
        config.http.read_timeout = Duration::from_secs(1);
        config.http.write_timeout = Duration::from_secs(3);
    });
    let secured = secured.await?;
    let (status, whole) = secured.client().await?.ask(PATH, None).await?;
    assert_eq!(status, StatusCode::OK, "{whole:.200}");
    let time_of_byte = Duration::from_secs(6) / u32::try_from(whole.len())?;
    // Few bytes pass before they are read.
    let slow = secured.client_with(4096).await?;
    let mut body = slow.send(PATH, None).await?.into_body();
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.context("it is cut off")?;
        let data = frame.data_ref().context("no data")?;
        read.extend_from_slice(data);
        tokio::time::sleep(time_of_byte * u32::try_from(data.len())?).await;
    }
    assert!(read == whole.as_bytes(), "{} bytes", read.len());
    drop(slow);
    secured.serving.server.stop().await
}

#[tokio::test]
async fn a_connection_without_requests_is_ended() -> Result<()> {
    let secured = Secured::start(|config| config.http.read_timeout = Duration::from_secs(3));
    let secured = secured.await?;
    let silent = secured.client().await?;
    let idle = secured.client().await?;
    assert_eq!(idle.ask("/ready", None).await?.0, StatusCode::OK);
    silent.closed().await?;
    idle.closed().await?;
    // A request in hand keeps one for as long as it takes.
    let busy = secured.client().await?;
    let (status, text) = busy.ask(CHAT, Some(&long())).await?;
    assert_eq!(status, StatusCode::OK);
    assert!(text.ends_with("data: [DONE]\n\n"), "{text:.200}");
    secured.serving.server.stop().await
}

#[tokio::test]
async fn a_connection_ends_behind_its_last_request() -> Result<()> {
    let secured = Secured::start(|config| config.http.connection_requests_max = 2).await?;
    let client = secured.client().await?;
    for _ in 0..2 {
        let (status, text) = client.ask(CHAT, Some(&chat("Hello"))).await?;
        assert_eq!(status, StatusCode::OK, "{text}");
    }
    client.closed().await?;
    secured.serving.server.stop().await
}

#[tokio::test]
async fn clients_beyond_the_bound_are_told_so_and_probes_are_answered() -> Result<()> {
    let secured = Secured::start(|config| config.http.connections_max = 1).await?;
    let first = secured.client().await?;
    assert_eq!(first.ask("/v1/models", None).await?.0, StatusCode::OK);
    for (path, status) in [
        ("/v1/models", StatusCode::TOO_MANY_REQUESTS),
        ("/ready", StatusCode::OK),
    ] {
        let spare = secured.client().await?;
        assert_eq!(spare.ask(path, None).await?.0, status, "{path}");
        spare.closed().await?;
    }
    assert_eq!(first.ask("/v1/models", None).await?.0, StatusCode::OK);
    drop(first);
    secured.serving.server.stop().await
}

#[tokio::test]
async fn of_bodies_side_by_side_one_alone_has_room_beyond_the_bound() -> Result<()> {
    // Less than half a body.
    let secured = Secured::start(|config| config.http.bodies_bytes_max = 8).await?;
    let (client, other) = (secured.client().await?, secured.client().await?);
    let hello = chat("Hello");
    let begun = client.begin(CHAT, &hello).await?;
    // There is no room for a second one while the first is being read,
    let (status, text) = client.ask(CHAT, Some(&hello)).await?;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text}");
    assert!(text.contains("bodies_full"), "{text}");
    // but for one of another connection, and for the next one.
    let (status, text) = other.ask(CHAT, Some(&hello)).await?;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!(begun.end().await?, StatusCode::OK);
    let (status, text) = client.ask(CHAT, Some(&hello)).await?;
    assert_eq!(status, StatusCode::OK, "{text}");
    drop((client, other));
    secured.serving.server.stop().await
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() -> Result<()> {
    let secured = Secured::start(|_| ()).await?;
    let client = secured.client().await?;
    let request = Request::builder()
        .uri("https://localhost/ready")
        .header("x-long", "x".repeat(100_000))
        .body(Either::Left(Full::new(Bytes::new())))?;
    // Some clients ask the server for its bound and do not send so much.
    let answered = client.sender.clone().send_request(request).await;
    if let Ok(response) = answered {
        assert_eq!(
            response.status(),
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
        );
    }
    assert_eq!(
        secured.client().await?.ask("/ready", None).await?.0,
        StatusCode::OK
    );
    secured.serving.server.stop().await
}

#[tokio::test]
async fn a_server_that_stops_finishes_what_runs() -> Result<()> {
    let secured = Secured::start(|config| config.drain = PATIENCE).await?;
    let client = secured.client().await?;
    let mut body = client.send(CHAT, Some(&long())).await?.into_body();
    body.frame().await.context("no text")??;
    let stopping = tokio::spawn(secured.serving.server.stop());
    let rest = body.collect().await?.to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"), "{rest:?}");
    client.closed().await?;
    stopping.await?
}
