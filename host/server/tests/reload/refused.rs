//! Files that are refused: what is in force stays, and the reason is said.

use std::fs;

use pointsman_component::{COMPONENT_BYTES_MAX, Digest};
use pointsman_core::Hook;
use pointsman_lifecycle::report::{ReloadStep, TransactionOutcome};

use crate::stage::{Stage, component, version};

/// The replacement of a good `mine.wasm`.
enum Bad {
    Bytes(Vec<u8>),
    /// Another version of the same policy, with this sidecar.
    Sidecar(&'static str),
    /// The guest that misbehaves on demand, with this sidecar.
    Hostile(&'static str),
    /// A file with nothing but a size in bytes.
    Sparse(usize),
    Folder,
    Dangling,
}

/// A good policy is replaced by a bad one, at which `step` fails and says something with `why` in
/// it; the good one stays in force untouched, and is the same again once it is back.
fn check(stage: &mut Stage, bad: Bad, step: ReloadStep, why: &str) {
    let good = component("aging");
    let before = stage.policy("mine").unwrap();
    let is_bytes = matches!(bad, Bad::Bytes(_));
    put(stage, bad);
    stage.settle();
    let refusal = stage.refusal("mine").unwrap();
    assert_eq!(refusal.step, step, "{refusal:?}");
    assert!(refusal.why.contains(why), "{refusal:?} lacks {why:?}");
    assert_eq!(
        refusal.digest.is_some(),
        is_bytes || step != ReloadStep::Read
    );
    let refused = TransactionOutcome::Refused {
        step,
        why: refusal.why,
    };
    assert_eq!(stage.last().outcome, refused);
    let counted = format!("outcome=\"refused\",step=\"{step}\"");
    assert!(
        stage.port.metrics.render().contains(&counted),
        "{step} is counted"
    );
    assert_eq!(stage.policy("mine").unwrap(), before);
    assert_eq!(
        stage.holder(Hook::Priority),
        Some(("mine".to_owned(), Digest::of(&good)))
    );
    // It is not tried again as long as it stays as it is.
    let tried = stage.last().number;
    stage.poll();
    stage.poll();
    assert_eq!(stage.last().number, tried);
    restore(stage, &good);
    assert_eq!(stage.refusal("mine"), None);
    assert_eq!(stage.policy("mine").unwrap(), before);
    assert_eq!(stage.last().number, tried, "nothing had to be done");
}

/// A stage where a good policy is in force.
fn stage() -> Stage {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("aging"));
    stage.settle();
    stage
}

fn put(stage: &mut Stage, bad: Bad) {
    let path = stage.path("mine.wasm");
    match bad {
        Bad::Bytes(bytes) => stage.write("mine.wasm", bytes),
        Bad::Sidecar(text) => stage.write("mine.toml", text),
        Bad::Hostile(text) => {
            stage.write("mine.wasm", component("test/hostile"));
            stage.write("mine.toml", text);
        }
        Bad::Sparse(bytes) => {
            let file = fs::File::create(&path).unwrap();
            file.set_len(u64::try_from(bytes).unwrap()).unwrap();
            stage.touch(&path);
        }
        Bad::Folder => {
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
        }
        Bad::Dangling => {
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(stage.home().join("nowhere"), &path).unwrap();
        }
    }
}

fn restore(stage: &mut Stage, good: &[u8]) {
    let path = stage.path("mine.wasm");
    if path.is_dir() {
        fs::remove_dir(&path).unwrap();
    } else {
        fs::remove_file(&path).unwrap();
    }
    if stage.path("mine.toml").exists() {
        stage.remove("mine.toml");
    }
    stage.write("mine.wasm", good);
    stage.settle();
}

#[test]
fn what_is_no_component() {
    let mut stage = stage();
    let aging = component("aging");
    let truncated = aging[..aging.len() / 2].to_vec();
    let core_module = b"\0asm\x01\0\0\0".to_vec();
    for (bytes, why) in [
        (Vec::new(), "not a WebAssembly file"),
        (b"hello".to_vec(), "not a WebAssembly file"),
        (b"(component)".to_vec(), "WebAssembly text"),
        (b"\x7fELF\x02".to_vec(), "precompiled"),
        (core_module, "a core module"),
        (truncated, "malformed component"),
    ] {
        check(&mut stage, Bad::Bytes(bytes), ReloadStep::Validate, why);
    }
}

#[test]
fn what_was_made_for_another_interface() {
    let mut stage = stage();
    let mut bytes = component("aging");
    let (of_old, of_new) = (
        b"pointsman:scheduling/lifecycle@0.1",
        b"pointsman:scheduling/lifecycle@0.9",
    );
    let mut at = 0;
    while let Some(found) = bytes[at..]
        .windows(of_old.len())
        .position(|it| it == of_old)
    {
        at += found;
        bytes[at..at + of_new.len()].copy_from_slice(of_new);
    }
    assert!(at > 0);
    check(
        &mut stage,
        Bad::Bytes(bytes),
        ReloadStep::Validate,
        "is of version \"0.9",
    );
}

#[test]
fn what_does_not_start() {
    let mut stage = stage();
    for (sidecar, step, why) in [
        (
            "[settings]\noutrage = 'trap'\ncalls = ['configure']",
            ReloadStep::Configure,
            "faulted on its settings: mine panicked at tests/guests/examples/hostile/lib.rs:",
        ),
        (
            "[settings]\noutrage = 'loop'\ncalls = ['configure']",
            ReloadStep::Configure,
            "faulted on its settings: mine ran out of fuel at configure",
        ),
        (
            "[limits]\nmemory-bytes = 1000",
            ReloadStep::Start,
            "faulted at the start: ",
        ),
    ] {
        check(&mut stage, Bad::Hostile(sidecar), step, why);
    }
}

#[test]
fn settings_that_a_policy_does_not_take() {
    let mut stage = stage();
    for (sidecar, why) in [
        ("[settings]\nafinity-bonus = 1", "settings refused: "),
        (
            "[settings]\nclass-lead = 90",
            "settings refused: `class-lead`: 90 has no unit; write \"90s\"",
        ),
        (
            "[settings]\nclass-lead = '25h'",
            "settings refused: `class-lead`: 25h is not between 0s and 24h",
        ),
    ] {
        check(
            &mut stage,
            Bad::Sidecar(sidecar),
            ReloadStep::Configure,
            why,
        );
    }
}

#[test]
fn sidecars_that_make_no_sense() {
    let mut stage = stage();
    for (sidecar, why) in [
        ("[settings", "mine.toml:1:"),
        ("[setings]", "did you mean `settings`?"),
        ("colour = 'red'", "unknown key `colour`"),
        (
            "[limits]\nmemory-bytes = 1_000_000_000",
            "limits.memory-bytes must be from 1 to",
        ),
    ] {
        check(&mut stage, Bad::Sidecar(sidecar), ReloadStep::Validate, why);
    }
}

#[test]
fn what_cannot_be_read() {
    let mut stage = stage();
    check(
        &mut stage,
        Bad::Sparse(COMPONENT_BYTES_MAX + 1),
        ReloadStep::Read,
        "67108865 bytes",
    );
    check(
        &mut stage,
        Bad::Folder,
        ReloadStep::Read,
        "not a regular file",
    );
    check(&mut stage, Bad::Dangling, ReloadStep::Read, "No such file");
}

/// The next change of either file is a new chance.
#[test]
fn a_sidecar_can_make_a_refused_file_good() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", component("aging"));
    stage.write("mine.toml", "[settings]\nnonsense = 1");
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("aging"));
    let made = stage.made();
    stage.write("mine.toml", "[settings]\naffinity-bonus = 1");
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
    assert_eq!(stage.made(), made);
    assert_eq!(stage.refusal("mine"), None);
}

#[test]
fn a_refused_version_that_is_removed_is_forgotten() {
    let mut stage = Stage::small();
    stage.write("mine.wasm", "no");
    stage.settle();
    assert!(stage.refusal("mine").is_some());
    stage.remove("mine.wasm");
    stage.settle();
    assert_eq!(stage.refusal("mine"), None);
    assert_eq!(stage.last().outcome, TransactionOutcome::Removed);
}

#[test]
fn one_bad_file_does_not_keep_another_one_out() {
    let mut stage = Stage::small();
    stage.write("bad.wasm", "no");
    stage.write("good.wasm", version(&component("aging"), 1));
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("good"));
    assert!(stage.refusal("bad").is_some());
}
