//! The lines of policies that log much.

use super::*;

const SECOND: u64 = 1_000_000;

/// A host with `policy`, which logs this many lines with each question, and room for its events.
fn logging(policy: &Handle, lines: usize) -> PolicyHost {
    policy.set(|script| script.lines = lines);
    let mut host = PolicyHost::new(Patience {
        events_max: 1024,
        ..PATIENCE
    });
    bind(&mut host, policy);
    host
}

/// Takes the events: the number of lines, and the numbers of dropped ones that were told.
fn told(host: &mut PolicyHost) -> (u64, Vec<u64>) {
    let (mut lines, mut dropped) = (0, Vec::new());
    while let Some(event) = host.poll_event() {
        if let PolicyEventKind::LogDropped(more) = event.kind {
            dropped.push(more);
        }
        lines += u64::from(matches!(event.kind, PolicyEventKind::Logged(_)));
    }
    (lines, dropped)
}

#[test]
fn a_policy_that_logs_with_every_question_is_told_at_a_pace_and_the_rest_is_counted() {
    let policy = scripted("a");
    let mut host = logging(&policy, 32);
    let mut lines = 0;
    let mut dropped = Vec::new();
    for question in 0..1000 {
        author(&mut host, question * SECOND / 1000);
        let (more, others) = told(&mut host);
        lines += more;
        dropped.extend(others);
    }
    assert!(lines <= 256 + 10, "{lines}");
    // The instance has dropped two lines of each question by itself.
    assert_eq!(dropped, [2], "told once a second");
    author(&mut host, SECOND);
    let (more, others) = told(&mut host);
    assert_eq!(others, [1001 * (32 + 2) - 2 - lines - more]);
}

#[test]
fn a_policy_that_was_silent_can_log_much_at_once_again() {
    let policy = scripted("a");
    let mut host = logging(&policy, 300);
    for (at, lines) in [(0, 256), (SECOND, 10), (100 * SECOND, 256)] {
        author(&mut host, at);
        assert_eq!(told(&mut host).0, lines, "at {at}");
    }
}

#[test]
fn dropped_lines_are_told_before_their_policy_goes() {
    let policy = scripted("a");
    let mut host = logging(&policy, 1);
    for now in [0, 1, 2] {
        author(&mut host, now);
    }
    assert_eq!(told(&mut host), (3, vec![2]));
    host.remove(Micros(3), 0);
    let kinds = std::iter::from_fn(|| host.poll_event()).map(|event| event.kind);
    let kinds: Vec<_> = kinds.collect();
    assert_eq!(
        kinds,
        [PolicyEventKind::LogDropped(4), PolicyEventKind::Retired]
    );
}
