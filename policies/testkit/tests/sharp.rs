//! Every scenario of a shipped policy says something of that policy: no other one that makes the
//! same decisions passes it.

use std::fs;
use std::path::{Path, PathBuf};

use pointsman_component::{Limits, PolicyComponent};
use pointsman_policy::PolicySource;
use pointsman_testkit::component::Components;
use pointsman_testkit::report::Verdict;
use pointsman_testkit::{Flavour, Kit, Registry, scenario_files};
use serde_json::Map;

/// A shipped policy with its scenarios.
struct Shipped {
    name: String,
    component: PolicyComponent,
    scenarios: Vec<PathBuf>,
}

fn shipped() -> Vec<Shipped> {
    let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = fs::read_dir(policies).expect("it is this workspace's");
    let folders = folders.map(|folder| folder.expect("it can be listed").path());
    let mut folders: Vec<PathBuf> = folders
        .filter(|folder| folder.join("scenarios").is_dir())
        .collect();
    folders.sort();
    let mut components = Components::default();
    let shipped = folders.into_iter().map(|folder| {
        let name = folder.file_name().expect("it has a name");
        let name = name.to_str().expect("its name is text").to_owned();
        let component = components.component(&name);
        Shipped {
            component: component.expect("`cargo xtask policies` built it").clone(),
            scenarios: scenario_files(&folder.join("scenarios")).expect("they can be listed"),
            name,
        }
    });
    shipped.collect()
}

/// Runs the scenarios of a file with `other` in the place of `policy`, and the shipped ones in all other
/// places. Returns the titles of those that pass.
fn passed(all: &[Shipped], policy: &Shipped, other: &Shipped, file: &PathBuf) -> Vec<String> {
    let mut registry = Registry::new();
    for one in all {
        let is_replaced = one.name == policy.name;
        let component = if is_replaced { other } else { one }.component.clone();
        registry = registry.with_source(&one.name, move |settings| {
            // The settings of one policy are none of another's.
            let settings = if is_replaced { &Map::new() } else { settings };
            PolicySource::component(&component, settings, Limits::default())
        });
    }
    let mut kit = Kit::new(registry);
    let ran = kit.suite("", std::slice::from_ref(file), Flavour::Component);
    let passed = ran
        .cases
        .into_iter()
        .filter(|case| matches!(case.verdict, Verdict::Passed(_)));
    passed.map(|case| case.name).collect()
}

#[test]
fn no_other_policy_passes_a_scenario() {
    let all = shipped();
    assert!(all.len() >= 12, "{} policies", all.len());
    let mut weak = Vec::new();
    for policy in &all {
        let hooks = policy.component.hooks();
        let others = all.iter().filter(|other| {
            let decides = |hook| hooks.contains(hook);
            other.name != policy.name && other.component.hooks().iter().any(decides)
        });
        for other in others {
            for scenario in &policy.scenarios {
                for title in passed(&all, policy, other, scenario) {
                    let file = scenario.file_stem().unwrap_or_default().display();
                    weak.push(format!("{}/{file}, {title}: {}", policy.name, other.name));
                }
            }
        }
    }
    assert!(
        weak.is_empty(),
        "scenarios that another policy passes too: give them reasons, or a sharper case:\n{}",
        weak.join("\n")
    );
}
