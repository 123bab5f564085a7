//! An HTTP client as plain as can be: one connection per request, answers as they come. It checks
//! what it sees against the server's OpenAPI document.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, anyhow, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use pointsman_http::openapi::conformance::Conformance;
use pointsman_server::routes;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// An HTTP client of one server.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    addr: SocketAddr,
    key: Option<&'static str>,
    words: Words,
}

/// The author of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    /// Pointsman, whose answers are checked against its document.
    Own,
    /// Another server, whose answers are its own affair.
    Others,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// A streamed answer under way. Dropping it closes the connection.
#[derive(Debug)]
pub struct Stream {
    pub headers: HeaderMap,
    words: Words,
    body: Incoming,
    connection: JoinHandle<()>,
    /// Bytes of an event that has not ended.
    rest: Vec<u8>,
}

/// A stream that was read to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Streamed {
    /// All pieces of text, put together.
    pub text: String,
    pub finish_reason: Option<String>,
    /// The error, if one came as an event.
    pub error: Option<Value>,
    /// True if the last event was `[DONE]`.
    pub done: bool,
}

const CHAT: &str = "/v1/chat/completions";

/// The checks of answers and bodies.
pub(crate) static CONFORMANCE: LazyLock<Conformance> =
    LazyLock::new(|| Conformance::of(routes::table(Arc::default())));

// === impl Client ===

impl Client {
    /// Makes a client of the server at `addr`, without a key.
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            key: None,
            words: Words::Own,
        }
    }

    /// The address of the server.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Makes it send an API key.
    #[must_use]
    pub fn with_key(self, key: &'static str) -> Self {
        Self {
            key: Some(key),
            ..self
        }
    }

    /// Makes it take answers in the words of another server.
    #[must_use]
    pub fn for_others(self) -> Self {
        Self {
            words: Words::Others,
            ..self
        }
    }

    /// Sends `GET path`.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.whole(Method::GET, path, None).await
    }

    /// Sends `POST path` with a JSON body.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.whole(Method::POST, path, Some(body)).await
    }

    /// Sends `DELETE path`.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn delete(&self, path: &str) -> Result<Answer> {
        self.whole(Method::DELETE, path, None).await
    }

    /// Sends a chat of one message, and waits for the whole answer.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn chat(&self, message: &str) -> Result<Answer> {
        self.post(CHAT, &chat(message)).await
    }

    /// Sends a chat whose answer is streamed, and waits for its first text.
    ///
    /// # Errors
    /// If the answer is not a stream, or has no text.
    pub async fn running(&self, body: &Value) -> Result<Stream> {
        let mut stream = self.stream(body).await?;
        stream.first_text().await?;
        Ok(stream)
    }

    /// Sends a chat whose answer is streamed.
    ///
    /// # Errors
    /// If the answer is not a stream.
    pub async fn stream(&self, body: &Value) -> Result<Stream> {
        let (response, connection) = self.send(Method::POST, CHAT, Some(body)).await?;
        let status = response.status();
        let (parts, body) = response.into_parts();
        if status != StatusCode::OK {
            let body = body.collect().await?.to_bytes();
            anyhow::bail!("{status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(Stream {
            headers: parts.headers,
            words: self.words,
            body,
            connection,
            rest: Vec::new(),
        })
    }

    /// Sends a body as it is, with these headers. The answer is not checked.
    ///
    /// # Errors
    /// If there is no answer, or its body breaks off.
    pub async fn raw(
        &self,
        path: &str,
        headers: &[(&'static str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer> {
        let mut request = Request::post(path).body(Full::new(body.into()))?;
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse()?);
        }
        self.exchange(request).await
    }

    /// Sends a request without a body. The answer is not checked.
    ///
    /// # Errors
    /// If there is no answer, or its body breaks off.
    pub async fn unchecked(&self, method: Method, path: &str) -> Result<Answer> {
        let request = Request::builder().method(method).uri(path);
        self.exchange(request.body(Full::default())?).await
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer> {
        let (response, connection) = self.request(request).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes().to_vec();
        connection.abort();
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body,
        })
    }

    async fn whole(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer> {
        let (response, connection) = self.send(method.clone(), path, body).await?;
        let (parts, received) = response.into_parts();
        let received = received.collect().await?.to_bytes().to_vec();
        connection.abort();
        let answer = Answer {
            status: parts.status,
            headers: parts.headers,
            body: received,
        };
        if self.words == Words::Others {
            return Ok(answer);
        }
        let asked = (method.as_str(), path);
        let kind = answer.header("content-type");
        let status = answer.status.as_u16();
        let checked = CONFORMANCE.check_answer(asked, status, kind, &answer.body);
        checked.map_err(|why| anyhow!("{asked:?} is answered with {status}: {why}"))?;
        if let Some(body) = body.filter(|_| answer.status.is_success()) {
            let checked = CONFORMANCE.check_body(asked, body);
            checked.map_err(|why| anyhow!("{asked:?} accepts {body}: {why}"))?;
        }
        Ok(answer)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(Response<Incoming>, JoinHandle<()>)> {
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = Request::builder().method(method).uri(path);
        self.request(request.body(Full::new(body))?).await
    }

    async fn request(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, JoinHandle<()>)> {
        let host = self.addr.to_string().parse()?;
        request.headers_mut().insert(HOST, host);
        if let Some(key) = self.key {
            let key = format!("Bearer {key}").parse()?;
            request.headers_mut().insert(AUTHORIZATION, key);
        }
        let stream = TcpStream::connect(self.addr).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(async move {
            // A broken connection shows in the answer.
            drop(connection.await);
        });
        let response = sender.send_request(request).await?;
        Ok((response, connection))
    }
}

/// The body of a greedy chat of one message.
#[must_use]
pub fn chat(message: &str) -> Value {
    json!({
        "model": "demo",
        "temperature": 0,
        "messages": [{"role": "user", "content": message}],
    })
}

/// The same with a streamed answer.
#[must_use]
pub fn streamed_chat(message: &str) -> Value {
    let mut body = chat(message);
    body["stream"] = json!(true);
    body
}

/// A streamed chat whose answer goes on for so many tokens, unless its client leaves.
#[must_use]
pub fn endless_chat(message: &str, tokens: u32) -> Value {
    let mut body = streamed_chat(message);
    body["ignore_eos"] = json!(true);
    body["max_tokens"] = json!(tokens);
    body
}

// === impl Answer ===

impl Answer {
    /// The body as JSON.
    ///
    /// # Errors
    /// If the body is not JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("{}: {:?}", self.status, String::from_utf8_lossy(&self.body)))
    }

    /// The text of a chat's answer.
    ///
    /// # Errors
    /// If the answer is an error or has no text.
    pub fn text(&self) -> Result<String> {
        ensure!(self.status == StatusCode::OK, "{:?}", self.json());
        let json = self.json()?;
        let text = json["choices"][0]["message"]["content"].as_str();
        Ok(text.context("no content")?.to_owned())
    }

    /// The text of a header; empty if it is missing.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or("")
    }
}

// === impl Stream ===

impl Stream {
    /// Reads the data of the next event; `None` at the end.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn event(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.rest.drain(..end + 2).collect();
                let event = String::from_utf8(event)?;
                // Empty lines alone, which end whatever came before, are no event.
                if event.trim().is_empty() {
                    continue;
                }
                if self.words == Words::Own {
                    let bytes = event.as_bytes();
                    let checked =
                        CONFORMANCE.check_answer(("POST", CHAT), 200, "text/event-stream", bytes);
                    checked.map_err(|why| anyhow!("{event}: {why}"))?;
                }
                let data = event.trim_end().strip_prefix("data: ");
                return Ok(Some(
                    data.with_context(|| format!("not a data event: {event}"))?
                        .to_owned(),
                ));
            }
            let Some(frame) = self.body.frame().await else {
                ensure!(self.rest.is_empty(), "the stream ends within an event");
                return Ok(None);
            };
            if let Some(data) = frame?.data_ref() {
                self.rest.extend_from_slice(data);
            }
        }
    }

    /// Reads until the first piece of text.
    ///
    /// # Errors
    /// If the connection breaks or the stream ends before.
    pub async fn first_text(&mut self) -> Result<String> {
        loop {
            let event = self.event().await?.context("no text")?;
            let event: Value = serde_json::from_str(&event)?;
            match event["choices"][0]["delta"]["content"].as_str() {
                Some(text) if !text.is_empty() => return Ok(text.to_owned()),
                _ => {}
            }
        }
    }

    /// Reads the stream to its end.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn finish(mut self) -> Result<Streamed> {
        let mut streamed = Streamed::default();
        while let Some(event) = self.event().await? {
            ensure!(!streamed.done, "an event after [DONE]");
            if event == "[DONE]" {
                streamed.done = true;
                continue;
            }
            let event: Value = serde_json::from_str(&event)?;
            if !event["error"].is_null() {
                streamed.error = Some(event["error"].clone());
            }
            let choice = &event["choices"][0];
            if let Some(text) = choice["delta"]["content"].as_str() {
                streamed.text.push_str(text);
            }
            if let Some(reason) = choice["finish_reason"].as_str() {
                streamed.finish_reason = Some(reason.to_owned());
            }
        }
        Ok(streamed)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.abort();
    }
}
