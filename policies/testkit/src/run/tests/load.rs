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

/// Two devices whose blocks the host manages, and an executor with a memory of its own; `odd` explains what is
/// held of a prompt.
const HOLDING: &str = r#"
title = "executors hold a prompt"
[policy.odd]
[[device]]
name = "da"
kv-blocks = 64
[[device]]
name = "db"
kv-blocks = 64
[[executor]]
name = "x"
device = "da"
slots = 1
[[executor]]
name = "y"
device = "db"
slots = 1
[[executor]]
name = "z"
slots = 1
tokens-per-block = 16
"#;

fn holding(cached: &str) -> String {
    let missed = unmet(&format!(
        "{HOLDING}{cached}[[step]]\narrive = {{ name = 'r', prompt = 'system:48 + 16' }}\n\
         expect = {{ placed = {{ r = 'y' }} }}\n"
    ));
    let text = missed.to_string();
    let (_, explained) = text.split_once("odd on `r`").expect("it is explained");
    explained.lines().nth(1).unwrap().trim().to_owned()
}

#[test]
fn what_is_cached_at_the_start_is_held_for_the_first_request() {
    let held = |tokens: u32| format!("x: cost 5: priority 0, {tokens} tokens cached");
    assert_eq!(holding(""), held(0));
    let cached = |executor: &str, prompt: &str, more: &str| {
        format!("[[cached]]\nexecutor = {executor}\nprompt = '{prompt}'\n{more}\n")
    };
    // Of the last block some tokens are missing.
    assert_eq!(holding(&cached("'x'", "system:40", "")), held(32));
    let both = cached("['x', 'y']", "system:48", "");
    assert_eq!(holding(&both), held(96));
    assert_eq!(holding(&cached("'z'", "system:48", "")), held(48));
    let two = cached("'x'", "system:16", "") + &cached("'x'", "other:64", "");
    assert_eq!(holding(&two), held(16));
    // Another tier is not the device.
    assert_eq!(
        holding(&cached("'x'", "system:48", "tier = 'host'")),
        held(0)
    );
    let model = "tier = 'device'\nmodel = 'm'\n[[model]]\nname = 'm'";
    assert_eq!(holding(&cached("'x'", "system:48", model)), held(0));
}

#[test]
fn what_cannot_be_cached_is_told_with_what_is_wrong() {
    let error = |cached: &str| {
        let text = format!("{HOLDING}[[cached]]\n{cached}\n[[step]]\nexpect.faults = 0\n");
        run_native(&text).expect_err("it cannot be so").to_string()
    };
    let none = "the `prompt` has no block that can be held: write pieces with names, of 16 tokens at least";
    for prompt in ["64", "'system:15'"] {
        let said = error(&format!("executor = 'x'\nprompt = {prompt}"));
        assert_eq!(said, format!("a.toml:23:12: step 0 cannot be done: {none}"));
    }
    let said = error("executor = ['y', 'x']\nprompt = 'system:2000'");
    assert!(
        said.starts_with("a.toml:23:13: step 0 cannot be done: it has no room for the `prompt`"),
        "{said}"
    );
    // Not on another executor, which has the room.
    let text = HOLDING.replacen("kv-blocks = 64", "kv-blocks = 3", 1);
    let text = format!(
        "{text}[[cached]]\nexecutor = 'x'\nprompt = 'system:64'\n[end]\nall-finished = true\n"
    );
    let said = run_native(&text).expect_err("it cannot be so").to_string();
    assert!(
        said.contains("it has no room for the `prompt`") && !said.ends_with("it is waiting"),
        "{said}"
    );
    let said = error("executor = 'x'\nprompt = 'system:64'\ntier = 'shared'");
    assert!(
        said.ends_with("a shared cache is no executor's: say in a step what it holds, by `cache`"),
        "{said}"
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
