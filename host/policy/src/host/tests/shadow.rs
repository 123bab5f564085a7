//! The log lines and dumps of shadows.

use pointsman_component::{LogLevel, LogLine};

use super::*;

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
