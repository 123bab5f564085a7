//! The default policies have every property, natively and as the components that are shipped.

use std::fs;

use pointsman_policy::{Limits, PolicyComponent, PolicyEngine};
use pointsman_testkit::component::component_path;
use pointsman_testkit::native::Make;
use pointsman_testkit::properties::{Plan, Subject, check};
use pointsman_testkit::report::{Report, human};
use serde_json::Map;

fn check_policy(name: &str, make: Make) {
    let bytes = fs::read(component_path(name)).expect("`cargo xtask policies` built it");
    let engine = PolicyEngine::new().expect("components run here");
    let component = PolicyComponent::load(&engine, &bytes).expect("it is a policy");
    let settings = Map::new();
    let native = Subject::native(name, make, &settings);
    let component = Subject::component(&component, &settings, Limits::default());
    // A fresh instance of a component takes its time.
    let few = Plan {
        runs: 2,
        events: 60,
        restart_every: 32,
        fleets: vec![8, 64],
        ..Plan::default()
    };
    let report = Report {
        suites: vec![
            check(&native, &Plan::default()).expect("it starts"),
            check(&component, &few).expect("it starts"),
        ],
    };
    assert!(report.is_passed(), "{}", human(&report));
    assert_eq!(report.counts().skipped, 1, "{}", human(&report));
}

#[test]
fn aging_has_every_property() {
    check_policy("aging", pointsman_aging::instance);
}

#[test]
fn memory_aware_has_every_property() {
    check_policy("memory-aware", pointsman_memory_aware::instance);
}

#[test]
fn budget_has_every_property() {
    check_policy("budget", pointsman_budget::instance);
}
