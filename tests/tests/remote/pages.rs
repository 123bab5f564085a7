//! Pages of other sites that use servers elsewhere through this host, which alone says what they may do.

use anyhow::{Result, ensure};
use pointsman_config::PageOrigin;
use pointsman_tests::backend::{Conduct, MockBackend, head};
use pointsman_tests::serving::Serving;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{backend, over, serving_with};

/// The origin whose pages may use the host.
const PAGE: &str = "https://chat.example";

async fn for_page(mock: &MockBackend) -> Result<Serving> {
    let origin: PageOrigin = PAGE.parse()?;
    let serving = serving_with([backend("elsewhere", mock)?], |config| {
        config.http.cors_origins = vec![origin];
    });
    serving.await
}

#[tokio::test]
async fn a_page_may_use_every_method_of_a_path_that_is_passed_on() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = for_page(&mock).await?;
    for (path, wanted, allowed) in [
        ("/v1/files/file-1", "DELETE", "DELETE"),
        ("/v1/files", "GET", "GET"),
        ("/v1/completions", "DELETE", "POST"),
    ] {
        let mut socket = TcpStream::connect(serving.server.addr()).await?;
        let question = format!(
            "OPTIONS {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\norigin: {PAGE}\r\n\
             access-control-request-method: {wanted}\r\n\r\n"
        );
        socket.write_all(question.as_bytes()).await?;
        let mut said = String::new();
        socket.read_to_string(&mut said).await?;
        let told = format!("\r\naccess-control-allow-methods: {allowed}\r\n");
        let is_told = said.starts_with("HTTP/1.1 204 ") && said.contains(&told);
        ensure!(is_told, "{path}: {said}");
    }
    ensure!(mock.seen("/v1/files").is_empty() && mock.seen("/v1/files/file-1").is_empty());
    over(serving).await
}

#[tokio::test]
async fn what_a_server_says_about_pages_is_passed_on_to_nobody() -> Result<()> {
    let mock = MockBackend::start(&["demo"]).await?;
    let serving = for_page(&mock).await?;
    let client = serving.client.for_others();
    let headers = [
        ("content-type", "application/json"),
        ("access-control-allow-origin", "*"),
        ("access-control-allow-credentials", "true"),
        ("x-of", "server"),
    ];
    let answer = head(200, &headers, 2) + "{}";
    mock.does(Conduct::Bytes(answer.into_bytes()));
    let body = r#"{"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}"#;
    for path in ["/v1/chat/completions", "/v1/messages", "/v2/anything"] {
        for (headers, allowed) in [(&[][..], ""), (&[("origin", PAGE)], PAGE)] {
            let answer = client.raw(path, headers, body).await?;
            let is_passed_on = answer.status == 200 && answer.header("x-of") == "server";
            ensure!(is_passed_on, "{path}: {answer:?}");
            let may_read = answer.header("access-control-allow-origin");
            ensure!(may_read == allowed, "{path}: {may_read}");
            let with_cookies = answer.header("access-control-allow-credentials");
            ensure!(with_cookies.is_empty(), "{path}: {with_cookies}");
        }
    }
    over(serving).await
}
