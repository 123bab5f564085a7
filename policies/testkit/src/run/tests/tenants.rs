//! Prompts with common text, tenants with equal service, and changes between steps.

use super::*;

/// One device with two executors; only the built-in rules.
const PREFIXES: &str = r#"
title = "what was computed once is not computed again"
policy = {}
[[tenant]]
name = "t"
weight = 2
[[tenant]]
name = "u"
[[model]]
name = "m"
[[device]]
name = "d"
kv-blocks = 64
tokens-per-step = 256
[[executor]]
name = "x"
device = "d"
slots = 4
[[step]]
arrive = { name = "a", tenant = "t", prompt = "system:64 + 16", output = 1 }
[[step]]
engine-step = "x"
expect = { tokens = { x = 80 }, served = { t = 81, u = 0 } }
"#;

#[test]
fn a_shared_prefix_is_prefilled_once() {
    let next = |prompt: &str, tokens: u32| {
        let steps = format!(
            "[[step]]\narrive = {{ name = 'b', tenant = 'u', prompt = {prompt}, output = 1 }}\n\
             [[step]]\nengine-step = 'x'\nexpect = {{ tokens = {{ x = {tokens} }} }}\n"
        );
        check_met(PREFIXES, &steps);
    };
    next("'system:64 + 16'", 16);
    next("'system:32 + 48'", 48);
    next("'other:64 + 16'", 80);
    next("80", 80);
}

#[test]
fn routing_is_told_what_is_cached_where() {
    let base = PREFIXES.replace("policy = {}", "[policy.odd]");
    let step = "[[step]]\narrive = { name = 'b', prompt = 'system:64 + 16' }\n\
                expect.placed = { b = 'y' }\n";
    let base = base.replace(
        "[[step]]\narrive",
        "[[executor]]\nname = 'y'\nslots = 1\n[[step]]\narrive",
    );
    let text = unmet(&format!("{base}{step}")).to_string();
    assert!(
        text.contains("x: cost 5: priority 0, 64 tokens cached"),
        "{text}"
    );
}

#[test]
fn pieces_need_blocks_of_one_size() {
    let arrive = "[[step]]\narrive = { name = 'b', prompt = 'system:64' }\nexpect.waiting = []\n";
    let error = run_native(&format!("{ODD}{arrive}"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("needs an executor on a device with `kv-blocks`"),
        "{error}"
    );
    let attach =
        "[[step]]\nattach = { name = 'z', device = 'd', slots = 1, tokens-per-block = 8 }\n";
    let error = run_native(&format!("{PREFIXES}{attach}{arrive}")).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("executors with the same `tokens-per-block`"),
        "{error}"
    );
}

#[test]
fn what_tenants_are_served_is_counted_since_the_last_expectation() {
    let steps = "[[step]]\narrive = { name = 'b', tenant = 'u', prompt = 40, output = 1 }\n\
                 [[step]]\nengine-step = 'x'\n";
    check_met(
        PREFIXES,
        &format!("{steps}expect.served = {{ t = 0, u = 41 }}"),
    );
    check_missed(
        PREFIXES,
        &format!("{steps}expect.served = {{ u = 40 }}"),
        "served: expected u 40, got 41",
    );
    check_met(
        PREFIXES,
        &format!("{steps}expect.fair = {{ tenants = ['t', 'u'], within = 41 }}"),
    );
    check_missed(
        PREFIXES,
        &format!("{steps}expect.fair = {{ tenants = ['t', 'u'], within = 40 }}"),
        "fair: expected tokens by weight within 40 of each other, got t 0, u 41",
    );
}

#[test]
fn tenants_and_models_are_set_anew() {
    let steps = "[[step]]\nset-tenant = { name = 'u', weight = 41 }\n\
                 [[step]]\narrive = { name = 'b', tenant = 'u', prompt = 40, output = 1 }\n\
                 [[step]]\nengine-step = 'x'\n\
                 expect.fair = { tenants = ['t', 'u'], within = 1 }\n";
    check_met(PREFIXES, steps);
    let limited = "[[step]]\nset-model = { name = 'm', running-max = 1 }\n\
                   [[step]]\narrive = { name = 'b', count = 2, model = 'm' }\n";
    check_met(PREFIXES, &format!("{limited}expect.waiting = ['b-2']"));
    let lifted = "[[step]]\nset-model = { name = 'm' }\nexpect.waiting = []";
    check_met(PREFIXES, &format!("{limited}{lifted}"));
}

#[test]
fn the_default_policies_decide_one_scenario_together() {
    let registry = Registry::new()
        .with("aging", pointsman_aging::instance)
        .with("memory-aware", pointsman_memory_aware::instance)
        .with("budget", pointsman_budget::instance);
    let text = r#"
        title = "each decides what it exports"
        [policy.aging]
        [policy.memory-aware]
        [policy.budget]
        [machine]
        queue-max = 1
        [[executor]]
        name = "x"
        slots = 1
        [[step]]
        arrive = { name = "a" }
        expect = { placed = { a = "x" }, decided-by = { a = "memory-aware" } }
        [[step]]
        arrive = { name = "b", count = 2, may-wait = false }
        expect = { waiting = ["b-1"], decided-by = { b-2 = "budget" }, refused = { b-2 = 1 } }
    "#;
    let ran = Kit::new(registry).run_scenario(&scenario(text), Flavour::Native);
    assert!(ran.is_ok(), "{}", ran.unwrap_err());
}
