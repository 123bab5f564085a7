//! The reconciler over a real folder, real components and a real driver: after every change in the
//! folder, the right policy is in force, and each refusal has its reason.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, its helpers too"
)]

mod folder;
mod good;
mod lives;
mod orders;
mod refused;
mod replaced;
mod shown;
mod stage;
mod trials;

use pointsman_component::Digest;
use pointsman_core::Hook;
use pointsman_lifecycle::report::{Conflict, TransactionOutcome};
use pointsman_policy::PolicyStatus;

use stage::{DEFAULTS, Stage, StageConfig, component, version};

/// The holders of admission, priority, routing, preemption and budget.
const HELD: [&str; 5] = ["budget", "aging", "memory-aware", "budget", "budget"];
/// The same, on a small stage.
const SMALL: [&str; 5] = ["-", "aging", "-", "-", "-"];

fn bound(config: &mut StageConfig, hook: Hook, name: &str) {
    config.policies.bind.push((hook, name.to_owned()));
}

#[test]
fn the_defaults_are_in_force_at_the_start() {
    let stage = Stage::new();
    assert_eq!(stage.holders(), HELD);
    let report = stage.report();
    assert!(report.begun);
    assert_eq!(report.refused, []);
    assert_eq!(stage.made(), 3);
    let outcomes = report.transactions.iter().map(|made| &made.outcome);
    assert!(
        outcomes
            .clone()
            .all(|outcome| matches!(outcome, TransactionOutcome::InForce(_)))
    );
    assert_eq!(outcomes.count(), 3);
}

#[test]
fn a_file_that_is_dropped_in_holds_every_hook_it_exports() {
    let mut stage = Stage::new();
    let bytes = component("aging");
    stage.write("mine.wasm", &bytes);
    stage.look();
    assert_eq!(stage.holders(), HELD, "it has not settled");
    stage.settle();
    let (name, digest) = stage.holder(Hook::Priority).unwrap();
    assert_eq!((name.as_str(), digest), ("mine", Digest::of(&bytes)));
    stage.write("everything.wasm", component("test/hostile"));
    stage.settle();
    let holders = [
        "everything",
        "mine",
        "everything",
        "everything",
        "everything",
    ];
    assert_eq!(stage.holders(), holders);
    // The defaults stand behind.
    let behind = stage
        .statuses()
        .iter()
        .filter(|it| !it.behind.is_empty())
        .count();
    assert_eq!(behind, 3);
}

#[test]
fn a_file_that_is_there_at_the_start_is_not_waited_for() {
    let bytes = component("aging");
    let stage = Stage::with(&["aging"], |folder, _| {
        std::fs::write(folder.join("mine.wasm"), &bytes).unwrap()
    });
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
}

#[test]
fn a_bad_file_at_the_start_means_the_defaults_and_says_so() {
    let stage = Stage::with(&["aging"], |folder, _| {
        std::fs::write(folder.join("mine.wasm"), "no").unwrap();
        std::fs::write(folder.join("aging.wasm"), "no").unwrap();
    });
    assert_eq!(stage.holders(), SMALL);
    assert!(stage.refusal("mine").is_some());
    assert!(stage.refusal("aging").is_some());
}

#[test]
fn removing_a_file_gives_its_hooks_back() {
    let mut stage = Stage::new();
    stage.write("mine.wasm", component("test/hostile"));
    stage.settle();
    assert_eq!(stage.holders(), ["mine"; 5]);
    stage.write("mine.wasm", version(&component("test/hostile"), 1));
    stage.settle();
    // The defaults have made place, and are kept ready.
    assert_eq!(stage.statuses().len(), 5);
    stage.remove("mine.wasm");
    stage.settle();
    assert_eq!(stage.holders(), HELD);
    assert_eq!(stage.statuses().len(), 3);
    assert_eq!(stage.policy("mine"), None);
    assert_eq!(stage.made(), 5, "nothing was made ready again");
}

#[test]
fn hooks_that_a_new_version_has_given_up_go_back() {
    let mut stage = Stage::new();
    stage.write("mine.wasm", component("test/hostile"));
    stage.settle();
    stage.write("mine.wasm", version(&component("aging"), 1));
    stage.settle();
    assert_eq!(
        stage.holders(),
        ["budget", "mine", "memory-aware", "budget", "budget"]
    );
    let calls_itself = |status: &PolicyStatus| status.description.name == "hostile";
    assert!(
        !stage.statuses().iter().any(calls_itself),
        "it stands behind nobody"
    );
}

#[test]
fn what_stood_behind_comes_back_as_it_was() {
    let mut stage = Stage::small();
    let before = stage.policy("aging").unwrap().number;
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    stage.remove("mine.wasm");
    stage.settle();
    assert_eq!(stage.holders(), SMALL);
    assert_eq!(stage.policy("aging").unwrap().number, before);
}

#[test]
fn of_two_files_that_claim_a_hook_the_one_in_force_stays() {
    let mut stage = Stage::small();
    stage.write("one.wasm", component("aging"));
    stage.settle();
    stage.write("two.wasm", version(&component("aging"), 2));
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("one"));
    let why = "priority is contested, and `one` had it before".to_owned();
    assert_eq!(stage.last().outcome, TransactionOutcome::Idle { why });
    let contested = Conflict::Contested {
        hook: Hook::Priority,
        claimants: vec!["one".to_owned(), "two".to_owned()],
    };
    assert_eq!(stage.report().conflicts, [contested]);
    // Once the other is gone there is nothing to contest.
    stage.remove("one.wasm");
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("two"));
    assert_eq!(stage.report().conflicts, []);
}

#[test]
fn of_two_files_at_the_start_neither_is_in_force() {
    let stage = Stage::with(&["aging"], |folder, _| {
        for name in ["one.wasm", "two.wasm"] {
            std::fs::write(folder.join(name), component("aging")).unwrap();
        }
    });
    assert_eq!(stage.holders(), SMALL);
    assert_eq!(stage.report().conflicts.len(), 1);
}

#[test]
fn a_file_named_like_a_default_replaces_it() {
    let mut stage = Stage::small();
    let bytes = version(&component("aging"), 1);
    stage.write("aging.wasm", &bytes);
    stage.settle();
    let expected = ("aging".to_owned(), Digest::of(&bytes));
    assert_eq!(stage.holder(Hook::Priority), Some(expected));
    stage.remove("aging.wasm");
    stage.settle();
    let embedded = ("aging".to_owned(), Digest::of(&component("aging")));
    assert_eq!(stage.holder(Hook::Priority), Some(embedded));
    assert_eq!(stage.statuses().len(), 1);
}

#[test]
fn what_replaces_a_default_need_not_have_its_hooks() {
    let mut stage = Stage::new();
    stage.write("budget.wasm", component("aging"));
    stage.settle();
    // The embedded policy still does what the file does not.
    let mut held = HELD;
    held[1] = "budget";
    assert_eq!(stage.holders(), held);
    let (_, of_file) = stage.holder(Hook::Priority).unwrap();
    let (_, embedded) = stage.holder(Hook::Budget).unwrap();
    assert_eq!(of_file, Digest::of(&component("aging")));
    assert_eq!(embedded, Digest::of(&component("budget")));
    stage.remove("budget.wasm");
    stage.settle();
    assert_eq!(stage.holders(), HELD);
}

#[test]
fn a_hook_bound_by_name_goes_before_the_folder() {
    let mut stage = Stage::with(&DEFAULTS, |_, config| {
        bound(config, Hook::Priority, "aging")
    });
    stage.write("mine.wasm", component("test/hostile"));
    stage.settle();
    assert_eq!(stage.holders(), ["mine", "aging", "mine", "mine", "mine"]);
    assert_eq!(stage.report().conflicts, []);
}

#[test]
fn a_hook_bound_to_a_file_waits_for_it() {
    let mut stage = Stage::with(&["aging"], |_, config| {
        bound(config, Hook::Priority, "mine");
        bound(config, Hook::Budget, "aging");
    });
    assert_eq!(stage.holders(), SMALL);
    let absent = Conflict::Absent {
        hook: Hook::Priority,
        policy: "mine".to_owned(),
    };
    let not_exported = Conflict::NotExported {
        hook: Hook::Budget,
        policy: "aging".to_owned(),
    };
    assert_eq!(stage.report().conflicts, [absent, not_exported.clone()]);
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
    assert_eq!(stage.report().conflicts, [not_exported]);
}

#[test]
fn settings_of_the_configuration_go_to_defaults_and_to_files_without_their_own() {
    let settings = |bonus: u32| {
        let mut settings = serde_json::Map::new();
        settings.insert("affinity-bonus".to_owned(), bonus.into());
        settings
    };
    let mut stage = Stage::with(&["aging"], |_, config| {
        let given = &mut config.policies.settings;
        given.push(("aging".to_owned(), settings(1)));
        given.push(("mine".to_owned(), settings(2)));
    });
    assert_eq!(stage.policy("aging").unwrap().settings, settings(1));
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    assert_eq!(stage.policy("mine").unwrap().settings, settings(2));
    stage.write("mine.toml", "[settings]\naffinity-bonus = 3\n");
    stage.settle();
    assert_eq!(stage.policy("mine").unwrap().settings, settings(3));
}
