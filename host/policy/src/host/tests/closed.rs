//! Closed hooks: no other policy answers in their policy's stead.

use pointsman_core::{
    Config, Fact, Input, Machine, NewRequest, Otherwise, Outcome, RefusedWhy, admission, fixture,
};

use super::*;

const ADMISSION: [Hook; 1] = [Hook::Admission];

fn admits(name: &str) -> Handle {
    let policy = scripted(name);
    policy.set(|script| script.hooks.insert(Hook::Admission));
    policy
}

fn bind_admission(host: &mut PolicyHost, policy: &Handle) -> u32 {
    let number = host.add(start(policy.source()).unwrap()).unwrap();
    host.bind(Micros(0), number, HookSet::from_iter(ADMISSION))
        .unwrap();
    number
}

/// A host with these policies on `admission`, which is closed.
fn closed(policies: &[&Handle]) -> PolicyHost {
    let mut host = host(&[]);
    host.set_on_failure(Hook::Admission, OnFailure::Closed)
        .unwrap();
    for policy in policies {
        bind_admission(&mut host, policy);
    }
    host
}

fn admit(host: &mut PolicyHost, now: u64) -> Answer<Vec<admission::Verdict>> {
    let question = Question::Admission {
        arrivals: fixture::asked(&[1]).into(),
        room: 1,
    };
    let asking = Asking {
        question: &question,
        at: moment(now),
        rows: &quiet(),
        arm: Arm::Steady,
    };
    host.ask_chain(&asking).admission()
}

#[test]
fn only_admission_can_be_closed() {
    let mut host = host(&[]);
    for hook in Hook::ALL {
        let set = host.set_on_failure(hook, OnFailure::Closed);
        assert_eq!(set.is_ok(), hook == Hook::Admission, "{hook:?}");
        assert_eq!(host.set_on_failure(hook, OnFailure::Fallback), Ok(()));
    }
}

#[test]
fn nobody_answers_for_a_closed_policy_that_fails() {
    let (old, new) = (admits("old"), admits("new"));
    let mut host = closed(&[&old, &new]);
    assert_eq!(admit(&mut host, 0).author, Author::Policy(1));
    new.fail(&[Failing::Admit]);
    old.calls();
    let answer = admit(&mut host, 10);
    assert_eq!((answer.value, answer.otherwise), (None, Otherwise::Closed));
    assert_eq!(answer.faults.len(), 1);
    assert_eq!(
        old.calls(),
        Vec::<String>::new(),
        "the one behind is not asked"
    );
    new.fail(&[]);
    let answer = admit(&mut host, 110);
    assert_eq!(answer.author, Author::Policy(1));
}

#[test]
fn a_hook_that_fails_closed_is_closed_once_its_policy_is_in_quarantine() {
    let (old, new) = (admits("old"), admits("new"));
    let mut host = closed(&[&old, &new]);
    new.fail(&[Failing::Admit]);
    for now in [0, 100, 300] {
        admit(&mut host, now);
    }
    assert_eq!(host.closed(), HookSet::from_iter(ADMISSION));
    let answer = admit(&mut host, 5000);
    assert_eq!((answer.value, answer.otherwise), (None, Otherwise::Closed));
    let kinds = events(&mut host);
    assert!(
        kinds.contains(&(1, PolicyEventKind::Closed(Hook::Admission))),
        "{kinds:?}"
    );
    let third = admits("third");
    let number = bind_admission(&mut host, &third);
    assert_eq!(admit(&mut host, 5001).author, Author::Policy(number));
    assert_eq!(host.closed(), HookSet::EMPTY);
}

#[test]
fn an_operator_opens_a_closed_hook_by_ejecting_it() {
    let policy = admits("a");
    let mut host = closed(&[&policy]);
    policy.fail(&[Failing::Admit]);
    for now in [0, 100, 300] {
        admit(&mut host, now);
    }
    assert_eq!(admit(&mut host, 400).otherwise, Otherwise::Closed);
    host.eject(Micros(401), Hook::Admission);
    assert_eq!(admit(&mut host, 402).otherwise, Otherwise::BuiltIn);
}

#[test]
fn a_hook_that_nobody_was_bound_to_is_not_closed() {
    let mut host = closed(&[]);
    assert_eq!(admit(&mut host, 0), Answer::unbound());
}

#[test]
fn arrivals_that_nobody_may_decide_about_are_refused_by_the_machine() {
    let policy = admits("a");
    let mut host = closed(&[&policy]);
    policy.fail(&[Failing::Admit]);
    let mut machine = Machine::new(Config::default()).unwrap();
    let device = Input::DeviceAttached(fixture::device_spec("cpu0"));
    let device = machine.handle(Micros(0), device).device().unwrap();
    // Without an executor the machine refuses it for that.
    let executor = fixture::executor_spec("cpu0/llama", device);
    machine.handle(Micros(0), Input::ExecutorAttached(executor));
    let tenant = machine.intern(Micros(0), "default");
    machine.handle(Micros(0), Input::arrival(NewRequest::new(tenant, 10, 10)));
    machine.decide(Micros(0), &mut host);
    let facts = std::iter::from_fn(|| machine.poll_fact());
    let ended: Vec<_> = facts
        .filter_map(|stamped| {
            if let Fact::Ended(_, outcome) = stamped.fact {
                return Some(outcome);
            }
            None
        })
        .collect();
    let [Outcome::Refused(RefusedWhy::Closed { .. })] = ended.as_slice() else {
        panic!("{ended:?}")
    };
}
