//! A server that starts: its journal, and policies that are still being made ready.

use pointsman_component::Digest;
use serde_json::json;

use super::host::{Host, Start, policy};

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
    for outcome in ["dropped", "lost", "refused", "withheld"] {
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
    while !host.files("state/code").contains(&compiled) {}
    let ready = host.get("/ready");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
}
