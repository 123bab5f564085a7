//! Each expectation met and missed, with the built-in rules and with an odd policy.

use std::path::Path;

use pointsman_sdk as sdk;
use sdk::wire::explanation::Candidate;
use sdk::wire::routing::{Choice, Verdict};
use sdk::wire::types::Cached;

use super::*;
use crate::kit::{Flavour, Kit, Registry, check_dir};

mod costs;
mod load;
mod tenants;

/// Two executors with a slot each on one device, where the built-in rules place `a` and `b`, and
/// `c` waits.
const TWO_PLACED: &str = r#"
title = "two of three are placed"
policy = {}
[[model]]
name = "m"
[[device]]
name = "d"
kv-blocks = 64
tokens-per-step = 64
[[executor]]
name = "x"
device = "d"
slots = 1
[[executor]]
name = "y"
device = "d"
slots = 1
[[step]]
arrive = [{ name = "a" }, { name = "b" }, { name = "c" }]
"#;

/// One executor, whose requests the policy `odd` routes.
const ODD: &str = r#"
title = "odd routing"
[policy.odd]
[[executor]]
name = "x"
slots = 4
"#;

fn scenario(text: &str) -> Scenario {
    Scenario::parse(Path::new("a.toml"), text).unwrap_or_else(|error| panic!("{error}"))
}

fn run_native(text: &str) -> Result<Ran, RunError> {
    let mut kit = Kit::new(Registry::new().with("odd", instance));
    kit.run_scenario(&scenario(text), Flavour::Native)
}

fn unmet(text: &str) -> Unmet {
    match run_native(text) {
        Err(RunError::Unmet(unmet)) => *unmet,
        other => panic!("{text} gave {other:?}"),
    }
}

#[track_caller]
fn check_met(base: &str, more: &str) {
    if let Err(error) = run_native(&format!("{base}{more}")) {
        panic!("{more}: {error}");
    }
}

#[track_caller]
fn check_missed(base: &str, more: &str, expected: &str) {
    let unmet = unmet(&format!("{base}{more}"));
    assert_eq!(unmet.misses, [expected], "{more}");
}

#[test]
fn each_expectation_of_a_step_passes_where_it_is_met() {
    let rows = [
        "placed = { a = 'x', b = 'y' }",
        "placed-among = { a = ['y', 'x'] }",
        "placed-off = { a = ['y'], c = ['x', 'y'] }",
        "placed-count = { x = 1, y = 1 }",
        "placements = ['a', 'b']",
        "running = { x = ['a'], y = ['b'] }",
        "queued-on = { x = [] }",
        "waiting = ['c']",
        "parked = []",
        "victims = []",
        "allotted = { x = 32, y = 32 }",
        "arranged = { x = [] }",
        "tokens = { x = 0 }",
        "decided-by = { a = 'built-in', c = 'built-in' }",
        "refusals = 0",
        "strikes = 0",
        "faults = 0",
    ];
    for row in rows {
        check_met(TWO_PLACED, &format!("expect.{row}"));
    }
}

#[test]
fn each_expectation_of_a_place_fails_where_it_is_not_met() {
    let rows = [
        (
            "placed = { a = 'y' }",
            "placed: expected `a` on y, got on x",
        ),
        (
            "placed = { c = 'x' }",
            "placed: expected `c` on x, got waiting",
        ),
        (
            "placed-among = { a = ['y'] }",
            "placed-among: expected `a` on one of [y], got on x",
        ),
        (
            "placed-among = { c = ['x', 'y'] }",
            "placed-among: expected `c` on one of [x, y], got waiting",
        ),
        (
            "placed-off = { b = ['x', 'y'] }",
            "placed-off: expected `b` on none of [x, y], got on y",
        ),
        (
            "placed-with = { a = 'b' }",
            "placed-with: expected `a` with `b`, which is on y, got on x",
        ),
        (
            "placed-with = { c = 'a' }",
            "placed-with: expected `c` with `a`, which is on x, got waiting",
        ),
        (
            "placed-count = { x = 2 }",
            "placed-count: expected 2 on x, got 1",
        ),
        (
            "placements = ['b', 'a']",
            "placements: expected [b, a], got [a, b]",
        ),
        (
            "running = { x = ['b'] }",
            "running: expected on x [b], got on x [a]",
        ),
        (
            "queued-on = { x = ['c'] }",
            "queued-on: expected x [c], got x []",
        ),
        ("waiting = []", "waiting: expected [], got [c]"),
        ("parked = ['c']", "parked: expected [c], got []"),
        (
            "reserved = { c = 'x' }",
            "reserved: expected `c` has room kept on x, got waiting",
        ),
        ("held = ['c']", "held: expected `c` held, got waiting"),
        (
            "held-until = { c = '1s' }",
            "held-until: expected `c` waiting, held until 1s, got waiting",
        ),
    ];
    for (row, miss) in rows {
        check_missed(TWO_PLACED, &format!("expect.{row}"), miss);
    }
}

#[test]
fn each_expectation_of_an_outcome_fails_where_it_is_not_met() {
    let rows = [
        (
            "finished = ['a']",
            "finished: expected `a` finished, got running on x",
        ),
        (
            "output = { a = 3 }",
            "output: expected `a` finished with 3 tokens, got running on x",
        ),
        (
            "refused = { c = 7 }",
            "refused: expected `c` refused, retry after 7s, got waiting",
        ),
        (
            "displaced = { c = 7 }",
            "displaced: expected `c` displaced, retry after 7s, got waiting",
        ),
        (
            "given-up = ['c']",
            "given-up: expected `c` given-up, got waiting",
        ),
        (
            "never-fits = ['c']",
            "never-fits: expected `c` never-fits, got waiting",
        ),
        (
            "cancelled = ['c']",
            "cancelled: expected `c` cancelled, got waiting",
        ),
        (
            "expired = { c = 'deadline' }",
            "expired: expected `c` expired at its deadline, got waiting",
        ),
        (
            "expired = { c = 'wait' }",
            "expired: expected `c` expired waiting, got waiting",
        ),
        (
            "failed = ['a']",
            "failed: expected `a` failed, got running on x",
        ),
    ];
    for (row, miss) in rows {
        check_missed(TWO_PLACED, &format!("expect.{row}"), miss);
    }
}

#[test]
fn each_other_expectation_fails_where_it_is_not_met() {
    let rows = [
        ("victims = ['a']", "victims: expected [a], got []"),
        ("swapped = ['a']", "swapped: expected [a], got []"),
        (
            "evicted-for = { a = 'c' }",
            "evicted-for: expected `a` evicted for c, got running on x",
        ),
        ("allotted = { x = 1 }", "allotted: expected x 1, got 32"),
        (
            "arranged = { x = ['a'] }",
            "arranged: expected x [a], got x []",
        ),
        (
            "prefill-max = { x = 1 }",
            "prefill-max: expected x 1, got none",
        ),
        ("tokens = { x = 1 }", "tokens: expected x 1, got 0"),
        (
            "reasons = { a = 'why' }",
            "reasons: expected `a` for \"why\", got for \"\"",
        ),
        (
            "decided-by = { a = 'odd' }",
            "decided-by: expected `a` by odd, got by built-in",
        ),
        ("refusals = 1", "refusals: expected 1, got 0"),
        ("strikes = 1", "strikes: expected 1, got 0"),
        ("faults = 1", "faults: expected 1, got 0"),
    ];
    for (row, miss) in rows {
        check_missed(TWO_PLACED, &format!("expect.{row}"), miss);
    }
}

#[test]
fn what_happened_is_told_in_words() {
    let steps = "expect.placed = { a = 'x' }\n[[step]]\ndegrade = 'y'\n[[step]]\nlose = 'x'\nexpect.strikes = 1\n";
    let said = unmet(&format!("{TWO_PLACED}{steps}")).to_string();
    let words = [
        "c is short of a slot",
        "y is degraded",
        "a waits again: its executor died",
    ];
    for words in words {
        assert!(said.contains(words), "{words} not in\n{said}");
    }
}

#[test]
fn outcomes_are_told_apart() {
    let steps = r#"
        [[step]]
        arrive = [{ name = "huge", prompt = 10000 }, { name = "late", deadline = "1ms" }]
        [[step]]
        advance = "5ms"
        [[step]]
        cancel = ["a", "c"]
        expect = { cancelled = ["a", "c"], never-fits = ["huge"], expired = { late = "deadline" } }
        [[step]]
        fail = { request = "b", retry = "never" }
        expect = { failed = ["b"], running = { x = [], y = [] } }
        [[step]]
        arrive = { name = "d", output = 5 }
        [[step]]
        engine-step = ["x", "y"]
        expect.tokens = { y = 16 }
        [[step]]
        run-out = "1s"
        expect = { finished = ["d"], output = { d = 5 }, tokens = { y = 4 } }
    "#;
    check_met(TWO_PLACED, steps);
}

#[test]
fn what_a_policy_decides_is_seen_with_its_reasons() {
    let steps = r#"
        [[step]]
        arrive = [{ name = "a" }, { name = "h", priority = -1 }, { name = "g", priority = 13 }]
        expect.placed = { a = "x" }
        expect.held-until = { h = "2s" }
        expect.held = ["h"]
        expect.given-up = ["g"]
        expect.reasons = { a = "as ever", h = "less than nothing" }
        expect.decided-by = { a = "odd" }
    "#;
    check_met(ODD, steps);
}

#[test]
fn a_refusal_by_the_interlock_fails_the_scenario_unless_it_is_expected() {
    let step = "[[step]]\narrive = { name = 'r', priority = 7 }\nexpect.waiting = ['r']\n";
    check_missed(ODD, step, "refusals: expected 0, got 1");
    check_met(
        ODD,
        &format!("{step}\nexpect.refusals = 1\n[end]\nrefusals = 1"),
    );
}

#[test]
fn a_panic_is_a_fault_that_fails_the_scenario_unless_it_is_expected() {
    let step = "[[step]]\narrive = { name = 'p', priority = 666 }\nexpect.placed = { p = 'x' }\n";
    let unmet = unmet(&format!("{ODD}{step}"));
    assert_eq!(unmet.misses, ["faults: expected 0, got 1"]);
    let said = unmet.to_string();
    let first = said.lines().nth(1).unwrap().trim();
    assert!(
        first.starts_with("odd panicked at policies/testkit/src/run/tests.rs:"),
        "{said}"
    );
    assert!(first.ends_with(": the beast"), "{said}");
    assert_eq!(unmet.summary(), format!("{first}; {}", unmet.misses[0]));
    check_met(ODD, &format!("{step}[end]\nfaults = 1"));
}

#[test]
fn a_strike_fails_the_scenario() {
    let steps = r#"
        [[step]]
        arrive = { name = "h", priority = -1 }
        [[step]]
        advance = "41s"
        expect.placed = { h = "x" }
    "#;
    check_missed(ODD, steps, "strikes: expected 0, got 1");
}

#[test]
fn the_checks_at_the_end_fail_where_they_are_not_met() {
    let end = "expect.waiting = ['c']\n[end]\nall-finished = true";
    let unmet = unmet(&format!("{TWO_PLACED}{end}"));
    assert_eq!(unmet.step, None);
    assert_eq!(unmet.misses.len(), 3);
    assert_eq!(
        unmet.misses[2],
        "all-finished: expected `c` finished, got waiting"
    );
    check_missed(
        TWO_PLACED,
        "[[step]]\nrun-out = '1s'\n[end]\nmax-wait = '100ms'",
        "max-wait: expected `c` to wait at most 100ms, got 160.3ms",
    );
    check_met(
        TWO_PLACED,
        "[[step]]\nrun-out = '1s'\n[end]\nall-finished = true\nmax-wait = '170ms'",
    );
}

#[test]
fn requests_are_together_where_each_is_on_the_same_executor() {
    check_met(
        ODD,
        "[[step]]\narrive = { name = 'a', count = 2 }\n\
         expect = { placed-with = { a-1 = 'a-2' }, placed-count = { x = 2 } }",
    );
}

#[test]
fn settings_that_a_policy_must_refuse_are_tried() {
    let refusing = |refuses: &str| {
        let text = ODD.replace(
            "[policy.odd]",
            &format!("[policy.odd]\nrefuses = [{refuses}]"),
        );
        run_native(&text)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let wrong = "settings = { wrong = 1 }";
    assert_eq!(refusing(&format!("{{ {wrong} }}")), Ok(()));
    assert_eq!(
        refusing(&format!("{{ {wrong}, says = 'unknown field `wrong`' }}")),
        Ok(())
    );
    assert_eq!(
        refusing("{ settings = {} }"),
        Err("a.toml:4:25: the settings must be refused, and it takes them".to_owned())
    );
    let said = refusing(&format!("{{ {wrong}, says = 'too large' }}")).unwrap_err();
    let expected = "a.toml:4:25: the settings must be refused, with `too large`, and it says: ";
    assert!(said.starts_with(expected), "{said}");
}

/// The executor of [`ODD`], whose request of priority 13 is given up.
const GIVEN_UP: &str = "[[step]]\narrive = [{ name = 'a' }, { name = 'g', priority = 13 }]\n";

#[test]
fn a_request_that_is_refused_unexpectedly_fails_the_scenario() {
    check_missed(
        ODD,
        &format!("{GIVEN_UP}expect.placed = {{ a = 'x' }}"),
        "refused: expected 0 refused that no `expect` names, got 1: `g` given up",
    );
    check_met(ODD, &format!("{GIVEN_UP}expect.given-up = ['g']"));
    let at_the_end = |refused: &str| {
        let end = format!("[end]\nrefused = {refused}\n");
        format!("{GIVEN_UP}expect.placed = {{ a = 'x' }}\n{end}")
    };
    check_met(ODD, &at_the_end("1"));
    check_met(ODD, &at_the_end("'any'"));
    check_missed(
        ODD,
        &at_the_end("2"),
        "refused: expected 2 refused that no `expect` names, got 1: `g` given up",
    );
}

#[test]
fn a_scenario_checks_the_properties_that_it_names() {
    let text = format!("properties = ['never-refused', 'survives-restart']{ODD}");
    check_met(&text, "[[step]]\narrive = { name = 'a' }");
    check_missed(
        &text,
        "[[step]]\narrive = { name = 'n', priority = 7 }\n[[step]]\nsettle = true",
        "it is not so that it is never refused and never faults: the interlock refuses routing of odd: \
         no such executor (n, executor 99)",
    );
}

#[test]
fn a_failure_tells_where_what_happened_and_why() {
    let step = "[[step]]\narrive = [{ name = 'a' }, { name = 'h', priority = -1 }]\n\
                expect.placed = { a = 'x', h = 'x' }\n";
    let text = unmet(&format!("{ODD}{step}")).to_string();
    for line in [
        "a.toml:7:1: step 1 of \"odd routing\":",
        "placed: expected `h` on x, got waiting, held until 2s",
        "a is placed on x, by odd: as ever",
        "h is held until 2s, by odd: less than nothing",
        "odd on `h` at 0s:",
        "x: cost 5: priority -1, 0 tokens cached",
    ] {
        assert!(text.contains(line), "{line}\nis not in\n{text}");
    }
}

#[test]
fn what_cannot_be_done_is_said_with_its_step() {
    let check = |more: &str, expected: &str| {
        let error = run_native(&format!("{TWO_PLACED}{more}")).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(
        "expect.waiting = ['c']\n[[step]]\nfail = { request = 'c' }",
        "a.toml:21:1: step 2 cannot be done: the request runs nowhere",
    );
    check(
        "expect.waiting = ['c']\n[[step]]\nrun-out = '10ms'",
        "a.toml:21:1: step 2 cannot be done: by then these have no outcome: a, b, c",
    );
}

#[test]
fn a_policy_that_cannot_be_bound_is_reported_where_it_is_named() {
    let end = "\n[end]\nall-finished = true";
    let text = format!("{ODD}{end}").replace("odd]", "even]");
    assert_eq!(
        run_native(&text).unwrap_err().to_string(),
        "a.toml:3:9: no policy is called `even`; those given are odd",
    );
}

#[test]
fn a_policy_that_refuses_its_settings_does_not_start() {
    let text = format!("{ODD}[end]\nall-finished = true");
    let text = text.replace("[policy.odd]", "[policy.odd]\nsettings = { wrong = 1 }");
    let error = run_native(&text).unwrap_err();
    assert_eq!(error.to_string(), "a.toml:3:9: the policy does not start");
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    assert!(cause.is_some_and(|cause| cause.contains("wrong")));
}

#[test]
fn a_missing_component_says_how_to_make_it() {
    let mut kit = Kit::new(Registry::new().with("odd", instance));
    let text = format!("{ODD}[end]\nall-finished = true");
    let error = kit.run_scenario(&scenario(&text), Flavour::Component);
    let text = error.unwrap_err().to_string();
    assert!(
        text.ends_with("odd.wasm: run `cargo xtask policies`"),
        "{text}"
    );
}

#[test]
fn a_folder_without_scenarios_is_a_failure() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let failures = check_dir(folder.as_ref(), Registry::new()).unwrap_err();
    assert!(
        failures.to_string().contains("has no scenario"),
        "{failures}"
    );
}

// === The policy `odd` ===

/// A policy that treats the priorities -1, 7, 13 and 666 each in its own way.
struct Odd;

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct NoSettings {}

impl sdk::Policy for Odd {
    type Settings = NoSettings;

    fn describe() -> sdk::Description {
        sdk::Description {
            name: "odd".into(),
            version: "1".into(),
            summary: "Routes oddly.".into(),
            reasons: vec!["as ever".into(), "less than nothing".into()],
            state_version: 1,
        }
    }

    fn new(_: NoSettings) -> Result<Self, String> {
        Ok(Self)
    }
}

impl sdk::Routing for Odd {
    const NEEDS: sdk::Feed = sdk::Feed::WAITING;

    fn route(
        &mut self,
        mirror: &sdk::Mirror,
        _: &mut sdk::BatchPlacements,
        at: sdk::Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let verdict = |asked: &Cached| {
            let priority = mirror.request(asked.request).map_or(0, |row| row.priority);
            let (choice, reason) = match priority {
                -1 => (Choice::Hold(Some(at.now + 2_000_000)), 1),
                7 => (Choice::Place(vec![99]), 0),
                13 => (Choice::GiveUp, 0),
                666 => panic!("the beast"),
                _ => (Choice::Place(vec![0]), 0),
            };
            Verdict { choice, reason }
        };
        requests.iter().map(verdict).collect()
    }
}

impl sdk::Explanation for Odd {
    const NEEDS: sdk::Feed = sdk::Feed::FIT;

    fn explain(&mut self, case: &sdk::Case<'_>) -> Vec<Candidate> {
        let (request, overlaps) = (case.request, case.cached.overlaps.iter().flatten());
        let cached: u32 = overlaps.map(|overlap| overlap.device_tokens).sum();
        let candidate = |at: &sdk::Executor<'_>| {
            let is_cold = at.id() == 2 && request.priority == 4;
            let is_cheaper = at.id() == 1 && request.priority == 4;
            Candidate {
                executor: at.id(),
                eligible: !is_cold,
                cost: 5 - i64::from(is_cheaper),
                note: if is_cold {
                    "cold".to_owned()
                } else {
                    format!("priority {}, {cached} tokens cached", request.priority)
                },
            }
        };
        let executors = case.fleet.mirror.executors();
        executors.map(|at| candidate(&at)).collect()
    }
}

sdk::export!(Odd: routing, explanation);
