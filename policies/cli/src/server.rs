//! A client of a running server's `/admin`, for the commands that need one.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use pointsman_notation::Time;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest wait for an answer: an order may have a policy compiled.
const PATIENCE: Duration = Duration::from_secs(120);
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Arguments of the commands that ask a server.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServerArgs {
    /// The address of the server's /admin
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: Uri,
    /// The key of `admin.key` in its configuration
    #[arg(
        long,
        value_name = "KEY",
        env = "POINTSMAN_ADMIN_KEY",
        hide_env_values = true
    )]
    admin_key: Option<String>,
    /// Format of the answer, for people or for programs
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(super) format: Format,
}

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Text for people.
    Human,
    /// The server's own JSON.
    Json,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The server has carried out the order, or shows the value at the path.
    Done(Value),
    /// The server refuses, for this reason.
    Refused(String),
}

// === impl ServerArgs ===

impl ServerArgs {
    /// Gets the value at `path`.
    pub(super) fn get(&self, path: &str) -> Result<Answer> {
        self.ask(Method::GET, path, &Value::Null)
    }

    /// Posts the order `body` to `path`.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.ask(Method::POST, path, body)
    }

    fn ask(&self, method: Method, path: &str, body: &Value) -> Result<Answer> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let asked = runtime.block_on(async {
            let asked = timeout(PATIENCE, self.send(method, path, body)).await;
            asked.with_context(|| format!("no answer within {}", Time(PATIENCE)))?
        });
        asked.with_context(|| format!("server {}", self.server))
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Answer> {
        ensure!(
            self.server.scheme_str() == Some("http"),
            "the address has to begin with http://; a server with a certificate answers so on its \
             own machine, at a loopback address of `admin.listen`"
        );
        let authority = self.server.authority().context("the address has no host")?;
        let host = authority.host().trim_matches(['[', ']']);
        let port = authority.port_u16().unwrap_or(80);
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.context("cannot be reached; name another with --server")?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await?;
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, authority.as_str())
            .header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.admin_key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::new(Bytes::from(text)))?;
        let exchange = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
                .collect()
                .await;
            let body = body.map_err(|error| anyhow::anyhow!("its answer breaks off: {error}"))?;
            answer(status, &body.to_bytes())
        };
        // The connection does the work; it ends with the answer or before it.
        tokio::select! {
            biased;
            answer = exchange => answer,
            ended = connection => {
                ended?;
                bail!("it closed the connection without an answer")
            }
        }
    }
}

fn answer(status: StatusCode, body: &[u8]) -> Result<Answer> {
    let value: Value = serde_json::from_slice(body)
        .with_context(|| format!("it answers {status} and no JSON; is it a Pointsman server?"))?;
    if status.is_success() {
        return Ok(Answer::Done(value));
    }
    let said = value["error"]["message"].as_str();
    let said = said.unwrap_or("no reason is given").to_owned();
    if status == StatusCode::UNAUTHORIZED {
        bail!("{said}; give it with --admin-key or POINTSMAN_ADMIN_KEY");
    }
    // The statuses of an order that the server refuses; with others the order could not be given
    // or carried out.
    let refused = [
        StatusCode::BAD_REQUEST,
        StatusCode::NOT_FOUND,
        StatusCode::CONFLICT,
    ];
    if refused.contains(&status) {
        return Ok(Answer::Refused(said));
    }
    bail!("it answers {status}: {said}")
}
