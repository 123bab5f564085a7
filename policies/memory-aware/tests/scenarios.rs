//! The scenarios of this policy and the properties of any, natively and as the component that is
//! shipped.

use pointsman_testkit::properties::Shipped;
use pointsman_testkit::{Registry, check_dir};

#[test]
fn scenarios_hold_natively_and_as_a_component() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let registry = Registry::new().with("memory-aware", pointsman_memory_aware::instance);
    let registry = registry.with_component("aging");
    let registry = registry.expect("`cargo xtask policies` built it");
    if let Err(failures) = check_dir(folder.as_ref(), registry) {
        panic!("{failures}");
    }
}

#[test]
fn it_has_every_property() {
    let policy = Shipped::new("memory-aware", pointsman_memory_aware::instance);
    policy.rushing(24).assert();
}

#[test]
fn it_has_every_property_by_share_of_slots() {
    let policy = Shipped::new("memory-aware", pointsman_memory_aware::instance);
    policy.with("balance = 'slots'").rushing(24).assert();
}

#[test]
fn it_answers_full_batches_over_the_largest_fleet_within_the_default_fuel() {
    Shipped::new("memory-aware", pointsman_memory_aware::instance).assert_batches();
}

#[test]
fn no_setting_has_it_refused_or_starve_anybody() {
    Shipped::new("memory-aware", pointsman_memory_aware::instance).assert_settings();
}
