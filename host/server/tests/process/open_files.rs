//! The limit of open files, and a server that has reached it.

use std::fs;
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use super::Process;

/// The line of a listener that has no file for another connection.
const NO_ROOM: &str = "no connection can be accepted for now";

/// Starts a server whose limit of open files is as `ulimit` is told.
fn limited(ulimit: &str, args: &[&str]) -> Process {
    let mut shell = Command::new("sh");
    let script = format!("ulimit {ulimit} && exec \"$0\" \"$@\"");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_pointsman")]);
    Process::start_by(shell, args, &[])
}

/// The limit of open files that counts for a server, and the one up to which it may be raised.
fn limits(process: &Process) -> [String; 2] {
    let path = format!("/proc/{}/limits", process.child.id());
    let limits = fs::read_to_string(path).unwrap();
    let mut lines = limits.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max open files"));
    let mut numbers = line.unwrap().split_whitespace().map(str::to_owned);
    [(), ()].map(|()| numbers.next().unwrap())
}

#[test]
fn a_server_may_have_as_many_files_open_as_the_system_allows() {
    let process = limited("-Sn 256", &[]);
    let [counts, most] = limits(&process);
    assert_eq!(counts, most);
    assert_ne!(counts, "256");
    process.signal("TERM");
    assert!(process.end().0.success());
}

#[test]
fn a_server_without_room_for_another_connection_says_so_once_and_serves_those_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pointsman.toml");
    // Nobody makes room by being too slow.
    fs::write(&config, "[http]\nread-timeout = '1h'\n").unwrap();
    let mut process = limited("-n 256", &["--config", config.to_str().unwrap()]);
    assert_eq!(limits(&process), ["256", "256"]);
    let mut first_lines = process.first_lines.iter();
    let told = "the system allows too few open files for http.connections-max";
    assert!(first_lines.any(|line| line.contains(told) && line.contains("allowed=256")));

    let mut first = TcpStream::connect(&process.addr).unwrap();
    write!(first, "GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert!(first.read(&mut [0; 64]).unwrap() > 0);
    let connect = |_| TcpStream::connect(&process.addr).unwrap();
    let silent: Vec<TcpStream> = (0..300).map(connect).collect();
    process.wait_for_line(NO_ROOM);

    // It is tried again many times while this is answered.
    let body = r#"{"model": "demo", "prompt": "Hello", "max_tokens": 1900, "ignore_eos": true}"#;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost";
    let length = body.len();
    write!(first, "{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut line = String::new();
    while !line.contains("pointsman::access") {
        line.clear();
        assert!(process.log.read_line(&mut line).unwrap() > 0, "it ended");
        assert!(!line.contains(NO_ROOM), "{line}");
    }
    assert!(line.contains("outcome=\"finished\""), "{line}");
    drop((first, silent));
    process.signal("TERM");
    assert!(process.end().0.success());
}
