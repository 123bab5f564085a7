//! The policies of a simulation: the defaults, and others in the place of some of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use pointsman_component::{EmbeddedPolicy, Limits, PolicyComponent, PolicyEngine, SettingSchema};
use pointsman_core::{Bounds, Hook, HookSet, Micros};
use pointsman_journal::{Chain, PolicyRecord};
use pointsman_notation::{NamedLimits, TomlText};
use pointsman_policy::{Patience, PolicyHost, PolicySource, StartError, start};
use pointsman_replay::recorded_source;
use serde_json::{Map, Value};

use super::spec;
use crate::code::KeptCode;
use crate::file;

/// Policies that decide together.
#[derive(Clone, Debug)]
pub struct Contender {
    /// The name for people.
    pub label: String,
    sources: Vec<PolicySource>,
    /// In order: a later one takes its hooks from those before it, which stay behind it.
    seats: Vec<Seat>,
}

/// The place of a policy among those that decide together.
#[derive(Clone, Copy, Debug)]
struct Seat {
    /// The place of its source.
    source: usize,
    /// The one hook that it takes; absent: all that it has.
    hook: Option<Hook>,
}

/// A maker of contenders, which compiles each policy once.
#[derive(Debug)]
pub struct Stable {
    engine: PolicyEngine,
    code: KeptCode,
    defaults: Vec<PolicySource>,
}

impl Stable {
    /// Makes the default policies ready.
    ///
    /// # Errors
    /// If one of them cannot be compiled.
    pub fn new(defaults: &[EmbeddedPolicy]) -> Result<Self> {
        let engine = PolicyEngine::new()?;
        let code = KeptCode::of_user();
        let source = |policy: &EmbeddedPolicy| {
            let component = code.embedded(&engine, policy);
            let component = component.with_context(|| policy.name.to_owned())?;
            let limits = patient(Limits::default());
            Ok(PolicySource::component(&component, &Map::new(), limits))
        };
        let defaults = defaults.iter().map(source).collect::<Result<_>>()?;
        Ok(Self {
            engine,
            code,
            defaults,
        })
    }

    /// The built-in rule alone.
    #[must_use]
    pub fn built_in() -> Contender {
        Contender {
            label: "built-in".to_owned(),
            sources: Vec::new(),
            seats: Vec::new(),
        }
    }

    /// The default policies.
    #[must_use]
    pub fn defaults(&self) -> Contender {
        let mut contender = Self::built_in();
        contender.label = "defaults".to_owned();
        for source in &self.defaults {
            contender.seat(source.clone());
        }
        contender
    }

    /// The policies of a journal, each where it was in the order of asking. They begin without what they
    /// had learned.
    ///
    /// # Errors
    /// If the journal lacks the code of one, or it does not start.
    pub fn recorded(&self, policies: &[PolicyRecord], chains: &[Chain]) -> Result<Contender> {
        let components = self.code.clone().recorded(self.engine.clone());
        let mut contender = Self::built_in();
        contender.label = "simulated".to_owned();
        let mut places = BTreeMap::new();
        let asked = chains
            .iter()
            .flat_map(|chain| chain.policies.iter().rev().map(|it| (chain.hook, *it)));
        for (hook, number) in asked {
            let source = match places.get(&number) {
                Some(source) => *source,
                None => {
                    let record = policies.iter().find(|record| record.number == number);
                    let record =
                        record.context("the journal names a policy that it does not have")?;
                    contender
                        .sources
                        .push(recorded_source(&components, record, patient)?);
                    contender.sources.len() - 1
                }
            };
            places.insert(number, source);
            let hook = Some(hook);
            contender.seats.push(Seat { source, hook });
        }
        Ok(contender)
    }

    /// A contender with a policy more: `FILE.wasm`, and settings that follow after a comma.
    ///
    /// # Errors
    /// If there is no such policy, or it does not start with these settings.
    pub fn with(&self, contender: &Contender, text: &str) -> Result<Contender> {
        let (path, settings) = spec::path(text, ',');
        let source = self.source(Path::new(path), settings)?;
        let name = file::stem(Path::new(path));
        let name = if settings.is_empty() {
            name
        } else {
            format!("{name},{settings}")
        };
        let mut contender = contender.clone();
        contender.label = name;
        contender.seat(source);
        Ok(contender)
    }

    /// A policy's file, with the settings and limits beside it.
    ///
    /// # Errors
    /// If there is none, or it is no policy.
    pub(crate) fn load(&self, path: &Path) -> Result<LoadedPolicy> {
        let shown = path.display();
        let bytes = file::read(path)?;
        let component = self.code.load(&self.engine, &bytes);
        let component = component
            .map_err(|error| anyhow::anyhow!("{shown}: no policy: {}", file::explained(&error)))?;
        let (settings, limits) = beside(path)?;
        Ok(LoadedPolicy {
            name: file::stem(path),
            component,
            settings,
            limits: patient(limits),
        })
    }

    fn source(&self, path: &Path, settings: &str) -> Result<PolicySource> {
        let policy = self.load(path)?;
        let settings = if settings.is_empty() {
            policy.settings.clone()
        } else {
            let table = TomlText::new(Path::new("settings"), spec::toml_of(settings));
            table.parse::<Map<String, Value>>()?
        };
        let source = policy.source(&settings);
        source.with_context(|| format!("{} does not start", path.display()))
    }
}

/// A policy's file, compiled, with what the file beside it says.
#[derive(Clone, Debug)]
pub(crate) struct LoadedPolicy {
    pub(crate) name: String,
    pub(crate) component: PolicyComponent,
    /// The settings beside it.
    pub(crate) settings: Map<String, Value>,
    /// The limits beside it, but for those of time.
    pub(crate) limits: Limits,
}

impl LoadedPolicy {
    /// The policy with these settings.
    ///
    /// # Errors
    /// If it does not start with them.
    pub(crate) fn source(&self, settings: &Map<String, Value>) -> Result<PolicySource, StartError> {
        let source = PolicySource::component(&self.component, settings, self.limits);
        start(source.clone())?;
        Ok(source)
    }

    /// The settings that it takes, as it describes them.
    pub(crate) fn described(&self) -> Result<Vec<SettingSchema>> {
        let source = PolicySource::component(&self.component, &self.settings, self.limits);
        Ok(pointsman_policy::describe(&source)?.settings)
    }
}

/// The settings and limits of the file beside a policy, as a server reads it.
fn beside(path: &Path) -> Result<(Map<String, Value>, Limits)> {
    let path = path.with_extension("toml");
    if !path.is_file() {
        return Ok((Map::new(), Limits::default()));
    }
    let bytes = std::fs::read(&path)?;
    // A server whose own limits were raised takes higher ones than the defaults.
    let sidecar = pointsman_sidecar::parse_for_any_server(&path, bytes)?;
    Ok((sidecar.settings.unwrap_or_default(), sidecar.limits))
}

/// Limits in which the clock has no say: fuel is the same on every machine, time is not.
fn patient(limits: Limits) -> Limits {
    Limits {
        fuel_nanos: Limits::CEILING.fuel_nanos,
        deadline_extensions: Limits::CEILING.deadline_extensions,
        ..limits
    }
}

impl Contender {
    /// These policies and one more, which takes all hooks that it has.
    pub(crate) fn with(&self, source: &PolicySource) -> Self {
        let mut contender = self.clone();
        contender.seat(source.clone());
        contender
    }

    /// Adds a policy, which takes all hooks that it has.
    fn seat(&mut self, source: PolicySource) {
        let hook = None;
        self.seats.push(Seat {
            source: self.sources.len(),
            hook,
        });
        self.sources.push(source);
    }

    /// Fresh instances of the policies, in force.
    ///
    /// # Errors
    /// If a policy does not start.
    pub fn host(&self, bounds: Bounds) -> Result<PolicyHost> {
        let mut host = PolicyHost::new(Patience::default());
        let mut added = Vec::new();
        for source in &self.sources {
            let runner = start(source.clone().within(bounds))?;
            let hooks: HookSet = runner.hooks();
            added.push((host.add(runner)?, hooks));
        }
        for seat in &self.seats {
            let (policy, hooks) = added[seat.source];
            let hooks = seat.hook.map_or(hooks, |hook| HookSet::from_iter([hook]));
            host.bind(Micros(0), policy, hooks)?;
        }
        Ok(host)
    }
}
