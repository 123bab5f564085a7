//! Policies that lack one property each, and one that has them all.

use serde_json::{Map, Value};

use super::*;

#[path = "../../../../tests/guests/examples/fickle.rs"]
mod fickle;

fn plan() -> Plan {
    Plan {
        runs: 4,
        events: 60,
        restart_every: 4,
        ..Plan::default()
    }
}

fn subject(habit: &str) -> Subject {
    let mut settings = Map::new();
    settings.insert("habit".to_owned(), Value::from(habit));
    Subject::native("fickle", fickle::instance, &settings)
}

/// The properties that the policy `fickle` breaks with this habit.
fn failed(habit: &str) -> Vec<(Property, String)> {
    failed_in(habit, &plan())
}

fn failed_in(habit: &str, plan: &Plan) -> Vec<(Property, String)> {
    let suite = check(&subject(habit), plan).unwrap();
    assert_eq!(suite.name, "fickle (native)");
    let cases = Property::ALL.into_iter().zip(suite.cases);
    let failed = cases.filter_map(|(property, case)| match case.verdict {
        Verdict::Failed(problem) => Some((property, problem.summary)),
        Verdict::Passed(_) | Verdict::Skipped(_) => None,
        Verdict::Broken(problem) => panic!("{habit}: {problem:?}"),
    });
    failed.collect()
}

fn check_fails(habit: &str, property: Property, said: &str) {
    let failed = failed(habit);
    let of = failed.iter().find(|(failed, _)| *failed == property);
    let summary = of.map_or("", |(_, summary)| summary);
    assert!(summary.starts_with("seed "), "{habit}: {failed:?}");
    assert!(summary.contains(said), "{habit}: {failed:?}");
}

#[test]
fn a_policy_without_bad_habits_has_every_property() {
    assert_eq!(failed("none"), []);
}

#[test]
fn a_policy_that_names_no_executor_there_is_is_refused() {
    check_fails(
        "nowhere",
        Property::NeverRefused,
        "the interlock refuses routing",
    );
}

#[test]
fn a_policy_that_panics_fails() {
    check_fails(
        "panics",
        Property::NeverRefused,
        "it fails at routing: Trap",
    );
}

#[test]
fn a_policy_that_forgets_what_it_counted_is_another_after_a_restart() {
    check_fails(
        "counts",
        Property::SurvivesRestart,
        "routing is answered otherwise",
    );
}

#[test]
fn a_policy_that_goes_by_the_first_row_depends_on_their_order() {
    let failed = failed("first-row");
    let properties: Vec<Property> = failed.iter().map(|(property, _)| *property).collect();
    assert!(
        properties.contains(&Property::IgnoresRowOrder),
        "{failed:?}"
    );
}

#[test]
fn a_policy_that_evicts_more_than_it_has_to_could_spare_some() {
    let long = Plan {
        runs: 9,
        events: 200,
        ..plan()
    };
    let failed = failed_in("greedy", &long);
    let [(Property::SparesVictims, said)] = &failed[..] else {
        panic!("{failed:?}")
    };
    assert!(said.contains("of whom it could spare any of"), "{said}");
}

#[test]
fn a_policy_that_holds_for_ever_starves() {
    check_fails("holds", Property::StarvesNobody, "was Unplaced");
}

#[test]
fn a_policy_that_does_not_say_until_when_it_waits_starves_where_models_are_kept_for_long() {
    let patience = Plan {
        seed: 8,
        runs: 1,
        ..Plan::default()
    };
    let failed = failed_in("untimed", &patience);
    let [(Property::StarvesNobody, said)] = &failed[..] else {
        panic!("{failed:?}")
    };
    assert!(said.contains("was Unplaced"), "{said}");
    assert_eq!(failed_in("none", &patience), []);
}

#[test]
fn the_same_plan_gives_the_same_report() {
    let subject = subject("none");
    assert_eq!(check(&subject, &plan()), check(&subject, &plan()));
}

#[test]
fn what_is_said_of_a_seed_happens_again_with_it() {
    let (property, said) = failed("nowhere").remove(0);
    let words: Vec<&str> = said.split([' ', ':']).collect();
    let ["seed", seed, events, "events", ..] = words[..] else {
        panic!("{said}");
    };
    let (seed, events): (u64, u32) = (
        seed.trim_end_matches(',').parse().unwrap(),
        events.parse().unwrap(),
    );
    assert!(events < plan().events, "{said}");
    let again = Plan {
        seed,
        events,
        runs: 1,
        ..plan()
    };
    assert!(failed_in("nowhere", &again).contains(&(property, said)));
    // A run with one event less does not show the problem.
    let shorter = Plan {
        events: events - 1,
        ..again
    };
    assert_eq!(failed_in("nowhere", &shorter), []);
}

#[test]
fn a_shipped_policy_is_held_to_what_it_is_said_to_lack() {
    let lacking = |settings| {
        let policy = Shipped::new("test/fickle", fickle::instance).with(settings);
        policy.lacking(&[Property::StarvesNobody]).check()
    };
    assert_eq!(lacking("habit = 'holds'"), Ok(()));
    assert_eq!(
        lacking("habit = 'none'"),
        Err("fickle (native): starves nobody, though it is said to lack that".to_owned())
    );
}

#[test]
fn a_policy_that_looks_at_every_pair_of_executors_uses_more_and_more_fuel() {
    let wrong = Shipped::new("test/fickle", fickle::instance)
        .with("habit = 'pairs'")
        .check()
        .unwrap_err();
    let said =
        "fickle (component): not so: uses bounded fuel as the fleet grows: fuel grows faster";
    assert!(wrong.starts_with(said), "{wrong}");
}
