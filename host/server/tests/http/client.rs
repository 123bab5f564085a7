//! A client that writes bytes and reads answers, with the least knowledge of HTTP. The client
//! checks its messages against the server's OpenAPI document.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use pointsman_http::openapi::conformance::Conformance;
use pointsman_server::routes;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};

/// The checks of answers and bodies.
static CONFORMANCE: LazyLock<Conformance> =
    LazyLock::new(|| Conformance::of(routes::table(Arc::default())));

/// A connection to the server.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    /// Requests without an answer so far.
    asked: VecDeque<Asked>,
}

/// A request that was sent.
#[derive(Debug)]
struct Asked {
    method: String,
    path: String,
    /// The JSON body; absent: none was sent together with the head.
    body: Option<Value>,
}

/// The status and headers of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
}

/// An answer of the server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) body: String,
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        Self::on(TcpStream::connect(addr).await.unwrap())
    }

    /// A client with room for few unread bytes.
    pub(crate) async fn connect_narrow(addr: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self::on(socket.connect(addr).await.unwrap())
    }

    fn on(stream: TcpStream) -> Self {
        Self {
            stream: BufReader::new(stream),
            asked: VecDeque::new(),
        }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.asked.extend(requests(bytes));
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Sends a byte each `pause`, until the server has closed the connection.
    pub(crate) async fn trickle(&mut self, pause: Duration) {
        let mut answer = [0; 64];
        loop {
            tokio::select! {
                biased;
                read = self.stream.read(&mut answer) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                },
                () = tokio::time::sleep(pause) => {
                    // A connection that is closed shows when it is read.
                    drop(self.stream.write_all(b"x").await);
                }
            }
        }
    }

    /// Closes the connection for writing.
    pub(crate) async fn close_write(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) {
        self.send(post(path, &body.to_string())).await;
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
            .await;
        self.answer().await
    }

    /// Reads a whole answer.
    pub(crate) async fn answer(&mut self) -> Answer {
        let asked = self.asked.front().map(Asked::operation);
        let head = self.head().await;
        let mut body = String::new();
        if head.headers.contains_key("transfer-encoding") {
            while let Some(chunk) = self.chunk().await {
                body.push_str(&chunk);
            }
        } else {
            let length = head.headers["content-length"].parse().unwrap();
            body = self.exactly(length).await;
        }
        if let (Some((method, path)), Some(kind)) = (asked, head.header("content-type")) {
            let asked = (&*method, &*path);
            let checked = CONFORMANCE.check_answer(asked, head.status, kind, body.as_bytes());
            assert_eq!(checked, Ok(()), "{asked:?}: {} {body}", head.status);
        }
        Answer { head, body }
    }

    pub(crate) async fn head(&mut self) -> Head {
        let status = self.line().await;
        let status = status.strip_prefix("HTTP/1.1 ").unwrap()[..3]
            .parse()
            .unwrap();
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line().await;
            match line.split_once(": ") {
                Some((name, value)) => headers.insert(name.to_owned(), value.to_owned()),
                None if line.is_empty() => break,
                None => panic!("no header: {line}"),
            };
        }
        // What comes after `100 Continue` is the answer.
        if status != 100
            && let Some(asked) = self.asked.pop_front()
        {
            asked.check(status);
        }
        Head { status, headers }
    }

    /// Reads the next chunk of a body; absent: the body has ended.
    pub(crate) async fn chunk(&mut self) -> Option<String> {
        let length = usize::from_str_radix(&self.line().await, 16).unwrap();
        let chunk = self.exactly(length).await;
        assert_eq!(self.line().await, "");
        (length > 0).then_some(chunk)
    }

    /// True if the server has closed the connection and nothing is left to read.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte).await {
            Ok(read) => read == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.unwrap();
        line.strip_suffix("\r\n").expect("a line ends").to_owned()
    }

    async fn exactly(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }
}

/// The requests that begin in `bytes`.
fn requests(bytes: &[u8]) -> Vec<Asked> {
    let text = String::from_utf8_lossy(bytes);
    let bodies = text.split_once("\r\n\r\n");
    let body = bodies.and_then(|(_, body)| serde_json::from_str(body).ok());
    let heads = text
        .lines()
        .filter_map(|line| line.strip_suffix(" HTTP/1.1"));
    let asked = heads.filter_map(|line| line.rsplit_once(' '));
    asked
        .map(|(before, path)| Asked {
            // The body of the request before may end on the same line.
            method: before.rsplit('}').next().unwrap().to_owned(),
            path: path.to_owned(),
            body: body.clone(),
        })
        .collect()
}

impl Asked {
    fn operation(&self) -> (String, String) {
        (self.method.clone(), self.path.clone())
    }

    /// Checks that an accepted body fits its schema.
    fn check(&self, status: u16) {
        if let Some(body) = self.body.as_ref().filter(|_| status < 300) {
            let checked = CONFORMANCE.check_body((&self.method, &self.path), body);
            assert_eq!(checked, Ok(()), "{self:?}");
        }
    }
}

/// The way in which an answer is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    Whole,
    Streamed,
}

impl Transfer {
    pub(crate) const BOTH: [Transfer; 2] = [Transfer::Whole, Transfer::Streamed];

    /// A small completion.
    pub(crate) fn request(self) -> String {
        let stream = self == Transfer::Streamed;
        let body = json!({"model": "demo", "prompt": "Once", "stream": stream});
        post("/v1/completions", &body.to_string())
    }
}

/// The bytes of a request.
pub(crate) fn post(path: &str, body: &str) -> String {
    post_with(path, "", body)
}

/// The bytes of a request with further header lines.
pub(crate) fn post_with(path: &str, lines: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\n{lines}content-length: {length}\r\n\r\n{body}"
    )
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Status, `code`, and `param` of an error in OpenAI's shape.
    pub(crate) fn error(&self) -> (u16, String, Option<String>) {
        let json = self.json();
        let error = json["error"].as_object().unwrap();
        let fields: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(fields, ["message", "type", "param", "code"]);
        assert!(error["type"].is_string());
        assert!(!error["message"].as_str().unwrap().is_empty());
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (self.head.status, text("code").unwrap(), text("param"))
    }
}
