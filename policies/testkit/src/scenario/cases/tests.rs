//! Files of several cases, and what is wrong with some of them.

use std::path::Path;

use crate::scenario::Scenario;
use crate::scenario::step::Action;

/// A scenario whose steps name parameters, and these cases.
fn with(cases: &str) -> String {
    format!(
        "title = 't'
policy = {{}}
[[executor]]
name = 'x'
slots = '$slots'
[[step]]
arrive = [{{ name = 'a', session = '$who' }}, {{ name = 'b' }}]
[[step]]
expect.waiting = '$left'
{cases}"
    )
}

const TWO: &str = "
[[case]]
name = 'one slot'
slots = 1
who = 'ann'
left = ['b']
[[case]]
name = 'two'
slots = 2
who = '$ann'
left = []
";

fn all(text: &str) -> Vec<Scenario> {
    Scenario::all(Path::new("a.toml"), text).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn check(cases: &str, expected: &str) {
    let wrong = Scenario::all(Path::new("a.toml"), &with(cases));
    let error = wrong.expect_err("the file is wrong").to_string();
    assert_eq!(error, expected, "{cases}");
}

#[test]
fn each_case_is_a_scenario_of_its_own_name_and_place_with_its_values() {
    let scenarios = all(&with(TWO));
    let titles: Vec<&str> = scenarios.iter().map(Scenario::title).collect();
    assert_eq!(titles, ["t: one slot", "t: two"]);
    let places = scenarios.iter().map(|it| it.place().to_string());
    let places: Vec<String> = places.collect();
    assert_eq!(places, ["a.toml:12:8", "a.toml:17:8"]);
    for (scenario, slots, session, left) in [
        (&scenarios[0], 1, "ann", 1),
        // A value is put in as it is.
        (&scenarios[1], 2, "$ann", 0),
    ] {
        assert_eq!(scenario.fleet.executors[0].slots, slots);
        let Some(Action::Arrive(arrivals)) = &scenario.steps[0].action else {
            panic!("{scenario:?}");
        };
        assert_eq!(arrivals[0].session.as_deref(), Some(session));
        let expect = scenario.steps[1].expect.as_ref().unwrap();
        assert_eq!(expect.waiting.as_ref().unwrap().len(), left);
    }
}

#[test]
fn a_file_without_cases_is_one_scenario_in_which_nothing_is_a_parameter() {
    let text = with("").replace("'$slots'", "1").replace("'$left'", "[]");
    let scenarios = all(&text);
    assert_eq!(scenarios.len(), 1);
    assert_eq!(scenarios[0].title(), "t");
    assert_eq!(scenarios[0].place().to_string(), "a.toml:1:1");
    assert!(Scenario::parse(Path::new("a.toml"), &text).is_ok());
    let error = Scenario::parse(Path::new("a.toml"), &with(TWO)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a.toml:17:8: one scenario is wanted, and this is another `[[case]]`"
    );
}

#[test]
fn a_parameter_that_is_not_given_and_a_value_that_is_not_used_are_told_where_they_stand() {
    check(
        &TWO.replace("slots", "slot"),
        "a.toml:5:9: no case gives `slots`; did you mean `slot`?",
    );
    check(
        &TWO.replacen("who =", "whom =", 1),
        "a.toml:14:1: `whom` is used nowhere: write \"$whom\" for the value; did you mean `who`?",
    );
    check(
        &TWO.replacen("who = 'ann'\n", "", 1),
        "a.toml:12:8: case `one slot` gives no `who`, as others do",
    );
}

#[test]
fn a_value_that_is_wrong_is_told_where_the_case_has_it() {
    let error = |cases: &str| {
        let read = Scenario::all(Path::new("a.toml"), &with(cases));
        read.unwrap_err().to_string()
    };
    let said = error(&TWO.replace("slots = 2", "slots = 'two'"));
    assert!(said.starts_with("a.toml:18:9: "), "{said}");
    let said = error(&TWO.replace("left = ['b']", "left = ['c']"));
    let expected = "a.toml:15:9: no request is called `c` by then; there are `a`, `b`";
    assert_eq!(said, expected);
}

#[test]
fn a_case_has_a_name_of_its_own() {
    check(
        &TWO.replace("name = 'two'\n", ""),
        "a.toml:16:1: a case needs a `name`, which its reports have",
    );
    let named = |name: &str| TWO.replace("name = 'two'", &format!("name = {name}"));
    let none = "a.toml:17:8: the name of a case is a text";
    check(&named("2"), none);
    check(&named("''"), none);
    check(
        &named("'one slot'"),
        "a.toml:17:8: another case is called `one slot`",
    );
    for cases in ["[case]\nname = 'one'", "case = []", "case = ['one']"] {
        let text = format!("{cases}\n");
        let error = Scenario::all(Path::new("a.toml"), &text).unwrap_err();
        let error = error.to_string();
        assert!(
            error.ends_with("`case` is a list of tables: write each as `[[case]]`"),
            "{error}"
        );
    }
}
