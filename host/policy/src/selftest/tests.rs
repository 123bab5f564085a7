//! Policies that pass the self-test, and policies that do not.

use pointsman_component::fixture::Guest;
use pointsman_component::{Limits, PolicyEngine};

use super::*;
use crate::fixture::{Failing, scripted};

fn guest(guest: Guest, limits: Limits) -> PolicySource {
    let engine = PolicyEngine::new().unwrap();
    PolicySource::component(&guest.load(&engine), &serde_json::Map::new(), limits)
}

#[test]
fn a_policy_that_answers_what_it_is_asked_passes() {
    let policy = scripted("a");
    assert_eq!(self_test(&policy.source()), Ok(()));
    let calls = policy.calls();
    let starts = calls.iter().filter(|call| call.starts_with("configure"));
    assert_eq!(starts.count(), 4, "an instance for each scene");
    assert!(calls.iter().any(|call| call == "order"), "{calls:?}");
    assert_eq!(
        self_test(&guest(Guest::default(), Limits::default())),
        Ok(())
    );
}

#[test]
fn the_test_is_the_same_each_time() {
    let policy = scripted("a");
    self_test(&policy.source()).unwrap();
    let first = policy.calls();
    self_test(&policy.source()).unwrap();
    assert_eq!(policy.calls(), first);
}

#[test]
fn a_fault_fails_the_test_and_says_where() {
    let policy = scripted("a");
    policy.fail(&[Failing::Order]);
    let error = self_test(&policy.source()).unwrap_err();
    let words = "self-test with one executor: a scripted at Some(Order)";
    assert_eq!(error.to_string(), words);
}

#[test]
fn a_malformed_answer_fails_the_test() {
    let policy = scripted("a");
    policy.set(|script| script.hooks.insert(Hook::Routing));
    let error = self_test(&policy.source()).unwrap_err();
    let SelfTestError::Malformed { hook, refusal, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(
        (hook, refusal.cause),
        (Hook::Routing, RefusalCause::UnknownExecutor)
    );
}

#[test]
fn a_policy_that_does_not_start_fails_the_test() {
    let policy = scripted("a");
    policy.set(|script| script.refuses_settings = Some("no".to_owned()));
    let error = self_test(&policy.source()).unwrap_err();
    assert_eq!(error, StartError::SettingsRefused("no".to_owned()).into());
}

#[test]
fn the_test_runs_under_the_limits_of_the_source() {
    let busy = Guest {
        order: "(local $i i32) (local.set $i (i32.const 100000))
            (loop (local.set $i (i32.sub (local.get $i) (i32.const 1)))
                (br_if 0 (i32.gt_s (local.get $i) (i32.const 0))))
            (i32.store (i32.const 1300) (i32.const 0)) (i32.store (i32.const 1304) (i32.const 0))
            (i32.const 1300)",
        ..Guest::default()
    };
    assert_eq!(self_test(&guest(busy, Limits::default())), Ok(()));
    let small = Limits {
        call_fuel: 100_000,
        row_fuel: 1,
        ..Limits::default()
    };
    let error = self_test(&guest(busy, small)).unwrap_err();
    let SelfTestError::Faulted { fault, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(fault.kind, pointsman_core::FaultKind::Fuel);
}

#[test]
fn many_rows_are_asked_about_at_once() {
    // A guest that traps when it is passed more than a thousand requests.
    let shy = Guest {
        order: "(if (i32.gt_u (local.get 3) (i32.const 1000)) (then unreachable))
            (i32.store (i32.const 1304) (i32.const 0)) (i32.const 1300)",
        ..Guest::default()
    };
    let error = self_test(&guest(shy, Limits::default())).unwrap_err();
    let SelfTestError::Faulted { scene, hook, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((scene, hook), (Scene::ManyRows, Hook::Priority));
}
