//! The twins of `examples/01-first-policy` in other languages: built in their folders as their READMEs tell
//! readers to, and put through its scenarios.
//!
//! A twin must meet the expectations of each scenario, and decide the same as the Rust policy, to the byte.

use std::fs;
use std::path::Path;

use pointsman_component::{CompileCache, Limits, PolicyComponent, PolicyEngine};
use pointsman_policy::PolicySource;
use pointsman_testkit::{Flavour, Kit, Registry, component::component_path, scenario_files};

use super::place::Place;
use super::said::Said;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
/// Name under which the scenarios bind the policy.
const NAME: &str = "first-policy";

#[test]
fn in_javascript_it_decides_as_in_rust() {
    same_as_in_rust("02-javascript-policy", "javascript-policy");
}

#[test]
fn in_python_it_decides_as_in_rust() {
    same_as_in_rust("03-python-policy", "python-policy");
}

fn same_as_in_rust(folder: &str, name: &str) {
    let folder = Path::new(EXAMPLES).join(folder);
    let place = Place::new();
    let mut test = place.command();
    test.current_dir(&folder).arg("test");
    // Its own scenarios, and the properties of any policy.
    let said = Said::of(test.args(["--runs", "80"]));
    said.says(0, &[&format!("./{name}.wasm: "), "6 passed"]);

    let engine = PolicyEngine::new().unwrap();
    let code = CompileCache::open(&place.code()).unwrap();
    let kit = |file: &Path| {
        let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let (component, _) = PolicyComponent::load_kept(&engine, &bytes, &code).unwrap();
        Kit::new(Registry::new().with_source(NAME, move |settings| {
            PolicySource::component(&component, settings, Limits::default())
        }))
    };
    let mut rust = kit(&component_path(NAME));
    let mut twin = kit(&folder.join(name).with_extension("wasm"));
    let scenarios = Path::new(EXAMPLES).join("01-first-policy/scenarios");
    let scenarios = scenario_files(&scenarios).unwrap();
    assert!(!scenarios.is_empty(), "{NAME} has no scenario");
    for path in scenarios {
        let expected = rust.run(&path, Flavour::Component).unwrap();
        let ran = twin.run(&path, Flavour::Component).unwrap();
        assert_eq!(ran, expected, "{}", path.display());
    }
}
