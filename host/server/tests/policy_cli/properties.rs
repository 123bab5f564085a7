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
    check(&place, "--runs 4 --events 40").says(0, &["fickle (component)", "6 passed, 1 skipped"]);
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
        .say("test fickle.wasm one.toml --properties --runs 4 --events 40 --format junit")
        .says(
            0,
            &[
                "name=\"fickle\" tests=\"1\"",
                "name=\"fickle (component)\" tests=\"7\"",
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
        let failed = failed(&check(&place, "--runs 4 --events 40 --format json"));
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
