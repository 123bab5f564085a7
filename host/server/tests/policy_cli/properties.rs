//! `policy test --properties`: a good component, and some that lack a property. The testkit's own
//! tests show that each missing property is noticed.

use std::fs;

use pointsman_testkit::component::component_path;
use serde_json::Value;

use super::place::{Place, Said};

/// A folder with `fickle.wasm`, and its settings with this habit.
fn with_habit(habit: &str) -> Place {
    let place = Place::new();
    let wasm = fs::read(component_path("test/fickle")).expect("`cargo xtask policies` built it");
    place.write("fickle.wasm", wasm);
    place.write("habit.toml", format!("[settings]\nhabit = '{habit}'\n"));
    place
}

fn check(place: &Place, more: &str) -> Said {
    place.say(&format!(
        "test fickle.wasm --properties --settings habit.toml {more}"
    ))
}

/// The failed cases of a JSON report: the property, and the message.
fn failed(said: &Said) -> Vec<(String, String)> {
    let report: Value = serde_json::from_str(said.ended(1)).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let cases = report["suites"][0]["cases"].as_array().unwrap();
    let failed = cases.iter().filter(|case| case["verdict"] == "failed");
    let failed = failed.map(|case| (text(&case["name"]), text(&case["summary"])));
    failed.collect()
}

#[test]
fn a_good_policy_passes_with_and_without_scenarios() {
    let place = with_habit("none");
    check(&place, "--runs 2 --events 40").says(0, &["fickle (component)", "5 passed, 1 skipped"]);
    place.write(
        "one.toml",
        "title = 'one is placed'
[policy.fickle]
[[executor]]
name = 'gpu'
slots = 1
[[step]]
arrive = { name = 'one' }
expect.placed = { one = 'gpu' }
",
    );
    place
        .say("test fickle.wasm one.toml --properties --runs 2 --events 40 --format junit")
        .says(
            0,
            &[
                "name=\"fickle\" tests=\"1\"",
                "name=\"fickle (component)\" tests=\"6\"",
            ],
        );
}

#[test]
fn a_policy_that_lacks_a_property_fails_with_what_shows_it_again() {
    for (habit, property, said) in [
        (
            "nowhere",
            "is never refused and never faults",
            "the interlock refuses routing",
        ),
        (
            "counts",
            "answers alike after a restart",
            "routing is answered otherwise",
        ),
    ] {
        let place = with_habit(habit);
        let failed = failed(&check(&place, "--runs 2 --events 40 --format json"));
        let of = failed.iter().find(|(name, _)| name == property);
        let (_, summary) = of.unwrap_or_else(|| panic!("{habit}: {failed:?}"));
        assert!(summary.contains(said), "{habit}: {summary}");
        // The least run that shows it is named, and shows it again.
        let words: Vec<&str> = summary.split([' ', ',', ':']).collect();
        let ["seed", seed, "", events, "events", ..] = words[..] else {
            panic!("{habit}: {summary}");
        };
        let again = format!("--runs 1 --seed {seed} --events {events}");
        check(&place, &again).says(
            1,
            &[
                summary.as_str(),
                "--properties --runs 1 --seed SEED --events EVENTS",
            ],
        );
        check(&place, &format!("{again} --format junit")).says(1, &["<failure message=\"seed "]);
    }
}

#[test]
fn fuel_that_grows_faster_than_the_fleet_fails() {
    let place = with_habit("pairs");
    let failed = failed(&check(&place, "--runs 1 --events 10 --format json"));
    let [(property, summary)] = &failed[..] else {
        panic!("{failed:?}");
    };
    assert_eq!(property, "uses bounded fuel as the fleet grows");
    assert!(
        summary.starts_with("fuel grows faster than the fleet: "),
        "{summary}"
    );
}
