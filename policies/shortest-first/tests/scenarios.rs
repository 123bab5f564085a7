//! The scenarios of this policy and the properties of any, natively and as the component that is
//! shipped.

use pointsman_testkit::properties::Shipped;
use pointsman_testkit::{Registry, check_dir};

#[test]
fn scenarios_hold_natively_and_as_a_component() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let registry = Registry::new().with("shortest-first", pointsman_shortest_first::instance);
    if let Err(failures) = check_dir(folder.as_ref(), registry) {
        panic!("{failures}");
    }
}

#[test]
fn it_has_every_property() {
    Shipped::new("shortest-first", pointsman_shortest_first::instance).assert();
}

#[test]
fn no_setting_has_it_refused_or_starve_anybody() {
    Shipped::new("shortest-first", pointsman_shortest_first::instance).assert_settings();
}
