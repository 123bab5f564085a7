//! A hub on this machine, and the other server from which it has large files come.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::json;
use sha2::{Digest as _, Sha256};

/// The commit that every branch is.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The commit that every branch is once there is a newer one, of which no file can be had.
pub(crate) const NEWER: &str = "1123456789abcdef0123456789abcdef01234567";

/// A request that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) server: &'static str,
    pub(crate) line: String,
    pub(crate) authorization: Option<String>,
    pub(crate) range: Option<String>,
}

/// Both servers.
#[derive(Clone)]
pub(crate) struct Mock {
    pub(crate) hub: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    files: BTreeMap<String, Vec<u8>>,
    asked: Mutex<Vec<Asked>>,
    state: Mutex<State>,
}

/// The faults of the servers.
#[derive(Default)]
pub(crate) struct State {
    /// The bytes of large files after which each answer in turn breaks off.
    pub(crate) cuts: Vec<usize>,
    /// A status that the hub has for everything, with its code.
    pub(crate) refuses: Option<(u16, &'static str)>,
    /// True if large files are not what the hub says they are.
    pub(crate) lies: bool,
    /// The status that the hub has for files of a newer commit, once there is one.
    pub(crate) newer: Option<u16>,
}

impl Mock {
    /// Serves these files of `org/tiny`.
    pub(crate) fn serve(files: BTreeMap<String, Vec<u8>>) -> Self {
        let shared = Arc::new(Shared {
            files,
            asked: Mutex::default(),
            state: Mutex::default(),
        });
        let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, store) = (bind(), bind());
        let (hub_addr, store_addr) = (hub.local_addr().unwrap(), store.local_addr().unwrap());
        for (listener, name) in [(hub, "hub"), (store, "store")] {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    answer(stream, name, store_addr, &shared);
                }
            });
        }
        Self {
            hub: hub_addr,
            shared,
        }
    }

    pub(crate) fn faults(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state.lock().unwrap());
    }

    /// The requests since the last call.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.shared.asked.lock().unwrap())
    }
}

pub(crate) fn sha256(content: &[u8]) -> String {
    Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The tag of a file's content: a large one's SHA-256, and of a small one as long as git's.
pub(crate) fn tag(name: &str, content: &[u8]) -> String {
    let hash = sha256(content);
    match is_large(name) {
        true => hash,
        false => hash[..40].to_owned(),
    }
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".gguf")
}

fn request(stream: &TcpStream, server: &'static str) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let line = lines.next()?;
    let mut asked = Asked {
        server,
        line: line.trim_end_matches(" HTTP/1.1").to_owned(),
        ..Asked::default()
    };
    for header in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = header.split_once(": ").unwrap_or((&header, ""));
        match name.to_lowercase().as_str() {
            "authorization" => asked.authorization = Some(value.to_owned()),
            "range" => asked.range = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(asked)
}

fn answer(mut stream: TcpStream, server: &'static str, store: SocketAddr, shared: &Shared) {
    let Some(asked) = request(&stream, server) else {
        return;
    };
    shared.asked.lock().unwrap().push(asked.clone());
    let (method, path) = asked.line.split_once(' ').unwrap();
    let (head, body) = reply((server, method, path), &asked, (store, shared));
    let head = format!("HTTP/1.1 {head}Connection: close\r\n\r\n");
    // A client that has gone is not told.
    drop(stream.write_all(head.as_bytes()));
    if method != "HEAD" {
        drop(stream.write_all(&body));
    }
    drop(stream.shutdown(std::net::Shutdown::Write));
    drop(stream.read(&mut [0; 64]));
}

fn reply(
    (server, method, path): (&str, &str, &str),
    asked: &Asked,
    (store, shared): (SocketAddr, &Shared),
) -> (String, Vec<u8>) {
    let mut state = shared.state.lock().unwrap();
    let nothing = "404 Not Found\r\nContent-Length: 0\r\n".to_owned();
    if let Some((status, code)) = state.refuses.filter(|_| server == "hub") {
        let head = format!("{status} No\r\nX-Error-Code: {code}\r\nContent-Length: 0\r\n");
        return (head, Vec::new());
    }
    if path == "/api/models/org/tiny/revision/main" {
        let names = shared.files.keys().map(|name| json!({"rfilename": name}));
        let commit = state.newer.map_or(COMMIT, |_| NEWER);
        let list = json!({"sha": commit, "siblings": names.collect::<Vec<_>>()}).to_string();
        let head = format!("200 OK\r\nContent-Length: {}\r\n", list.len());
        return (head, list.into_bytes());
    }
    if let Some(status) = state.newer.filter(|_| path.contains(NEWER)) {
        return (format!("{status} No\r\nContent-Length: 0\r\n"), Vec::new());
    }
    let name = path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"));
    let name = name.or_else(|| path.strip_prefix("/again/"));
    let name = name.or_else(|| path.strip_prefix("/store/"));
    let Some((name, content)) = name.and_then(|name| Some((name, shared.files.get(name)?))) else {
        return (nothing, Vec::new());
    };
    let (bytes, tag) = (content.len(), tag(name, content));
    match (server, is_large(name), path.starts_with("/again/")) {
        ("hub", true, _) => {
            let head = format!(
                "302 Found\r\nX-Linked-Etag: \"{tag}\"\r\nX-Linked-Size: {bytes}\r\n\
                 Location: http://{store}/store/{name}\r\nContent-Length: 0\r\n"
            );
            (head, Vec::new())
        }
        // The hub has moved small files to another place of its own.
        ("hub", false, false) => {
            let head = format!("307 Moved\r\nLocation: /again/{name}\r\nContent-Length: 0\r\n");
            (head, Vec::new())
        }
        ("hub", false, true) => {
            let head = format!("200 OK\r\nETag: W/\"{tag}\"\r\nContent-Length: {bytes}\r\n");
            (head, content.clone())
        }
        _ => {
            assert_eq!(method, "GET");
            stored(content, asked, &mut state)
        }
    }
}

/// A large file, from where it is asked for.
fn stored(content: &[u8], asked: &Asked, state: &mut State) -> (String, Vec<u8>) {
    let from = asked.range.as_deref().unwrap_or("bytes=0-");
    let from: usize = from["bytes=".len()..]
        .trim_end_matches('-')
        .parse()
        .unwrap();
    let mut rest = content[from..].to_vec();
    if state.lies {
        rest[0] ^= 1;
    }
    let status = match from {
        0 => "200 OK\r\n".to_owned(),
        _ => {
            let (last, all) = (content.len() - 1, content.len());
            format!("206 Partial Content\r\nContent-Range: bytes {from}-{last}/{all}\r\n")
        }
    };
    let head = format!("{status}Content-Length: {}\r\n", rest.len());
    if let Some(cut) = state.cuts.pop() {
        rest.truncate(cut);
    }
    (head, rest)
}
