//! A server that starts: its journal, models that are still being loaded, and policies that are still being made ready.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;

use pointsman_component::Digest;
use serde_json::json;
use tempfile::TempDir;

use super::host::{Host, Start, once, policy};

/// A policy that is busy for minutes before it can be asked anything.
pub(super) const BUSY: &str = "[settings]\noutrage = 'loop'\ncalls = ['configure']\n";

/// Limits under which that takes so long.
const PATIENT: &str = "[policies.limits]\nlifecycle-fuel = 100_000_000_000\nfuel-nanos = 1000\n";

/// A start with these policies, which are given all the time that they take.
pub(super) fn begin<'a>(files: &'a [(&'a str, &'a [u8])]) -> Start<'a> {
    Start {
        config: PATIENT,
        files,
        ..Start::default()
    }
}

#[test]
fn the_journal_has_everything_from_its_first_entry_on() {
    let host = Host::start("");
    let answer = host.complete("Hello");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // What comes before the first keyframe is written or lost before it.
    let report = loop {
        let report = host.journal();
        if report["files"] != 0 {
            break report;
        }
    };
    for outcome in ["dropped", "lost", "refused", "cut", "withheld"] {
        assert_eq!(report["entries"][outcome], 0, "{outcome}: {report}");
    }
}

/// The text of the answer to a body of `/v1/chat/completions`.
fn answer(host: &Host, body: &str) -> String {
    let (status, answer) = host.ask("POST", "/v1/chat/completions", body);
    assert_eq!(status, 200, "{answer}");
    let text = answer["choices"][0]["message"]["content"].as_str();
    text.unwrap().to_owned()
}

#[test]
fn what_people_type_first_is_answered_and_so_is_what_they_are_offered() {
    let host = Host::start("");
    let line = host.says("try: curl ");
    let offered = line.split('\'').nth(1).unwrap();
    let story = answer(&host, offered);
    // Its words are drawn.
    assert!(story.starts_with("Once there was "), "{story}");
    for (typed, expected) in [
        ("hi", "Hello! How can I help you?"),
        ("Hello!", "Hello! How can I help you?"),
        ("Count to 10", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10."),
        ("count from 1 to 5", "1, 2, 3, 4, 5."),
        ("What is 2+2?", "2 plus 2 is 4."),
        ("2 + 2", "2 plus 2 is 4."),
        (
            "What is the capital of France?",
            "The capital of France is Paris.",
        ),
        (
            "what is the capital of france",
            "The capital of France is Paris.",
        ),
        (
            "who are you",
            "I am a very small language model. A policy decides where and when I run.",
        ),
    ] {
        let messages = json!([{"role": "user", "content": typed}]);
        let body = json!({"model": "demo", "temperature": 0, "messages": messages});
        assert_eq!(answer(&host, &body.to_string()), expected, "{typed}");
    }
    let readme = include_str!("../../../../README.md");
    let asked = r#""temperature": 0,
    "messages": [{"role": "user", "content": "What is the capital of France?"}]}'"#;
    assert!(readme.contains(asked));
    assert!(readme.contains(r#""content":"The capital of France is Paris.""#));
}

#[test]
fn probes_are_answered_and_signals_heard_before_the_policies_are_ready() {
    let hostile = policy("test/hostile");
    let files = [("busy.toml", BUSY.as_bytes()), ("busy.wasm", &*hostile)];
    let host = Host::begun(&begin(&files));
    let ready = host.get("/ready");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    assert!(ready.contains("policies put in force"), "{ready}");
    let health = host.get("/health");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    // The policy would be busy for much longer than a test may take.
    assert!(host.terminate().success());
}

#[test]
fn a_policy_is_made_ready_beside_one_that_takes_its_time() {
    let busy = ("a.toml", BUSY.as_bytes());
    let (hostile, other) = (policy("test/hostile"), policy("round-robin"));
    let files = [busy, ("a.wasm", &*hostile), ("b.wasm", &*other)];
    let host = Host::begun(&begin(&files));
    // The compiled code of `b`, which comes after `a` and would otherwise wait for minutes.
    let compiled = Digest::of(&other).to_string();
    once(|| host.files("state/code").contains(&compiled).then_some(()));
    let ready = host.get("/ready");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
}

/// A model of the hub.
const MODEL: &str = "org/tiny";

/// A hub that takes connections and answers none, and the cache beside it.
struct SilentHub {
    sockets: TcpListener,
    cache: TempDir,
}

impl SilentHub {
    fn new() -> Self {
        Self {
            sockets: TcpListener::bind("127.0.0.1:0").unwrap(),
            cache: tempfile::tempdir().unwrap(),
        }
    }

    /// Gives the cache a whole copy of the model.
    fn keep_a_copy(&self) {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo-model");
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let model = self.cache.path().join("models--org--tiny");
        for folder in ["refs", "snapshots"] {
            fs::create_dir_all(model.join(folder)).unwrap();
        }
        fs::write(model.join("refs/main"), commit).unwrap();
        symlink(demo, model.join("snapshots").join(commit)).unwrap();
    }

    /// Starts a server that waits for the model.
    fn awaited(&self) -> Host {
        let endpoint = format!("http://{}", self.sockets.local_addr().unwrap());
        Host::opened(&Start {
            flags: &["--model", MODEL],
            variables: &[
                ("HF_ENDPOINT", &endpoint),
                ("HF_HUB_CACHE", self.cache.path().to_str().unwrap()),
                ("HF_HUB_OFFLINE", "0"),
            ],
            ..Start::default()
        })
    }

    /// Breaks off what was asked for, and can be reached no longer. Returns the cache, which stays.
    fn leave(self) -> TempDir {
        self.cache
    }
}

/// The answer to a GET of `path` by a connection that is kept, head and body.
fn get_by(kept: &mut BufReader<TcpStream>, path: &str) -> String {
    write!(
        kept.get_mut(),
        "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    while !answer.ends_with("\r\n\r\n") {
        assert!(kept.read_line(&mut answer).unwrap() > 0, "{answer}");
    }
    let mut lines = answer.lines();
    let bytes = lines.find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; bytes.unwrap().parse().unwrap()];
    kept.read_exact(&mut body).unwrap();
    answer + str::from_utf8(&body).unwrap()
}

#[test]
fn probes_are_answered_and_signals_heard_while_a_model_is_fetched() {
    let hub = SilentHub::new();
    let host = hub.awaited();
    for (path, status, body) in [
        ("/live", "200 OK", r#"{"status":"live"}"#),
        (
            "/ready",
            "503 Service Unavailable",
            r#"{"status":"not ready","reason":"models are being loaded"}"#,
        ),
        (
            "/health",
            "503 Service Unavailable",
            r#"{"status":"unhealthy","reason":"models are being loaded"}"#,
        ),
    ] {
        let answer = host.get(path);
        let expected = format!("HTTP/1.1 {status}\r\n");
        assert!(answer.starts_with(&expected), "{answer}");
        assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{answer}");
    }
    let models = host.get("/v1/models");
    assert!(models.starts_with("HTTP/1.1 503 "), "{models}");
    assert!(models.contains("\r\nretry-after: 1\r\n"), "{models}");
    let (status, answer) = host.ask("POST", "/v1/completions", "{}");
    let error = json!({
        "message": "the server is starting: models are being loaded",
        "type": "server_error",
        "param": null,
        "code": "starting",
    });
    assert_eq!((status, &answer["error"]), (503, &error));
    // The hub would be waited for much longer than a test may take.
    assert!(host.terminate().success());
}

#[test]
fn a_connection_from_the_time_of_loading_is_served_afterwards() {
    let hub = SilentHub::new();
    hub.keep_a_copy();
    let host = hub.awaited();
    let mut kept = BufReader::new(host.connect());
    let health = get_by(&mut kept, "/health");
    assert!(health.contains("models are being loaded"), "{health}");
    // The copy is loaded, now that nothing else is to be had.
    let _cache = hub.leave();
    host.says("answering on ");
    let health = get_by(&mut kept, "/health");
    assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    let models = get_by(&mut kept, "/v1/models");
    assert!(models.contains(r#""id":"tiny""#), "{models}");
    let metrics = host.get("/metrics");
    let counted = r#"pointsman_http_responses_total{endpoint="health",status="503"} 1"#;
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn a_start_whose_model_cannot_be_had_fails_though_it_was_answered_meanwhile() {
    let hub = SilentHub::new();
    let host = hub.awaited();
    let live = host.get("/live");
    assert!(live.starts_with("HTTP/1.1 200 "), "{live}");
    let _cache = hub.leave();
    host.says("pointsman: model org/tiny is no folder here");
    assert!(!host.ended().success());
}
