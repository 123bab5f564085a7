//! `policy test --properties`: a good component, and some that lack a property. The testkit's own
//! tests show that each missing property is noticed.

use std::fs;

use pointsman_testkit::component::component_path;
use serde_json::Value;

use super::place::Place;
use super::said::Said;
use super::scenario::one_is_placed;

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
    check(&place, "--runs 4 --events 40").says(0, &["fickle (component)", "6 passed, 2 skipped"]);
    place.write("one.toml", one_is_placed("fickle"));
    place
        .say("test fickle.wasm one.toml --properties --runs 4 --events 40 --format junit")
        .says(
            0,
            &[
                "name=\"fickle\" tests=\"1\"",
                "name=\"fickle (component)\" tests=\"8\"",
            ],
        );
}

#[test]
fn a_policy_that_lacks_a_property_fails_and_what_shows_it_is_saved_as_a_scenario() {
    for (habit, property, file, said) in [
        (
            "nowhere",
            "is never refused and never faults",
            "never-refused",
            "the interlock refuses routing of fickle: no such executor",
        ),
        (
            "counts",
            "answers alike after a restart",
            "survives-restart",
            "after a restart it answers routing otherwise",
        ),
    ] {
        let place = with_habit(habit);
        let failed = failed(&check(&place, "--runs 8 --events 100 --format json"));
        let of = failed.iter().find(|(name, _)| name == property);
        let (_, summary) = of.unwrap_or_else(|| panic!("{habit}: {failed:?}"));
        assert!(summary.starts_with("seed "), "{habit}: {summary}");
        assert!(summary.contains(said), "{habit}: {summary}");
        // The least that shows it is a scenario, whose command is told.
        let found = format!("found/{file}.toml");
        let again = format!("test fickle.wasm {found} --settings habit.toml");
        check(&place, "--runs 8 --events 100").says(
            1,
            &[
                said,
                "what happened:",
                &format!("again: pointsman policy {again}\n"),
            ],
        );
        let scenario = place.text(&found);
        let noted = format!("{scenario}# Noted.\n");
        place.write(&found, &noted);
        place.say(&again).says(1, &["it is not so that it ", said]);
        assert_eq!(place.text(&found), noted, "nothing is searched anew");
        let good = scenario.replace(&format!("\"{habit}\""), "\"none\"");
        assert_ne!(scenario, good);
        place.write("good.toml", good);
        place
            .say("test fickle.wasm good.toml")
            .says(0, &["1 passed"]);
        let elsewhere = "--runs 8 --events 100 --format junit --save left";
        check(&place, elsewhere).says(1, &["<failure message=\"seed "]);
        assert_eq!(place.text(&format!("left/{file}.toml")), scenario);
    }
}

#[test]
fn the_limits_of_the_settings_hold_in_scenarios_too() {
    let place = with_habit("none");
    place.write("one.toml", one_is_placed("fickle"));
    let said = |settings: &str| {
        place.write("limits.toml", settings);
        place.say("test fickle.wasm one.toml --settings limits.toml --format junit")
    };
    let scenario = "<testsuite name=\"fickle\" tests=\"1\" failures=";
    said("").says(0, &[&format!("{scenario}\"0\"")]);
    // It starts, and cannot answer.
    said("[limits]\ncall-fuel = 1\nrow-fuel = 1\n").says(1, &[&format!("{scenario}\"1\"")]);
}

#[test]
fn runs_are_made_for_the_time_that_is_given() {
    let place = with_habit("none");
    // No time: one run of each kind.
    check(&place, "--for 0s --events 10").says(0, &["4 runs from seed 1"]);
    check(&place, "--for 5 --events 10").says(2, &["expected a time such as", "250ms"]);
    check(&place, "--for 1s --runs 2").says(2, &["cannot be used with"]);
}

/// Four sequences hold all eight blocks; who needs three more needs two of them to leave.
const SHORT_OF_BLOCKS: &str = "title = 'two leave for whom two are enough'
[policy.fickle]
settings = { habit = 'HABIT' }
[[device]]
name = 'memory'
kv-blocks = 8
[[executor]]
name = 'gpu'
device = 'memory'
slots = 5
[[step]]
arrive = { name = 'bulk', count = 4, class = 'throughput', prompt = 24, output = 4, output-max = 8 }
[[step]]
arrive = { name = 'urgent', prompt = 40, output = 4 }
expect.victims = ['bulk-1', 'bulk-2']
";

#[test]
fn a_policy_that_evicts_more_than_is_lacking_is_told_the_numbers() {
    let place = with_habit("none");
    let run = |habit| {
        place.write("blocks.toml", SHORT_OF_BLOCKS.replace("HABIT", habit));
        place.say("test fickle.wasm blocks.toml")
    };
    run("none").says(0, &["1 passed"]);
    run("greedy").says(
        1,
        &[
            "victims: expected [bulk-1, bulk-2], got [bulk-1, bulk-2, bulk-3, bulk-4]",
            "`urgent` lacks blocks on gpu: 4 of 5 slots are in use, 0 blocks are free or cached of the 3 it \
             needs, so 3 are lacking",
            "`bulk-3` leaves 2 blocks and a slot of gpu, and 24 tokens are computed anew: not needed, where the \
             others leave",
        ],
    );
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
