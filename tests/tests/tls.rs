//! TLS: real clients, handshakes that do not end, and certificates that are replaced while the server
//! serves.

#![expect(
    clippy::panic_in_result_fn,
    reason = "a test fails by panicking, and returns the errors of its surroundings"
)]

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use pointsman_config::Config;
use pointsman_http::TlsSettings;
use pointsman_tests::PATIENCE;
use pointsman_tests::client::{Client, chat, streamed_chat};
use pointsman_tests::log::Log;
use pointsman_tests::serving::Serving;
use pointsman_tests::tls::Certificate;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::rustls::SupportedProtocolVersion;
use tokio_rustls::rustls::version::{TLS12, TLS13};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// A server with a certificate.
struct Secured {
    serving: Serving,
    certificate: Certificate,
    folder: TempDir,
}

impl Secured {
    async fn start(tune: impl FnOnce(&mut Config, &mut TlsSettings)) -> Result<Self> {
        let (certificate, folder) = (Certificate::new()?, tempfile::tempdir()?);
        certificate.write(folder.path())?;
        let mut tls = TlsSettings {
            certificate: folder.path().join("certificate.pem"),
            key: folder.path().join("key.pem"),
            handshake_timeout: PATIENCE,
            poll: Duration::from_millis(20),
        };
        let serving = Serving::start(|config| {
            tune(config, &mut tls);
            config.tls = Some(tls);
        });
        Ok(Self {
            serving: serving.await?,
            certificate,
            folder,
        })
    }

    fn addr(&self) -> SocketAddr {
        self.serving.server.addr()
    }

    async fn connection(&self) -> Result<Connection> {
        Connection::open(self.addr(), &self.certificate, &TLS13).await
    }
}

/// A client's connection over TLS.
struct Connection(SendRequest<Full<Bytes>>);

impl Connection {
    async fn open(
        addr: SocketAddr,
        certificate: &Certificate,
        version: &'static SupportedProtocolVersion,
    ) -> Result<Self> {
        let stream = certificate.connect(addr, version).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // A broken connection shows in the answer.
            drop(connection.await);
        });
        Ok(Self(sender))
    }

    /// Asks for a path, or posts a body to it. Returns the status and the text of the answer.
    async fn ask(&mut self, path: &str, body: Option<&Value>) -> Result<(StatusCode, String)> {
        let request = Request::builder().uri(path).header("host", "localhost");
        let request = match body {
            Some(body) => request.method("POST").body(Bytes::from(body.to_string())),
            None => request.body(Bytes::new()),
        };
        let response = self.0.send_request(request?.map(Full::new)).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8(body.to_vec())?))
    }
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn clients_are_served_over_tls() -> Result<()> {
    let secured = Secured::start(|_, _| ()).await?;
    for version in [&TLS13, &TLS12] {
        let mut client = Connection::open(secured.addr(), &secured.certificate, version).await?;
        // One connection, several requests.
        let (status, text) = client.ask("/v1/models", None).await?;
        assert_eq!(status, StatusCode::OK, "{text}");
        let (status, text) = client.ask(CHAT, Some(&chat("Hello"))).await?;
        assert_eq!(status, StatusCode::OK, "{text}");
        let (status, text) = client.ask(CHAT, Some(&streamed_chat("Hello"))).await?;
        assert_eq!(status, StatusCode::OK, "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    }
    // A client that trusts another certificate does not come in.
    let other = Certificate::new()?;
    assert!(
        Connection::open(secured.addr(), &other, &TLS13)
            .await
            .is_err()
    );
    secured.serving.idle().await?;
    secured.serving.server.stop().await
}

#[tokio::test]
async fn a_client_that_leaves_over_tls_cancels_its_request() -> Result<()> {
    let secured = Secured::start(|_, _| ()).await?;
    let mut stream = secured.certificate.connect(secured.addr(), &TLS13).await?;
    let mut body = streamed_chat("Tell me a long story.");
    body["ignore_eos"] = true.into();
    let body = body.to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await?;
    let mut first = [0; 64];
    ensure!(stream.read(&mut first).await? > 0, "no answer");
    drop(stream);
    secured.serving.idle().await?;
    secured.serving.server.stop().await
}

#[tokio::test]
async fn a_client_that_does_not_speak_tls_is_told_so() -> Result<()> {
    let secured = Secured::start(|_, _| ()).await?;
    let mut stream = TcpStream::connect(secured.addr()).await?;
    stream
        .write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
    let error: Value = serde_json::from_str(body)?;
    assert_eq!(error["error"]["code"], "not_tls");
    assert_eq!(
        error["error"]["message"],
        "this address speaks TLS: ask by https://"
    );
    secured.serving.server.stop().await
}

#[tokio::test]
async fn handshakes_that_never_end_are_in_nobodys_way() -> Result<()> {
    let secured = Secured::start(|config, _| config.http.connections_max = 8).await?;
    let mut silent = Vec::new();
    for n in 0..7 {
        let mut stream = TcpStream::connect(secured.addr()).await?;
        // The beginning of a hello, or nothing at all.
        if n % 2 == 0 {
            stream.write_all(&[22, 3, 1, 2, 0, 1]).await?;
        }
        silent.push(stream);
    }
    let mut client = secured.connection().await?;
    assert_eq!(client.ask(CHAT, Some(&chat("Hi"))).await?.0, StatusCode::OK);
    // All places are taken: one more is told so, and a probe is answered.
    silent.push(TcpStream::connect(secured.addr()).await?);
    let (status, text) = secured.connection().await?.ask("/v1/models", None).await?;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text}");
    let (status, text) = secured.connection().await?.ask("/health", None).await?;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!(client.ask(CHAT, Some(&chat("Hi"))).await?.0, StatusCode::OK);
    // The end of the server does not wait for them.
    drop(client);
    secured.serving.server.stop().await?;
    for mut stream in silent {
        let mut rest = Vec::new();
        // However it is closed.
        drop(stream.read_to_end(&mut rest).await);
    }
    Ok(())
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_ended() -> Result<()> {
    let short = Duration::from_millis(50);
    let secured = Secured::start(|_, tls| tls.handshake_timeout = short).await?;
    for begun in [&[][..], &[22, 3, 1, 2, 0, 1]] {
        let mut stream = TcpStream::connect(secured.addr()).await?;
        stream.write_all(begun).await?;
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{begun:?} goes on");
        assert!(rest.is_empty(), "{rest:?}");
    }
    secured.serving.server.stop().await
}

/// Waits until new connections get `certificate`.
async fn shown(addr: SocketAddr, certificate: &Certificate) -> Result<Connection> {
    let looked = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Ok(connection) = Connection::open(addr, certificate, &TLS13).await {
                return connection;
            }
            tokio::time::sleep(LOOK).await;
        }
    });
    looked.await.context("the certificate is not shown")
}

#[tokio::test]
async fn certificates_are_replaced_while_the_server_serves() -> Result<()> {
    let log = Log::begin("info")?;
    let secured = Secured::start(|_, _| ()).await?;
    let mut old = secured.connection().await?;
    let second = Certificate::new()?;
    second.write(secured.folder.path())?;
    let mut new = shown(secured.addr(), &second).await?;
    assert!(
        secured.connection().await.is_err(),
        "the first one is shown"
    );
    // A connection keeps what it began with.
    for connection in [&mut old, &mut new] {
        let (status, text) = connection.ask(CHAT, Some(&chat("Hi"))).await?;
        assert_eq!(status, StatusCode::OK, "{text}");
    }
    log.until("certificate read again").await?;
    for (name, text, said) in [
        (
            "key.pem",
            "no key",
            "key.pem has no private key in PEM without a passphrase",
        ),
        (
            "certificate.pem",
            "-----BEGIN CERTIFICATE-----\n!\n",
            "certificate.pem has no certificate in PEM",
        ),
        // Another one's key.
        (
            "key.pem",
            &*secured.certificate.key_pem,
            "cannot be used together",
        ),
    ] {
        second.write(secured.folder.path())?;
        fs::write(secured.folder.path().join(name), text)?;
        log.until(said).await?;
        assert!(
            shown(secured.addr(), &second)
                .await?
                .ask("/ready", None)
                .await
                .is_ok()
        );
    }
    fs::remove_file(secured.folder.path().join("key.pem"))?;
    log.until("key.pem cannot be read").await?;
    assert!(
        shown(secured.addr(), &second)
            .await?
            .ask("/ready", None)
            .await
            .is_ok()
    );
    let warned = log
        .text()
        .matches("certificate not replaced, the one before stays")
        .count();
    assert!(warned >= 4, "{}", log.text());
    // No reason quotes a key.
    assert!(
        !log.text().contains(&secured.certificate.key_pem[40..80]),
        "{}",
        log.text()
    );
    // A good one is taken again.
    let third = Certificate::new()?;
    third.write(secured.folder.path())?;
    shown(secured.addr(), &third).await?;
    secured.serving.server.stop().await
}

#[tokio::test]
async fn operators_on_loopback_are_asked_without_tls() -> Result<()> {
    let own = |config: &mut Config, _: &mut TlsSettings| {
        config.admin.listen = Some(([127, 0, 0, 1], 0).into());
    };
    let secured = Secured::start(own).await?;
    let addr = secured.serving.server.admin_addr().context("no address")?;
    let answer = Client::new(addr).get("/admin/policies").await?;
    assert_eq!(answer.status, StatusCode::OK);
    secured.serving.server.stop().await
}

#[tokio::test]
async fn a_server_whose_certificate_cannot_be_used_does_not_start() -> Result<()> {
    let started = Secured::start(|_, tls| tls.key = "/no/such/file".into()).await;
    let error = started.err().context("it serves")?;
    let said = format!("{error:#}");
    assert!(
        said.starts_with("tls: /no/such/file cannot be read"),
        "{said}"
    );
    Ok(())
}
