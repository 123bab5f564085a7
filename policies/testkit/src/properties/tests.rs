//! Policies that lack one property each, and one that has them all.

use serde_json::{Map, Value};

use super::*;

mod boastful;
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

/// The sentences in which the policy is told that it breaks `property` with this habit.
#[track_caller]
fn check_fails(habit: &str, property: Property, said: &str) {
    let failed = failed(habit);
    let of = failed.iter().find(|(failed, _)| *failed == property);
    let (_, summary) = of.unwrap_or_else(|| panic!("{habit}: {failed:?}"));
    let sentence = summary
        .strip_prefix("seed ")
        .and_then(|rest| rest.split_once(": "));
    let (seed, sentence) = sentence.unwrap_or_else(|| panic!("{summary}"));
    assert!(seed.parse::<u64>().is_ok(), "{summary}");
    assert_eq!(sentence, said, "{habit}");
}

/// The problems that the policy `fickle` has with this habit, by property.
fn problems(habit: &str, plan: &Plan) -> Vec<(Property, Problem)> {
    let suite = check(&subject(habit), plan).unwrap();
    let cases = Property::ALL.into_iter().zip(suite.cases);
    let failed = cases.filter_map(|(property, case)| match case.verdict {
        Verdict::Failed(problem) => Some((property, problem)),
        Verdict::Passed(_) | Verdict::Skipped(_) | Verdict::Broken(_) => None,
    });
    failed.collect()
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
        "the interlock refuses routing of fickle: no such executor (r1, executor 4294967295)",
    );
}

#[test]
fn a_policy_that_panics_fails() {
    let failed = failed("panics");
    let (property, said) = &failed[0];
    assert_eq!(*property, Property::NeverRefused);
    assert!(said.contains(": fickle panicked at "), "{said}");
    assert!(said.ends_with(": out of habit"), "{said}");
}

#[test]
fn a_policy_that_forgets_what_it_counted_is_another_after_a_restart() {
    check_fails(
        "counts",
        Property::SurvivesRestart,
        "after a restart it answers routing otherwise",
    );
}

#[test]
fn a_policy_that_goes_by_the_first_row_depends_on_their_order() {
    check_fails(
        "first-row",
        Property::IgnoresRowOrder,
        "told its rows in another order it answers routing otherwise",
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
    check_fails(
        "holds",
        Property::StarvesNobody,
        "`r2` could have had a place, and had none for `unplaced-max`",
    );
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
    let told = "could have had a place, and had none for `unplaced-max`";
    assert!(said.ends_with(told), "{said}");
    assert_eq!(failed_in("none", &patience), []);
}

#[test]
fn a_policy_that_explains_another_choice_than_its_own_does_not_do_what_it_explains() {
    let boastful = Subject::native("boastful", boastful::instance, &Map::new());
    let suite = check(&boastful, &plan()).unwrap();
    let of = suite.cases.into_iter().zip(Property::ALL);
    let of = of.filter(|(_, property)| *property == Property::ExplainsItself);
    let verdicts: Vec<Verdict> = of.map(|(case, _)| case.verdict).collect();
    let [Verdict::Failed(problem)] = &verdicts[..] else {
        panic!("{verdicts:?}")
    };
    let said = ": it explains that another place is better";
    assert!(problem.summary.ends_with(said), "{problem:?}");
    let evidence = "explained cost 0: I would rather be here";
    assert!(problem.detail.contains(evidence), "{}", problem.detail);
}

#[test]
fn the_same_plan_gives_the_same_report() {
    let subject = subject("none");
    assert_eq!(check(&subject, &plan()), check(&subject, &plan()));
}

#[test]
fn a_seed_shows_the_same_again_in_one_run() {
    for (property, said) in failed("counts") {
        let seed = said["seed ".len()..].split(':').next().unwrap();
        let again = Plan {
            seed: seed.parse().unwrap(),
            runs: 1,
            ..plan()
        };
        assert!(failed_in("counts", &again).contains(&(property, said)));
    }
}

#[test]
fn a_problem_reads_as_a_scenario_that_fails_and_is_one() {
    let mut problems = problems("holds", &plan());
    let (_, problem) = problems.pop().unwrap();
    let told = "it is not so that it starves nobody: `r2` could have had a place";
    assert!(problem.detail.contains(told), "{}", problem.detail);
    assert!(
        problem.detail.contains("what happened:"),
        "{}",
        problem.detail
    );
    assert!(
        problem.detail.contains("r2 is held, by fickle: so"),
        "{}",
        problem.detail
    );
}

/// A run of the scenario in a problem, by the policy with another habit.
fn again(problem: &Problem, from: &str, to: &str) -> Result<crate::Ran, crate::RunError> {
    let text = problem.scenario.as_ref().expect("a scenario is left");
    let text = text.replace(&format!("habit = \"{from}\""), &format!("habit = \"{to}\""));
    let scenario = crate::scenario::Scenario::parse("found.toml".as_ref(), &text);
    let registry = crate::Registry::new().with("fickle", fickle::instance);
    let mut kit = crate::Kit::new(registry);
    kit.run_scenario(&scenario.expect("it is a scenario"), crate::Flavour::Native)
}

#[test]
fn the_scenario_that_is_left_of_a_run_shows_the_same() {
    for habit in ["nowhere", "panics", "counts", "first-row", "holds"] {
        for (property, problem) in problems(habit, &plan()) {
            let error = again(&problem, habit, habit).unwrap_err();
            assert_eq!(error.to_string(), problem.detail, "{habit}: {property:?}");
            let ran = again(&problem, habit, "none");
            assert!(ran.is_ok(), "{habit}: {property:?}: {}", ran.unwrap_err());
        }
    }
}

#[test]
fn nothing_is_left_of_a_run_that_the_problem_does_not_need() {
    let problems = problems("nowhere", &plan());
    let (_, problem) = &problems[0];
    let text = problem.scenario.as_deref().unwrap();
    let begins = |word: &str| text.lines().filter(|line| line.starts_with(word)).count();
    assert_eq!([begins("attach"), begins("arrive")], [1, 1], "{text}");
    assert_eq!(begins("[[step]]"), 3, "{text}");
    let tables = ["[machine]", "[[device]]", "[[model]]", "[[tenant]]"];
    assert_eq!(tables.map(begins), [0, 1, 1, 1], "{text}");
}

#[test]
fn runs_by_time_make_one_of_each_kind_at_least_and_stop_when_it_is_over() {
    let many = Plan {
        runs: u32::MAX,
        ..plan()
    };
    let runs = |left: u32| {
        let mut left = left;
        let suite = check_while(&subject("none"), &many, &mut || {
            left = left.saturating_sub(1);
            left > 0
        });
        let Verdict::Passed(said) = suite.unwrap().cases.remove(0).verdict else {
            panic!("it is never refused")
        };
        said
    };
    assert_eq!(runs(0), "4 runs from seed 1");
    assert_eq!(runs(3), "6 runs from seed 1");
}

#[test]
fn what_the_runs_did_not_exercise_is_said() {
    let exercised = |habit| {
        let mut suite = check(&subject(habit), &plan()).unwrap();
        let case = suite.cases.pop().unwrap();
        assert_eq!(case.name, "is exercised in all that it decides");
        case.verdict
    };
    let Verdict::Skipped(said) = exercised("nowhere") else {
        panic!("it places nothing")
    };
    let never = "routing never holds, routing never gives up; answers: routing ";
    assert!(said.starts_with(never), "{said}");
    let Verdict::Skipped(said) = exercised("holds") else {
        panic!("it places nothing")
    };
    assert!(said.contains("routing never places"), "{said}");
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
