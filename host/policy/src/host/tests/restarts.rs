//! Fresh instances that are made elsewhere, while others answer.

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
    loop {
        let answer = order_from(host, &quiet(), now);
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
    assert!(runner.rests(Micros(1)), "its instance is being made");
    let snapshot = Snapshot {
        name: "a".to_owned(),
        state_version: 1,
        state: vec![9],
    };
    assert!(runner.begin_with(snapshot));
    open.send(()).unwrap();
    open.send(()).unwrap();
    while runner.rests(Micros(2)) {
        std::thread::yield_now();
    }
    let question = Question::Priority(fixture::asked(&[1]).into());
    runner.ask_with(&quiet(), moment(2), &question).unwrap();
    let woken = runner.take_output().woken.unwrap();
    assert_eq!(woken.state, Some(vec![9]));
    assert_eq!(woken.restored, Restored::Warm);
}
