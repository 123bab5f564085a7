//! The state file, and the folder it is in.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use pointsman_component::Limits;
use pointsman_interface::Micros;
use pointsman_policy::Cause;
use tempfile::TempDir;

use super::folder::DUMPS_MAX;
use super::*;

fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A state with at least one entry of each kind.
fn much() -> Remembered {
    let digest = Digest::of(b"code");
    let instead_of = Mode::Shadow;
    let mode = "canary 10%".parse().unwrap();
    Remembered {
        bindings: BTreeMap::from([
            (Hook::Priority, BoundTo::Policy("mine".to_owned())),
            (Hook::Routing, BoundTo::Embedded),
        ]),
        modes: BTreeMap::from([("mine".to_owned(), ModeOrder { mode, instead_of })]),
        quarantine: vec![Quarantined {
            fingerprint: Digest::of(b"print"),
            limits: Some(Limits {
                call_fuel: 1,
                ..Limits::default()
            }),
            digest,
            name: "aging".to_owned(),
            at: Micros(0),
            cause: Cause::RolledBack,
            detail: "too much fuel".to_owned(),
        }],
        last_good: BTreeMap::from([(
            "mine".to_owned(),
            LastGood {
                digest,
                sidecar: Some("mode = 'shadow'".to_owned()),
            },
        )]),
        holders: BTreeMap::from([(Hook::Routing, "mine".to_owned())]),
        canaries: BTreeMap::from([(Hook::Admission, "other".to_owned())]),
        folder: Some(FolderId {
            path: PathBuf::from("/etc/policies.d"),
            device: 64769,
            inode: u64::MAX,
        }),
    }
}

#[test]
fn what_is_written_down_is_read_back() {
    let home = home();
    let mut state = State::open(home.path());
    assert_eq!(*state.remembered(), Remembered::default());
    state.change(|state| *state = much());
    drop(state);
    let state = State::open(home.path());
    assert_eq!(*state.remembered(), much());
    assert_eq!(state.report().path.as_deref(), Some(home.path()));
    assert_eq!(state.report().problem, None);
}

/// The file of the first release, which every later release must read.
#[test]
fn a_state_file_of_version_1_is_read() {
    let digest = Digest::of(b"code");
    let print = Digest::of(b"print");
    let text = format!(
        r#"{{
  "version": 1,
  "bindings": {{ "priority": {{ "policy": "mine" }}, "routing": "embedded" }},
  "modes": {{ "mine": {{ "mode": "canary 10%", "instead-of": "shadow" }} }},
  "quarantine": [ {{ "fingerprint": "{print}", "digest": "{digest}", "name": "aging",
    "cause": "rolled-back", "detail": "too much fuel" }} ],
  "good": {{ "mine": {{ "digest": "{digest}", "sidecar": "mode = 'shadow'" }} }},
  "folder": {{ "path": "/etc/policies.d", "device": 64769, "inode": 18446744073709551615 }}
}}"#
    );
    // Later releases also remember who held a hook, and the limits in quarantine.
    let mut read = Remembered {
        holders: BTreeMap::new(),
        canaries: BTreeMap::new(),
        ..much()
    };
    read.quarantine[0].limits = None;
    assert_eq!(file::parse(text.as_bytes()).unwrap(), read);
}

#[test]
fn a_state_file_that_makes_no_sense_is_set_aside_with_the_reason() {
    for (text, why) in [
        ("", "damaged: EOF"),
        ("{}", "missing field `version`"),
        (r#"{"version": 2}"#, "of version 2, this server reads 1"),
        (r#"{"version": 1, "bindings": {}}"#, "missing field `modes`"),
        (
            r#"{"version": 1, "bindings": {"nonsense": "embedded"}, "modes": {},
                "quarantine": [], "good": {}, "folder": null}"#,
            "\"nonsense\" is no hook",
        ),
        (
            r#"{"version": 1, "bindings": {}, "modes": {}, "quarantine": [],
                "good": {"a": {"digest": "00", "sidecar": null}}, "folder": null}"#,
            "a SHA-256 has 64 hexadecimal digits",
        ),
    ] {
        let home = home();
        fs::write(home.path().join("state.json"), text).unwrap();
        let mut state = State::open(home.path());
        let set_aside = state.report().set_aside.clone().unwrap();
        assert!(set_aside.contains(why), "{set_aside:?} lacks {why:?}");
        let aside = fs::read_to_string(home.path().join("state.damaged")).unwrap();
        assert_eq!(aside, text);
        // The server begins anew, and writes again.
        state.change(|state| *state = much());
        assert_eq!(state.report().problem, None);
        drop(state);
        assert_eq!(*State::open(home.path()).remembered(), much());
    }
}

/// Reads the file cut at each byte, and with each bit flipped: an error is allowed, a panic is not.
#[test]
fn no_damage_makes_reading_panic() {
    let text = file::text(&much());
    for end in 0..text.len() {
        let cut = file::parse(&text[..end]);
        // Without its last line feed it is whole.
        assert!(cut.is_err() || end + 1 == text.len());
    }
    for at in 0..text.len() {
        for bit in 0..8 {
            let mut damaged = text.clone();
            damaged[at] ^= 1 << bit;
            drop(file::parse(&damaged));
        }
    }
}

#[test]
fn a_state_that_could_not_be_written_is_written_by_the_next_change() {
    let home = home();
    let mut state = State::open(home.path());
    // In the way of the file that replaces the state file.
    let in_the_way = home.path().join(".state.json.new");
    fs::create_dir(&in_the_way).unwrap();
    state.change(|state| *state = much());
    state.change(|_| ());
    let problem = state.report().problem.clone().unwrap();
    assert!(problem.starts_with("state not written: "), "{problem}");
    fs::remove_dir(&in_the_way).unwrap();
    state.change(|_| ());
    assert_eq!(state.report().problem, None);
    drop(state);
    assert_eq!(*State::open(home.path()).remembered(), much());
}

#[test]
fn components_that_could_not_be_removed_are_by_the_next_change() {
    let home = home();
    let mut state = State::open(home.path());
    let policies = home.path().join("policies");
    // What is no file is not removed.
    let in_the_way = policies.join("folder");
    fs::create_dir(&in_the_way).unwrap();
    state.prove("mine", b"code", None);
    let problem = state.report().problem.clone().unwrap();
    let expected = "replaced policies not removed: ";
    assert!(problem.starts_with(expected), "{problem}");
    fs::remove_dir(&in_the_way).unwrap();
    fs::write(policies.join("replaced.wasm"), "old").unwrap();
    state.change(|_| ());
    assert_eq!(state.report().problem, None);
    assert_eq!(files(&policies), [format!("{}.wasm", Digest::of(b"code"))]);
}

#[test]
fn a_problem_is_shown_until_what_failed_succeeds() {
    let home = home();
    let mut state = State::open(home.path());
    let state_in_the_way = home.path().join(".state.json.new");
    fs::create_dir(&state_in_the_way).unwrap();
    // The component can be kept, and a dump.
    state.prove("mine", b"code", None);
    state.keep_dump(b"{}");
    let problem = |state: &State| state.report().problem.clone().unwrap();
    let unwritten = problem(&state);
    assert!(unwritten.starts_with("state not written: "), "{unwritten}");
    let dump_in_the_way = home.path().join("dumps/.00000001.json.new");
    fs::create_dir(&dump_in_the_way).unwrap();
    state.keep_dump(b"{}");
    let both = problem(&state);
    let dump = both.strip_suffix(&format!("; {unwritten}")).unwrap();
    assert!(dump.starts_with("dump of a fault not kept: "), "{both}");
    fs::remove_dir(&state_in_the_way).unwrap();
    state.change(|_| ());
    assert_eq!(problem(&state), dump);
    fs::remove_dir(&dump_in_the_way).unwrap();
    state.keep_dump(b"{}");
    assert_eq!(state.report().problem, None);
}

#[test]
fn two_servers_never_share_a_folder() {
    let home = home();
    let first = State::open(home.path());
    let mut second = State::open(home.path());
    let problem = second.report().problem.clone().unwrap();
    assert!(problem.contains("in use by another server"), "{problem}");
    assert_eq!(second.report().path, None);
    second.change(|state| *state = much());
    assert_eq!(*second.remembered(), much(), "it remembers while it lives");
    drop((first, second));
    assert_eq!(
        *State::open(home.path()).remembered(),
        Remembered::default()
    );
}

#[test]
fn a_folder_that_cannot_be_made_is_done_without() {
    let home = home();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    let mut state = State::open(&file.join("state"));
    let problem = state.report().problem.clone().unwrap();
    assert!(problem.contains("cannot be used"), "{problem}");
    assert!(state.cache().is_none());
    state.prove("mine", b"code", None);
    state.keep_dump(b"{}");
    assert_eq!(state.code(Digest::of(b"code")), None);
}

#[test]
fn the_folder_is_this_users_alone() {
    let home = home();
    let path = home.path().join("made");
    let mut state = State::open(&path);
    assert!(state.cache().is_some());
    for part in ["", "policies", "dumps", "code"] {
        let mode = fs::metadata(path.join(part)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{part}");
    }
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn of_proven_components_the_last_of_each_name_is_kept() {
    let home = home();
    let mut state = State::open(home.path());
    for code in [b"one", b"two"] {
        state.prove("mine", code, None);
    }
    let (one, two) = (Digest::of(b"one"), Digest::of(b"two"));
    assert_eq!(state.code(one), None);
    assert_eq!(state.code(two).as_deref(), Some(&b"two"[..]));
    let policies = home.path().join("policies");
    assert_eq!(files(&policies), [format!("{two}.wasm")]);
    // A component with another digest than its name counts as none.
    fs::write(policies.join(format!("{two}.wasm")), "one").unwrap();
    assert_eq!(state.code(two), None);
    state.change(|state| state.last_good.clear());
    assert!(files(&policies).is_empty());
}

#[test]
fn the_newest_dumps_are_kept_and_numbered_on_in_the_next_life() {
    let home = home();
    let mut state = State::open(home.path());
    for _ in 0..DUMPS_MAX {
        state.keep_dump(b"{}");
    }
    drop(state);
    let mut state = State::open(home.path());
    state.keep_dump(b"{}");
    state.keep_dump(b"{}");
    let kept = files(&home.path().join("dumps"));
    assert_eq!(kept.len(), DUMPS_MAX);
    assert_eq!(kept.first().unwrap(), "00000002.json");
    assert_eq!(kept.last().unwrap(), &format!("{:08}.json", DUMPS_MAX + 1));
}
