//! The scenarios of this policy and the properties of any, natively and as the component that is
//! shipped.

use pointsman_testkit::properties::Shipped;
use pointsman_testkit::{Registry, check_dir};

#[test]
fn scenarios_hold_natively_and_as_a_component() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let registry = Registry::new().with("prefix-bound", pointsman_prefix_bound::instance);
    if let Err(failures) = check_dir(folder.as_ref(), registry) {
        panic!("{failures}");
    }
}

#[test]
fn it_has_every_property() {
    Shipped::new("prefix-bound", pointsman_prefix_bound::instance).assert();
}

#[test]
fn it_has_every_property_measured_against_the_mean() {
    let policy = Shipped::new("prefix-bound", pointsman_prefix_bound::instance);
    policy.with("against = 'mean'").assert();
}

#[test]
fn it_answers_full_batches_over_the_largest_fleet_within_the_default_fuel() {
    Shipped::new("prefix-bound", pointsman_prefix_bound::instance).assert_batches();
}

#[test]
fn no_setting_has_it_refused_or_starve_anybody() {
    Shipped::new("prefix-bound", pointsman_prefix_bound::instance).assert_settings();
}
