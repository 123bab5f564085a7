//! Scenario files become a suite of a report, whatever is wrong with them.

use std::fs;
use std::path::{Path, PathBuf};

use pointsman_testkit::report::{Case, Counts, Report, Verdict, human};
use pointsman_testkit::{Flavour, Kit, Registry, native, scenario_files};

const GOOD: &str = r#"
title = "one is placed"
[policy.memory-aware]
[[executor]]
name = "x"
slots = 1
[[step]]
arrive = { name = "a" }
expect.placed = { a = "x" }
"#;

/// A fresh folder with these files.
fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("the folder is ours");
    }
    fs::create_dir_all(&folder).expect("the folder can be made");
    for (file, text) in files {
        fs::write(folder.join(file), text).expect("the folder is there");
    }
    folder
}

/// A kit with the policy `memory-aware`.
fn kit() -> Kit {
    let source =
        |settings: &_| native::source("memory-aware", pointsman_memory_aware::instance, settings);
    Kit::new(Registry::new().with_source("memory-aware", source))
}

fn line_of(case: &Case) -> (usize, usize) {
    let place = case.place.as_ref().expect("a scenario is in a file");
    (place.line, place.column)
}

#[test]
fn each_file_is_a_case_with_what_is_wrong_and_where() {
    let files = [
        ("1-good.toml", GOOD.to_owned()),
        (
            "2-unmet.toml",
            GOOD.replace("placed = { a", "reserved = { a"),
        ),
        ("3-misspelt.toml", GOOD.replace("slots", "slot")),
        ("4-unknown.toml", GOOD.replace("memory-aware", "memory")),
        ("notes.md", String::new()),
    ];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    let paths = scenario_files(&folder("suite", &files)).unwrap();
    let suite = kit().suite("all", &paths, Flavour::Component);
    let expected = Counts {
        passed: 1,
        failed: 1,
        broken: 2,
        skipped: 0,
    };
    assert_eq!(suite.counts(), expected);
    let [good, unmet, misspelt, unknown] = &suite.cases[..] else {
        panic!("{suite:?}");
    };
    assert_eq!(
        (good.name.as_str(), line_of(good)),
        ("one is placed", (1, 1))
    );
    let Verdict::Failed(problem) = &unmet.verdict else {
        panic!("{unmet:?}");
    };
    assert!(
        problem.summary.starts_with("reserved: expected `a`"),
        "{problem:?}"
    );
    assert!(
        problem.detail.contains("a is placed on x, by memory-aware"),
        "{problem:?}"
    );
    assert_eq!(line_of(unmet), (7, 1));
    let Verdict::Broken(problem) = &misspelt.verdict else {
        panic!("{misspelt:?}");
    };
    assert!(
        problem.summary.ends_with("did you mean `slots`?"),
        "{problem:?}"
    );
    assert_eq!(line_of(misspelt), (6, 1));
    let Verdict::Broken(problem) = &unknown.verdict else {
        panic!("{unknown:?}");
    };
    assert!(
        problem.summary.contains("no policy is called `memory`"),
        "{problem:?}"
    );
    assert_eq!(line_of(unknown), (3, 9));
}

#[test]
fn a_request_is_held_while_room_is_looked_for() {
    // What runs is as urgent, so it could be asked to give way.
    let text = GOOD
        .replace("{ name = \"a\" }", "[{ name = 'a' }, { name = 'b' }]")
        .replace("expect.placed = ", "expect.held = ['b']\nexpect.placed = ");
    let paths = scenario_files(&folder("held", &[("held.toml", text.as_str())])).unwrap();
    let suite = kit().suite("all", &paths, Flavour::Component);
    let report = Report {
        suites: vec![suite],
    };
    assert!(report.is_passed(), "{}", human(&report));
}

#[test]
fn each_case_of_a_file_is_a_case_of_the_suite() {
    let readme = include_str!("../README.md");
    let (_, text) = readme.split_once("### Cases").expect("it has the section");
    let (_, text) = text.split_once("```toml\n").expect("with an example");
    let (text, _) = text.split_once("```").expect("which ends");
    let broken = text.replace("placed = {}", "placed = { one = \"b\" }");
    let files = [("1.toml", text), ("2.toml", &broken)];
    let paths = scenario_files(&folder("cases", &files)).unwrap();
    let registry = Registry::new().with_component("sticky");
    let mut kit = Kit::new(registry.expect("`cargo xtask policies` built it"));
    let suite = kit.suite("all", &paths, Flavour::Component);
    let ran = suite.cases.iter();
    let ran: Vec<_> = ran
        .map(|case| (case.name.as_str(), line_of(case).0, case.verdict.word()))
        .collect();
    let (waits, next) = (
        "where a session's executor is full: its request waits",
        "where a session's executor is full: its request goes to the next",
    );
    let expected = [
        (waits, 22, "passed"),
        (next, 27, "passed"),
        // The step that fails, and the case in the title.
        (waits, 16, "failed"),
        (next, 27, "passed"),
    ];
    assert_eq!(ran, expected);
    assert_eq!(kit.run(&paths[0], Flavour::Component).unwrap().len(), 2);
    assert!(kit.run(&paths[1], Flavour::Component).is_err());
}

#[test]
fn a_path_is_a_scenario_or_a_folder_of_them() {
    let folder = folder("paths", &[("b.toml", ""), ("a.toml", ""), ("c.txt", "")]);
    let files = scenario_files(&folder).unwrap();
    assert_eq!(files, [folder.join("a.toml"), folder.join("b.toml")]);
    let one = folder.join("c.txt");
    let files = scenario_files(&one).unwrap();
    assert_eq!(files, [one]);
    assert!(scenario_files(&folder.join("d.toml")).is_err());
}
