//! A server that starts: its journal, and policies that are still being made ready.

use pointsman_policy::Digest;

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
