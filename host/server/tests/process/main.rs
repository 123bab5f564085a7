//! The binary as a process: its start, its messages, and its end.

#![expect(clippy::unwrap_used, reason = "in tests")]

mod backend;
mod check;
mod fleet;
mod open_files;
mod output;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A server process and its log.
struct Process {
    child: Child,
    log: BufReader<ChildStderr>,
    /// The address on which the server listens.
    addr: String,
    /// The first lines of the log, up to the command to try.
    first_lines: Vec<String>,
    folder: TempDir,
}

impl Process {
    fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// Starts a server with these variables in its environment.
    fn start_with(args: &[&str], variables: &[(&str, &Path)]) -> Self {
        let program = Command::new(env!("CARGO_BIN_EXE_pointsman"));
        Self::start_by(program, args, variables)
    }

    /// Starts a server by a command that becomes the binary, and passes its arguments on.
    fn start_by(mut command: Command, args: &[&str], variables: &[(&str, &Path)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(args)
            .current_dir(folder.path())
            .env("STATE_DIRECTORY", folder.path().join("state"))
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut first_lines = Vec::new();
        while !first_lines
            .last()
            .is_some_and(|line: &String| line.contains("try: curl"))
        {
            let mut line = String::new();
            assert!(
                log.read_line(&mut line).unwrap() > 0,
                "it ended: {first_lines:?}"
            );
            first_lines.push(line);
        }
        let addr = first_lines.iter().find_map(|line| {
            let (_, rest) = line.split_once("serving on http://")?;
            rest.split([' ', '"', '\n']).next().map(str::to_owned)
        });
        Self {
            child,
            log,
            addr: addr.unwrap(),
            first_lines,
            folder,
        }
    }

    /// Begins a chat of so many tokens.
    fn chat(&self, tokens: u32) -> TcpStream {
        self.chat_by("nobody", tokens)
    }

    /// Begins a chat of so many tokens for the holder of `key`.
    fn chat_by(&self, key: &str, tokens: u32) -> TcpStream {
        let body = format!(
            r#"{{"model": "demo", "stream": true, "ignore_eos": true, "max_tokens": {tokens},
                "messages": [{{"role": "user", "content": "Hello"}}]}}"#
        );
        let mut socket = TcpStream::connect(&self.addr).unwrap();
        write!(
            socket,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             authorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        socket
    }

    /// Waits until requests are queued, as the metrics tell.
    fn wait_for_a_queue(&self) {
        loop {
            let mut socket = TcpStream::connect(&self.addr).unwrap();
            let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            socket.write_all(request.as_bytes()).unwrap();
            let metrics = rest(socket);
            let queued = metrics.lines().filter_map(|line| {
                let series = line.strip_prefix("pointsman_queued_requests{")?;
                let (_, count) = series.rsplit_once(' ')?;
                Some(count.parse::<u32>().unwrap())
            });
            if queued.sum::<u32>() > 0 {
                return;
            }
        }
    }

    /// The status and body of a completion for the holder of `key`, labelled `team=a`.
    fn complete(&self, key: &str) -> String {
        let body = r#"{"model": "demo", "prompt": "Hello", "max_tokens": 2}"#;
        let mut socket = TcpStream::connect(&self.addr).unwrap();
        write!(
            socket,
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             authorization: Bearer {key}\r\nx-pointsman-labels: team=a\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        rest(socket)
    }

    /// Reads the log up to a line with these words, and returns the line.
    fn wait_for_line(&mut self, words: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "it ended");
            if line.contains(words) {
                return line;
            }
        }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for the end, and returns the exit status and the rest of the log.
    fn end(mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        self.log.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }
}

/// Tests the operator's emergency switch, and the orders in the state folder, which hold after a
/// restart.
#[test]
fn a_signal_ejects_every_hook_and_the_server_serves_on() {
    let mut process = Process::start(&[]);
    process.signal("USR2");
    process.wait_for_line("every hook is with the embedded defaults");
    let mut socket = process.chat(4);
    let answer = first_text(&mut socket) + &rest(socket);
    assert!(answer.contains("[DONE]"), "{answer}");
    let state = process.folder.path().join("state/state.json");
    let state: Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
    let bound = state["bindings"].as_object().unwrap();
    assert_eq!(bound.len(), 5);
    assert!(bound.values().all(|to| to == "embedded"), "{state}");
    process.signal("TERM");
    let (status, _) = process.end();
    assert!(status.success());
}

/// Reads up to the first text of an answer, or further.
fn first_text(socket: &mut TcpStream) -> String {
    let mut read = String::new();
    let mut buffer = [0; 1024];
    while !read.contains(r#""content":""#) {
        let bytes = socket.read(&mut buffer).unwrap();
        assert!(bytes > 0, "{read}");
        read.push_str(&String::from_utf8_lossy(&buffer[..bytes]));
    }
    read
}

fn rest(mut socket: TcpStream) -> String {
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_first_lines_say_what_is_served_by_whom_and_how_to_try_it() {
    let process = Process::start(&[]);
    let said = process.first_lines.concat();
    for expected in [
        "models=\"demo\"",
        "policies in force",
        "admission: budget, priority: aging, routing: memory-aware",
        "/v1/chat/completions",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    process.signal("TERM");
    let (status, said) = process.end();
    assert!(status.success(), "{said}");
}

#[test]
fn logs_for_programs_are_an_object_a_line() {
    let process = Process::start(&["--log-format", "json"]);
    process.signal("TERM");
    let first = process.first_lines.concat();
    let (_, last) = process.end();
    for line in first.lines().chain(last.lines()) {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string(), "{line}");
    }
}

impl Process {
    /// The answer to a request with this head and body.
    fn ask(&self, head: &str, body: &str) -> String {
        let mut socket = TcpStream::connect(&self.addr).unwrap();
        write!(
            socket,
            "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        rest(socket)
    }

    /// Reads the log of objects up to one of this target, and returns it.
    fn wait_for_target(&mut self, target: &str) -> Value {
        let line = self.wait_for_line(&format!("\"target\":\"{target}\""));
        serde_json::from_str(&line).unwrap()
    }
}

#[test]
fn each_request_has_a_line_with_what_it_used_and_who_decided() {
    let mut process = Process::start(&["--log-format", "json"]);
    let body = r#"{"model": "demo", "prompt": "Hello", "max_tokens": 5, "ignore_eos": true}"#;
    let answer = process.ask("POST /v1/completions", body);
    assert!(answer.contains("\"prompt_tokens\":1,"), "{answer}");
    let line = process.wait_for_target("pointsman::access");
    for (field, value) in [
        ("level", Value::from("INFO")),
        ("message", "request".into()),
        ("request", 0.into()),
        ("tenant", "default".into()),
        ("model", "demo".into()),
        ("class", "latency-critical".into()),
        ("executor", "cpu0/demo".into()),
        ("policy", "memory-aware".into()),
        ("reason", "least KV pressure, then least load".into()),
        ("prompt_tokens", 1.into()),
        ("output_tokens", 5.into()),
        ("outcome", "finished".into()),
        ("trace", "4bf92f3577b34da6a3ce929d0e0e4736".into()),
        ("why", Value::Null),
    ] {
        assert_eq!(line[field], value, "{field} in {line}");
    }
    let millis = |field: &str| line[field].as_u64().unwrap();
    assert!(millis("wait_ms") <= millis("ttft_ms"), "{line}");
    assert!(millis("ttft_ms") <= millis("duration_ms"), "{line}");

    // What is refused at the door has one too.
    process.ask(
        "POST /v1/completions",
        r#"{"model": "nobody", "prompt": "Hello"}"#,
    );
    let line = process.wait_for_target("pointsman::access");
    assert_eq!(line["status"], 404, "{line}");
    assert_eq!(line["outcome"], "refused");
    assert_eq!(line["why"], "model_not_found");
    assert_eq!(line["tenant"], "default");
    assert_eq!(line["trace"], "4bf92f3577b34da6a3ce929d0e0e4736");

    // A client that leaves has used what it was given.
    let mut leaving = process.chat(1900);
    first_text(&mut leaving);
    drop(leaving);
    let line = process.wait_for_target("pointsman::access");
    assert_eq!(line["outcome"], "cancelled", "{line}");
    assert!(line["output_tokens"].as_u64().unwrap() > 0, "{line}");
    process.signal("TERM");
    assert!(process.end().0.success());
}

#[test]
fn lines_of_requests_can_be_switched_off_and_on_while_it_serves() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pointsman.toml");
    std::fs::write(&config, "[log]\naccess = false\n").unwrap();
    let mut process = Process::start(&["--config", config.to_str().unwrap()]);
    process.complete("nobody");
    std::fs::write(&config, "[log]\naccess = true\n").unwrap();
    process.signal("HUP");
    process.wait_for_line("configuration read again");
    process.complete("nobody");
    let line = process.wait_for_line("pointsman::access");
    // The label of the second one is not known either: it is the second that has a line.
    assert!(line.contains("refused"), "{line}");
    process.signal("TERM");
    let (_, rest) = process.end();
    assert!(!rest.contains("pointsman::access"), "{rest}");
}

#[test]
fn each_order_has_a_line_with_who_gave_it_and_what_came_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pointsman.toml");
    std::fs::write(&config, "[admin]\nkey = 'root'\nread-key = 'look'\n").unwrap();
    let args = ["--log-format", "json", "--config", config.to_str().unwrap()];
    let mut process = Process::start(&args);
    let order = |process: &Process, key: &str, body: &str| {
        let head = "POST /admin/bind HTTP/1.1\r\nhost: localhost\r\nconnection: close";
        let mut socket = TcpStream::connect(&process.addr).unwrap();
        let length = body.len();
        let key = format!("authorization: Bearer {key}");
        write!(
            socket,
            "{head}\r\n{key}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        rest(socket)
    };
    let bind = r#"{"hook":"priority","policy":"aging"}"#;
    assert!(order(&process, "root", bind).starts_with("HTTP/1.1 200"));
    let line = process.wait_for_target("pointsman::audit");
    assert_eq!(line["by"], "admin.key", "{line}");
    assert_eq!(line["order"], "POST /admin/bind");
    assert_eq!(line["body"], bind);
    assert_eq!(line["status"], 200);
    assert!(
        line["from"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{line}"
    );

    // A key for questions gives no orders, and the attempt is in the log.
    assert!(order(&process, "look", bind).starts_with("HTTP/1.1 403"));
    let line = process.wait_for_target("pointsman::audit");
    assert_eq!(
        (&line["by"], &line["status"]),
        (&"admin.read-key".into(), &403.into())
    );
    assert!(order(&process, "guess", bind).starts_with("HTTP/1.1 401"));
    let line = process.wait_for_target("pointsman::audit");
    assert_eq!(
        (&line["by"], &line["status"]),
        (&"nobody known".into(), &401.into())
    );
    let mut socket = TcpStream::connect(&process.addr).unwrap();
    let question = "GET /admin/policies HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                    authorization: Bearer look\r\n\r\n";
    socket.write_all(question.as_bytes()).unwrap();
    assert!(rest(socket).starts_with("HTTP/1.1 200"));
    process.signal("TERM");
    let (_, rest) = process.end();
    assert!(!rest.contains("pointsman::audit"), "{rest}");
}

#[test]
fn a_terminated_server_finishes_what_runs_and_takes_nothing_new() {
    let process = Process::start(&[]);
    let mut running = process.chat(1500);
    let text = first_text(&mut running);
    process.signal("TERM");
    let text = text + &rest(running);
    assert!(text.contains("[DONE]"), "{text}");
    assert!(text.contains(r#""finish_reason":"length""#), "{text}");
    let addr = process.addr.clone();
    let (status, said) = process.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("stopped"), "{said}");
    assert!(TcpStream::connect(addr).is_err());
}

#[test]
fn past_the_drain_deadline_what_runs_is_ended_with_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pointsman.toml");
    // A token per slot and step: more work than the deadline leaves time for.
    std::fs::write(&config, "drain = \"50ms\"\n[cpu]\ntokens-per-step = 8\n").unwrap();
    let process = Process::start(&["--config", config.to_str().unwrap()]);
    let mut clients = vec![process.chat(1900)];
    first_text(&mut clients[0]);
    clients.extend((0..16).map(|_| process.chat(1900)));
    process.wait_for_a_queue();
    process.signal("TERM");
    let (status, said) = process.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("drain deadline passed"), "{said}");
    let last_words: Vec<String> = clients.into_iter().map(rest).collect();
    // Who had begun is told so in the stream, who had not by the status.
    assert!(last_words[0].contains("\"error\""), "{last_words:?}");
    assert!(!last_words[0].contains("[DONE]"), "{last_words:?}");
    let unserved = |text: &String| text.starts_with("HTTP/1.1 503");
    assert!(last_words.iter().any(unserved), "{last_words:?}");
    // And each has its line, with what it had used by then.
    let mut lines = said.lines();
    let first = lines.find(|line| line.contains("pointsman::access: request request=0 "));
    let first = first.unwrap_or_else(|| panic!("{said}"));
    assert!(first.contains("outcome=\"cancelled\""), "{first}");
    assert!(!first.contains(" output_tokens=0 "), "{first}");
}

#[test]
fn a_second_signal_does_not_wait() {
    let process = Process::start(&[]);
    let mut running = process.chat(1900);
    first_text(&mut running);
    process.signal("INT");
    process.signal("INT");
    let (status, said) = process.end();
    // The first one's work may have been done by then.
    assert!(matches!(status.code(), Some(130 | 0)), "{status}: {said}");
}

#[test]
fn a_hangup_puts_the_changed_configuration_in_force_and_cuts_nothing_off() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pointsman.toml");
    std::fs::write(&config, "[[keys]]\nkey = 'old'\n").unwrap();
    let mut process = Process::start(&["--config", config.to_str().unwrap()]);
    assert!(process.complete("new").starts_with("HTTP/1.1 401"));
    let refused = process.complete("old");
    assert!(
        refused.contains("there is no label key `team`"),
        "{refused}"
    );
    let mut running = process.chat_by("old", 200);
    let text = first_text(&mut running);

    let changed = "[[keys]]\nkey = 'new'\ntenant = 'team-a'\n[hints]\nlabel-keys = ['team']\n\
                   [log]\nfilter = 'debug'\n[core]\nqueue-max = 7\n";
    std::fs::write(&config, changed).unwrap();
    process.signal("HUP");
    let line = process.wait_for_line("configuration read again, and in force");
    let told = r#"keys=1 tenants=1 changed="hints.label-keys, keys, log.filter""#;
    assert!(line.contains(told), "{line}");
    let line = process.wait_for_line("in force after a restart only");
    assert!(line.contains(r#"keys="core.queue-max""#), "{line}");
    let answer = process.complete("new");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    process.wait_for_line("DEBUG");
    assert!(process.complete("old").starts_with("HTTP/1.1 401"));
    // One waits for a restart, however often the file is read until then.
    process.signal("HUP");
    let line = process.wait_for_line("in force after a restart only");
    assert!(line.contains(r#"keys="core.queue-max""#), "{line}");
    let text = text + &rest(running);
    assert!(text.contains("[DONE]"), "{text}");
    process.signal("TERM");
    assert!(process.end().0.success());
}

#[test]
fn a_changed_configuration_that_cannot_be_used_changes_nothing_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pointsman.toml");
    let good = "[[keys]]\nkey = 'old'\n[hints]\nlabel-keys = ['team']\n";
    std::fs::write(&config, good).unwrap();
    let mut process = Process::start(&["--config", config.to_str().unwrap()]);
    let wrong = "[[keys]]\nkey = 'new'\n[log]\nfilter = 'inof'\n";
    std::fs::write(&config, wrong).unwrap();
    process.signal("HUP");
    let line = process.wait_for_line("configuration not used");
    assert!(line.contains("did you mean `info`?"), "{line}");
    assert!(line.contains("pointsman.toml:4:10"), "{line}");
    assert!(process.complete("new").starts_with("HTTP/1.1 401"));
    let answer = process.complete("old");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    process.signal("TERM");
    assert!(process.end().0.success());
}

#[test]
fn the_first_user_signal_does_nothing() {
    let mut process = Process::start(&[]);
    process.signal("USR1");
    process.wait_for_line("SIGUSR1 does nothing");
    let mut socket = process.chat(4);
    let answer = first_text(&mut socket) + &rest(socket);
    assert!(answer.contains("[DONE]"), "{answer}");
    process.signal("TERM");
    assert!(process.end().0.success());
}
