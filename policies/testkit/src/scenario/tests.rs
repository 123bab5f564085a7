//! Errors of scenarios, each with its place.

use super::*;

fn error(text: &str) -> String {
    let parsed = Scenario::parse(Path::new("a.toml"), text);
    parsed.expect_err("the scenario is wrong").to_string()
}

fn check(text: &str, expected: &str) {
    assert_eq!(error(text), expected, "{text}");
}

/// A scenario with one executor and these steps.
fn with(steps: &str) -> String {
    format!("title = \"t\"\npolicy = {{}}\n[[executor]]\nname = \"x\"\nslots = 1\n{steps}")
}

#[test]
fn broken_toml_is_reported_with_line_and_column() {
    let text = error("title = \"t\"\n[[step]\n");
    assert!(text.starts_with("a.toml:2:"), "{text}");
}

#[test]
fn an_unknown_key_is_reported_where_it_stands_with_the_known_ones() {
    let text = error(&with("[[step]]\n  arive = { name = \"a\" }\n"));
    assert!(
        text.starts_with("a.toml:7:3: unknown field `arive`, expected one of"),
        "{text}"
    );
    let text = error(&with("[[step]]\narrive = { name = \"a\", prio = 1 }\n"));
    assert!(
        text.starts_with("a.toml:7:24: unknown field `prio`"),
        "{text}"
    );
    let text = error(&with("[[step]]\narrive = [{ name = \"a\", prio = 1 }]\n"));
    assert!(
        text.starts_with("a.toml:7:25: unknown field `prio`"),
        "{text}"
    );
    let text = error(&with("[[step]]\nexpect.waitng = []\n"));
    assert!(
        text.starts_with("a.toml:7:8: unknown field `waitng`"),
        "{text}"
    );
    let text = error("title = \"t\"\n[policy.a]\nsetting = {}\n");
    assert!(
        text.starts_with("a.toml:3:1: unknown field `setting`"),
        "{text}"
    );
}

#[test]
fn every_key_is_in_the_readme() {
    let readme = include_str!("../../README.md");
    let step = |action: &str| with(&format!("[[step]]\n{action}\n"));
    let head = |table: &str| format!("title = \"t\"\n{table}\nzzz = 1\n");
    let tables = [
        "zzz = 1\n".to_owned(),
        head("[policy.a]"),
        head("[machine]"),
        head("[[tenant]]"),
        head("[[model]]"),
        head("[[device]]"),
        head("[[executor]]"),
        head("[[executor]]\nname = \"x\"\nslots = 1\n[executor.engine]"),
        head("[[cached]]"),
        head("[[running]]"),
        head("[[waiting]]"),
        head("[end]"),
        step("zzz = 1"),
        step("arrive = { zzz = 1 }"),
        step("fail = { zzz = 1 }"),
        step("update = { zzz = 1 }"),
        step("report = { zzz = 1 }"),
        step("report = { device = \"d\", counts = { zzz = 1 } }"),
        step("cache = { zzz = 1 }"),
        step("expect.zzz = 1"),
        step("expect.fair = { zzz = 1 }"),
    ];
    let (mut keys, mut missing) = (0, Vec::new());
    for table in tables {
        let said = error(&table);
        assert!(said.contains("unknown field `zzz`, expected"), "{said}");
        for key in said.split('`').skip(3).step_by(2) {
            keys += 1;
            if !readme.contains(&format!("`{key}`")) {
                missing.push(key.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
    assert!(keys > 120, "{keys} keys");
}

#[test]
fn only_messages_about_unknown_words_get_a_hint() {
    assert_eq!(
        with_hint("unknown field `nam`, expected `name` or `slots`"),
        "unknown field `nam`, expected `name` or `slots`; did you mean `name`?"
    );
    let other = "invalid type: `nam`, expected `name`";
    assert_eq!(with_hint(other), other);
}

#[test]
fn a_wrong_value_is_reported_where_it_stands() {
    check(
        &with("[[step]]\nadvance = \"5 parsecs\"\n"),
        "a.toml:7:11: invalid value: string \"5 parsecs\", expected a time such as \"250ms\", \
         \"1.5s\" or \"24h\": whole microseconds, in us, ms, s, min or h",
    );
    let text = error("title = \"t\"\n[machine]\nqueue-max = -1\n");
    assert!(text.starts_with("a.toml:3:13: "), "{text}");
    check(
        "title = \"t\"\n[machine]\nqueue-max = 0\n",
        "a.toml:2:1: queue-max must be between 1 and 1048576, not 0",
    );
}

#[test]
fn a_count_that_is_none_is_reported_where_it_stands() {
    check(
        "title = \"t\"\n[end]\nrefused = \"all\"\n",
        "a.toml:3:11: `all`: write a number, or \"any\"",
    );
    check(
        "title = \"t\"\n[end]\nrefusals = -1\n",
        "a.toml:3:12: -1 is no number of events",
    );
    check(
        "title = \"t\"\n[end]\nfaults = true\n",
        "a.toml:3:10: invalid type: boolean `true`, expected a number, or \"any\"",
    );
}

#[test]
fn a_cost_that_is_none_is_reported_where_it_stands() {
    let costs = |cost: &str| {
        with(&format!(
            "[[step]]\narrive = {{ name = \"a\" }}\nexpect.cost.a = {{ x = {cost} }}\n"
        ))
    };
    let none = "expected a number, \"< EXECUTOR\", \"= EXECUTOR\", \"> EXECUTOR\" or \"no place\"";
    for text in ["<x", "<= x", "nothing"] {
        let expected = format!("a.toml:8:23: invalid value: string \"{text}\", {none}");
        check(&costs(&format!("\"{text}\"")), &expected);
    }
    check(
        &costs("\"< y\""),
        "a.toml:8:23: no executor is called `y` by then; there are `x`",
    );
    let unknown = costs("1").replace("{ x", "{ z");
    let expected = "a.toml:8:19: no executor is called `z` by then; there are `x`";
    check(&unknown, expected);
}

#[test]
fn an_unknown_property_is_reported_with_the_nearest() {
    check(
        "title = \"t\"\nproperties = [\"starves-nobdy\"]\n",
        "a.toml:2:15: unknown property `starves-nobdy`; did you mean `starves-nobody`?",
    );
    let all = with("").replacen("title", "properties = \"all\"\ntitle", 1);
    let scenario = Scenario::parse(Path::new("a.toml"), &all).unwrap();
    assert_eq!(scenario.properties.len(), 6);
}

#[test]
fn an_unknown_name_is_explained() {
    check(
        &with("[[step]]\nengine-step = \"y\"\n"),
        "a.toml:7:15: no executor is called `y` by then; there are `x`",
    );
    check(
        &with("[[step]]\nlose = [\"x\", \"y\"]\n"),
        "a.toml:7:14: no executor is called `y` by then; there are `x`",
    );
    check(
        &with("[[step]]\nexpect.placed = { a = \"x\" }\n"),
        "a.toml:7:19: no request is called `a` by then; there is none",
    );
    check(
        &with("[[step]]\narrive = { name = \"a\", count = 2 }\nexpect.waiting = [\"a\"]\n"),
        "a.toml:8:19: no request is called `a` by then; there are `a-1`, `a-2`",
    );
    check(
        &with("[[step]]\narrive = { name = \"a\", model = \"m\" }\n"),
        "a.toml:7:32: no model is called `m` by then; there is none",
    );
}

#[test]
fn a_name_is_taken_once() {
    check(
        &with("[[step]]\narrive = [{ name = \"a\" }, { name = \"a\" }]\n"),
        "a.toml:7:36: another request is called `a`",
    );
}

#[test]
fn a_step_does_one_thing() {
    check(
        &with("[[step]]\nsettle = true\nadvance = \"1s\"\n"),
        "a.toml:6:1: a step does one thing, this one does `advance` and `settle`",
    );
    check(
        &with("[[step]]\n"),
        "a.toml:6:1: the step neither does nor expects anything",
    );
    check(
        &with("[[step]]\nexpect = {}\n"),
        "a.toml:6:1: the `expect` of this step expects nothing",
    );
}

#[test]
fn a_scenario_that_expects_nothing_is_refused() {
    check(
        &with("[[step]]\nsettle = true\n"),
        "a.toml:1:1: the scenario expects nothing: give a step an `expect`, or `[end]` a check",
    );
    let checks_end = with("[[step]]\nsettle = true\n[end]\nall-finished = true\n");
    assert!(Scenario::parse(Path::new("a.toml"), &checks_end).is_ok());
}

#[test]
fn without_a_policy_table_the_default_policies_are_bound() {
    let names = |text: &str| -> Vec<String> {
        let scenario = Scenario::parse(Path::new("a.toml"), text).unwrap();
        scenario
            .policies
            .into_iter()
            .map(|binding| binding.name)
            .collect()
    };
    let end = "[end]\nall-finished = true\n";
    assert_eq!(
        names(&format!("title = \"t\"\n{end}")),
        ["aging", "memory-aware", "budget"]
    );
    assert!(names(&format!("title = \"t\"\npolicy = {{}}\n{end}")).is_empty());
    assert_eq!(
        names(&format!("title = \"t\"\n[policy.one]\n{end}")),
        ["one"]
    );
}
