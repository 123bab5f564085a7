//! Clients that want the server's memory: what they take of it is bounded, and others are served.
//!
//! The server's memory is limited from outside, far below what the clients send. A server that kept
//! it would be ended by its next allocation.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::host::Host;

/// Memory that the server may have above what it has at rest, in bytes.
const ABOVE_REST: u64 = 300 << 20;
/// Size of a large body, in bytes.
const LARGE: usize = 4 << 20;
/// Number of clients with such a body: together they have several times as much as the server.
const CLIENTS: usize = 300;
/// Requests of others that must be answered meanwhile.
const MEANWHILE: usize = 5;

/// Begins a request with a large body.
fn begin(host: &Host) -> TcpStream {
    let mut socket = host.connect();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {LARGE}\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).unwrap();
    socket
}

/// Sends a part of a body, unless the server has had enough. Returns whether it took it.
fn send(socket: &mut TcpStream, part: &[u8]) -> bool {
    match socket.write_all(part) {
        Ok(()) => true,
        Err(error) => {
            let kind = error.kind();
            let is_over = matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
            assert!(is_over, "{error}");
            false
        }
    }
}

/// The answer to `client`; empty where the connection was cut off before.
fn answer(client: &mut TcpStream) -> String {
    let mut answer = String::new();
    match client.read_to_string(&mut answer) {
        Ok(_) => answer,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            String::new()
        }
    }
}

/// A body of `LARGE` bytes: this text, then a prompt that never ends.
fn body(start: &str) -> Vec<u8> {
    let mut body = start.as_bytes().to_vec();
    body.resize(LARGE, b'a');
    body
}

fn is_served(host: &Host) {
    for _ in 0..MEANWHILE {
        let answer = host.complete("Once upon a time");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn bodies_that_come_slowly_take_a_bounded_part_of_the_memory_and_keep_nobody_waiting() {
    // They are slow by their number, and the machine may be slow too.
    let host = Host::start("[http]\nbodies-max = '96MiB'\nread-timeout = '10min'\n");
    is_served(&host);
    host.limit_memory(ABOVE_REST);
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| begin(&host)).collect();
    let body = body(r#"{"model": "demo", "max_tokens": 1, "prompt": ""#);
    let (last, parts) = body.split_last().unwrap();
    for part in parts.chunks(1 << 20) {
        clients.retain_mut(|client| send(client, part));
        is_served(&host);
    }
    let mut refused = CLIENTS - clients.len();
    for client in &mut clients {
        send(client, &[*last]);
        let answer = answer(client);
        let had_room = answer.starts_with("HTTP/1.1 400");
        assert!(had_room || answer.is_empty() || answer.starts_with("HTTP/1.1 429"));
        refused += usize::from(!had_room);
    }
    assert!(refused > CLIENTS / 2, "{refused} had no room");
    is_served(&host);
    assert!(host.terminate().success());
}

#[test]
fn clients_that_leave_while_their_prompts_are_read_leave_no_work_behind_them() {
    let host = Host::start("[http]\nbodies-max = '64MiB'\n");
    is_served(&host);
    host.limit_memory(ABOVE_REST);
    // A whole body each: it is read, and its prompt is found too long, after its client has left.
    let mut body = body(r#"{"model": "demo", "prompt": ""#);
    let end = body.len() - 2;
    body[end..].copy_from_slice(b"\"}");
    for _ in 0..CLIENTS / 5 {
        let mut client = begin(&host);
        send(&mut client, &body);
        drop(client);
    }
    is_served(&host);
    assert!(host.terminate().success());
}

#[test]
fn fields_that_nobody_reads_cost_no_memory() {
    let host = Host::start("");
    is_served(&host);
    host.limit_memory(ABOVE_REST / 6);
    // Half a million lists within lists of two, each of which would be an allocation.
    let mut junk = br#"{"model": "demo", "prompt": "Hi", "max_tokens": 1, "junk": ["#.to_vec();
    junk.extend(b"[[]],".repeat((LARGE - 100) / 5));
    junk.extend(b"0]}");
    junk.resize(LARGE, b' ');
    let mut client = begin(&host);
    assert!(send(&mut client, &junk));
    let answer = answer(&mut client);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    is_served(&host);
    assert!(host.terminate().success());
}
