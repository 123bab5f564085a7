//! The last good version of a file: the one that decides is the one that decides after a restart.

use std::fs;

use pointsman_component::Digest;
use pointsman_core::Hook;
use pointsman_lifecycle::order::Order;
use pointsman_lifecycle::report::FolderState;
use pointsman_policy::{Mode, OnFailure};
use serde_json::Value;

use crate::SMALL;
use crate::lives::{digest, prove, proven, soon_proven};
use crate::stage::{Stage, TRAPS, component, version};

fn rollback(stage: &mut Stage) {
    let policy = "mine".to_owned();
    stage.order(Order::Rollback { policy }).unwrap();
}

fn affinity_bonus(stage: &Stage) -> u64 {
    let settings = stage.policy("mine").unwrap().settings;
    settings["affinity-bonus"].as_u64().unwrap()
}

// === Versions that are in force again ===

#[test]
fn what_is_in_force_again_after_a_rollback_is_so_after_a_restart() {
    let good = version(&component("aging"), 1);
    let next = version(&component("aging"), 2);
    let stage = proven(&good, Some("[settings]\naffinity-bonus = 4"));
    let mut stage = stage.restart(|_| {});
    stage.write("mine.wasm", &next);
    stage.remove("mine.toml");
    stage.settle();
    prove(&mut stage);
    assert_eq!(digest(&stage), Some(Digest::of(&next)));
    rollback(&mut stage);
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
    let stage = stage.restart(|_| {});
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
    assert_eq!(affinity_bonus(&stage), 4);
    // It need not prove itself again.
    let statuses = stage.statuses();
    assert!(statuses.iter().all(|it| it.probation.is_none()));
}

#[test]
fn what_is_in_force_again_has_the_sidecar_that_it_had_last() {
    let good = version(&component("test/hostile"), 1);
    let mut stage = proven(&good, None);
    stage.write("mine.toml", "on-failure = { admission = 'closed' }");
    stage.settle();
    assert_eq!(stage.on_failure(), OnFailure::Closed);
    stage.write("mine.wasm", version(&component("test/hostile"), 2));
    stage.settle();
    prove(&mut stage);
    rollback(&mut stage);
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
    assert_eq!(stage.on_failure(), OnFailure::Closed);
    let stage = stage.restart(|_| {});
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
    assert_eq!(stage.on_failure(), OnFailure::Closed);
}

#[test]
fn what_is_in_force_again_after_the_faults_of_a_newer_version_is_so_after_a_restart() {
    let mut stage = proven(&component("test/hostile"), None);
    stage.write("mine.toml", TRAPS);
    stage.settle();
    prove(&mut stage);
    stage.ask_often(301);
    stage.poll();
    assert_eq!(stage.report().quarantine.len(), 1);
    assert_eq!(stage.holders(), ["mine"; 5]);
    let stage = stage.restart(|_| {});
    assert_eq!(stage.holders(), ["mine"; 5]);
    assert!(stage.policy("mine").unwrap().settings.is_empty());
}

#[test]
fn what_is_in_force_again_and_was_not_proven_is_not_kept() {
    let mut stage = Stage::small();
    for number in [1, 2] {
        stage.write("mine.wasm", version(&component("aging"), number));
        stage.settle();
    }
    rollback(&mut stage);
    let first = Digest::of(&version(&component("aging"), 1));
    assert_eq!(digest(&stage), Some(first));
    let stage = stage.restart(|_| {});
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("aging"));
}

// === Files that change during a probation ===

#[test]
fn what_proves_itself_is_kept_though_its_file_is_another_one_by_then() {
    let good = version(&component("aging"), 1);
    let mut stage = Stage::with(&["aging"], soon_proven);
    stage.write("mine.wasm", &good);
    stage.settle();
    stage.write("mine.wasm", "no");
    stage.settle();
    assert!(stage.refusal("mine").is_some());
    prove(&mut stage);
    let stage = stage.restart(|_| {});
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
}

#[test]
fn a_sidecar_that_is_touched_on_probation_leaves_the_last_good_settings_as_they_are() {
    let good = version(&component("aging"), 1);
    let mut stage = proven(&good, Some("[settings]\naffinity-bonus = 4"));
    for sidecar in ["", "# The same settings.\n"] {
        let settings = format!("{sidecar}[settings]\naffinity-bonus = 5");
        stage.write("mine.toml", settings);
        stage.settle();
        assert_eq!(affinity_bonus(&stage), 5);
    }
    let stage = stage.restart(|stage| stage.write("mine.wasm", "no"));
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
    assert_eq!(affinity_bonus(&stage), 4);
}

#[test]
fn a_sidecar_that_says_the_same_in_other_words_needs_no_new_proof_after_a_restart() {
    let mut stage = proven(&version(&component("aging"), 1), None);
    stage.write("mine.toml", "mode = 'enforce'");
    stage.settle();
    let stage = stage.restart(|_| {});
    let statuses = stage.statuses();
    assert!(statuses.iter().all(|it| it.probation.is_none()));
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
}

// === State files of earlier versions ===

#[test]
fn what_an_earlier_version_kept_for_a_relative_path_is_for_the_same_folder_alone() {
    let good = version(&component("aging"), 1);
    for (other, holder) in [(0, "mine"), (1, "aging")] {
        let stage = proven(&good, None).restart(|stage| {
            let file = stage.home().join("state/state.json");
            let text = fs::read_to_string(&file).unwrap();
            let mut state: Value = serde_json::from_str(&text).unwrap();
            let folder = &mut state["folder"];
            let inode = folder["inode"].as_u64().unwrap() + other;
            folder["path"] = "policies.d".into();
            folder["inode"] = inode.into();
            fs::write(&file, state.to_string()).unwrap();
            stage.write("mine.wasm", "no");
        });
        assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some(holder));
    }
}

// === Modes that were ordered ===

/// A stage where `mine.wasm` is a shadow by order.
fn ordered_shadow() -> Stage {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    let (policy, mode) = ("mine".to_owned(), Mode::Shadow);
    stage.order(Order::Mode { policy, mode }).unwrap();
    assert_eq!(stage.policy("mine").unwrap().mode, Mode::Shadow);
    stage
}

#[test]
fn a_mode_that_was_ordered_goes_with_a_file_that_is_removed_between_two_lives() {
    let stage = ordered_shadow();
    let stage = stage.restart(|stage| stage.remove("mine.wasm"));
    let stage = stage.restart(|stage| stage.write("mine.wasm", component("aging")));
    assert_eq!(stage.policy("mine").unwrap().mode, Mode::Enforce);
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
}

#[test]
fn a_mode_that_was_ordered_is_not_for_the_files_of_another_folder() {
    let stage = ordered_shadow().restart(|stage| {
        let other = stage.home().join("other.d");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("mine.wasm"), component("aging")).unwrap();
        stage.give_folder(other);
    });
    assert_eq!(stage.policy("mine").unwrap().mode, Mode::Enforce);
}

#[test]
fn a_mode_that_was_ordered_outlives_a_path_that_leads_nowhere_or_to_the_same_folder() {
    for (path, state) in [
        ("mistyped.d", FolderState::Missing),
        ("policies.d/../policies.d", FolderState::Watched),
    ] {
        let stage = ordered_shadow().restart(|stage| {
            let folder = stage.home().join(path);
            stage.give_folder(folder);
        });
        assert_eq!(stage.report().folder.state, state);
        let stage = stage.restart(|stage| {
            let folder = stage.home().join("policies.d");
            stage.give_folder(folder);
        });
        assert_eq!(stage.policy("mine").unwrap().mode, Mode::Shadow, "{path}");
        assert_eq!(stage.holders(), SMALL);
    }
}
