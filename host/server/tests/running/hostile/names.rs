//! The names of policies: an operator reads them, and a policy chooses its own.

use crate::host::{Host, policy};

#[test]
fn a_policy_is_shown_under_the_name_of_its_file() {
    let host = Host::start("");
    // It calls itself what one of the defaults is called.
    host.drop_in("evil.wasm", &policy("memory-aware"));
    host.wait_for_policy("evil");
    host.wait_until(|status| status["hooks"]["routing"]["policy"] == "evil");
    let metrics = host.get("/metrics");
    let mut lines = metrics.lines();
    let mut holds = lines.find(|line| {
        line.starts_with("pointsman_policy_in_force{") && line.contains("hook=\"routing\"")
    });
    let line = holds.take().unwrap_or_else(|| panic!("{metrics}"));
    assert!(line.contains("policy=\"evil\""), "{line}");
    let status = host.status();
    let mut policies = status["policies"].as_array().unwrap().iter();
    let evil = policies.find(|policy| policy["name"] == "evil").unwrap();
    assert_eq!(evil["running"]["calls_itself"], "memory-aware");
}
