//! The scenarios of this policy, natively and as the component that is shipped.

use pointsman_testkit::{Registry, check_dir};

#[test]
fn scenarios_hold_natively_and_as_a_component() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let registry = Registry::new().with("prefix-bound", pointsman_prefix_bound::instance);
    if let Err(failures) = check_dir(folder.as_ref(), registry) {
        panic!("{failures}");
    }
}
