//! One report with every verdict, rendered three ways.

use std::path::PathBuf;

use super::*;

fn report() -> Report {
    let problem = |summary: &str| Problem {
        summary: summary.to_owned(),
        detail: "first line\nsecond <line>".to_owned(),
        scenario: None,
    };
    let case = |name: &str, verdict| Case {
        name: name.to_owned(),
        place: None,
        verdict,
    };
    Report {
        suites: vec![Suite {
            name: "scenarios & more".to_owned(),
            cases: vec![
                Case {
                    place: Some(Location {
                        file: PathBuf::from("a.toml"),
                        line: 7,
                        column: 3,
                    }),
                    ..case("one", Verdict::Passed(String::new()))
                },
                case("two", Verdict::Passed("found it".to_owned())),
                case("three", Verdict::Skipped("not here".to_owned())),
                case("four", Verdict::Failed(problem("expected \"x\""))),
                case("five", Verdict::Broken(problem("bell \u{7}"))),
            ],
        }],
    }
}

#[test]
fn a_person_reads_a_line_per_case_and_what_is_wrong_below() {
    assert_eq!(
        human(&report()),
        "scenarios & more\n  \
           passed  one\n  \
           passed  two: found it\n  \
           skipped three: not here\n  \
           failed  four: expected \"x\"\n    \
             first line\n    \
             second <line>\n  \
           broken  five: bell \u{7}\n    \
             first line\n    \
             second <line>\n\
         2 passed, 1 failed, 1 broken, 1 skipped\n"
    );
    assert_eq!(human(&Report::default()), "nothing ran\n");
}

#[test]
fn junit_tells_failures_from_errors_and_escapes_what_is_markup() {
    assert_eq!(
        junit(&report()),
        r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="5" failures="1" errors="1" skipped="1">
  <testsuite name="scenarios &amp; more" tests="5" failures="1" errors="1" skipped="1">
    <testcase classname="scenarios &amp; more" name="one" file="a.toml" line="7"/>
    <testcase classname="scenarios &amp; more" name="two"><system-out>found it</system-out></testcase>
    <testcase classname="scenarios &amp; more" name="three"><skipped message="not here"/></testcase>
    <testcase classname="scenarios &amp; more" name="four"><failure message="expected &quot;x&quot;">first line&#10;second &lt;line&gt;</failure></testcase>
    <testcase classname="scenarios &amp; more" name="five"><error message="bell �">first line&#10;second &lt;line&gt;</error></testcase>
  </testsuite>
</testsuites>
"#
    );
}

#[test]
fn json_has_the_counts_and_every_case() {
    let value: serde_json::Value = serde_json::from_str(&json(&report())).unwrap();
    assert_eq!(value["passed"], false);
    assert_eq!(value["counts"]["passed"], 2);
    let cases = value["suites"][0]["cases"].as_array().unwrap();
    let verdicts: Vec<&str> = cases
        .iter()
        .map(|case| case["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(
        verdicts,
        ["passed", "passed", "skipped", "failed", "broken"]
    );
    assert_eq!(
        (&cases[0]["file"], &cases[0]["line"]),
        (&"a.toml".into(), &7.into())
    );
    assert_eq!(cases[1]["note"], "found it");
    assert_eq!(cases[3]["summary"], "expected \"x\"");
    assert!(cases[0].get("note").is_none() && cases[1].get("file").is_none());
}

#[test]
fn only_what_failed_or_broke_spoils_a_report() {
    assert!(!report().is_passed());
    let mut good = report();
    good.suites[0].cases.truncate(3);
    assert!(good.is_passed());
}
