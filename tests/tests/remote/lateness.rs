//! Servers that are late: with the end of an answer, or with all of it.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pointsman_config::BackendConfig;
use pointsman_tests::backend::{Conduct, MockBackend};
use pointsman_tests::exposition::{samples, total};
use pointsman_tests::otlp::MockCollector;
use pointsman_tests::tls::Certificate;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{backend, backends_of, over, serving, serving_with};

const CHAT: &str = "/v1/chat/completions";

/// A server that has the model `demo` and speaks HTTP/2. The end of a chat's answer comes in a frame of its own, once it may.
struct LateEnds {
    addr: SocketAddr,
    /// The certificate, for those who are to know the server.
    folder: TempDir,
    ends: watch::Sender<bool>,
}

/// A body whose end comes later than its bytes.
struct Late {
    bytes: Option<Bytes>,
    end: End,
}

/// The end of a body.
type End = Pin<Box<dyn Future<Output = ()> + Send>>;

impl LateEnds {
    /// Starts the server, whose answers to chats have so many words.
    async fn start(words: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (certificate, folder) = (Certificate::new()?, tempfile::tempdir()?);
        certificate.write(folder.path())?;
        let server = Self {
            addr: listener.local_addr()?,
            folder,
            ends: watch::channel(false).0,
        };
        let ends = server.ends.subscribe();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, certificate.clone(), (words, ends.clone())));
            }
        });
        Ok(server)
    }

    fn backend(&self) -> Result<BackendConfig> {
        let (port, ca) = (self.addr.port(), self.folder.path().join("certificate.pem"));
        let table = format!(
            "[[backends]]\nname = 'late'\npoll = '50ms'\nurl = 'https://localhost:{port}'\nca-file = '{}'\n",
            ca.display()
        );
        backends_of(&table)?.pop().context("no backend")
    }
}

async fn converse(
    stream: TcpStream,
    certificate: Certificate,
    (words, ends): (usize, watch::Receiver<bool>),
) -> Result<()> {
    let stream = certificate.accept_http2(stream).await?;
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(request.uri().path(), words, &ends);
        ready(Ok::<_, Infallible>(answer))
    });
    let server = http2::Builder::new(TokioExecutor::new());
    server
        .serve_connection(TokioIo::new(stream), service)
        .await
        .context("the connection broke")
}

/// The answer at a path. That to a chat has so many words.
fn answer(path: &str, words: usize, ends: &watch::Receiver<bool>) -> Response<Late> {
    let (status, body) = match path {
        CHAT => {
            let message = json!({"role": "assistant", "content": "word ".repeat(words)});
            let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
            let usage = json!({"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12});
            let body = json!({"id": "late-1", "choices": [choice], "usage": usage});
            (StatusCode::OK, body)
        }
        "/v1/models" => (StatusCode::OK, json!({"data": [{"id": "demo"}]})),
        _ => (StatusCode::NOT_FOUND, json!({})),
    };
    let bytes = Bytes::from(body.to_string());
    let length = bytes.len();
    let mut ends = ends.clone();
    let end: End = match path {
        CHAT => Box::pin(async move { drop(ends.wait_for(|may_end| *may_end).await) }),
        _ => Box::pin(ready(())),
    };
    let mut response = Response::new(Late {
        bytes: Some(bytes),
        end,
    });
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, length.into());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl Body for Late {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.bytes.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => self.end.as_mut().poll(cx).map(|()| None),
        }
    }
}

#[tokio::test]
async fn an_answer_is_served_with_its_last_byte_though_its_end_comes_later() -> Result<()> {
    // One that is gathered before it is passed on, and one that is too long for that.
    for words in [3, 20_000] {
        let server = LateEnds::start(words).await?;
        let serving = serving([server.backend()?]).await?;
        let client = serving.client.for_others();
        let answer = client.chat("hello").await?;
        ensure!(answer.text()?.len() == 5 * words, "{}", answer.status);
        serving.idle().await?;
        let exported = samples(client).await?;
        let served = [("outcome", "finished")];
        let served = total(&exported, "pointsman_requests_total", &served);
        let tokens = total(&exported, "pointsman_output_tokens_total", &[]);
        ensure!(served == 1.0 && tokens == 7.0, "{served}, {tokens} tokens");
        server.ends.send_replace(true);
        over(serving).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_time_that_a_server_was_given_is_told_as_the_configuration_has_it() -> Result<()> {
    let (mock, collector) = (
        MockBackend::start(&["demo"]).await?,
        MockCollector::start().await?,
    );
    let settings = collector.settings()?;
    let mut silent = backend("silent", &mock)?;
    silent.server.first_byte_timeout = Duration::from_millis(250);
    mock.does(Conduct::BytesThenNothing(Vec::new()));
    let serving = serving_with([silent], |config| config.telemetry = Some(settings)).await?;
    ensure!(serving.client.chat("hello").await?.status == 502);
    let spans = collector.requests(1).await?;
    let mut told = spans.iter().map(|span| &span.json["status"]["message"]);
    let is_told = told.any(|why| why == "no response within 250ms");
    ensure!(is_told, "{spans:#?}");
    over(serving).await
}
