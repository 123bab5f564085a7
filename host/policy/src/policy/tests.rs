//! Starts of policies, and descriptions that are refused.

use pointsman_component::{SettingRange, TimeUnit};
use pointsman_core::HookSet;

use super::*;
use crate::fixture::{Failing, Handle, Script, scripted};

fn refusal(change: impl FnOnce(&mut Script)) -> StartError {
    let policy = scripted("test");
    policy.set(change);
    start(policy.source()).unwrap_err()
}

fn description(change: impl FnOnce(&mut PolicyDescription)) -> DescriptionError {
    match refusal(|script| change(&mut script.description)) {
        StartError::Description(error) => error,
        other @ (StartError::Faulted(_)
        | StartError::ConfigureFaulted(_)
        | StartError::SettingsRefused(_)) => panic!("{other}"),
    }
}

fn restored(policy: &Handle, snapshot: &Snapshot) -> Restored {
    start(policy.source()).unwrap().restore(snapshot).unwrap()
}

#[test]
fn refuses_descriptions_that_are_of_no_use() {
    use DescriptionError::{NoName, TooLong, TooManyReasons};
    assert_eq!(description(|said| said.name.clear()), NoName);
    let long = "x".repeat(257);
    let summary = long.repeat(4);
    let too_long = |what, bytes, max| TooLong { what, bytes, max };
    assert_eq!(
        description(|said| said.name.clone_from(&long)),
        too_long("name", 257, 256)
    );
    assert_eq!(
        description(|said| said.version.clone_from(&long)),
        too_long("version", 257, 256)
    );
    assert_eq!(
        description(|said| said.summary = summary),
        too_long("summary", 1028, 1024)
    );
    assert_eq!(
        description(|said| said.reasons = vec![long]),
        too_long("a reason", 257, 256)
    );
    let many = vec![String::new(); 257];
    assert_eq!(
        description(|said| said.reasons = many),
        TooManyReasons {
            count: 257,
            max: 256
        }
    );
}

#[test]
fn victims_cannot_be_chosen_without_being_told_of_sequences() {
    let error = refusal(|script| script.hooks.insert(Hook::Preemption));
    let missing = DescriptionError::FeedMissing {
        hook: "preemption",
        feed: "sequences",
    };
    assert_eq!(error, StartError::Description(missing));
    let none = refusal(|script| script.hooks = HookSet::EMPTY);
    assert_eq!(none, StartError::Description(DescriptionError::NoHooks));
}

#[test]
fn settings_go_in_as_json_and_may_be_refused() {
    let policy = scripted("test");
    start(policy.source()).unwrap();
    assert_eq!(policy.calls(), ["configure {}"]);
    let error = refusal(|script| script.refuses_settings = Some("no such key".to_owned()));
    assert_eq!(error, StartError::SettingsRefused("no such key".to_owned()));
}

#[test]
fn other_settings_have_another_fingerprint() {
    let policy = scripted("test");
    let plain = policy.source();
    let mut settings = Map::new();
    settings.insert("weight".to_owned(), Value::from(3));
    let handle = policy.source();
    let Code::Native(make) = handle.code else {
        unreachable!("it is native")
    };
    let set = PolicySource::native(plain.digest(), move || make(), &settings, Limits::default());
    assert_eq!(plain.digest(), set.digest());
    assert_ne!(plain.fingerprint(), set.fingerprint());
    start(set).unwrap();
    assert_eq!(policy.calls(), [r#"configure {"weight":3}"#]);
}

/// The source of a policy with a duration `pause` in milliseconds, and this setting for it.
fn pausing(policy: &Handle, pause: Value) -> PolicySource {
    let described = SettingSchema {
        key: "pause".to_owned(),
        about: "Between two answers.".to_owned(),
        values: SettingRange::Duration(TimeUnit::Millis, 0..=60_000),
        default: None,
    };
    policy.set(|script| script.description.settings = vec![described]);
    let plain = policy.source();
    let digest = plain.digest();
    let Code::Native(make) = plain.code else {
        unreachable!("it is native")
    };
    let settings = Map::from_iter([("pause".to_owned(), pause)]);
    PolicySource::native(digest, move || make(), &settings, Limits::default())
}

#[test]
fn a_duration_goes_in_as_a_number_at_the_start_and_after_a_fault() {
    let policy = scripted("test");
    let runner = start(pausing(&policy, Value::from("1.5s"))).unwrap();
    assert_eq!(runner.source.settings(), r#"{"pause":"1.5s"}"#);
    runner.source.warm(None).unwrap();
    assert_eq!(policy.calls(), [r#"configure {"pause":1500}"#; 2]);
}

#[test]
fn a_duration_without_a_unit_is_refused_before_the_policy_sees_it() {
    let policy = scripted("test");
    let error = start(pausing(&policy, Value::from(1500))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "settings refused: `pause`: 1500 has no unit; write \"1.5s\""
    );
    assert_eq!(policy.calls(), Vec::<String>::new());
}

#[test]
fn only_the_same_state_version_of_the_same_policy_is_restored() {
    let policy = scripted("test");
    let snapshot = |name: &str, state_version| Snapshot {
        name: name.to_owned(),
        state_version,
        state: vec![9],
    };
    assert_eq!(restored(&policy, &snapshot("test", 1)), Restored::Warm);
    assert_eq!(restored(&policy, &snapshot("other", 1)), Restored::Cold);
    assert_eq!(restored(&policy, &snapshot("test", 2)), Restored::Cold);
    policy.set(|script| script.refuses_state = Some("too old".to_owned()));
    assert_eq!(
        restored(&policy, &snapshot("test", 1)),
        Restored::Refused("too old".to_owned())
    );
    policy.fail(&[Failing::Restore]);
    policy.calls();
    assert!(matches!(
        restored(&policy, &snapshot("test", 1)),
        Restored::Faulted(_)
    ));
    let expected = [
        "configure {}",
        "configure {}",
        "restore [9]",
        "configure {}",
    ];
    assert_eq!(policy.calls(), expected);
}
