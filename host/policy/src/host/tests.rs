//! Chains, faults, back-off, quarantine and feeds, with scripted instances.

mod binding;
mod closed;
mod dump;
mod eject;
mod log_pace;
mod probation;
mod rebound;
mod record;
mod restarts;
mod shadow;

use std::cell::RefCell;

use pointsman_component::Limits;
use pointsman_core::rows::{Change, Extent};
use pointsman_core::{
    Answer, Author, ExecutorId, FaultKind, Feed, Moment, Question, RequestId, Round, RowKinds,
    fixture,
};

use super::*;
use crate::fixture::{Failing, Handle, scripted};
use crate::host::chain::Arm;
use crate::host::member::Asking;
use crate::policy::{Briefing, Restored, start};
use crate::runner::{InstanceCounters, Rows};

/// Rows by a script: numbers of changes, one for each `observe`; the last one repeats.
struct Feeding(RefCell<Vec<(Extent, usize)>>);

impl Rows for Feeding {
    fn changes(&self, _: &mut Feed, _: RowKinds, out: &mut Vec<Change>) -> Extent {
        let mut left = self.0.borrow_mut();
        let (extent, count) = if left.len() > 1 {
            left.remove(0)
        } else {
            left[0]
        };
        out.clear();
        out.extend((0..count).map(|_| Change::ExecutorGone(ExecutorId(0))));
        extent
    }
}

fn quiet() -> Feeding {
    Feeding(RefCell::new(vec![(Extent::SinceLast, 0)]))
}

const PATIENCE: Patience = Patience {
    back_off_micros: 100,
    back_off_max_micros: 1000,
    faults_max: 3,
    window_micros: 10_000,
    snapshot_every: 1000,
    events_max: 16,
    quarantine_max: 2,
};

/// A host with `policies` bound to `priority`, in this order.
fn host(policies: &[&Handle]) -> PolicyHost {
    let mut host = PolicyHost::new(PATIENCE);
    for policy in policies {
        bind(&mut host, policy);
    }
    for policy in policies {
        policy.calls();
    }
    host
}

fn bind(host: &mut PolicyHost, policy: &Handle) -> u32 {
    bind_with(host, policy, Limits::default())
}

fn bind_with(host: &mut PolicyHost, policy: &Handle, limits: Limits) -> u32 {
    let source = policy.source_with(limits);
    let number = host.add(start(source).unwrap()).unwrap();
    let hooks = HookSet::from_iter([Hook::Priority]);
    host.bind(Micros(0), number, hooks).unwrap();
    number
}

fn moment(now: u64) -> Moment {
    Moment {
        now: Micros(now),
        round: Round(1),
    }
}

/// Asks for an order of two requests at `now`.
fn order_from(host: &mut PolicyHost, rows: &dyn Rows, now: u64) -> Answer<Vec<RequestId>> {
    order_of(host, rows, (2, now))
}

/// Asks for an order of `count` requests at `now`.
fn order_of(
    host: &mut PolicyHost,
    rows: &dyn Rows,
    (count, now): (u64, u64),
) -> Answer<Vec<RequestId>> {
    let requests: Vec<u64> = (1..=count).collect();
    let asking = Asking {
        question: &Question::Priority(fixture::asked(&requests).into()),
        at: moment(now),
        rows,
        arm: Arm::Steady,
    };
    host.ask_chain(&asking).priority()
}

/// The author of an answer at `now`, and the number of faults before it.
fn author(host: &mut PolicyHost, now: u64) -> (Author, usize) {
    let answer = order_from(host, &quiet(), now);
    assert_eq!(answer.value.is_none(), answer.author == Author::BuiltIn);
    (answer.author, answer.faults.len())
}

/// Takes the events, without log lines.
fn events(host: &mut PolicyHost) -> Vec<(u32, PolicyEventKind)> {
    std::iter::from_fn(|| host.poll_event())
        .filter(|event| {
            !matches!(
                event.kind,
                PolicyEventKind::Logged(_) | PolicyEventKind::LogDropped(_)
            )
        })
        .map(|event| (event.policy, event.kind))
        .collect()
}

fn counters(host: &PolicyHost, policy: u32) -> InstanceCounters {
    host.runner(policy).unwrap().counters()
}

fn stats(host: &PolicyHost, policy: u32) -> PolicyStats {
    let mut status = host.status();
    status.find(|status| status.number == policy).unwrap().stats
}

// === Asking ===

#[test]
fn the_built_in_rule_decides_where_nobody_is_bound() {
    assert_eq!(order_from(&mut host(&[]), &quiet(), 1), Answer::unbound());
}

#[test]
fn observes_before_a_question_when_there_is_something_to_tell() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    let everything = vec![
        (Extent::Everything, 0),
        (Extent::SinceLast, 0),
        (Extent::SinceLast, 2),
    ];
    let rows = Feeding(RefCell::new(everything));
    for now in 1..4 {
        let answer = order_from(&mut host, &rows, now);
        assert_eq!(answer, Answer::by(0, vec![RequestId(2), RequestId(1)]));
    }
    let expected = [
        "observe 1 Everything 0",
        "order",
        "order",
        "observe 3 SinceLast 2",
        "order",
    ];
    assert_eq!(policy.calls(), expected);
    let counters = counters(&host, 0);
    assert_eq!(stats(&host, 0).answers[Hook::Priority], 3);
    assert_eq!(counters.observes, 2);
    assert_eq!((counters.fuel, counters.fuel_max), (11, 11));
}

#[test]
fn a_long_list_comes_in_several_calls_the_first_of_which_starts_anew() {
    let policy = scripted("a");
    let mut host = PolicyHost::new(PATIENCE);
    let limits = Limits {
        observe_rows: 2,
        ..Limits::default()
    };
    bind_with(&mut host, &policy, limits);
    policy.calls();
    order_from(
        &mut host,
        &Feeding(RefCell::new(vec![(Extent::Everything, 5)])),
        1,
    );
    let expected = [
        "observe 1 Everything 2",
        "observe 1 SinceLast 2",
        "observe 1 SinceLast 1",
        "order",
    ];
    assert_eq!(policy.calls(), expected);
}

#[test]
fn a_policy_is_spared_the_order_of_one_unless_it_wants_to_be_asked() {
    for (orders_one, calls) in [(false, &[][..]), (true, &["order"])] {
        let policy = scripted("a");
        policy.set(|script| script.description.orders_one = orders_one);
        let mut host = host(&[&policy]);
        let rows = Feeding(RefCell::new(vec![(Extent::SinceLast, 0)]));
        let answer = order_of(&mut host, &rows, (1, 1));
        assert_eq!(answer, Answer::by(0, vec![RequestId(1)]));
        assert_eq!(policy.calls(), calls);
        // It is told what has changed meanwhile with its next question.
        let rows = Feeding(RefCell::new(vec![(Extent::Everything, 3)]));
        order_of(&mut host, &rows, (2, 2));
        assert_eq!(policy.calls(), ["observe 2 Everything 3", "order"]);
    }
}

// === Faults ===

#[test]
fn the_displaced_policy_answers_where_the_one_in_force_faults() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = host(&[&old, &new]);
    new.fail(&[Failing::Order]);
    let answer = order_from(&mut host, &quiet(), 1);
    assert_eq!(answer.author, Author::Policy(0));
    let [fault] = answer.faults.as_slice() else {
        panic!("{answer:?}")
    };
    assert_eq!((fault.policy, fault.kind), (1, FaultKind::Trap));
    let stats = stats(&host, 1);
    assert_eq!(stats.faults.get(&FaultKind::Trap), Some(&1));
    let last = stats.fault_last.unwrap();
    assert_eq!(
        (last.kind, last.detail()),
        (fault.kind, fault.detail.clone())
    );
}

#[test]
fn a_faulted_policy_is_asked_again_after_its_back_off_with_a_fresh_instance() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    policy.fail(&[Failing::Observe]);
    let rows = Feeding(RefCell::new(vec![(Extent::Everything, 1)]));
    assert_eq!(order_from(&mut host, &rows, 1000).faults.len(), 1);
    policy.fail(&[]);
    policy.calls();
    assert_eq!(author(&mut host, 1099), (Author::BuiltIn, 0));
    assert_eq!(policy.calls(), Vec::<String>::new());
    assert_eq!(order_from(&mut host, &rows, 1100).author, Author::Policy(0));
    assert_eq!(
        policy.calls(),
        ["configure {}", "observe 1100 Everything 1", "order"]
    );
    let restarted = PolicyEventKind::Restarted {
        generation: 2,
        restored: Restored::Cold,
    };
    assert_eq!(events(&mut host), [(0, restarted)]);
}

#[test]
fn back_off_doubles_and_the_window_forgets() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    policy.fail(&[Failing::Order]);
    assert_eq!(author(&mut host, 1000), (Author::BuiltIn, 1));
    assert_eq!(author(&mut host, 1100), (Author::BuiltIn, 1));
    assert_eq!(author(&mut host, 1299), (Author::BuiltIn, 0));
    // The first two faults are out of the window by now, so this counts as the first.
    assert_eq!(author(&mut host, 11_100), (Author::BuiltIn, 1));
    policy.fail(&[]);
    assert_eq!(author(&mut host, 11_200), (Author::Policy(0), 0));
}

#[test]
fn a_policy_that_cannot_start_again_faults_at_the_start() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    policy.fail(&[Failing::Order]);
    author(&mut host, 0);
    policy.set(|script| script.refuses_settings = Some("changed my mind".to_owned()));
    let answer = order_from(&mut host, &quiet(), 100);
    assert_eq!(answer.faults.len(), 1);
    assert_eq!(answer.faults[0].kind, FaultKind::Start);
    assert_eq!(
        answer.faults[0].detail,
        "a refused the settings that it had taken: changed my mind"
    );
}

#[test]
fn too_many_faults_in_the_window_put_a_policy_in_quarantine() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = host(&[&old, &new]);
    new.fail(&[Failing::Order]);
    for now in [0, 100, 300] {
        assert_eq!(author(&mut host, now), (Author::Policy(0), 1));
    }
    assert_eq!(host.holder(Hook::Priority), Some(0));
    assert_eq!(author(&mut host, 5000), (Author::Policy(0), 0));
    let entry = host.quarantined().next().unwrap().clone();
    assert_eq!((entry.name.as_str(), entry.at), ("new", Micros(300)));
    let kinds = events(&mut host);
    assert!(kinds.contains(&(1, PolicyEventKind::Quarantined { faults: 3 })));
    let again = || start(new.source()).unwrap();
    let refused = BindError::Quarantined(new.source().fingerprint());
    assert_eq!(host.add(again()), Err(refused));
    assert!(host.release(entry.fingerprint));
    assert_eq!(host.add(again()), Ok(2));
}

#[test]
fn other_limits_than_those_in_quarantine_get_their_own_chance() {
    let policy = scripted("a");
    let mut host = host(&[&scripted("old"), &policy]);
    host.rollback(Micros(1), 1, "it smells").unwrap();
    let again = |limits| start(policy.source_with(limits)).unwrap();
    let raised = Limits {
        call_fuel: 30_000_000,
        ..Limits::default()
    };
    let refused = BindError::Quarantined(policy.source().fingerprint());
    assert_eq!(host.add(again(Limits::default())), Err(refused.clone()));
    assert_eq!(host.add(again(raised)), Ok(2));
    // An earlier release wrote no limits down.
    let mut entry = host.quarantined().next().unwrap().clone();
    entry.limits = None;
    host.restore_quarantine([entry]);
    assert_eq!(host.add(again(raised)), Err(refused));
}

#[test]
fn quarantine_outlives_the_host_and_is_bounded() {
    let entry = |name: &str| Quarantined {
        fingerprint: Digest::of(name.as_bytes()),
        limits: None,
        digest: Digest::of(b"code"),
        name: name.to_owned(),
        at: Micros(0),
        cause: Cause::Faulted,
        detail: String::new(),
    };
    let mut host = host(&[]);
    host.restore_quarantine(["a", "b", "b", "c"].map(entry));
    let names: Vec<_> = host.quarantined().map(|entry| entry.name.clone()).collect();
    assert_eq!(names, ["b", "c"]);
}
