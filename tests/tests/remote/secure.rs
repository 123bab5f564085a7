//! The way to a server: TLS with certificates of one's own, HTTP/2, and a path before all paths.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use pointsman_config::BackendConfig;
use pointsman_http::TlsSettings;
use pointsman_tests::PATIENCE;
use pointsman_tests::backend::MockBackend;
use pointsman_tests::client::streamed_chat;
use pointsman_tests::serving::Serving;
use pointsman_tests::tls::Certificate;
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::{backends_of, executors_until, named, over, serving};

const CHAT: &str = "/v1/chat/completions";
const EXECUTORS: &str = "/admin/executors";

/// A way to `to` that counts connections.
async fn counted(to: SocketAddr) -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (addr, count) = (listener.local_addr()?, Arc::new(AtomicUsize::new(0)));
    let counting = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            counting.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut to = TcpStream::connect(to).await?;
                copy_bidirectional(&mut from, &mut to).await
            });
        }
    });
    Ok((addr, count))
}

/// A server behind TLS whose certificate and key are in a folder, and the file of the certificate.
async fn behind_tls(folder: &Path) -> Result<(Serving, PathBuf)> {
    Certificate::new()?.write(folder)?;
    let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    let serving = Serving::start(|config| {
        config.tls = Some(TlsSettings {
            certificate: certificate.clone(),
            key,
            handshake_timeout: PATIENCE,
            poll: PATIENCE,
        });
    });
    Ok((serving.await?, certificate))
}

/// The backend of this table, asked often.
fn backend_of(table: &str) -> Result<BackendConfig> {
    let text = format!("[[backends]]\nname = 'one'\npoll = '50ms'\n{table}\n");
    backends_of(&text)?.pop().context("no backend")
}

/// Streams share one connection. The questions of the host have their own.
#[tokio::test]
async fn a_server_is_known_by_its_certificate_and_its_streams_share_a_connection() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (behind, ca) = behind_tls(folder.path()).await?;
    let (addr, connections) = counted(behind.server.addr()).await?;
    let url = format!("url = 'https://localhost:{}'", addr.port());

    let known = backend_of(&format!("{url}\nca-file = '{}'", ca.display()))?;
    let front = serving([known]).await?;
    let before = connections.load(Ordering::Relaxed);
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = front.client.stream(&streamed_chat("hello")).await?;
        stream.first_text().await?;
        streams.push(stream);
    }
    for stream in streams {
        ensure!(stream.finish().await?.done);
    }
    let after = connections.load(Ordering::Relaxed);
    ensure!(
        (before, after) == (1, 2),
        "{before}, then {after} connections"
    );
    over(front).await?;

    // Nobody vouches for it: nothing is sent there.
    let unknown = backend_of(&url)?;
    let front = Serving::start(|config| {
        config.local.models.clear();
        config.local.executors.clear();
        config.backends = vec![unknown];
    });
    let front = front.await?;
    let is_down = |list: &[Value]| named(list, "one")["health"] == "down";
    executors_until(front.client, is_down).await?;
    ensure!(front.client.chat("hello").await?.status == 404);
    over(front).await?;
    over(behind).await
}

#[tokio::test]
async fn an_order_that_adds_a_server_has_its_certificates_and_headers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (behind, ca) = behind_tls(folder.path()).await?;
    let front = serving([]).await?;
    let client = front.client;
    let order = json!({
        "url": format!("https://localhost:{}", behind.server.addr().port()), "executor": "one",
        "ca-file": ca, "poll-ms": 50,
    });
    let added = client.post(EXECUTORS, &order).await?;
    ensure!(added.status == 201, "{:?}", added.json());
    let found = |list: &[Value]| named(list, "one")["models"] == json!(["demo"]);
    executors_until(client, found).await?;
    ensure!(client.chat("hello").await?.status == 200);

    let mock = MockBackend::start(&["mock"]).await?;
    let order = json!({
        "url": mock.url(), "executor": "two", "poll-ms": 50,
        "headers": ["x-api-key: zqx7 secret", "Anthropic-Version:2023-06-01"],
    });
    let added = client.post(EXECUTORS, &order).await?;
    ensure!(added.status == 201 && !added.json()?.to_string().contains("zqx7"));
    let found = |list: &[Value]| named(list, "two")["models"] == json!(["mock"]);
    let list = executors_until(client, found).await?;
    ensure!(!format!("{list:?}").contains("zqx7"), "{list:?}");
    let body = json!({"model": "mock", "messages": [{"role": "user", "content": "hello"}]});
    ensure!(client.post(CHAT, &body).await?.status == 200);
    for path in [CHAT, "/v1/models"] {
        let seen = mock.seen(path).pop().context("nothing came")?;
        let header = |name: &str| seen.headers.get(name).map(String::as_str);
        ensure!(header("x-api-key") == Some("zqx7 secret"), "{seen:?}");
        ensure!(
            header("anthropic-version") == Some("2023-06-01"),
            "{seen:?}"
        );
    }
    over(front).await?;
    over(behind).await
}

#[tokio::test]
async fn an_order_with_wrong_certificates_or_headers_is_refused_and_shows_none() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "nothing")?;
    let front = serving([]).await?;
    let many = vec!["x-a: zqx7"; 33];
    for (field, value, words) in [
        ("ca-file", json!(empty), "certificates cannot be used"),
        (
            "ca-file",
            json!("/nowhere.pem"),
            "/nowhere.pem cannot be read",
        ),
        ("ca-file", json!("here.pem"), "an absolute path"),
        ("headers", json!(["zqx7"]), "x-api-key: secret"),
        ("headers", json!(["host: zqx7"]), "x-api-key: secret"),
        ("headers", json!("x-a: zqx7"), "x-api-key: secret"),
        ("headers", json!(many), "at most 32"),
        ("key", json!("zqx7 key"), "visible ASCII"),
        ("key", json!(["zqx7"]), "visible ASCII"),
    ] {
        let mut order = json!({"url": "https://127.0.0.1:9", "executor": "one"});
        order[field] = value;
        let refused = front.client.post(EXECUTORS, &order).await?;
        let said = refused.json()?["error"].clone();
        let message = said["message"].as_str().context("no message")?;
        ensure!(
            refused.status == 400 && said["param"] == field,
            "{order}: {said}"
        );
        ensure!(
            message.contains(words) && !message.contains("zqx7"),
            "{message}"
        );
    }
    executors_until(front.client, <[Value]>::is_empty).await?;
    over(front).await
}

#[tokio::test]
async fn certificates_that_are_none_are_refused_by_the_name_of_their_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("empty.pem");
    std::fs::write(&path, "nothing")?;
    for (path, words) in [
        (path.display().to_string(), "no certificates in PEM"),
        ("/nowhere.pem".to_owned(), "cannot be read"),
    ] {
        let refused = backend_of(&format!("url = 'https://one'\nca-file = '{path}'"));
        let error = refused.err().context("it is taken")?.to_string();
        ensure!(error.contains(words) && error.contains(&path), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_path_before_all_paths_is_kept() -> Result<()> {
    let mock = MockBackend::start(&[]).await?;
    let models = json!({"object": "list", "data": [{"id": "demo", "owned_by": "vllm"}]});
    mock.answers("/behind/it/v1/models", 200, &models.to_string());
    mock.answers("/behind/it/health", 200, "");
    let url = format!("url = '{}/behind/it/'", mock.url());
    let front = serving([backend_of(&url)?]).await?;
    ensure!(front.client.chat("hello").await?.text()? == "t0 t1 t2 ");
    ensure!(mock.seen("/behind/it/v1/chat/completions").len() == 1);
    ensure!(!mock.seen("/behind/it/metrics").is_empty() && mock.seen("/metrics").is_empty());
    over(front).await
}
