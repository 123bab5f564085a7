//! Scenarios with their policies: one file, or all of a folder in both flavours.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use pointsman_policy::PolicySource;

use crate::component::Components;
use crate::native::{self, Make};
use crate::run::{self, Ran, RunError};
use crate::scenario::{PolicyBinding, Scenario};

/// How a policy is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flavour {
    /// Into the test.
    Native,
    /// To the component that is shipped.
    Component,
}

/// The policies that scenarios may bind, by name.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    makes: BTreeMap<String, Make>,
}

/// Runs scenarios. Keeps components compiled from one to the next.
#[derive(Debug)]
pub struct Kit {
    registry: Registry,
    components: Components,
}

/// What went wrong in a folder of scenarios.
#[derive(Debug)]
pub struct Failures {
    failures: Vec<String>,
}

/// Runs one scenario.
///
/// # Errors
/// If it cannot be read or run, or something expected is not met.
pub fn run(path: &Path, flavour: Flavour, registry: Registry) -> Result<Ran, RunError> {
    Kit::new(registry).run(path, flavour)
}

/// Runs every scenario of a folder, natively and as components, which must decide alike.
///
/// # Errors
/// Everything that went wrong. A folder without scenarios is wrong too.
pub fn check_dir(folder: &Path, registry: Registry) -> Result<(), Failures> {
    Kit::new(registry).check_dir(folder)
}

// === impl Registry ===

impl Registry {
    /// No policy.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a policy. `make` is the `instance` that `export!` of the SDK made; its component is
    /// `NAME.wasm`.
    #[must_use]
    pub fn with(mut self, name: &str, make: Make) -> Self {
        self.makes.insert(name.to_owned(), make);
        self
    }
}

// === impl Kit ===

impl Kit {
    /// A kit for these policies.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self {
            registry,
            components: Components::default(),
        }
    }

    /// Runs one scenario.
    ///
    /// # Errors
    /// If it cannot be read or run, or something expected is not met.
    pub fn run(&mut self, path: &Path, flavour: Flavour) -> Result<Ran, RunError> {
        self.run_scenario(&read(path)?, flavour)
    }

    /// Runs a scenario that was read.
    ///
    /// # Errors
    /// If it cannot be run, or something expected is not met.
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
        let Some(make) = self.registry.makes.get(name) else {
            let given: Vec<String> = self.registry.makes.keys().cloned().collect();
            return Err(RunError::UnknownPolicy {
                place: scenario.source.place(binding.at),
                name: name.clone(),
                given: given.join(", "),
            });
        };
        match flavour {
            Flavour::Native => Ok(native::source(name, *make, settings)),
            Flavour::Component => Ok(self.components.source(name, settings)?),
        }
    }

    /// Runs every scenario of a folder, natively and as components, which must decide alike.
    ///
    /// # Errors
    /// Everything that went wrong. A folder without scenarios is wrong too.
    pub fn check_dir(&mut self, folder: &Path) -> Result<(), Failures> {
        let mut failures = Vec::new();
        match scenarios(folder) {
            Ok(paths) if paths.is_empty() => {
                failures.push(format!("{} has no scenario", folder.display()));
            }
            Ok(paths) => failures.extend(paths.iter().filter_map(|path| self.check(path).err())),
            Err(error) => failures.push(format!("{} cannot be listed: {error}", folder.display())),
        }
        if failures.is_empty() {
            return Ok(());
        }
        Err(Failures { failures })
    }

    fn check(&mut self, path: &Path) -> Result<(), String> {
        let scenario = read(path).map_err(|error| chain(&error))?;
        let native = self
            .run_scenario(&scenario, Flavour::Native)
            .map_err(|error| format!("native: {}", chain(&error)))?;
        let component = self
            .run_scenario(&scenario, Flavour::Component)
            .map_err(|error| format!("component: {}", chain(&error)))?;
        same(&native, &component).map_err(|difference| {
            format!(
                "{}: natively and as components the policies decide differently: {difference} \
                 (built from other sources? `cargo xtask policies`)",
                path.display(),
            )
        })
    }
}

/// Whether two runs came to the same to the byte; the error says where they part.
fn same(native: &Ran, component: &Ran) -> Result<(), String> {
    fn part<T: PartialEq + fmt::Debug>(what: &str, one: &[T], other: &[T]) -> Result<(), String> {
        if one == other {
            return Ok(());
        }
        let pairs = one.iter().zip(other);
        let at = pairs.take_while(|(one, other)| one == other).count();
        let shown = |all: &[T]| {
            all.get(at)
                .map_or("none".to_owned(), |item| format!("{item:?}"))
        };
        let (one, other) = (shown(one), shown(other));
        Err(format!(
            "{what} {at} is {one} natively, {other} as components"
        ))
    }
    part("fact", &native.facts, &component.facts)?;
    part("effect", &native.effects, &component.effects)
}

fn read(path: &Path) -> Result<Scenario, RunError> {
    let text = fs::read_to_string(path).map_err(|error| RunError::Read(path.to_owned(), error))?;
    Ok(Scenario::parse(path, &text)?)
}

/// The `.toml` files of a folder, sorted.
fn scenarios(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
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

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

// === impl Failures ===

impl Failures {
    /// How many scenarios failed.
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
        assert!(facts.starts_with("fact 1 is Stamped"), "{facts}");
        let shorter = same(&ran(&[1, 2], &[]), &ran(&[1], &[])).unwrap_err();
        assert!(shorter.ends_with("none as components"), "{shorter}");
        let effects = same(&ran(&[], &[1]), &ran(&[], &[2])).unwrap_err();
        assert!(effects.starts_with("effect 0 is Detached"), "{effects}");
    }
}
