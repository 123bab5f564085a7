//! A client of a running server's `/admin`, for the commands that need one.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, StatusCode, Uri};
use pointsman_remote::client::{Connections, Trust};
use serde_json::Value;

/// The longest wait for an answer: an order may have a policy compiled.
const PATIENCE: Duration = Duration::from_secs(120);
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The beginning of a certificate in PEM.
const PEM: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Arguments of the commands that ask a server.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServerArgs {
    /// The address of the server's /admin: a URL, or HOST:PORT
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: ServerAddress,
    /// Certificates, in PEM, that the server's one is checked against, in the place of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
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

/// The address of a server, without a path of its own at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServerAddress(String);

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

    /// Deletes the thing at `path`.
    pub(super) fn delete(&self, path: &str) -> Result<Answer> {
        self.ask(Method::DELETE, path, &Value::Null)
    }

    /// Posts the order `body` to `path`.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.ask(Method::POST, path, body)
    }

    fn ask(&self, method: Method, path: &str, body: &Value) -> Result<Answer> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let asked = runtime.block_on(self.send(method, path, body));
        asked.with_context(|| format!("server {}", self.server))
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Answer> {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let mut request = Request::builder()
            .method(method)
            .uri(self.server.at(path))
            .header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.admin_key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Bytes::from(text))?;
        let connections = self.connections()?;
        let bounds = (ANSWER_BYTES_MAX, PATIENCE);
        let answered = connections.exchange(request, bounds).await;
        let (head, body) = answered.context("cannot be reached; name another with --server")?;
        answer(head.status, &body)
    }

    /// Connections that trust the certificates that were named, or else the system's.
    fn connections(&self) -> Result<Connections> {
        match (&self.ca, self.server.is_secured()) {
            (Some(path), _) => {
                let pem = super::file::read(path)?;
                ensure!(
                    pem.windows(PEM.len()).any(|window| window == PEM),
                    "{} has no certificate in PEM",
                    path.display()
                );
                Ok(Connections::trusting(Trust::Pem(&pem))?)
            }
            (None, false) => Ok(Connections::trusting(Trust::Nobody)?),
            (None, true) => {
                Connections::new().context("the certificates of this machine; name some with --ca")
            }
        }
    }
}

// === impl ServerAddress ===

impl ServerAddress {
    /// The address of a path on the server.
    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.0)
    }

    fn is_secured(&self) -> bool {
        self.0.starts_with("https://")
    }
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
            Some(_) => return Err("it begins with http:// or https://".to_owned()),
            None => ("http", text),
        };
        let host = if rest.starts_with(':') {
            "127.0.0.1"
        } else {
            ""
        };
        let rest = rest.trim_end_matches('/');
        if rest.is_empty() {
            return Err("it names no host".to_owned());
        }
        let url = format!("{scheme}://{host}{rest}");
        let _parts: Uri = url.parse().map_err(|error| format!("{error}"))?;
        Ok(Self(url))
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_its_url_or_by_host_and_port() {
        for (text, url) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/admin"),
            ("https://gate.example/", "https://gate.example/admin"),
            ("localhost:9090", "http://localhost:9090/admin"),
            (":9090", "http://127.0.0.1:9090/admin"),
            ("[::1]:80", "http://[::1]:80/admin"),
            ("gate", "http://gate/admin"),
        ] {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!(address.at("/admin"), url);
        }
        for text in ["ftp://gate", "http://", "", "http://a b"] {
            assert!(text.parse::<ServerAddress>().is_err(), "{text:?}");
        }
    }
}
