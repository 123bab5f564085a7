//! A client that writes bytes and reads answers, and knows no more of HTTP than that takes.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};

/// One connection.
pub(crate) struct Client(BufReader<TcpStream>);

/// Status and headers.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) body: String,
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(addr).await.unwrap()))
    }

    /// A client with room for few unread bytes.
    pub(crate) async fn connect_narrow(addr: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Self(BufReader::new(socket.connect(addr).await.unwrap()))
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Says that nothing more will come.
    pub(crate) async fn close_write(&mut self) {
        self.0.shutdown().await.unwrap();
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) {
        self.send(post(path, &body.to_string())).await;
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
            .await;
        self.answer().await
    }

    /// The whole of an answer.
    pub(crate) async fn answer(&mut self) -> Answer {
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
                None if line.is_empty() => return Head { status, headers },
                None => panic!("no header: {line}"),
            };
        }
    }

    /// The next chunk of a body; absent at its end.
    pub(crate) async fn chunk(&mut self) -> Option<String> {
        let length = usize::from_str_radix(&self.line().await, 16).unwrap();
        let chunk = self.exactly(length).await;
        assert_eq!(self.line().await, "");
        (length > 0).then_some(chunk)
    }

    /// Whether the server has closed the connection and sent nothing before that was not read.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.0.read(&mut byte).await {
            Ok(read) => read == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// Whether the server has sent nothing so far.
    pub(crate) fn has_nothing_to_read(&self) -> bool {
        let stream = self.0.get_ref();
        self.0.buffer().is_empty()
            && stream
                .try_read(&mut [0])
                .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        line.strip_suffix("\r\n").expect("a line ends").to_owned()
    }

    async fn exactly(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }
}

/// How an answer is asked for.
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
    format!("POST {path} HTTP/1.1\r\nhost: x\r\n{lines}content-length: {length}\r\n\r\n{body}")
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
        assert_eq!(fields, ["code", "message", "param", "type"]);
        assert!(error["type"].is_string());
        assert!(!error["message"].as_str().unwrap().is_empty());
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (self.head.status, text("code").unwrap(), text("param"))
    }
}
