//! The hooks that others answer for than before.

use super::*;
use crate::mode::Percent;
use crate::runner::Restarts;

fn rebound(host: &mut PolicyHost) -> Vec<Hook> {
    rebound_at(host, 0)
}

fn rebound_at(host: &mut PolicyHost, now: u64) -> Vec<Hook> {
    host.take_rebound(Micros(now)).iter().collect()
}

#[test]
fn a_hook_that_gets_another_policy_is_told_of_once() {
    let (first, second) = (scripted("first"), scripted("second"));
    let mut host = host(&[&first]);
    assert_eq!(rebound(&mut host), [Hook::Priority]);
    assert_eq!(rebound(&mut host), []);
    author(&mut host, 0);
    assert_eq!(rebound(&mut host), [], "asked, and none the less its own");
    bind(&mut host, &second);
    assert_eq!(rebound(&mut host), [Hook::Priority]);
    host.remove(Micros(1), 1);
    assert_eq!(
        rebound(&mut host),
        [Hook::Priority],
        "the first has it again"
    );
    host.eject(Micros(2), Hook::Priority);
    assert_eq!(rebound(&mut host), [Hook::Priority], "nobody has it");
    host.eject(Micros(3), Hook::Priority);
    assert_eq!(rebound(&mut host), []);
}

#[test]
fn a_policy_that_rests_after_a_fault_still_has_its_hook_until_it_is_put_in_quarantine() {
    let policy = scripted("a");
    let mut host = host(&[&policy]);
    rebound(&mut host);
    policy.fail(&[Failing::Order]);
    for now in [0, 100] {
        author(&mut host, now);
        assert_eq!(rebound_at(&mut host, now), []);
    }
    author(&mut host, 300);
    assert_eq!(rebound_at(&mut host, 300), [Hook::Priority]);
    assert_eq!(host.rest_end(Micros(300)), None, "nobody is left who rests");
}

#[test]
fn at_the_end_of_its_rest_a_policy_is_told_of_once_as_another_answerer() {
    let (behind, policy) = (scripted("behind"), scripted("in-force"));
    for policies in [vec![&policy], vec![&behind, &policy]] {
        let mut host = host(&policies);
        rebound(&mut host);
        policy.fail(&[Failing::Order]);
        assert_eq!(author(&mut host, 0).1, 1);
        policy.fail(&[]);
        assert_eq!(rebound_at(&mut host, 0), [], "its answers stand meanwhile");
        assert_eq!(host.rest_end(Micros(0)), Some(Micros(100)));
        author(&mut host, 99);
        assert_eq!(rebound_at(&mut host, 99), []);
        assert_eq!(rebound_at(&mut host, 100), [Hook::Priority]);
        assert_eq!(host.rest_end(Micros(100)), None);
        author(&mut host, 100);
        assert_eq!(rebound_at(&mut host, 101), []);
    }
}

#[test]
fn a_canary_that_rests_is_passed_over_and_the_one_in_force_answers_as_ever() {
    let admits = HookSet::from_iter([Hook::Admission]);
    let (steady, tried) = (scripted("steady"), scripted("tried"));
    let mut host = PolicyHost::new(PATIENCE);
    let numbers = [&steady, &tried].map(|policy| {
        policy.set(|script| script.hooks = admits);
        host.add(start(policy.source()).unwrap()).unwrap()
    });
    let share = Percent::new(50).unwrap().into();
    host.bind(Micros(0), numbers[0], admits).unwrap();
    host.bind_canary(Micros(0), numbers[1], admits, share)
        .unwrap();
    rebound(&mut host);
    tried.fail(&[Failing::Admit]);
    let question = Question::Admission {
        arrivals: fixture::asked(&[1]).into(),
        room: 1,
    };
    let rows = quiet();
    for (now, faults) in [(0, 1), (50, 0)] {
        let asking = Asking {
            question: &question,
            at: moment(now),
            rows: &rows,
            arm: Arm::Canary,
        };
        let answer = host.ask_chain(&asking);
        assert_eq!(answer.author, Author::Policy(numbers[0]));
        assert_eq!(answer.faults.len(), faults);
        assert_eq!(rebound_at(&mut host, now), []);
        assert_eq!(host.rest_end(Micros(now)), None);
    }
}

#[test]
fn a_policy_rests_until_its_next_instance_is_there() {
    let policy = scripted("a");
    let mut host = PolicyHost::new(PATIENCE).with_restarts(Restarts::Elsewhere);
    bind(&mut host, &policy);
    rebound(&mut host);
    policy.fail(&[Failing::Order]);
    let open = policy.gate();
    author(&mut host, 0);
    for now in [0, 100, 1000] {
        assert_eq!(rebound_at(&mut host, now), []);
    }
    let looked_at = host.rest_end(Micros(1000)).unwrap();
    assert!(looked_at > Micros(1000), "{looked_at}");
    open.send(()).unwrap();
    while host.runner(0).unwrap().is_underway() {
        std::thread::yield_now();
    }
    assert_eq!(rebound_at(&mut host, 1000), [Hook::Priority]);
    assert_eq!(rebound_at(&mut host, 1000), []);
}

#[test]
fn a_canary_that_comes_or_has_another_share_is_another_answerer() {
    let steady = scripted("steady");
    let tried = scripted("tried");
    tried.set(|script| script.hooks = HookSet::from_iter([Hook::Routing]));
    let mut host = host(&[&steady]);
    let number = host.add(start(tried.source()).unwrap()).unwrap();
    rebound(&mut host);
    for percent in [10, 10, 50] {
        let share = Percent::new(percent).unwrap().into();
        let routes = HookSet::from_iter([Hook::Routing]);
        let is_new = host.canary(Hook::Routing).map(|canary| canary.share) != Some(share);
        host.bind_canary(Micros(0), number, routes, share).unwrap();
        assert_eq!(!rebound(&mut host).is_empty(), is_new, "{percent} %");
    }
}
