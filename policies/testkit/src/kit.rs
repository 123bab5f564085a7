//! Runs of scenarios with their policies: one file, or a folder in both flavours.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pointsman_notation::{Location, chain};
use pointsman_policy::PolicySource;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::component::{self, ComponentError, Components};
use crate::native::{self, Make};
use crate::report::{Case, Problem, Suite, Verdict};
use crate::run::{self, Ran, RunError};
use crate::scenario::{PolicyBinding, Scenario};

/// A way to compile a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flavour {
    /// Compiled into the test.
    Native,
    /// Compiled to the component that is shipped.
    Component,
}

/// The policies that scenarios may bind, by name.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone)]
enum Entry {
    /// A native policy, whose component `cargo xtask policies` builds.
    Make(Make),
    /// A policy of one flavour.
    Source(Configure),
}

/// Makes a policy's source of a scenario's settings.
type Configure = Arc<dyn Fn(&Map<String, Value>) -> PolicySource + Send + Sync>;

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Component => "component",
        })
    }
}

/// Runs scenarios, and keeps compiled components for the next one.
#[derive(Debug)]
pub struct Kit {
    registry: Registry,
    components: Components,
}

/// The errors in a folder of scenarios.
#[derive(Debug)]
pub struct Failures {
    failures: Vec<String>,
}

/// Runs the scenario in a file, or each `[[case]]` of it.
///
/// # Errors
/// The first: a scenario cannot be read or run, or an expectation is not met.
pub fn run(path: &Path, flavour: Flavour, registry: Registry) -> Result<Vec<Ran>, RunError> {
    Kit::new(registry).run(path, flavour)
}

/// Runs every scenario of a folder, natively and as components, which must decide the same.
///
/// # Errors
/// All failures. A folder without scenarios is one.
pub fn check_dir(folder: &Path, registry: Registry) -> Result<(), Failures> {
    Kit::new(registry).check_dir(folder)
}

// === impl Registry ===

impl Registry {
    /// Makes a registry without policies.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a policy. `make` is the `instance` that `export!` of the SDK made; its component is
    /// `NAME.wasm`.
    #[must_use]
    pub fn with(mut self, name: &str, make: Make) -> Self {
        self.entries.insert(name.to_owned(), Entry::Make(make));
        self
    }

    /// Adds a policy of the workspace as its component, which is its one flavour, for a scenario
    /// about two policies.
    ///
    /// # Errors
    /// If there is no such component, or it cannot be loaded.
    pub fn with_component(self, name: &str) -> Result<Self, ComponentError> {
        let component = Components::default().component(name)?.clone();
        Ok(self.with_source(name, move |settings| {
            component::source(&component, settings)
        }))
    }

    /// Adds a policy that was loaded already; `source` configures it with a scenario's settings.
    /// The policy has one flavour, whichever is asked for.
    #[must_use]
    pub fn with_source(
        mut self,
        name: &str,
        source: impl Fn(&Map<String, Value>) -> PolicySource + Send + Sync + 'static,
    ) -> Self {
        let entry = Entry::Source(Arc::new(source));
        self.entries.insert(name.to_owned(), entry);
        self
    }
}

// === impl Kit ===

impl Kit {
    /// Makes a kit for the policies of `registry`.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self {
            registry,
            components: Components::default(),
        }
    }

    /// Runs the scenario in a file, or each `[[case]]` of it.
    ///
    /// # Errors
    /// The first: a scenario cannot be read or run, or an expectation is not met.
    pub fn run(&mut self, path: &Path, flavour: Flavour) -> Result<Vec<Ran>, RunError> {
        let scenarios = read(path)?;
        let ran = scenarios.iter();
        ran.map(|scenario| self.run_scenario(scenario, flavour))
            .collect()
    }

    /// Runs a scenario that was read.
    ///
    /// # Errors
    /// If the scenario cannot be run, or an expectation is not met.
    pub fn run_scenario(&mut self, scenario: &Scenario, flavour: Flavour) -> Result<Ran, RunError> {
        run::run(scenario, &mut |binding| {
            self.source(scenario, binding, flavour)
        })
    }

    fn source(
        &mut self,
        scenario: &Scenario,
        binding: &PolicyBinding,
        flavour: Flavour,
    ) -> Result<PolicySource, RunError> {
        let PolicyBinding { name, settings, .. } = binding;
        let Some(entry) = self.registry.entries.get(name) else {
            let given: Vec<String> = self.registry.entries.keys().cloned().collect();
            return Err(RunError::UnknownPolicy {
                place: scenario.source.location(binding.at),
                name: name.clone(),
                given: given.join(", "),
            });
        };
        let source = match (entry, flavour) {
            (Entry::Source(source), Flavour::Native | Flavour::Component) => source(settings),
            (Entry::Make(make), Flavour::Native) => native::source(name, *make, settings),
            (Entry::Make(_), Flavour::Component) => self.components.source(name, settings)?,
        };
        Ok(source.within(scenario.config.bounds()))
    }

    /// Runs the scenarios of files one by one and reports each: as failed if an expectation is not met, and as
    /// broken if it cannot be read or run.
    pub fn suite(&mut self, name: &str, paths: &[PathBuf], flavour: Flavour) -> Suite {
        Suite {
            name: name.to_owned(),
            cases: paths
                .iter()
                .flat_map(|path| self.cases(path, flavour))
                .collect(),
        }
    }

    fn cases(&mut self, path: &Path, flavour: Flavour) -> Vec<Case> {
        let start = Location {
            file: path.to_owned(),
            line: 1,
            column: 1,
        };
        let scenarios = match read(path) {
            Ok(scenarios) => scenarios,
            Err(error) => return vec![case(&path.display().to_string(), start, Some(&error))],
        };
        let cases = scenarios.iter().map(|scenario| {
            let ran = self.run_scenario(scenario, flavour);
            case(scenario.title(), scenario.place(), ran.err().as_ref())
        });
        cases.collect()
    }

    /// Runs every scenario of a folder, natively and as components, which must decide the same.
    ///
    /// # Errors
    /// All failures. A folder without scenarios is one.
    pub fn check_dir(&mut self, folder: &Path) -> Result<(), Failures> {
        let mut failures = Vec::new();
        match scenario_files(folder) {
            Ok(paths) if paths.is_empty() => {
                failures.push(format!("{} has no scenario", folder.display()));
            }
            Ok(paths) => failures.extend(paths.iter().flat_map(|path| self.check(path))),
            Err(error) => failures.push(format!("{} cannot be listed: {error}", folder.display())),
        }
        if failures.is_empty() {
            return Ok(());
        }
        Err(Failures { failures })
    }

    /// The failures of a file's scenarios.
    fn check(&mut self, path: &Path) -> Vec<String> {
        match read(path) {
            Ok(scenarios) => {
                let checked = scenarios.iter();
                checked.filter_map(|it| self.check_one(it).err()).collect()
            }
            Err(error) => vec![chain(&error)],
        }
    }

    fn check_one(&mut self, scenario: &Scenario) -> Result<(), String> {
        let native = self
            .run_scenario(scenario, Flavour::Native)
            .map_err(|error| format!("native: {}", chain(&error)))?;
        let component = self
            .run_scenario(scenario, Flavour::Component)
            .map_err(|error| format!("component: {}", chain(&error)))?;
        same(&native, &component).map_err(|difference| {
            format!(
                "{}: natively and as components the policies decide differently: {difference} \
                 (built from other sources? `cargo xtask policies`)",
                scenario.place(),
            )
        })
    }
}

/// Compares two runs to the byte; the error is the first difference.
fn same(native: &Ran, component: &Ran) -> Result<(), String> {
    fn part<T: PartialEq + Serialize>(what: &str, one: &[T], other: &[T]) -> Result<(), String> {
        if one == other {
            return Ok(());
        }
        let pairs = one.iter().zip(other);
        let at = pairs.take_while(|(one, other)| one == other).count();
        let shown = |all: &[T]| {
            all.get(at)
                .map_or("none".to_owned(), |item| json!(item).to_string())
        };
        let (one, other) = (shown(one), shown(other));
        Err(format!(
            "{what} {at} is {one} natively, {other} as components"
        ))
    }
    part("fact", &native.facts, &component.facts)?;
    part("effect", &native.effects, &component.effects)
}

fn read(path: &Path) -> Result<Vec<Scenario>, RunError> {
    let text = fs::read_to_string(path).map_err(|error| RunError::Read(path.to_owned(), error))?;
    Ok(Scenario::all(path, &text)?)
}

/// Lists the scenarios at a path: the `.toml` files of a folder, sorted, or the file itself.
///
/// # Errors
/// If the path does not exist, or cannot be listed.
pub fn scenario_files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if fs::metadata(path)?.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The case of a scenario that starts at `start` and ended with this error, if any.
fn case(name: &str, start: Location, error: Option<&RunError>) -> Case {
    let place = error.and_then(RunError::place).cloned().unwrap_or(start);
    let verdict = match error {
        None => Verdict::Passed(String::new()),
        Some(RunError::Unmet(unmet)) => Verdict::Failed(Problem {
            summary: unmet.summary(),
            detail: unmet.to_string(),
            scenario: None,
        }),
        Some(error @ RunError::Settings { .. }) => Verdict::Failed(Problem::new(chain(error))),
        Some(error) => Verdict::Broken(Problem::new(chain(error))),
    };
    Case {
        name: name.to_owned(),
        place: Some(place),
        verdict,
    }
}

// === impl Entry ===

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Make(_) => "Make",
            Self::Source(_) => "Source",
        })
    }
}

// === impl Failures ===

impl Failures {
    /// The number of scenarios that failed.
    #[must_use]
    pub fn count(&self) -> usize {
        self.failures.len()
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} failed:", self.failures.len())?;
        self.failures
            .iter()
            .try_for_each(|failure| writeln!(f, "{failure}"))
    }
}

impl std::error::Error for Failures {}

#[cfg(test)]
mod tests {
    use pointsman_core::{Effect, ExecutorId, Fact, Micros, Round, Stamped};

    use super::*;

    #[test]
    fn runs_that_part_are_told_apart_where_they_do() {
        let fact = |id| Stamped {
            now: Micros(0),
            round: Round(1),
            fact: Fact::ExecutorLost(ExecutorId(id)),
        };
        let ran = |facts: &[u32], effects: &[u32]| Ran {
            facts: facts.iter().map(|id| fact(*id)).collect(),
            effects: effects
                .iter()
                .map(|id| Effect::Detached {
                    executor: ExecutorId(*id),
                })
                .collect(),
        };
        assert_eq!(same(&ran(&[1, 2], &[3]), &ran(&[1, 2], &[3])), Ok(()));
        let facts = same(&ran(&[1, 2], &[]), &ran(&[1, 3], &[])).unwrap_err();
        let lost = r#"fact 1 is {"now":0,"round":1,"fact":{"ExecutorLost":2}} natively, "#;
        assert!(facts.starts_with(lost), "{facts}");
        let shorter = same(&ran(&[1, 2], &[]), &ran(&[1], &[])).unwrap_err();
        assert!(shorter.ends_with("none as components"), "{shorter}");
        let effects = same(&ran(&[], &[1]), &ran(&[], &[2])).unwrap_err();
        let detached = r#"effect 0 is {"Detached":{"executor":1}} natively, "#;
        assert!(effects.starts_with(detached), "{effects}");
    }
}
