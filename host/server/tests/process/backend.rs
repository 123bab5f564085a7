//! A server before another one, both as processes.

use std::io::Write;
use std::net::TcpStream;

use super::{Process, rest};

/// The answer to `GET path`.
fn get(process: &Process, path: &str) -> String {
    let mut socket = TcpStream::connect(&process.addr).unwrap();
    let head = "host: localhost\r\nconnection: close\r\n\r\n";
    write!(socket, "GET {path} HTTP/1.1\r\n{head}").unwrap();
    rest(socket)
}

#[test]
fn a_server_before_another_is_told_its_address_and_nothing_else() {
    let behind = Process::start(&[]);
    let url = format!("http://{}", behind.addr);
    let front = Process::start(&["--backend", &url]);
    while !get(&front, "/v1/models").contains("\"demo\"") {}
    let answer = rest(front.chat(2));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let placed = format!("x-pointsman-executor: {}\r\n", behind.addr);
    assert!(answer.contains(&placed), "{answer}");
    let executors = get(&front, "/admin/executors");
    assert!(executors.contains("\"executors_total\":1,"), "{executors}");
    for process in [front, behind] {
        process.signal("TERM");
        let (status, said) = process.end();
        assert!(status.success(), "{said}");
    }
}
