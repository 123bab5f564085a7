//! Fresh instances that are made elsewhere, while others answer.

use pointsman_core::{Config, Machine, TenantId};

use super::*;
use crate::runner::Restarts;

/// A host with `policies` bound to `priority`, in this order, that restarts them elsewhere.
fn busy_host(policies: &[&Handle]) -> PolicyHost {
    let mut host = PolicyHost::new(PATIENCE).with_restarts(Restarts::Elsewhere);
    for policy in policies {
        bind(&mut host, policy);
    }
    for policy in policies {
        policy.calls();
    }
    host
}

/// Asks until `policy` is asked, and returns the number of faults with its answer.
fn asked(host: &mut PolicyHost, policy: u32, now: u64) -> Answer<Vec<RequestId>> {
    asked_from(host, &quiet(), (policy, now))
}

/// [`asked`] with these rows.
fn asked_from(
    host: &mut PolicyHost,
    rows: &dyn Rows,
    (policy, now): (u32, u64),
) -> Answer<Vec<RequestId>> {
    loop {
        let answer = order_from(host, rows, now);
        let faulted = answer.faults.iter().any(|fault| fault.policy == policy);
        if faulted || answer.author == Author::Policy(policy) {
            return answer;
        }
        std::thread::yield_now();
    }
}

#[test]
fn the_next_in_line_answers_until_a_fresh_instance_is_there() {
    let (behind, policy) = (scripted("behind"), scripted("in-force"));
    let mut host = busy_host(&[&behind, &policy]);
    policy.fail(&[Failing::Order]);
    let open = policy.gate();
    assert_eq!(author(&mut host, 1), (Author::Policy(0), 1));
    policy.fail(&[]);
    for now in [2, 1000, 100_000] {
        assert_eq!(author(&mut host, now), (Author::Policy(0), 0));
    }
    open.send(()).unwrap();
    let answer = asked(&mut host, 1, 100_001);
    assert_eq!(answer.faults, []);
    assert_eq!(host.last_asked().began[0].generation, 2);
}

#[test]
fn a_policy_that_nobody_asked_during_a_probation_answers_the_question_that_ends_it() {
    let (old, new) = (scripted("old"), scripted("new"));
    let mut host = busy_host(&[&old, &new]);
    host.begin_probation(Micros(0), 1, Probation::default())
        .unwrap();
    old.calls();
    // Were it made anew, it would wait here.
    let _closed = old.gate();
    new.fail(&[Failing::Order]);
    assert_eq!(author(&mut host, 1), (Author::Policy(0), 1));
    assert_eq!(host.holder(Hook::Priority), Some(0));
    assert_eq!(host.quarantined().count(), 1);
    assert_eq!(old.calls(), ["order"]);
}

/// A machine with several rows.
fn machine() -> Machine {
    let mut machine = Machine::new(Config::default()).unwrap();
    for tenant in ["one", "other"] {
        machine.intern::<TenantId>(Micros(0), tenant);
    }
    machine
}

/// A host of two policies, and a machine. The one in force has been told of it and has faulted; it
/// is told one row with each call.
fn faulted(policy: &Handle) -> (PolicyHost, Machine) {
    let limits = Limits {
        observe_rows: 1,
        ..Limits::default()
    };
    faulted_with(policy, limits)
}

/// [`faulted`] with these limits.
fn faulted_with(policy: &Handle, limits: Limits) -> (PolicyHost, Machine) {
    let machine = machine();
    let mut host = busy_host(&[&scripted("behind")]);
    bind_with(&mut host, policy, limits);
    policy.fail(&[Failing::Order]);
    let answer = order_from(&mut host, &machine.view(), 1);
    assert_eq!((answer.author, answer.faults.len()), (Author::Policy(0), 1));
    policy.fail(&[]);
    policy.calls();
    (host, machine)
}

/// The number of rows that policy 1 is told of `machine`.
fn rows(host: &PolicyHost, machine: &Machine) -> usize {
    let needs = host.description(1).unwrap().needs;
    let briefing = Briefing::new(&machine.view(), Micros(0), needs);
    briefing.changes.len()
}

/// Waits until policy 1 has no thread that makes or tells its next instance.
fn wait_for_thread(host: &PolicyHost) {
    while host.runner(1).unwrap().is_underway() {
        std::thread::yield_now();
    }
}

/// Asks until `policy` is being told everything, while the one behind it answers.
fn told_everything(host: &mut PolicyHost, machine: &Machine, policy: &Handle) {
    let is_observe = |call: &String| call.starts_with("observe ");
    while !policy.calls().iter().any(is_observe) {
        let answer = order_from(host, &machine.view(), 1000);
        assert_eq!(answer.author, Author::Policy(0));
        std::thread::yield_now();
    }
}

#[test]
fn the_next_in_line_answers_until_a_fresh_instance_has_been_told_everything() {
    let policy = scripted("in-force");
    let (mut host, machine) = faulted(&policy);
    let open = policy.gate_of_everything();
    told_everything(&mut host, &machine, &policy);
    for now in [1000, 100_000] {
        let answer = order_from(&mut host, &machine.view(), now);
        assert_eq!((answer.author, answer.faults.len()), (Author::Policy(0), 0));
    }
    open.send(()).unwrap();
    let answer = asked_from(&mut host, &machine.view(), (1, 100_001));
    assert_eq!(answer.faults, []);
    let began = Began {
        policy: 1,
        generation: 2,
        state: None,
        was_briefed: true,
    };
    assert_eq!(host.last_asked().began, [began]);
    let mut calls = vec!["observe 1000 SinceLast 1"; rows(&host, &machine) - 1];
    calls.push("order");
    assert_eq!(policy.calls(), calls, "it knows everything");
}

#[test]
fn what_one_call_tells_a_fresh_instance_is_told_with_its_first_question() {
    let policy = scripted("in-force");
    let (mut host, machine) = faulted_with(&policy, Limits::default());
    wait_for_thread(&host);
    policy.calls();
    let answer = order_from(&mut host, &machine.view(), 1000);
    assert_eq!((answer.author, answer.faults.len()), (Author::Policy(1), 0));
    let everything = format!("observe 1000 Everything {}", rows(&host, &machine));
    assert_eq!(policy.calls(), [everything.as_str(), "order"]);
    let last = host.last_asked();
    assert!(last.briefed.is_empty() && !last.began[0].was_briefed);
}

#[test]
fn a_fresh_instance_that_cannot_keep_up_with_changes_faults_before_a_question_waits_for_it() {
    for (observe_fuel, kinds) in [(60_000_000, &[FaultKind::Deadline][..]), (1000, &[])] {
        let policy = scripted("in-force");
        policy.set(|script| script.observe_fuel = observe_fuel);
        let (mut host, mut machine) = faulted(&policy);
        let open = policy.gate_of_everything();
        told_everything(&mut host, &machine, &policy);
        for tenant in ["third", "fourth"] {
            machine.intern::<TenantId>(Micros(1000), tenant);
        }
        open.send(()).unwrap();
        let answer = asked_from(&mut host, &machine.view(), (1, 1001));
        let faults: Vec<FaultKind> = answer.faults.iter().map(|fault| fault.kind).collect();
        assert_eq!(faults, kinds);
        let told_later = |call: &String| call.starts_with("observe 1001 ");
        assert_eq!(policy.calls().iter().any(told_later), kinds.is_empty());
    }
}

#[test]
fn a_question_whose_rows_are_told_elsewhere_says_so() {
    let policy = scripted("in-force");
    let (mut host, machine) = faulted(&policy);
    while host.last_asked().briefed.is_empty() {
        order_from(&mut host, &machine.view(), 1000);
        std::thread::yield_now();
    }
    let needs = host.description(1).unwrap().needs;
    let briefed = BriefedElsewhere {
        generation: 2,
        state: None,
        needs,
        told: Briefing::new(&machine.view(), Micros(1000), needs)
            .told()
            .unwrap(),
    };
    assert_eq!(host.last_asked().briefed, [(1, briefed)]);
    asked_from(&mut host, &machine.view(), (1, 1001));
    assert!(host.last_asked().briefed.is_empty());
}

#[test]
fn a_fresh_instance_that_ends_on_what_it_is_told_faults_the_question_that_needs_it() {
    let policy = scripted("in-force");
    let (mut host, machine) = faulted(&policy);
    policy.fail(&[Failing::Observe]);
    let answer = asked_from(&mut host, &machine.view(), (1, 1000));
    assert_eq!(answer.author, Author::Policy(0));
    assert_eq!(answer.faults[0].kind, FaultKind::Trap);
    assert_eq!(host.last_asked().began[0].generation, 2, "it had begun");
}

#[test]
fn an_instance_that_cannot_be_made_is_not_said_to_be_told_anything() {
    let policy = scripted("in-force");
    let (mut host, machine) = faulted(&policy);
    policy.fail(&[Failing::Make]);
    let member = host.members.get_mut(&1).unwrap();
    member.restart(None, Micros(2), &mut host.shared);
    wait_for_thread(&host);
    let answer = order_from(&mut host, &machine.view(), 1000);
    assert_eq!(answer.faults[0].kind, FaultKind::Start);
    let last = host.last_asked();
    assert!(last.briefed.is_empty() && last.began.is_empty());
}

#[test]
fn an_instance_that_nobody_wants_any_more_is_told_no_further() {
    let policy = scripted("in-force");
    let (mut host, machine) = faulted(&policy);
    let open = policy.gate_of_everything();
    told_everything(&mut host, &machine, &policy);
    host.remove(Micros(2000), 1);
    drop(host.poll_retired());
    open.send(()).unwrap();
    while policy.is_in_use() {
        std::thread::yield_now();
    }
    assert_eq!(policy.calls(), Vec::<String>::new());
}

#[test]
fn an_instance_that_has_come_and_is_not_wanted_is_left_to_be_dropped_elsewhere() {
    let mut runner = start(scripted("a").source()).unwrap();
    runner.join_host(PATIENCE, Restarts::Elsewhere);
    runner.restart(None, Micros(1));
    while runner.is_underway() {
        std::thread::yield_now();
    }
    drop(runner.take_output());
    runner.restart(Some(vec![9]), Micros(2));
    assert_eq!(runner.take_output().retired.len(), 1);
}

#[test]
fn a_replay_tells_first_what_was_told_elsewhere_and_then_what_has_changed_since() {
    let policy = scripted("a");
    let mut machine = machine();
    let mut runner = start(policy.source()).unwrap();
    runner.restart(None, Micros(5));
    let needs = runner.description().needs;
    let briefing = Briefing::new(&machine.view(), Micros(6), needs);
    let everything = format!("observe 6 Everything {}", briefing.changes.len());
    runner.brief_next(briefing);
    machine.intern::<TenantId>(Micros(7), "third");
    policy.calls();
    let question = Question::Priority(fixture::asked(&[1]).into());
    let answered = runner.ask_with(&machine.view(), moment(8), &question);
    answered.unwrap();
    let calls = policy.calls();
    assert_eq!(calls[..2], ["configure {}".to_owned(), everything]);
    assert!(calls[2].starts_with("observe 8 SinceLast "), "{calls:?}");
    assert_eq!(calls[3..], ["order"]);
    assert_eq!(runner.counters().briefed, 1);
}

#[test]
fn what_was_told_elsewhere_before_a_keyframe_is_told_anew() {
    let policy = scripted("in-force");
    let (mut host, machine) = faulted(&policy);
    let open = policy.gate_of_everything();
    told_everything(&mut host, &machine, &policy);
    host.renew(Micros(2000), &machine.view());
    told_everything(&mut host, &machine, &policy);
    for _ in 0..2 {
        open.send(()).unwrap();
    }
    asked_from(&mut host, &machine.view(), (1, 3000));
    assert_eq!(host.last_asked().began[0].generation, 2);
}

#[test]
fn a_policy_that_faults_on_its_snapshot_at_a_keyframe_has_one_instance_made() {
    let policy = scripted("a");
    let mut host = busy_host(&[&policy]);
    policy.fail(&[Failing::Snapshot]);
    host.renew_from(Micros(1), &quiet());
    asked(&mut host, 0, 1000);
    let calls = policy.calls();
    assert_eq!(calls, ["snapshot", "configure {}", "order"]);
}

#[test]
fn an_instance_that_comes_during_its_back_off_is_asked_afterwards() {
    let (behind, policy) = (scripted("behind"), scripted("in-force"));
    let mut host = busy_host(&[&behind, &policy]);
    policy.fail(&[Failing::Order]);
    assert_eq!(author(&mut host, 1), (Author::Policy(0), 1));
    policy.fail(&[]);
    while !policy.calls().contains(&"configure {}".to_owned()) {
        std::thread::yield_now();
    }
    assert_eq!(author(&mut host, 100), (Author::Policy(0), 0));
    asked(&mut host, 1, 101);
    assert_eq!(policy.calls(), ["order"]);
}

#[test]
fn an_instance_with_a_state_that_has_changed_since_is_made_anew() {
    let policy = scripted("a");
    let mut host = busy_host(&[&policy]);
    let open = policy.gate();
    for state in [1, 2] {
        let member = host.members.get_mut(&0).unwrap();
        member.restart(Some(vec![state]), Micros(5), &mut host.shared);
    }
    open.send(()).unwrap();
    open.send(()).unwrap();
    asked(&mut host, 0, 5);
    assert_eq!(host.last_asked().began[0].state, Some(vec![2]));
    let calls = policy.calls();
    assert!(calls.contains(&"restore [2]".to_owned()), "{calls:?}");
}

#[test]
fn a_policy_that_was_passed_over_while_it_was_told_everything_has_rested_once_that_is_done() {
    let policy = scripted("in-force");
    let (mut host, machine) = faulted(&policy);
    host.take_rebound(Micros(1));
    let rebound = |host: &mut PolicyHost| -> Vec<Hook> {
        wait_for_thread(host);
        host.take_rebound(Micros(1000)).iter().collect()
    };
    assert_eq!(rebound(&mut host), [Hook::Priority]);
    let open = policy.gate_of_everything();
    told_everything(&mut host, &machine, &policy);
    open.send(()).unwrap();
    assert_eq!(rebound(&mut host), [Hook::Priority]);
    assert_eq!(rebound(&mut host), []);
}

#[test]
fn an_instance_that_cannot_be_made_elsewhere_is_a_fault_of_the_question_that_needs_it() {
    let policy = scripted("a");
    let mut host = busy_host(&[&policy]);
    policy.fail(&[Failing::Order, Failing::Make]);
    assert_eq!(author(&mut host, 1), (Author::BuiltIn, 1));
    let answer = asked(&mut host, 0, 1000);
    assert_eq!(answer.faults[0].kind, FaultKind::Start);
    assert_eq!(stats(&host, 0).faults[&FaultKind::Start], 1);
}

#[test]
fn a_former_shadow_comes_back_with_the_state_that_it_is_given() {
    let policy = scripted("a");
    let mut runner = start(policy.source()).unwrap();
    runner.join_host(PATIENCE, Restarts::Elsewhere);
    drop(runner.lend());
    let open = policy.gate();
    runner.take_back(Micros(1));
    assert!(
        runner.rests(Micros(1), &quiet()),
        "its instance is being made"
    );
    let snapshot = Snapshot {
        name: "a".to_owned(),
        state_version: 1,
        state: vec![9],
    };
    assert!(runner.begin_with(snapshot));
    open.send(()).unwrap();
    open.send(()).unwrap();
    while runner.rests(Micros(2), &quiet()) {
        std::thread::yield_now();
    }
    let question = Question::Priority(fixture::asked(&[1]).into());
    runner.ask_with(&quiet(), moment(2), &question).unwrap();
    let woken = runner.take_output().woken.unwrap();
    assert_eq!(woken.state, Some(vec![9]));
    assert_eq!(woken.restored, Restored::Warm);
}
