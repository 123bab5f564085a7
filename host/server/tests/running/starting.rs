//! A server whose policies are still being made ready.

use super::host::{Host, policy};

/// A policy that is busy for minutes before it can be asked anything.
const BUSY: &str = "[settings]\noutrage = 'loop'\ncalls = ['configure']\n";

/// Limits under which that takes so long.
const PATIENT: &str = "[policies.limits]\nlifecycle-fuel = 100_000_000_000\nfuel-nanos = 1000\n";

#[test]
fn probes_are_answered_and_signals_heard_before_the_policies_are_ready() {
    let files = [
        ("busy.toml", BUSY.as_bytes()),
        ("busy.wasm", &policy("test/hostile")),
    ];
    let host = Host::begin(PATIENT, &files);
    let ready = host.get("/ready");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    assert!(ready.contains("policies put in force"), "{ready}");
    let health = host.get("/health");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    // The policy would be busy for much longer than a test may take.
    assert!(host.terminate().success());
}
