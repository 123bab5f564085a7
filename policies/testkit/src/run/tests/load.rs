//! Fleets that have requests when the first step comes.

use super::*;

/// Two executors on one device; the built-in rules would fill `x` first.
const FLEET: &str = r#"
title = "a fleet that already runs something"
policy = {}
[[device]]
name = "d"
kv-blocks = 64
[[executor]]
name = "x"
device = "d"
slots = 2
[[executor]]
name = "y"
device = "d"
slots = 1
queue-limit = 1
"#;

fn error(more: &str) -> String {
    let ran = run_native(&format!("{FLEET}{more}[[step]]\nexpect.faults = 0\n"));
    ran.expect_err("it cannot be so").to_string()
}

#[test]
fn what_runs_is_where_the_scenario_says_and_has_generated_what_it_says() {
    let more = r#"
[[running]]
executor = "y"
generated = 2
request = { name = "early", prompt = 40, output = 9 }
[[running]]
executor = "y"
request = { name = "next", output = 3 }
[[running]]
executor = "x"
generated = 5
request = { name = "far", prompt = 100, output = 9 }
[[step]]
arrive = { name = "new", output = 1 }
expect.running = { x = ["far", "new"], y = ["early"] }
expect.queued-on = { y = ["next"] }
expect.placements = ["new"]
expect.decided-by = { early = "the scenario", new = "built-in" }
[[step]]
engine-step = "x"
[[step]]
engine-step = "x"
[[step]]
engine-step = "x"
expect.running = { x = ["far"] }
[[step]]
engine-step = "x"
expect.finished = ["far"]
expect.running = { y = ["early"] }
[[step]]
run-out = "10s"
expect.output = { far = 9, early = 9, next = 3 }
[end]
all-finished = true
"#;
    check_met(FLEET, more);
}

#[test]
fn what_waits_came_before_the_first_step_and_nobody_was_asked_yet() {
    let more = |since: &str| {
        format!(
            "[[waiting]]\nfor = \"{since}\"\nrequest = {{ name = \"w\", deadline = \"2s\" }}\n\
             [[waiting]]\nrequest = {{ name = \"v\" }}\n[[step]]\n"
        )
    };
    let placed = "expect.placements = [\"w\", \"v\"]\nexpect.decided-by = { w = \"built-in\" }\n";
    check_met(FLEET, &format!("{}{placed}", more("1s")));
    let expired = "expect.expired = { w = \"deadline\" }\nexpect.placements = [\"v\"]\n";
    check_met(FLEET, &format!("{}{expired}", more("3s")));
}

#[test]
fn policies_are_asked_only_about_what_comes_after() {
    let more = "[[running]]\nexecutor = \"x\"\nrequest = { name = \"r\", output = 4 }\n\
                [[step]]\narrive = { name = \"new\" }\n\
                expect.running = { x = [\"r\", \"new\"] }\n\
                expect.decided-by = { r = \"the scenario\", new = \"odd\" }\n";
    check_met(ODD, more);
}

#[test]
fn a_load_that_cannot_be_is_told_with_what_is_wrong() {
    let running = |executor: &str, generated: u32, request: &str| {
        format!(
            "[[running]]\nexecutor = \"{executor}\"\ngenerated = {generated}\nrequest = {request}\n"
        )
    };
    let full = running("y", 0, "{ name = \"r\", count = 3 }");
    assert_eq!(
        error(&full),
        "a.toml:17:12: step 0 cannot be done: `r-3` cannot run on y: there is no room for it"
    );
    let ended = error(&running("x", 3, "{ name = \"r\", output = 3 }"));
    assert!(
        ended.contains("has ended before the first step; it is finished with 3 tokens"),
        "{ended}"
    );
    let queued = error(&running("y", 1, "{ name = \"r\", count = 2, output = 3 }"));
    assert!(
        queued.ends_with(
            "`r-2` cannot have generated 1 tokens, for it is in the queue there; it has 0"
        ),
        "{queued}"
    );
}

#[test]
fn a_session_is_called_by_a_text_or_by_its_key() {
    use super::super::state::session_key;
    let key = session_key("key:00c0ffee00c0ffee");
    assert_eq!(key.0, 0x00c0_ffee_00c0_ffee);
    assert_eq!(session_key(""), session_key(""));
    for text in ["key:c0ffee", "key:00c0ffee00c0ffeg", "00c0ffee00c0ffee"] {
        assert_ne!(session_key(text), key, "{text}");
    }
}
