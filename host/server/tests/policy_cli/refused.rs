//! Files and arguments of no use are refused with the reason and the remedy.

use std::fs;

use pointsman_component::Digest;
use pointsman_testkit::component::component_path;

use super::hooks;
use super::place::{Place, can_build};
use super::scenario::one_is_placed;

#[test]
fn what_is_no_policy_is_explained_by_every_command() {
    let place = Place::new();
    place.write("text.wasm", "hello");
    place.write("module.wasm", b"\0asm\x01\0\0\0");
    place.write("empty.wasm", b"\0asm\x0d\0\x01\0");
    place.write("scenario.toml", "");
    for (command, more) in [("check", ""), ("bench", ""), ("test", "scenario.toml")] {
        let say = |file: &str| place.say(&format!("{command} {file} {more}"));
        say("text.wasm").says(1, &["text.wasm", "not a WebAssembly file", "to fix it: "]);
        say("module.wasm").says(1, &["a core module, not a component"]);
        say("empty.wasm").says(1, &["does not export pointsman:scheduling/lifecycle"]);
        say("none.wasm").says(2, &["none.wasm cannot be read"]);
        // `check` and `test` build the policy of a folder.
        let of_a_folder = if command == "bench" {
            ". is a folder: name the .wasm file"
        } else {
            ". has no Cargo.toml, package.json or pyproject.toml"
        };
        say(".").says(2, &[of_a_folder]);
    }
    place
        .say("inspect text.wasm")
        .says(1, &["5 bytes", "not a WebAssembly file"]);
    place
        .say("inspect empty.wasm")
        .says(0, &["imports      none", "exports      none"]);
}

#[test]
fn what_cannot_be_made_or_built_is_explained() {
    let place = Place::new();
    place
        .say("new Mine")
        .says(2, &["a name is of lower-case letters"]);
    place.say("new mine --hooks nonsense").says(
        2,
        &[
            "invalid value 'nonsense' for '--hooks <HOOKS>'",
            &hooks().join(", "),
        ],
    );
    place
        .say("new mine --hooks explanation")
        .says(2, &["explanation is no decision"]);
    place.say("build .").says(
        2,
        &["has no Cargo.toml, package.json or pyproject.toml: `pointsman policy new NAME`"],
    );
    place.say("build nowhere").says(2, &["no folder nowhere"]);
    place.say("new other --dir here").ended(0);
    place
        .say("new other --dir here")
        .says(2, &["here is there and not empty"]);

    if !can_build() {
        return;
    }
    let library = place.path("here/src/lib.rs");
    let good = fs::read_to_string(&library).unwrap();
    let lines = good.lines().filter(|line| !line.starts_with("export!"));
    let mute = lines.collect::<Vec<_>>().join("\n");
    fs::write(&library, mute).unwrap();
    place.say("build here").says(
        1,
        &[
            "here makes no policy: ",
            "to fix it: with the SDK, `export!",
        ],
    );
    fs::write(&library, "nonsense").unwrap();
    let said = place.say("build here");
    said.says(1, &["here does not build"]);
    assert!(said.err.contains("src/lib.rs:1"), "{}", said.err);
    assert!(!place.path("here/other.wasm").exists());
}

/// A component that is a good policy.
fn good() -> Vec<u8> {
    fs::read(component_path("test/fickle")).expect("`cargo xtask policies` built it")
}

/// The file with one text replaced by another of the same length, at every place.
fn renamed(mut wasm: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut at = 0;
    while let Some(found) = wasm[at..]
        .windows(from.len())
        .position(|window| window == from)
    {
        at += found;
        wasm[at..at + to.len()].copy_from_slice(to);
    }
    wasm
}

#[test]
fn another_version_of_the_interface_and_half_a_file_are_explained() {
    let place = Place::new();
    place.write("next.wasm", renamed(good(), b"@0.1.0", b"@9.1.0"));
    place.write("half.wasm", &good()[..good().len() / 2]);
    place.write("scenario.toml", "");
    for (command, more) in [
        ("check", ""),
        ("bench", ""),
        ("test", "scenario.toml"),
        ("test", "--properties"),
    ] {
        let say = |file: &str| place.say(&format!("{command} {file} {more}"));
        say("next.wasm").says(
            1,
            &[
                "is of version \"9.1.0\", this host knows 0.1.x",
                "to fix it: build it again with the SDK of this release",
            ],
        );
        say("half.wasm").says(
            1,
            &["malformed component: ", "to fix it: the file is damaged"],
        );
    }
}

#[test]
fn a_file_whose_self_test_a_server_refuses_is_not_called_good() {
    let place = Place::new();
    let wasm = component_path("test/hostile");
    place.write(
        "bad.wasm",
        fs::read(wasm).expect("`cargo xtask policies` built it"),
    );
    let panics = "[settings]\noutrage = 'trap'\ncalls = ['route']\n";
    let clock = "[settings]\noutrage = 'clock'\ncalls = ['route']\n";
    let tiny = "[limits]\ncall-fuel = 2000\nrow-fuel = 1\n";
    let unlawful = "[settings]\nanswers = 'unknown-executors'\n";
    for (settings, said) in [
        (
            panics,
            &[
                "a server refuses it: self-test with one executor: bad panicked at \
                 tests/guests/examples/hostile/lib.rs:",
                ": as it was told\n",
                "\n  in hostile::Hostile::outrage\n",
                "to fix it: answer every question",
            ][..],
        ),
        (
            clock,
            &["bad panicked at ", "time not implemented on this platform"],
        ),
        (
            tiny,
            &[
                "self-test with one executor: bad ran out of fuel at observe, of which it had ",
                "to fix it: do less in one call, or raise `[limits]`",
            ],
        ),
        (
            unlawful,
            &[
                "self-test with one executor: malformed answer of routing",
                "to fix it: one verdict for each row",
            ],
        ),
    ] {
        place.write("bad.toml", settings);
        let checked = place.say("check bad.wasm --settings bad.toml");
        checked.says(1, said);
        assert!(!checked.out.contains("good: "), "{}", checked.out);
    }
    place
        .say("check bad.wasm")
        .says(0, &["good: a server takes it\n"]);
}

#[test]
fn what_a_server_refuses_or_leaves_waiting_for_its_sidecar_is_not_called_good() {
    let place = Place::new();
    let wasm = component_path("aging");
    let wasm = fs::read(wasm).expect("`cargo xtask policies` built it");
    place.write("aging.wasm", &wasm);
    let other = "0".repeat(64);
    let pinned = format!("whose sha256 is {other}\nto fix it: change `sha256`");
    for (sidecar, said) in [
        (
            "mode = 'canary 10%'\n".to_owned(),
            "a server refuses it: mode is canary, and it exports neither admission nor routing: only there",
        ),
        (format!("sha256 = '{other}'\n"), pinned.as_str()),
    ] {
        place.write("aging.toml", sidecar);
        let checked = place.say("check aging.wasm --settings aging.toml");
        checked.says(1, &[said]);
        assert!(!checked.out.contains("good: "), "{}", checked.out);
    }
    let its = Digest::of(&wasm);
    place.write("aging.toml", format!("mode = 'shadow'\nsha256 = '{its}'\n"));
    place
        .say("check aging.wasm --settings aging.toml")
        .says(0, &["good: a server takes it\n"]);
}

#[test]
fn a_file_whose_name_a_policy_folder_passes_over_is_told_so() {
    let place = Place::new();
    let wasm = component_path("aging");
    let wasm = fs::read(wasm).expect("`cargo xtask policies` built it");
    for name in ["aging+1", ".aging"] {
        place.write(&format!("{name}.wasm"), &wasm);
        let note = format!(
            "note: a policy folder passes over a file of the name {name}: a policy's name has at most \
             64 letters, digits, '-', '_' and '.', and does not begin with '.'\n"
        );
        let checked = place.say(&format!("check {name}.wasm"));
        checked.says(0, &[&note, "good: a server takes it\n"]);
        assert!(!checked.out.contains("it is called"), "{}", checked.out);
    }
}

#[test]
fn settings_that_a_policy_does_not_know_are_named_by_every_command() {
    let place = Place::new();
    place.write("fickle.wasm", good());
    place.write("unknown.toml", "[settings]\nhabbit = 'none'\n");
    place.write("table.toml", "[setings]\nhabit = 'none'\n");
    for command in ["check", "bench", "test --properties"] {
        let say = |file: &str| place.say(&format!("{command} fickle.wasm --settings {file}"));
        say("unknown.toml").says(1, &["refused", "settings", "`habbit`", "`habit`"]);
        say("table.toml").says(2, &["table.toml:1:", "setings"]);
        say("none.toml").says(2, &["settings none.toml: "]);
    }
}

#[test]
fn a_scenario_that_is_none_is_broken_where_it_stands() {
    let place = Place::new();
    place.write("fickle.wasm", good());
    let scenario = one_is_placed("fickle");
    let test = |text: &str| {
        place.write("one.toml", text);
        place.say("test fickle.wasm one.toml")
    };
    test(&scenario).says(0, &["1 passed"]);
    for (from, to, said) in [
        ("slots", "slot", "one.toml:5:1: "),
        ("slots = 1", "slots = ", "one.toml:5:9: "),
        ("slots = 1", "slots = 'one'", "one.toml:5:9: "),
        ("'gpu' }", "'cpu' }", "one.toml:8:"),
        ("policy.fickle", "policy.fickel", "one.toml:2:"),
    ] {
        let text = scenario.replace(from, to);
        test(&text).says(1, &["1 broken", said]);
    }
    place
        .say("test fickle.wasm nowhere.toml")
        .says(2, &["scenarios nowhere.toml: "]);
    fs::create_dir(place.path("empty")).unwrap();
    place
        .say("test fickle.wasm empty")
        .says(2, &["empty has no scenario: a scenario is a .toml file"]);
    place
        .say("test fickle.wasm")
        .says(2, &["name scenarios, or say `--properties`"]);
    place
        .say("test")
        .says(2, &["or pyproject.toml: `pointsman policy new NAME` makes"]);
    // What is said about the properties asks for them.
    place
        .say("test fickle.wasm one.toml --seed 3 --runs 1")
        .says(1, &["1 broken", ": 1 runs from seed 3"]);
}
