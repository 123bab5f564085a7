//! The built-in rule decides where a policy's answer is unlawful or does not come.

use std::path::Path;

use pointsman_component::{Limits, PolicyComponent, PolicyEngine};
use pointsman_policy::PolicySource;
use pointsman_testkit::component::component_path;
use pointsman_testkit::report::{Report, human};
use pointsman_testkit::{Flavour, Kit, Registry, scenario_files};

#[test]
fn the_built_in_rule_decides_in_place_of_a_policy_that_misbehaves() {
    let path = component_path("test/hostile");
    let bytes = std::fs::read(path).expect("`cargo xtask policies` built it");
    let engine = PolicyEngine::new().expect("components run here");
    let component = PolicyComponent::load(&engine, &bytes).expect("it is a policy");
    let source =
        move |settings: &_| PolicySource::component(&component, settings, Limits::default());
    let mut kit = Kit::new(Registry::new().with_source("hostile", source));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/built-in");
    let scenarios = scenario_files(&folder).expect("they are there");
    assert_eq!(scenarios.len(), 3);
    let report = Report {
        suites: vec![kit.suite("hostile", &scenarios, Flavour::Component)],
    };
    assert!(report.is_passed(), "{}", human(&report));
}
