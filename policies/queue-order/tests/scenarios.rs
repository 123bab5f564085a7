//! The scenarios of this policy and the properties of any, natively and as the component that is
//! shipped.

use pointsman_testkit::properties::Shipped;
use pointsman_testkit::{Registry, check_dir};

#[test]
fn scenarios_hold_natively_and_as_a_component() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let registry = Registry::new().with("queue-order", pointsman_queue_order::instance);
    let registry = registry.with_component("budget");
    let registry = registry.expect("`cargo xtask policies` built it");
    if let Err(failures) = check_dir(folder.as_ref(), registry) {
        panic!("{failures}");
    }
}

#[test]
fn first_come_first_served_has_every_property() {
    Shipped::new("queue-order", pointsman_queue_order::instance).assert();
}

#[test]
fn the_other_disciplines_have_every_property() {
    for settings in ["discipline = 'lcfs'", "discipline = 'wspt'"] {
        let policy = Shipped::new("queue-order", pointsman_queue_order::instance);
        policy.with(settings).rushing(24).assert();
    }
}

#[test]
fn no_setting_has_it_refused_or_starve_anybody() {
    Shipped::new("queue-order", pointsman_queue_order::instance).assert_settings();
}
