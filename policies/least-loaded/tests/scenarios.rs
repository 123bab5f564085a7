//! The scenarios of this policy and the properties of any, natively and as the component that is
//! shipped.

use pointsman_testkit::properties::Shipped;
use pointsman_testkit::{Registry, check_dir};

#[test]
fn scenarios_hold_natively_and_as_a_component() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let registry = Registry::new().with("least-loaded", pointsman_least_loaded::instance);
    if let Err(failures) = check_dir(folder.as_ref(), registry) {
        panic!("{failures}");
    }
}

#[test]
fn it_has_every_property() {
    Shipped::new("least-loaded", pointsman_least_loaded::instance).assert();
}

#[test]
fn it_answers_full_batches_over_the_largest_fleet_within_the_default_fuel() {
    Shipped::new("least-loaded", pointsman_least_loaded::instance).assert_batches();
}

#[test]
fn no_setting_has_it_refused_or_starve_anybody() {
    Shipped::new("least-loaded", pointsman_least_loaded::instance).assert_settings();
}
