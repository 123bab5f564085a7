//! Changes in a folder while it is watched.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use pointsman_component::Digest;
use pointsman_core::Hook;
use pointsman_lifecycle::report::FolderState;

use crate::SMALL;
use crate::stage::{SETTLE, Stage, component, version};

fn priority(stage: &Stage) -> (String, Digest) {
    stage.holder(Hook::Priority).unwrap()
}

fn mine(bytes: &[u8]) -> (String, Digest) {
    ("mine".to_owned(), Digest::of(bytes))
}

#[test]
fn a_file_that_is_renamed_over_another_is_a_new_version() {
    let mut stage = Stage::small();
    let (one, two) = (component("aging"), version(&component("aging"), 2));
    stage.write("mine.wasm", &one);
    stage.settle();
    stage.write("mine.wasm.tmp", &two);
    stage.settle();
    assert_eq!(
        priority(&stage),
        mine(&one),
        "a temporary name is not looked at"
    );
    fs::rename(stage.path("mine.wasm.tmp"), stage.path("mine.wasm")).unwrap();
    stage.settle();
    assert_eq!(priority(&stage), mine(&two));
}

#[test]
fn a_file_that_is_still_being_written_is_waited_for() {
    let mut stage = Stage::small();
    let bytes = component("aging");
    for end in [1, bytes.len() / 3, bytes.len() / 2, bytes.len()] {
        stage.write("mine.wasm", &bytes[..end]);
        stage.look();
        stage.advance(SETTLE / 2);
        stage.look();
        assert_eq!(stage.holders(), SMALL);
    }
    stage.advance(SETTLE / 2);
    stage.look();
    assert_eq!(priority(&stage), mine(&bytes));
    assert_eq!(
        stage.report().transactions.len(),
        2,
        "no half file was tried"
    );
}

#[test]
fn what_editors_and_copying_tools_leave_is_not_looked_at() {
    let mut stage = Stage::small();
    for name in [
        ".mine.wasm.swp",
        ".mine.wasm",
        "..data.wasm",
        "mine.wasm~",
        "#mine.wasm#",
        "~mine.wasm",
        "mine.wasm.bak",
        "mine.wasm.part",
        "4913",
    ] {
        stage.write(name, "not yet");
    }
    stage.settle();
    assert_eq!(stage.holders(), SMALL);
    assert_eq!(stage.report().refused, []);
    assert_eq!(stage.report().folder.left_out, []);
}

/// Tests a change as Kubernetes mounts a ConfigMap: files are links through `..data`, itself a link
/// that is swapped.
#[test]
fn a_swap_of_links_is_one_change() {
    let mut stage = Stage::small();
    let bytes = component("aging");
    let publish = |stage: &mut Stage, version: &str, bonus: u32| {
        let folder = stage.path(version);
        fs::create_dir(&folder).unwrap();
        let sidecar = format!("[settings]\naffinity-bonus = {bonus}");
        stage.write_at(&folder.join("mine.wasm"), &bytes);
        stage.write_at(&folder.join("mine.toml"), sidecar);
        symlink(version, stage.path("..data_tmp")).unwrap();
        fs::rename(stage.path("..data_tmp"), stage.path("..data")).unwrap();
    };
    publish(&mut stage, "..2024_01", 1);
    for file in ["mine.wasm", "mine.toml"] {
        symlink(Path::new("..data").join(file), stage.path(file)).unwrap();
    }
    stage.settle();
    assert_eq!(priority(&stage), mine(&bytes));
    assert_eq!(stage.policy("mine").unwrap().settings["affinity-bonus"], 1);
    let before = stage.report().transactions.len();
    publish(&mut stage, "..2024_02", 2);
    fs::remove_dir_all(stage.path("..2024_01")).unwrap();
    stage.settle();
    assert_eq!(stage.policy("mine").unwrap().settings["affinity-bonus"], 2);
    assert_eq!(stage.report().transactions.len(), before + 1);
    assert_eq!(stage.made(), 1, "the bytes are the default's");
}

#[test]
fn a_folder_that_vanishes_and_returns_changes_nothing() {
    let mut stage = Stage::small();
    let bytes = component("aging");
    stage.write("mine.wasm", &bytes);
    stage.settle();
    let made = stage.last().number;
    let (here, away) = (stage.path(""), stage.home().join("away"));
    fs::rename(&here, &away).unwrap();
    stage.poll();
    stage.poll();
    assert_eq!(stage.report().folder.state, FolderState::Missing);
    assert_eq!(priority(&stage), mine(&bytes));
    // The mount point without its mount.
    fs::create_dir(&here).unwrap();
    stage.poll();
    stage.poll();
    assert_eq!(stage.report().folder.state, FolderState::Emptied);
    assert_eq!(priority(&stage), mine(&bytes));
    fs::remove_dir(&here).unwrap();
    fs::rename(&away, &here).unwrap();
    stage.poll();
    stage.poll();
    assert_eq!(stage.report().folder.state, FolderState::Watched);
    assert_eq!(stage.last().number, made, "there was nothing to do");
    stage.remove("mine.wasm");
    stage.settle();
    assert_eq!(stage.holders(), SMALL);
}

#[test]
fn a_folder_that_is_not_there_yet_is_waited_for() {
    let mut stage = Stage::with(&["aging"], |folder, _| fs::remove_dir(folder).unwrap());
    assert_eq!(stage.holders(), SMALL);
    assert_eq!(stage.report().folder.state, FolderState::Missing);
    fs::create_dir(stage.path("")).unwrap();
    stage.write("mine.wasm", component("aging"));
    stage.poll();
    stage.settle();
    assert_eq!(stage.holder_name(Hook::Priority).as_deref(), Some("mine"));
}

#[test]
fn without_a_folder_the_defaults_decide() {
    let mut stage = Stage::with(&["aging"], |_, config| config.policies.folder = None);
    stage.write("mine.wasm", component("aging"));
    stage.poll();
    stage.poll();
    assert_eq!(stage.holders(), SMALL);
    assert_eq!(stage.report().folder.state, FolderState::None);
}
