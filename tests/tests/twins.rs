//! The twins of `examples/01-first-policy` in other languages, put through its scenarios.
//!
//! A twin must meet the expectations of each scenario, and decide the same as the Rust policy, to
//! the byte.

use std::fmt::Debug;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pointsman_policy::{Limits, PolicyComponent, PolicyEngine, PolicySource};
use pointsman_testkit::{Flavour, Kit, Registry, component, scenario_files};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
/// Name under which the scenarios bind the policy.
const NAME: &str = "first-policy";

#[test]
fn in_javascript_it_decides_as_in_rust() -> Result<()> {
    same_as_in_rust("02-javascript-policy/javascript-policy.wasm")
}

#[test]
fn in_python_it_decides_as_in_rust() -> Result<()> {
    same_as_in_rust("03-python-policy/python-policy.wasm")
}

fn same_as_in_rust(twin: &str) -> Result<()> {
    let engine = PolicyEngine::new()?;
    let mut rust = kit(&engine, &component::component_path(NAME))?;
    let mut twin = kit(&engine, &Path::new(EXAMPLES).join(twin))?;
    let scenarios = scenario_files(&Path::new(EXAMPLES).join("01-first-policy/scenarios"))?;
    ensure!(!scenarios.is_empty(), "{NAME} has no scenario");
    for path in scenarios {
        let expected = rust.run(&path, Flavour::Component)?;
        let ran = twin.run(&path, Flavour::Component)?;
        same(&path, &ran, &expected);
    }
    Ok(())
}

fn same<T: PartialEq + Debug>(path: &Path, twin: &T, rust: &T) {
    assert_eq!(twin, rust, "{}", path.display());
}

/// Makes a kit in which the component in `file` is the policy of the scenarios.
fn kit(engine: &PolicyEngine, file: &Path) -> Result<Kit> {
    let bytes =
        fs::read(file).with_context(|| format!("{}: run `cargo xtask test`", file.display()))?;
    let component = PolicyComponent::load(engine, &bytes)?;
    Ok(Kit::new(
        Registry::new().with_source(NAME, move |settings| {
            PolicySource::component(&component, settings, Limits::default())
        }),
    ))
}
