//! The log lines and dumps of shadows, and the number of shadows.

use pointsman_component::{LogLevel, LogLine};

use super::*;
use crate::shadow::ShadowState;

/// A host with the shadow `shadow`, and with a policy in force that never fails.
fn shadowed(shadow: &Handle) -> (PolicyHost, u32) {
    let mut host = host(&[&scripted("in-force")]);
    let number = host.add(start(shadow.source()).unwrap()).unwrap();
    let hooks = HookSet::from_iter([Hook::Priority]);
    host.bind_shadow(Micros(0), number, hooks).unwrap();
    (host, number)
}

/// Asks at `now`, tells everything, and waits for the shadow.
fn ask(host: &mut PolicyHost, shadow: u32, now: u64) {
    let everything = Feeding(RefCell::new(vec![(Extent::Everything, 1)]));
    let answer = order_from(host, &everything, now);
    assert_eq!(answer.author, Author::Policy(0));
    while host.shadow_report(shadow).unwrap().pending > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn what_a_shadow_logs_is_told_as_the_policys() {
    let (mut host, shadow) = shadowed(&scripted("a"));
    ask(&mut host, shadow, 3);
    let events = std::iter::from_fn(|| host.poll_event());
    let its: Vec<_> = events.filter(|event| event.policy == shadow).collect();
    let line = LogLine {
        level: LogLevel::Info,
        message: "said".to_owned(),
    };
    let event = |kind| PolicyEvent {
        at: Micros(3),
        policy: shadow,
        kind,
    };
    assert_eq!(
        its,
        [
            event(PolicyEventKind::Logged(line)),
            event(PolicyEventKind::LogDropped(2))
        ]
    );
}

#[test]
fn a_fault_of_a_shadow_leaves_a_dump() {
    let policy = scripted("a");
    let (mut host, shadow) = shadowed(&policy);
    policy.fail(&[Failing::Order]);
    ask(&mut host, shadow, 3);
    let dump = host.poll_dump().unwrap();
    assert_eq!(
        (dump.policy, dump.at, dump.round),
        (shadow, Micros(3), Some(Round(1)))
    );
    let question = Question::Priority(fixture::asked(&[1, 2]).into());
    let asked = DumpedCall::Question(question);
    assert_eq!((dump.asked, dump.mirror), (asked, None));
    assert_eq!((dump.name.as_str(), dump.generation), ("a", 1));
    assert!(dump.detail.contains("scripted at"), "{}", dump.detail);

    // The next question goes to a fresh instance.
    ask(&mut host, shadow, 4);
    host.end_shadow(Micros(5), shadow);
    let dumps: Vec<_> = std::iter::from_fn(|| host.poll_dump()).collect();
    let generations: Vec<u32> = dumps.iter().map(|dump| dump.generation).collect();
    assert_eq!(generations, [2], "it is fetched before the shadow goes");
}

#[test]
fn what_a_shadow_leaves_is_bounded_until_it_is_fetched() {
    let (mut host, shadow) = shadowed(&scripted("a"));
    for micros in 0..300 {
        // The driver asks and never polls.
        ask(&mut host, shadow, micros);
    }
    host.fetch_shadow_output();
    let events = std::iter::from_fn(|| host.poll_event());
    let dropped = events.filter_map(|event| {
        if let PolicyEventKind::LogDropped(lines) = event.kind {
            return (event.policy == shadow).then_some(lines);
        }
        None
    });
    assert_eq!(dropped.last(), Some(2 * 300 + (300 - 256)));
}

#[test]
fn a_shadow_logs_at_the_pace_of_any_policy() {
    let policy = scripted("a");
    policy.set(|script| script.lines = 256);
    let (mut host, shadow) = shadowed(&policy);
    ask(&mut host, shadow, 3);
    while host.poll_event().is_some() {}
    let mut told = |now| {
        ask(&mut host, shadow, now);
        let events = std::iter::from_fn(|| host.poll_event());
        let its = events.filter(|event| event.policy == shadow);
        its.map(|event| event.kind).collect::<Vec<_>>()
    };
    assert_eq!(told(4), [], "it has logged as much as it may at once");
    let kinds = told(1_000_003);
    assert_eq!(kinds.len(), 11, "{kinds:?}");
    let dropped = (256 + 2) + (256 - 10 + 2);
    assert_eq!(kinds.last(), Some(&PolicyEventKind::LogDropped(dropped)));
}

// === Places ===

/// Installs shadows with these names, and removes policies, in one commit.
fn replace(host: &mut PolicyHost, names: &[&str], remove: &[u32]) -> Result<Vec<u32>, CommitError> {
    let install = names.iter().map(|name| Install {
        policy: start(scripted(name).source()).unwrap(),
        assignment: Assignment::Shadow(HookSet::from_iter([Hook::Priority])),
        default_of: HookSet::EMPTY,
        probation: None,
    });
    let commit = Commit {
        install: install.collect(),
        remove: remove.to_vec(),
        ..Commit::default()
    };
    Ok(host.commit(Micros(0), commit)?.installed)
}

fn too_many() -> Result<Vec<u32>, CommitError> {
    let error = BindError::TooManyShadows(4);
    Err(CommitError::Install { at: 0, error })
}

#[test]
fn a_shadow_that_goes_makes_place_within_its_commit() {
    let mut host = host(&[&scripted("in-force")]);
    let first = replace(&mut host, &["a", "b", "c", "d"], &[]).unwrap();
    assert_eq!(replace(&mut host, &["e"], &[]), too_many());
    let fifth = replace(&mut host, &["e"], &first[..1]).unwrap();
    let shadows = host.numbers().filter(|it| !host.shadowed(*it).is_empty());
    let shadows: Vec<u32> = shadows.collect();
    assert_eq!(shadows, [&first[1..], &fifth[..]].concat());
}

#[test]
fn a_shadow_that_has_ended_makes_place() {
    let failing = scripted("failing");
    let (mut host, shadow) = shadowed(&failing);
    replace(&mut host, &["a", "b", "c"], &[]).unwrap();
    assert_eq!(replace(&mut host, &["d"], &[]), too_many());
    failing.fail(&[Failing::Order]);
    // The question after its last fault finds it ended.
    for now in 3..7 {
        ask(&mut host, shadow, now);
    }
    let state = host.shadow_report(shadow).unwrap().state;
    assert!(matches!(state, ShadowState::Ended(_)), "{state:?}");
    replace(&mut host, &["d"], &[]).unwrap();
}
