//! One version after another: nothing of it is left over, nothing it learned is lost, and nothing
//! is done twice.

use pointsman_component::{Digest, EmbeddedPolicy};
use pointsman_core::Hook;
use pointsman_lifecycle::report::{ReloadStep, TransactionOutcome};
use pointsman_policy::Restored;
use serde_json::json;

use crate::SMALL;
use crate::stage::{Stage, TRAPS, component, version};

#[test]
fn a_new_version_takes_over_with_what_the_old_one_learned() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("test/hostile"));
    stage.settle();
    let first = stage.last();
    assert_eq!(first.restored, Some(Restored::Cold));
    let next = version(&component("test/hostile"), 1);
    stage.write("mine.wasm", &next);
    stage.settle();
    let second = stage.last();
    assert_eq!(second.digest, Some(Digest::of(&next)));
    assert_eq!(second.restored, Some(Restored::Warm));
    assert!(second.pause.is_some());
    let steps: Vec<ReloadStep> = second.steps.iter().map(|it| it.step).collect();
    let expected = [
        ReloadStep::Read,
        ReloadStep::Compile,
        ReloadStep::Start,
        ReloadStep::Test,
        ReloadStep::Restore,
        ReloadStep::Observe,
    ];
    assert_eq!(steps, expected);
    // The one it displaced stands behind it.
    let mine = stage.policy("mine").unwrap();
    assert_eq!(mine.earlier.len(), 1);
    assert_eq!(stage.statuses().len(), 3, "and the default is kept ready");
}

#[test]
fn a_policy_that_cannot_take_over_the_state_starts_without() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("test/hostile"));
    stage.settle();
    stage.write(
        "mine.toml",
        "[settings]\noutrage = 'trap'\ncalls = ['restore']",
    );
    stage.settle();
    let restored = stage.last().restored.unwrap();
    assert!(matches!(restored, Restored::Faulted(_)), "{restored:?}");
    assert_eq!(stage.holders(), ["mine"; 5]);
}

/// The new version is told what there is while the old one still answers. A policy that does not
/// survive that is not put in force.
#[test]
fn a_policy_that_faults_when_it_is_told_what_there_is_is_refused() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("test/hostile"));
    stage.settle();
    let before = stage.policy("mine").unwrap();
    stage.write(
        "mine.toml",
        "[settings]\noutrage = 'trap'\ncalls = ['observe']",
    );
    stage.settle();
    assert_eq!(stage.refusal("mine").unwrap().step, ReloadStep::Test);
    assert_eq!(stage.policy("mine").unwrap(), before);
    assert_eq!(stage.holders(), ["mine"; 5]);
}

#[test]
fn settings_alone_are_applied_without_compiling() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    let made = stage.made();
    for bonus in 1..20 {
        stage.write("mine.toml", format!("[settings]\naffinity-bonus = {bonus}"));
        stage.settle();
        let mine = stage.policy("mine").unwrap();
        assert_eq!(mine.settings["affinity-bonus"], bonus);
        assert_eq!(mine.held.iter().collect::<Vec<_>>(), [Hook::Priority]);
        let read = stage
            .last()
            .steps
            .iter()
            .any(|it| it.step == ReloadStep::Read);
        assert!(!read, "the component was not even read");
    }
    stage.remove("mine.toml");
    stage.settle();
    assert!(stage.policy("mine").unwrap().settings.is_empty());
    assert_eq!(stage.made(), made);
}

#[test]
fn a_file_that_is_touched_or_written_again_changes_nothing() {
    let mut stage = Stage::small();
    let bytes = component("aging");
    stage.write("mine.wasm", &bytes);
    stage.settle();
    let before = (stage.policy("mine"), stage.last());
    stage.touch(&stage.path("mine.wasm"));
    stage.settle();
    stage.write("mine.wasm", &bytes);
    stage.settle();
    assert_eq!((stage.policy("mine"), stage.last()), before);
}

#[test]
fn a_hundred_alternations_leave_one_policy_per_hook_and_the_one_it_displaced() {
    let mut stage = Stage::small();
    let hostile = component("test/hostile");
    let versions = [version(&hostile, 1), version(&hostile, 2)];
    for round in 0..100 {
        stage.write("mine.wasm", &versions[round % 2]);
        stage.settle();
        if round % 5 == 0 {
            stage.write("mine.wasm", "garbage");
            stage.settle();
            assert!(stage.refusal("mine").is_some());
        }
    }
    stage.write("mine.wasm", &versions[1]);
    stage.settle();
    assert_eq!(stage.holders(), ["mine"; 5]);
    let (_, digest) = stage.holder(Hook::Routing).unwrap();
    assert_eq!(digest, Digest::of(&versions[1]));
    let standing: Vec<u32> = stage.statuses().iter().map(|it| it.number).collect();
    let mine = stage.policy("mine").unwrap();
    let default = stage.policy("aging").unwrap().number.unwrap();
    assert_eq!(standing, [default, mine.earlier[0], mine.number.unwrap()]);
    assert_eq!(stage.made(), 3, "the default and two versions");
    assert_eq!(stage.report().transactions.len(), 64);
    stage.remove("mine.wasm");
    stage.settle();
    assert_eq!(stage.holders(), SMALL);
    assert_eq!(stage.statuses().len(), 1);
}

// === Faults ===

/// Number of questions until the policy faults.
const GOOD: u32 = 301;

#[test]
fn a_policy_that_the_host_drops_is_done_without_and_not_tried_again() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("test/hostile"));
    stage.write("mine.toml", TRAPS);
    stage.settle();
    assert_eq!(stage.holders(), ["mine"; 5]);
    stage.ask_often(GOOD);
    stage.poll();
    assert_eq!(stage.holders(), SMALL);
    let outcome = stage.last().outcome;
    assert!(
        matches!(outcome, TransactionOutcome::Dropped { .. }),
        "{outcome:?}"
    );
    assert_eq!(stage.refusal("mine").unwrap().step, ReloadStep::Serve);
    let made = stage.last().number;
    stage.poll();
    assert_eq!(stage.last().number, made);
    // Other settings get their own chance, the same ones do not.
    stage.remove("mine.toml");
    stage.settle();
    assert_eq!(stage.holders(), ["mine"; 5]);
    stage.write("mine.toml", TRAPS);
    stage.settle();
    let refusal = stage.refusal("mine").unwrap();
    assert_eq!(refusal.step, ReloadStep::Bind);
    assert!(refusal.why.contains("quarantine"), "{refusal:?}");
    assert_eq!(stage.holders(), ["mine"; 5], "the good one stays");
    assert!(stage.policy("mine").unwrap().settings.is_empty());
}

#[test]
fn the_version_before_steps_in_for_one_that_the_host_drops() {
    let mut stage = Stage::small();
    let good = component("test/hostile");
    stage.write("mine.wasm", &good);
    stage.settle();
    let number = stage.policy("mine").unwrap().number;
    stage.write("mine.wasm", version(&good, 1));
    stage.write("mine.toml", TRAPS);
    stage.settle();
    assert_ne!(stage.policy("mine").unwrap().number, number);
    stage.ask_often(GOOD);
    stage.poll();
    let mine = stage.policy("mine").unwrap();
    assert_eq!((mine.number, mine.digest), (number, Digest::of(&good)));
    assert_eq!(stage.holders(), ["mine"; 5]);
}

#[test]
fn the_embedded_default_steps_in_for_a_file_of_its_name_that_the_host_drops() {
    let mut stage = Stage::with(&["aging"], |folder, _| {
        std::fs::write(folder.join("aging.wasm"), component("test/hostile")).unwrap();
        std::fs::write(folder.join("aging.toml"), TRAPS).unwrap();
    });
    assert_eq!(stage.holders(), ["aging"; 5]);
    stage.ask_often(GOOD);
    stage.poll();
    assert_eq!(stage.holders(), SMALL);
    let embedded = Digest::of(&component("aging"));
    assert_eq!(stage.policy("aging").unwrap().digest, embedded);
}

#[test]
fn a_default_that_the_host_drops_leaves_its_hooks_to_the_built_in_rule() {
    let traps = EmbeddedPolicy {
        name: "aging",
        wasm: component("test/hostile").leak(),
        code: None,
    };
    let mut stage = Stage::embedding(vec![traps], |_, config| {
        let settings = json!({"outrage": "trap", "calls": ["admit"], "good-calls": 300});
        let settings = settings.as_object().unwrap().clone();
        config
            .policies
            .settings
            .push(("aging".to_owned(), settings));
    });
    assert_eq!(stage.holders(), ["aging"; 5]);
    stage.ask_often(GOOD);
    stage.poll();
    assert_eq!(stage.holders(), ["-"; 5]);
    assert_eq!(stage.refusal("aging").unwrap().step, ReloadStep::Serve);
    assert_eq!(stage.policy("aging"), None);
}
