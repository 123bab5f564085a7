//! The hooks that others answer for than before.

use super::*;
use crate::mode::Percent;

fn rebound(host: &mut PolicyHost) -> Vec<Hook> {
    host.take_rebound().iter().collect()
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
        assert_eq!(rebound(&mut host), []);
    }
    author(&mut host, 300);
    assert_eq!(rebound(&mut host), [Hook::Priority]);
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
