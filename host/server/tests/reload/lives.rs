//! From one life of the server to the next: orders, the quarantine, and the last good version of
//! each file.

use std::fs;
use std::path::Path;

use pointsman_component::{Digest, EmbeddedPolicy};
use pointsman_core::{Hook, Micros};
use pointsman_lifecycle::order::Order;
use pointsman_lifecycle::report::{FolderState, Origin, TransactionOutcome};
use pointsman_packed::{Packed, pack};
use pointsman_policy::{Mode, Probation};

use crate::stage::{
    HeldCompiler, Stage, StageConfig, TRAPS, compilations_noted, component, version,
};
use crate::{HELD, SMALL};

/// The smallest probation there is.
pub(crate) fn soon_proven(_: &Path, config: &mut StageConfig) {
    config.policies.probation = Probation {
        questions: 1,
        micros: 0,
        ..Probation::default()
    };
}

/// A stage where `bytes` have proven themselves as `mine.wasm`, with these settings.
pub(crate) fn proven(bytes: &[u8], sidecar: Option<&str>) -> Stage {
    let mut stage = Stage::with(&["aging"], soon_proven);
    stage.write("mine.wasm", bytes);
    if let Some(text) = sidecar {
        stage.write("mine.toml", text);
    }
    stage.settle();
    prove(&mut stage);
    stage
}

pub(crate) fn prove(stage: &mut Stage) {
    stage.ask_often(2);
    stage.look();
    assert_eq!(stage.last().outcome, TransactionOutcome::Proven);
}

pub(crate) fn digest(stage: &Stage) -> Option<Digest> {
    stage.holder(Hook::Priority).map(|(_, digest)| digest)
}

#[test]
fn a_file_that_is_broken_at_the_start_has_its_last_good_version_in_force() {
    let good = version(&component("aging"), 1);
    let sidecar = "[settings]\naffinity-bonus = 4";
    let stage = proven(&good, Some(sidecar));
    let mut stage = stage.restart(|stage| {
        stage.write("mine.wasm", &good[..good.len() / 2]);
        stage.remove("mine.toml");
    });
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
    let mine = stage.policy("mine").unwrap();
    assert_eq!(mine.settings["affinity-bonus"], 4);
    assert!(
        matches!(mine.origin, Origin::LastGood(_)),
        "{:?}",
        mine.origin
    );
    assert!(
        stage.refusal("mine").is_some(),
        "and the file is said to be broken"
    );
    // Once the file is good, it is in force.
    let next = version(&component("aging"), 2);
    stage.write("mine.wasm", &next);
    stage.settle();
    assert_eq!(digest(&stage), Some(Digest::of(&next)));
    assert_eq!(stage.refusal("mine"), None);
    assert!(matches!(
        stage.policy("mine").unwrap().origin,
        Origin::File(_)
    ));
}

/// A stage whose starts wait for no file, and whose compiler is `held` by the test.
fn compiling(held: &HeldCompiler) -> Stage {
    Stage::with(&["aging"], |folder, config| {
        soon_proven(folder, config);
        config.compiler = held.compiler();
        config.start_wait = Micros(0);
    })
}

/// Removes the machine code of `bytes`, so that they have to be compiled again.
fn forget_code(stage: &Stage, bytes: &[u8]) {
    let digest = Digest::of(bytes).to_string();
    let mut forgotten = 0;
    for entry in fs::read_dir(stage.home().join("state/code")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with(&digest) {
            fs::remove_file(entry.path()).unwrap();
            forgotten += 1;
        }
    }
    assert_eq!(forgotten, 1);
}

#[test]
fn a_file_that_takes_long_at_the_start_has_its_last_good_version_in_force_until_it_is_ready() {
    let held = HeldCompiler::new();
    let mut stage = compiling(&held);
    let good = version(&component("aging"), 1);
    stage.write("mine.wasm", &good);
    stage.settle();
    prove(&mut stage);
    let next = version(&component("aging"), 2);
    let mut stage = stage.restart(|stage| {
        held.hold();
        stage.write("mine.wasm", &next);
    });
    stage.look_until(|stage| digest(stage) == Some(Digest::of(&good)));
    let mine = stage.policy("mine").unwrap();
    assert!(
        matches!(mine.origin, Origin::LastGood(_)),
        "{:?}",
        mine.origin
    );
    assert!(stage.is_preparing());
    held.let_go();
    stage.look();
    assert_eq!(digest(&stage), Some(Digest::of(&next)));
}

#[test]
fn a_file_that_takes_long_at_the_start_is_not_compiled_once_more_as_its_last_good_version() {
    let held = HeldCompiler::new();
    let mut stage = compiling(&held);
    let good = version(&component("aging"), 1);
    stage.write("mine.wasm", &good);
    stage.settle();
    prove(&mut stage);
    let mut stage = stage.restart(|stage| {
        held.hold();
        forget_code(stage, &good);
        stage.write("mine.toml", "[settings]\naffinity-bonus = 4");
    });
    held.let_go();
    stage.look();
    assert_eq!(stage.report().compiled, 1);
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
    assert_eq!(stage.policy("mine").unwrap().settings["affinity-bonus"], 4);
}

#[test]
fn a_mode_that_was_ordered_holds_though_its_file_takes_long_at_the_next_start() {
    let held = HeldCompiler::new();
    let mut stage = compiling(&held);
    let good = version(&component("aging"), 1);
    stage.write("mine.wasm", &good);
    stage.settle();
    prove(&mut stage);
    let next = version(&component("aging"), 2);
    stage.write("mine.wasm", &next);
    stage.write("mine.toml", "mode = 'shadow'");
    stage.settle();
    let policy = "mine".to_owned();
    stage.order(Order::Promote { policy }).unwrap();
    assert_eq!(digest(&stage), Some(Digest::of(&next)));
    let mut stage = stage.restart(|stage| {
        held.hold();
        forget_code(stage, &next);
    });
    stage.look_until(|stage| digest(stage) == Some(Digest::of(&good)));
    held.let_go();
    stage.look();
    assert_eq!(digest(&stage), Some(Digest::of(&next)));
}

#[test]
fn a_last_good_version_whose_compiler_is_killed_is_there_at_the_next_start() {
    let compiler = HeldCompiler::new();
    let mut stage = Stage::with(&["aging"], |folder, config| {
        soon_proven(folder, config);
        config.compiler = compiler.compiler();
    });
    let good = version(&component("aging"), 1);
    stage.write("mine.wasm", &good);
    stage.settle();
    prove(&mut stage);
    let stage = stage.restart(|stage| {
        compiler.kill();
        forget_code(stage, &good);
        stage.write("mine.wasm", "no");
    });
    assert_eq!(stage.holders(), SMALL);
    let stage = stage.restart(|_| compiler.spare());
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
}

#[test]
fn a_file_that_is_compiled_whenever_the_server_stops_is_not_given_up() {
    let held = HeldCompiler::new();
    let mut stage = compiling(&held);
    held.hold();
    stage.write("slow.wasm", component("test/hostile"));
    stage.glance_settled();
    for _ in 0..4 {
        while compilations_noted(&stage.home().join("state")) == 0 {
            std::thread::yield_now();
        }
        stage = stage.restart(|_| {});
    }
    held.let_go();
    stage.look();
    assert_eq!(stage.holders(), ["slow"; 5]);
}

#[test]
fn a_mode_that_is_refused_leaves_the_last_good_version_as_it_was() {
    let good = version(&component("aging"), 1);
    let mut stage = proven(&good, None);
    stage.write("mine.toml", "mode = 'canary 10%'");
    stage.settle();
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
    let stage = stage.restart(|_| {});
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
    assert!(stage.refusal("mine").is_some());
}

#[test]
fn a_version_that_was_not_proven_is_not_fallen_back_on() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    let stage = stage.restart(|stage| stage.write("mine.wasm", "no"));
    assert_eq!(stage.holders(), SMALL);
}

#[test]
fn a_kept_component_that_is_damaged_is_not_used() {
    let good = version(&component("aging"), 1);
    let stage = proven(&good, None);
    let stage = stage.restart(|stage| {
        let kept = stage.home().join("state/policies");
        let kept = kept.join(format!("{}.wasm", Digest::of(&good)));
        fs::write(kept, "no").unwrap();
        stage.write("mine.wasm", "no");
    });
    assert_eq!(stage.holders(), SMALL);
}

#[test]
fn what_was_rolled_back_stays_out_after_a_restart_and_the_one_before_is_in_force() {
    let good = version(&component("aging"), 1);
    let mut stage = proven(&good, None);
    stage.write("mine.wasm", version(&component("aging"), 2));
    stage.settle();
    let policy = "mine".to_owned();
    stage.order(Order::Rollback { policy }).unwrap();
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
    let stage = stage.restart(|_| {});
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
    assert_eq!(stage.report().quarantine.len(), 1);
    let refusal = stage.refusal("mine").unwrap();
    assert!(refusal.why.contains("quarantine"), "{refusal:?}");
}

#[test]
fn what_could_not_be_written_is_once_it_can_be() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    // In the way of the file that replaces the state file.
    let in_the_way = stage.home().join("state/.state.json.new");
    fs::create_dir(&in_the_way).unwrap();
    let (policy, mode) = ("mine".to_owned(), Mode::Shadow);
    stage.order(Order::Mode { policy, mode }).unwrap();
    let problem = stage.report().state.problem.clone().unwrap();
    assert!(problem.starts_with("state not written: "), "{problem}");
    fs::remove_dir(in_the_way).unwrap();
    stage.poll();
    assert_eq!(stage.report().state.problem, None);
    let stage = stage.restart(|_| {});
    assert_eq!(stage.policy("mine").unwrap().mode, Mode::Shadow);
    assert_eq!(stage.holders(), SMALL);
}

/// A stage in which `first` holds the hook that `second` claims, too.
fn contested(first: &str, second: &str) -> Stage {
    let mut stage = Stage::small();
    for (name, number) in [(first, 1), (second, 2)] {
        let bytes = version(&component("aging"), number);
        stage.write(&format!("{name}.wasm"), bytes);
        stage.settle();
    }
    stage
}

#[test]
fn who_decides_is_the_same_after_a_restart_where_several_claim_a_hook() {
    for (first, second) in [("one", "two"), ("two", "one")] {
        let stage = contested(first, second);
        assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some(first));
        let stage = stage.restart(|_| {});
        assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some(first));
        let conflicts = stage.report().conflicts.len();
        assert_eq!(conflicts, 1, "it is still said");
    }
}

#[test]
fn who_decides_is_the_same_after_a_restart_though_its_file_is_broken() {
    let mut stage = Stage::with(&["aging"], soon_proven);
    let good = version(&component("aging"), 1);
    stage.write("mine.wasm", &good);
    stage.settle();
    prove(&mut stage);
    stage.write("another.wasm", version(&component("aging"), 2));
    stage.settle();
    let stage = stage.restart(|stage| stage.write("mine.wasm", "no"));
    assert_eq!(digest(&stage), Some(Digest::of(&good)));
}

/// The start goes on while the file is compiled, or while others are and it waits for them.
#[test]
fn who_decides_is_the_same_after_a_restart_though_its_file_takes_long() {
    for others in [0, 4] {
        let held = HeldCompiler::new();
        let mut stage = compiling(&held);
        for (name, number) in [("slow", 1), ("another", 2)] {
            let bytes = version(&component("aging"), number);
            stage.write(&format!("{name}.wasm"), bytes);
            stage.settle();
        }
        let mut stage = stage.restart(|stage| {
            held.hold();
            stage.write("slow.wasm", version(&component("aging"), 3));
            for number in 0..others {
                let bytes = version(&component("aging"), 4 + number);
                stage.write(&format!("first-{number}.wasm"), bytes);
                stage.write(&format!("first-{number}.toml"), "mode = 'shadow'");
            }
        });
        stage.look_until(|stage| stage.policy("another").is_some());
        assert_eq!(stage.holders(), SMALL);
        let why = "is kept for the file that held it last, which is still being made ready";
        let denied = stage.policy("another").unwrap().denied;
        assert_eq!(denied, [(Hook::Priority, why.to_owned())]);
        held.let_go();
        stage.look();
        assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("slow"));
        let mut stage = stage.restart(|_| {});
        stage.look();
        assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("slow"));
    }
}

#[test]
fn what_is_in_quarantine_claims_nothing_at_a_start() {
    let mut stage = Stage::small();
    stage.write("a.wasm", version(&component("aging"), 1));
    stage.settle();
    let policy = "a".to_owned();
    stage.order(Order::Rollback { policy }).unwrap();
    stage.write("b.wasm", version(&component("aging"), 2));
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("b"));
    let stage = stage.restart(|_| {});
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("b"));
    assert_eq!(stage.report().conflicts, []);
    let why = stage.refusal("a").unwrap().why;
    let expected = "it is in quarantine until its code, settings or limits change, or `pointsman \
                    policy release a` lets it be tried again: rolled back by order";
    assert_eq!(why, expected);
}

#[test]
fn the_canary_is_the_same_after_a_restart() {
    let mut stage = Stage::with(&["memory-aware"], |_, _| {});
    for name in ["two", "one"] {
        stage.write(&format!("{name}.toml"), "mode = 'canary 10%'");
        stage.write(&format!("{name}.wasm"), component("first-policy"));
        stage.settle();
    }
    let canary = |stage: &Stage| {
        let statuses = stage.statuses();
        let mut tried = statuses.iter().filter(|it| !it.on_trial.is_empty());
        tried.next().map(|it| it.name.clone())
    };
    assert_eq!(canary(&stage).as_deref(), Some("two"));
    let stage = stage.restart(|_| {});
    assert_eq!(canary(&stage).as_deref(), Some("two"));
}

#[test]
fn what_is_in_quarantine_stays_out_after_a_restart() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("test/hostile"));
    stage.write("mine.toml", TRAPS);
    stage.settle();
    stage.ask_often(301);
    stage.poll();
    assert_eq!(stage.holders(), SMALL);
    let dumps = fs::read_dir(stage.home().join("state/dumps")).unwrap();
    assert_eq!(dumps.count(), 1, "the fault has left a dump");
    let mut stage = stage.restart(|_| {});
    assert_eq!(stage.holders(), SMALL);
    assert!(stage.refusal("mine").is_some());
    let fingerprint = stage.report().quarantine[0].fingerprint;
    stage.order(Order::Release { fingerprint }).unwrap();
    stage.settle();
    assert_eq!(stage.holders(), ["mine"; 5]);
}

#[test]
fn what_is_in_quarantine_is_tried_again_with_other_limits_after_a_restart_too() {
    let lower = format!("{TRAPS}[limits]\ncall-fuel = 19_000_000");
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("test/hostile"));
    stage.write("mine.toml", &lower);
    stage.settle();
    stage.ask_often(301);
    stage.poll();
    assert_eq!(stage.holders(), SMALL);
    // Another mode is no other version.
    stage.write("mine.toml", format!("mode = 'shadow'\n{lower}"));
    stage.settle();
    let why = stage.refusal("mine").unwrap().why;
    assert!(why.contains("`pointsman policy release mine`"), "{why}");
    let mut stage = stage.restart(|stage| stage.write("mine.toml", TRAPS));
    assert_eq!(stage.holders(), ["mine"; 5]);
    assert_eq!(stage.refusal("mine"), None);
    // It has its own entry then.
    stage.ask_often(301);
    stage.poll();
    assert_eq!(stage.holders(), SMALL);
    let stage = stage.restart(|_| {});
    assert_eq!(stage.holders(), SMALL);
}

#[test]
fn ejected_hooks_stay_ejected_after_a_restart() {
    let mut stage = Stage::new();
    stage.write("mine.wasm", component("test/hostile"));
    stage.settle();
    let hooks = Hook::ALL.into_iter().collect();
    stage.order(Order::Eject { hooks }).unwrap();
    let mut stage = stage.restart(|_| {});
    assert_eq!(stage.holders(), HELD);
    for hook in Hook::ALL {
        stage.order(Order::Bind { hook, policy: None }).unwrap();
    }
    assert_eq!(stage.holders(), ["mine"; 5]);
}

#[test]
fn modes_and_bindings_that_were_ordered_hold_after_a_restart() {
    let mut stage = Stage::small();
    for (name, number) in [("one", 1), ("two", 2), ("shade", 3)] {
        stage.write(
            &format!("{name}.wasm"),
            version(&component("aging"), number),
        );
        stage.settle();
    }
    let policy = "shade".to_owned();
    let mode = Mode::Shadow;
    stage.order(Order::Mode { policy, mode }).unwrap();
    let policy = Some("two".to_owned());
    let hook = Hook::Priority;
    stage.order(Order::Bind { hook, policy }).unwrap();
    let stage = stage.restart(|_| {});
    assert_eq!(stage.holder_name(hook).as_deref(), Some("two"));
    assert_eq!(stage.policy("shade").unwrap().mode, mode);
}

// === The folder ===

#[test]
fn a_folder_that_is_not_mounted_at_the_start_has_its_last_good_policies_in_force() {
    let good = version(&component("aging"), 1);
    for mount_point in [false, true] {
        let stage = proven(&good, None);
        let mut stage = stage.restart(|stage| {
            let here = stage.path("");
            fs::rename(&here, stage.home().join("away")).unwrap();
            if mount_point {
                fs::create_dir(&here).unwrap();
            }
        });
        assert_eq!(digest(&stage), Some(Digest::of(&good)), "{mount_point}");
        let state = stage.report().folder.state.clone();
        assert_ne!(state, FolderState::Watched);
        stage.poll();
        stage.poll();
        assert_eq!(digest(&stage), Some(Digest::of(&good)));
        let here = stage.path("");
        if mount_point {
            fs::remove_dir(&here).unwrap();
        }
        fs::rename(stage.home().join("away"), &here).unwrap();
        stage.settle();
        stage.poll();
        assert_eq!(stage.report().folder.state, FolderState::Watched);
        assert_eq!(digest(&stage), Some(Digest::of(&good)));
        stage.remove("mine.wasm");
        stage.settle();
        assert_eq!(stage.holders(), SMALL);
    }
}

#[test]
fn a_file_that_was_removed_between_two_lives_is_gone() {
    let good = version(&component("aging"), 1);
    let stage = proven(&good, None);
    let stage = stage.restart(|stage| stage.remove("mine.wasm"));
    assert_eq!(stage.holders(), SMALL);
    let kept = fs::read_dir(stage.home().join("state/policies")).unwrap();
    assert_eq!(kept.count(), 0);
}

#[test]
fn an_embedded_policy_with_its_machine_code_is_not_compiled_at_the_first_start() {
    let [aging, budget] = ["aging", "budget"].map(|name| &*component(name).leak());
    let code = pointsman_component::precompile(aging).unwrap();
    let code = Packed::new("aging.code", pack(&code).leak());
    // Code of another component is no code.
    for (wasm, compiled, cached) in [(aging, 0, 1), (budget, 1, 0)] {
        let embedded = EmbeddedPolicy {
            name: "mine",
            wasm,
            code: Some(code),
        };
        let stage = Stage::embedding(vec![embedded], |_, _| {});
        let report = stage.report();
        assert_eq!((report.compiled, report.cached), (compiled, cached));
        assert_eq!(stage.policy("mine").unwrap().digest, Digest::of(wasm));
    }
}

#[test]
fn compiled_code_is_kept_from_one_life_to_the_next_and_damage_is_a_miss() {
    let uncompiled = EmbeddedPolicy {
        name: "aging",
        wasm: component("aging").leak(),
        code: None,
    };
    let mut stage = Stage::embedding(vec![uncompiled], |_, _| {});
    stage.write("mine.wasm", version(&component("aging"), 1));
    stage.settle();
    assert_eq!(stage.report().compiled, 2);
    let stage = stage.restart(|_| {});
    let report = stage.report();
    assert_eq!((report.compiled, report.cached), (0, 2));
    let stage = stage.restart(|stage| {
        let code = fs::read_dir(stage.home().join("state/code")).unwrap();
        for entry in code {
            let path = entry.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
    });
    let report = stage.report();
    assert_eq!((report.compiled, report.cached), (2, 0));
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
}

#[test]
fn a_damaged_state_file_is_set_aside_and_the_server_begins_anew() {
    let stage = Stage::small();
    let stage = stage.restart(|stage| {
        fs::write(stage.home().join("state/state.json"), "{ \"version\": 1,").unwrap();
    });
    assert_eq!(stage.holders(), SMALL);
    let why = stage.report().state.set_aside.clone().unwrap();
    assert!(why.contains("state.damaged: damaged"), "{why}");
    let aside = fs::read_to_string(stage.home().join("state/state.damaged")).unwrap();
    assert_eq!(aside, "{ \"version\": 1,");
}
