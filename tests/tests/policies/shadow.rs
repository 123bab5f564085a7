//! Shadows: policies that are asked the same as the one in force, only to compare.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread;

use pointsman_component::{Digest, Fault, Instance, Limits, PolicyDescription, PolicyEngine};
use pointsman_core::rows::{Change, Extent};
use pointsman_core::{
    Answer, Asked, Author, Bounds, Fact, Hook, HookSet, Micros, Moment, Needs, NewRequest,
    Policies, Question, Reply, Sink, Stamped, Tap, TenantId, routing,
};
use pointsman_policy::{
    Agreement, BindError, Mode, Patience, PolicyEventKind, PolicyHost, PolicySource, ShadowReport,
    ShadowState,
};
use pointsman_testkit::Flavour;
use pointsman_tests::fleet::{self, Defaults};
use pointsman_tests::trial::{add, guest, hooks, routers, serve, serve_by, world};

const SECOND: u64 = 1_000_000;

/// Number of questions that wait for a shadow, as in the policy host's `shadow.rs`.
const WAITING_MAX: u64 = 64;

// === Shadow: agreement ===

/// A tap that waits for a shadow after each question, and asks `oracle` the same: a host in which
/// the shadow's policy is in force. The oracle's answers say what the report must be.
struct Paced {
    shadow: u32,
    oracle: PolicyHost,
    expected: BTreeMap<Hook, Agreement>,
    questions: u64,
}

fn caught_up(host: &PolicyHost, shadow: u32) -> ShadowReport {
    loop {
        let report = host.shadow_report(shadow).unwrap();
        if report.pending == 0 {
            return report;
        }
        thread::yield_now();
    }
}

impl Sink<PolicyHost> for Paced {
    fn ask(&mut self, inner: &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply> {
        let answer = inner.ask(asked);
        caught_up(inner, self.shadow);
        let hook = asked.question.hook();
        if !inner.shadowed(self.shadow).contains(hook) {
            return answer;
        }
        self.questions += 1;
        let other = self.oracle.ask(asked);
        let (Some(one), Some(other)) = (&answer.value, &other.value) else {
            panic!("both answer: {answer:?} {other:?}")
        };
        let agreement = self.expected.entry(hook).or_default();
        for same in compare(one, other) {
            agreement.agreed += u64::from(same);
            agreement.differed += u64::from(!same);
        }
        agreement.fallbacks += fallbacks(one, other);
        answer
    }
}

/// Compares two replies row by row; only for the hooks of these tests.
fn compare(one: &Reply, other: &Reply) -> Vec<bool> {
    if let (Reply::Routing(one), Reply::Routing(other)) = (one, other) {
        assert_eq!(one.len(), other.len());
        let pairs = one.iter().zip(other);
        return pairs.map(|(a, b)| effect(a) == effect(b)).collect();
    }
    if let (Reply::Priority(one), Reply::Priority(other)) = (one, other) {
        assert_eq!(one.len(), other.len());
        return one.iter().zip(other).map(|(a, b)| a == b).collect();
    }
    panic!("{one:?} and {other:?} are not compared here")
}

/// The number of placements with the same first executor, which has room here, and other ones after
/// it.
fn fallbacks(one: &Reply, other: &Reply) -> u64 {
    let (Reply::Routing(one), Reply::Routing(other)) = (one, other) else {
        return 0;
    };
    let pairs = one.iter().zip(other);
    let alike = pairs.filter(|(a, b)| effect(a) == effect(b));
    alike.map(|(a, b)| u64::from(places(a) != places(b))).sum()
}

fn places(verdict: &routing::Verdict) -> &[pointsman_core::ExecutorId] {
    match &verdict.choice {
        routing::Choice::Place(executors) => executors,
        routing::Choice::Hold(_) | routing::Choice::GiveUp => &[],
    }
}

fn effect(verdict: &routing::Verdict) -> String {
    match &verdict.choice {
        routing::Choice::Place(executors) => format!("{:?}", executors.first()),
        routing::Choice::Hold(_) => "hold".to_owned(),
        routing::Choice::GiveUp => "give up".to_owned(),
    }
}

/// The report of a run in which `shadow` was asked the questions of `shown`, and the oracle's
/// counts.
fn shadowed(engine: &PolicyEngine, shadow: &PolicySource, shown: &[Hook]) -> (ShadowReport, Paced) {
    let defaults = Defaults::load(engine).unwrap();
    let mut host = defaults.host(Flavour::Component).unwrap();
    let number = add(&mut host, shadow.clone());
    host.bind_shadow(Micros(0), number, hooks(shown)).unwrap();
    let mut oracle = PolicyHost::new(Patience::default());
    let same = add(&mut oracle, shadow.clone());
    oracle.bind(Micros(0), same, hooks(shown)).unwrap();
    let paced = Paced {
        shadow: number,
        oracle,
        expected: BTreeMap::new(),
        questions: 0,
    };
    let mut world = world(Tap {
        inner: host,
        sink: paced,
    });
    serve_by(&mut world, 200, |n| [0, 1, 2][n as usize % 3]);
    let report = caught_up(&world.policies.inner, number);
    (report, world.policies.sink)
}

#[test]
fn a_copy_of_the_policy_in_force_agrees_with_it_in_every_decision() {
    let engine = PolicyEngine::new().unwrap();
    let defaults = Defaults::load(&engine).unwrap();
    for (name, hook) in [("memory-aware", Hook::Routing), ("aging", Hook::Priority)] {
        let copy = defaults.source(name, Flavour::Component).unwrap();
        let (report, paced) = shadowed(&engine, &copy, &[hook]);
        assert_eq!(
            report.overall().permille(),
            Some(1000),
            "{name}: {:?}",
            report.examples
        );
        assert_eq!(report.overall().differed, 0);
        assert!(
            report.overall().agreed >= 200,
            "{name}: {:?}",
            report.overall()
        );
        assert_eq!(report.dropped, 0);
        assert_eq!(report.answers[hook], paced.questions);
        assert_eq!(report.fuel[hook].total(), paced.questions);
        assert_eq!(report.latency[hook].total(), paced.questions);
        assert!(report.examples.is_empty());
    }
}

#[test]
fn the_agreement_of_two_policies_is_counted_exactly() {
    let engine = PolicyEngine::new().unwrap();
    // The defaults are in force. This guest takes the first executor with a slot, and orders by
    // arrival.
    let plain = guest(&engine, "{}");
    let (report, paced) = shadowed(&engine, &plain, &[Hook::Priority, Hook::Routing]);
    assert_eq!(report.agreement, paced.expected);
    for hook in [Hook::Priority, Hook::Routing] {
        let Agreement {
            agreed, differed, ..
        } = report.agreement[&hook];
        assert!(
            agreed > 0 && differed > 0,
            "{hook:?}: {agreed} and {differed} show little"
        );
    }
    // For hooks with reasons, the counts by reason add up to the counts by hook.
    let by_reason = report
        .by_reason
        .iter()
        .filter(|((hook, _), _)| *hook == Hook::Routing);
    let sum = by_reason.fold((0, 0), |(agreed, differed), (_, one)| {
        (agreed + one.agreed, differed + one.differed)
    });
    let routing = report.agreement[&Hook::Routing];
    assert_eq!(
        sum,
        (routing.agreed, routing.differed),
        "{:?}",
        report.by_reason
    );
    let example = report.examples.back().unwrap();
    assert_ne!(example.in_force.choice, example.shadow.choice);
    assert_eq!(example.shadow.policy, report.policy);
}

// === Shadow: harm ===

/// A policy that waits in every question until the test lets it go on.
struct Stuck {
    gate: Arc<Mutex<Receiver<()>>>,
}

fn stuck() -> (PolicySource, SyncSender<()>) {
    let (open, gate) = mpsc::sync_channel(100_000);
    let gate = Arc::new(Mutex::new(gate));
    let make = move || -> Box<dyn Instance> {
        Box::new(Stuck {
            gate: Arc::clone(&gate),
        })
    };
    let settings = fleet::settings("{}");
    let digest = Digest::of(b"stuck");
    (
        PolicySource::native(digest, make, &settings, Limits::default()),
        open,
    )
}

impl Instance for Stuck {
    fn hooks(&self) -> HookSet {
        hooks(&[Hook::Routing])
    }

    fn describe(&mut self) -> Result<PolicyDescription, Fault> {
        Ok(PolicyDescription {
            name: "stuck".to_owned(),
            version: "1".to_owned(),
            summary: String::new(),
            needs: Needs::default(),
            reasons: Vec::new(),
            state_version: 1,
            orders_one: true,
            settings: Vec::new(),
        })
    }

    fn configure(&mut self, _: &str, _: &Bounds) -> Result<Result<(), String>, Fault> {
        Ok(Ok(()))
    }

    fn observe(&mut self, _: Micros, _: Extent, _: &[Change]) -> Result<(), Fault> {
        Ok(())
    }

    fn ask(&mut self, _: Moment, question: &Question<'_>) -> Result<Reply, Fault> {
        // A closed gate lets it go on too.
        let waited = self.gate.lock().unwrap().recv();
        let hold = routing::Verdict {
            choice: routing::Choice::Hold(None),
            reason: u16::from(waited.is_err()),
        };
        Ok(Reply::Routing(vec![hold; question.rows()]))
    }

    fn snapshot(&mut self) -> Result<Vec<u8>, Fault> {
        Ok(Vec::new())
    }

    fn restore(&mut self, _: &[u8]) -> Result<Result<(), String>, Fault> {
        Ok(Ok(()))
    }
}

/// All facts as bytes.
fn bytes(facts: &[Stamped]) -> Vec<u8> {
    format!("{facts:?}").into_bytes()
}

#[test]
fn a_shadow_that_is_stuck_drops_and_counts_and_changes_no_decision() {
    let engine = PolicyEngine::new().unwrap();
    let defaults = Defaults::load(&engine).unwrap();
    let mut alone = world(defaults.host(Flavour::Component).unwrap());
    serve(&mut alone, 400);

    let mut host = defaults.host(Flavour::Component).unwrap();
    let (source, open) = stuck();
    let shadow = add(&mut host, source);
    host.bind_shadow(Micros(0), shadow, hooks(&[Hook::Routing]))
        .unwrap();
    let mut beside = world(host);
    serve(&mut beside, 400);
    assert_eq!(bytes(alone.facts()), bytes(beside.facts()));

    let router = beside.policies.holder(Hook::Routing).unwrap();
    let asked = |host: &PolicyHost| {
        let mut status = host.status();
        let router = status.find(|status| status.number == router).unwrap();
        router.stats.answers[Hook::Routing]
    };
    let report = beside.policies.shadow_report(shadow).unwrap();
    assert_eq!((report.pending, report.answers.total()), (WAITING_MAX, 0));
    assert_eq!(report.dropped, asked(&beside.policies) - WAITING_MAX);

    // Once it goes on, it catches up, and is asked again.
    (0..WAITING_MAX).for_each(|_| open.send(()).unwrap());
    let report = caught_up(&beside.policies, shadow);
    assert_eq!(report.answers.total(), WAITING_MAX);
    let dropped = report.dropped;
    drop(open);
    let before = asked(&beside.policies);
    beside.arrive(NewRequest::new(TenantId(0), 20, 10), 5);
    let later = beside.now().after(Micros(10 * SECOND));
    beside.run_until(later);
    let report = caught_up(&beside.policies, shadow);
    assert_eq!(report.dropped, dropped);
    let since = asked(&beside.policies) - before;
    assert!(since > 0);
    assert_eq!(report.answers.total(), WAITING_MAX + since);
}

#[test]
fn a_shadow_that_never_returns_is_ended_as_any_call_is_and_quarantined() {
    let engine = PolicyEngine::new().unwrap();
    let defaults = Defaults::load(&engine).unwrap();
    let mut host = defaults.host(Flavour::Component).unwrap();
    let source = guest(&engine, r#"{"outrage": "loop", "calls": ["route"]}"#);
    let fingerprint = source.fingerprint();
    let shadow = add(&mut host, source);
    host.bind_shadow(Micros(0), shadow, hooks(&[Hook::Routing]))
        .unwrap();
    let mut world = world(host);
    let ended = (0..1000).any(|_| {
        serve(&mut world, 8);
        caught_up(&world.policies, shadow).state != ShadowState::Running
    });
    assert!(ended, "{:?}", world.policies.shadow_report(shadow));
    let report = world.policies.shadow_report(shadow).unwrap();
    let ShadowState::Ended(why) = &report.state else {
        panic!("{report:?}")
    };
    assert!(
        why.starts_with("5 faults, the last one: hostile ran out of fuel at routing"),
        "{why}"
    );
    assert_eq!(report.faults.values().sum::<u64>(), 5);
    assert_eq!(report.answers.total(), 0);

    // The host notices the end at the next question, and does not count that.
    serve(&mut world, 8);
    let host = &mut world.policies;
    let events = std::iter::from_fn(|| host.poll_event()).collect::<Vec<_>>();
    let ended = events.iter().any(|event| {
        event.policy == shadow && matches!(event.kind, PolicyEventKind::ShadowEnded { .. })
    });
    assert!(ended, "{events:?}");
    let refused = BindError::Quarantined(fingerprint);
    assert_eq!(host.promote(Micros(0), shadow), Err(refused));
    for stamped in world.facts() {
        assert!(!matches!(stamped.fact, Fact::Fault(..)), "{stamped:?}");
    }
}

#[test]
fn who_follows_a_shadow_that_faulted_is_told_everything() {
    let engine = PolicyEngine::new().unwrap();
    let mut host = PolicyHost::new(Patience::default());
    let routing = hooks(&[Hook::Routing]);
    let plain = add(&mut host, guest(&engine, "{}"));
    host.bind(Micros(0), plain, routing).unwrap();
    // Each instance answers as the policy in force does, eight times.
    let settings = r#"{"outrage": "trap", "calls": ["route"], "good-calls": 8}"#;
    let shadow = add(&mut host, guest(&engine, settings));
    host.bind_shadow(Micros(0), shadow, routing).unwrap();
    let mut world = world(host);
    for _ in 0..30 {
        serve(&mut world, 8);
        caught_up(&world.policies, shadow);
    }
    let report = caught_up(&world.policies, shadow);
    assert_eq!(report.state, ShadowState::Running);
    let faults = report.faults.values().sum::<u64>();
    assert!(faults >= 2, "{report:?}");
    assert!(report.answers.total() > 20, "{report:?}");
    // An instance that had not been told of all placements would have held a request.
    assert_eq!(report.overall().differed, 0, "{:?}", report.examples);
}

#[test]
fn a_promoted_shadow_is_in_force_and_told_everything() {
    let engine = PolicyEngine::new().unwrap();
    let mut host = PolicyHost::new(Patience::default());
    let old = add(&mut host, guest(&engine, "{}"));
    let routing = hooks(&[Hook::Routing]);
    host.bind(Micros(0), old, routing).unwrap();
    let new = add(&mut host, guest(&engine, r#"{"good-calls": 1}"#));
    host.bind_shadow(Micros(0), new, routing).unwrap();
    assert_eq!(host.mode(new), Some(Mode::Shadow));
    assert_eq!(host.mode(old), Some(Mode::Enforce));
    let mut world = world(host);
    serve(&mut world, 40);
    let now = world.now();
    assert_eq!(world.policies.promote(now, new), Ok(routing));
    assert_eq!(world.policies.mode(new), Some(Mode::Enforce));
    assert_eq!(world.policies.shadow_report(new), None);
    serve(&mut world, 40);
    let mut placed = routers(world.facts()).into_iter().rev();
    assert!(
        placed
            .by_ref()
            .take(40)
            .all(|(_, by)| by == Author::Policy(new))
    );
    assert!(placed.all(|(_, by)| by == Author::Policy(old)));
    let refused = world
        .facts()
        .iter()
        .any(|s| matches!(s.fact, Fact::Refused(..)));
    assert!(!refused, "it knew what there was");
    assert_eq!(
        world.policies.promote(now, new),
        Err(BindError::NotOnTrial(new))
    );
}
