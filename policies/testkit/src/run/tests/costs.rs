//! Costs as the policy that routes explains them.

use super::*;

/// Three executors that `odd` explains: a request costs 5 on `x` and `y`, one of priority 4 costs less on `y`, and
/// `z` has no place for it.
const COSTS: &str = r#"
title = "two are placed one after the other"
[policy.odd]
[[executor]]
name = "x"
slots = 4
[[executor]]
name = "y"
slots = 4
[[executor]]
name = "z"
slots = 4
[[waiting]]
request = { name = "a" }
[[step]]
settle = true
[[step]]
arrive = [{ name = "c" }, { name = "v", priority = 4 }]
"#;

#[test]
fn a_cost_is_a_number_or_compared_with_another_or_there_is_no_place() {
    // One that waited from the start has the cost that was told when it was placed.
    check_met(
        COSTS,
        "expect.cost = { a = { x = 5, y = '= x' }, c = { z = 5 } }",
    );
    check_met(
        COSTS,
        "expect.cost.v = { x = 5, y = '< x', z = 'no place' }\n[[step]]\n\
         expect.cost.v = { y = 4, x = '> y' }",
    );
}

#[test]
fn a_cost_that_is_another_is_told_with_what_it_is() {
    for (expected, said) in [
        ("{ x = 6 }", "`v` to cost 6 on x, got 5"),
        ("{ z = 6 }", "`v` to cost 6 on z, got no place (cold)"),
        (
            "{ x = '< y' }",
            "`v` to cost less on x than on y, got 5 and 4",
        ),
        (
            "{ y = '> x' }",
            "`v` to cost more on y than on x, got 4 and 5",
        ),
        (
            "{ y = '= x' }",
            "`v` to cost as much on y as on x, got 4 and 5",
        ),
        (
            "{ z = '> x' }",
            "`v` to cost more on z than on x, got no place (cold) and 5",
        ),
        ("{ x = 'no place' }", "`v` to have no place on x, got 5"),
    ] {
        let more = format!("expect.cost.v = {expected}");
        check_missed(COSTS, &more, &format!("cost: expected {said}"));
    }
}

#[test]
fn a_request_that_no_policy_explains_has_no_cost() {
    let text = COSTS.replace("[policy.odd]", "[policy]");
    check_missed(
        &text,
        "expect.cost = { a = { x = 5 } }",
        "cost: expected `a` explained, got no explanation: no policy that exports `explanation` was asked \
         where it goes",
    );
}

#[test]
fn only_the_requests_of_a_failed_expectation_are_explained_in_the_report() {
    let more = "expect = { placed = { c = 'y' }, cost.v = { x = 5 } }";
    let text = unmet(&format!("{COSTS}{more}")).to_string();
    assert!(text.contains("odd on `c` at"), "{text}");
    assert!(!text.contains("odd on `v` at"), "{text}");
}
