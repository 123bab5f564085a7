//! Scenario files, read and checked as far as possible without a run.
//!
//! The tables of the format are in `fleet`, `load`, `step` and `expect`; `cases` makes several scenarios of a
//! file, and `names` checks that everything a step names is there by then. Errors have file, line and column.
//!
//! # Invariants
//! 1. Every name in a [`Scenario`] was declared before its use, so that a run can look it up
//!    (`scenario::tests`).
//! 2. Every scenario expects something (`scenario::tests`).

mod cases;
pub(crate) mod cost;
pub(crate) mod count;
pub(crate) mod expect;
pub(crate) mod fleet;
pub(crate) mod load;
pub(crate) mod names;
pub(crate) mod prompt;
pub(crate) mod step;
pub(crate) mod units;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pointsman_core::{Config, Hook, HookSet, Micros};
use pointsman_notation::{Location, Time, TomlError, TomlText, instead, nearest};
use serde::Deserialize;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::DeTable;

use crate::properties::Property;
use cases::Case;
use expect::{End, Expect};
use fleet::{DeviceTable, ExecutorTable, ModelTable, TenantTable};
use load::{CachedTable, RunningTable, WaitingTable};
use step::{Step, StepTable};
use units::{Names, micros};

#[cfg(test)]
mod tests;

/// A name in a scenario, and its place.
pub(crate) type Name = Spanned<String>;

/// The default binding, which is the server's too.
const DEFAULT_POLICIES: [&str; 3] = ["aging", "memory-aware", "budget"];

/// A scenario that can be run.
#[derive(Debug)]
pub struct Scenario {
    pub(crate) source: TomlText,
    /// The first byte of its case; 0 where the file is one scenario.
    pub(crate) at: usize,
    title: String,
    pub(crate) policies: Vec<PolicyBinding>,
    pub(crate) config: Config,
    pub(crate) fleet: Fleet,
    pub(crate) load: Load,
    pub(crate) steps: Vec<Step>,
    pub(crate) end: End,
    /// Properties that are checked while it runs.
    pub(crate) properties: BTreeSet<Property>,
}

/// A policy under test.
#[derive(Clone, Debug)]
pub(crate) struct PolicyBinding {
    pub(crate) name: String,
    /// The place where the file names the policy; 0 where it does not.
    pub(crate) at: usize,
    pub(crate) settings: Map<String, Value>,
    /// Absent: those that the policy exports.
    pub(crate) hooks: Option<HookSet>,
    /// Settings that the policy must refuse.
    pub(crate) refuses: Vec<RefusedSettings>,
}

/// Settings that a policy must refuse.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefusedSettings {
    pub(crate) settings: Spanned<Map<String, Value>>,
    /// Part of what it says of them.
    #[serde(default)]
    pub(crate) says: String,
}

/// The tenants, models, devices and executors at the start.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) tenants: Vec<TenantTable>,
    pub(crate) models: Vec<ModelTable>,
    pub(crate) devices: Vec<DeviceTable>,
    pub(crate) executors: Vec<ExecutorTable>,
}

/// The prompts that are held, and the requests that run and wait, when the first step comes.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) cached: Vec<CachedTable>,
    pub(crate) running: Vec<RunningTable>,
    pub(crate) waiting: Vec<WaitingTable>,
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    title: String,
    properties: Option<Names>,
    policy: Option<BTreeMap<Name, PolicyTable>>,
    machine: Option<Spanned<MachineTable>>,
    #[serde(default)]
    tenant: Vec<TenantTable>,
    #[serde(default)]
    model: Vec<ModelTable>,
    #[serde(default)]
    device: Vec<DeviceTable>,
    #[serde(default)]
    executor: Vec<ExecutorTable>,
    #[serde(default)]
    cached: Vec<CachedTable>,
    #[serde(default)]
    running: Vec<RunningTable>,
    #[serde(default)]
    waiting: Vec<WaitingTable>,
    #[serde(default)]
    step: Vec<Spanned<StepTable>>,
    #[serde(default)]
    end: End,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct PolicyTable {
    settings: Map<String, Value>,
    hooks: Option<Vec<Name>>,
    refuses: Vec<RefusedSettings>,
}

/// The machine's bounds, where they are not the default ones.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct MachineTable {
    queue_max: Option<u32>,
    parking_max: Option<u32>,
    executors_max: Option<u32>,
    batch_max: Option<u32>,
    overlaps_max: Option<u32>,
    tier_blocks_max: Option<u32>,
    attempts_max: Option<u32>,
    degraded_after: Option<u32>,
    down_after: Option<u32>,
    down_for: Option<Time>,
    wait_max: Option<Time>,
    unserved_max: Option<Time>,
    unplaced_max: Option<Time>,
    held_max: Option<Time>,
    overtaken_max: Option<u32>,
    tokenless_steps_max: Option<u32>,
    evict_retry: Option<Time>,
    change_log_max: Option<u32>,
    completions_max: Option<u32>,
    retry_after: Option<Time>,
}

// === impl Scenario ===

impl Scenario {
    /// Reads a file that is one scenario. `file` is only for messages.
    ///
    /// # Errors
    /// The first thing that is wrong with the text, or that it has several cases.
    pub fn parse(file: &Path, text: &str) -> Result<Self, TomlError> {
        let mut all = Self::all(file, text)?;
        match (all.pop(), all.last()) {
            (Some(only), None) => Ok(only),
            (Some(other), Some(_)) => {
                let text = "one scenario is wanted, and this is another `[[case]]`";
                Err(other.source.error(other.at, text))
            }
            (None, _) => {
                unreachable!("a file without cases is one scenario, and none has no cases")
            }
        }
    }

    /// Reads the scenarios of a file: one for each `[[case]]`, or the one that it is without. `file` is only
    /// for messages.
    ///
    /// # Errors
    /// The first thing that is wrong with the text.
    pub fn all(file: &Path, text: &str) -> Result<Vec<Self>, TomlError> {
        let source = TomlText::new(file, text);
        let document = DeTable::parse(text).map_err(|error| wrong(&source, &error))?;
        let cases = cases::of(&source, document)?.into_iter();
        cases.map(|case| Self::of(source.clone(), case)).collect()
    }

    fn of(source: TomlText, case: Case<'_>) -> Result<Self, TomlError> {
        let file = File::deserialize(toml::Deserializer::from(case.document))
            .map_err(|error| wrong(&source, &error))?;
        let config = match &file.machine {
            Some(table) => config(&source, table)?,
            None => Config::default(),
        };
        let steps = file
            .step
            .into_iter()
            .map(|table| Step::of(&source, table))
            .collect::<Result<Vec<_>, _>>()?;
        let scenario = Self {
            at: case.name.as_ref().map_or(0, |name| name.span().start),
            title: match case.name {
                Some(name) => format!("{}: {}", file.title, name.get_ref()),
                None => file.title,
            },
            properties: properties(&source, file.properties)?,
            policies: bindings(&source, file.policy)?,
            config,
            fleet: Fleet {
                tenants: file.tenant,
                models: file.model,
                devices: file.device,
                executors: file.executor,
            },
            load: Load {
                cached: file.cached,
                running: file.running,
                waiting: file.waiting,
            },
            steps,
            end: file.end,
            source,
        };
        names::check(&scenario)?;
        let expects = scenario.steps.iter().any(|step| step.expect.is_some());
        let refuses = scenario.policies.iter().any(|it| !it.refuses.is_empty());
        if !expects && !refuses && !scenario.end.expects() && scenario.properties.is_empty() {
            let text = "the scenario expects nothing: give a step an `expect`, or `[end]` a check";
            return Err(scenario.source.error(scenario.at, text));
        }
        Ok(scenario)
    }

    /// The requests of which an `expect` says that they are refused, given up, never fit, are not
    /// served or expire.
    pub(crate) fn refusals_told(&self) -> impl Iterator<Item = &str> {
        let expects = self.steps.iter().filter_map(|step| step.expect.as_ref());
        expects.flat_map(Expect::refusals_told)
    }

    /// The title, which says in a line what the scenario shows, with the name of its case.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The first line of the file, or the place of its case.
    #[must_use]
    pub fn place(&self) -> Location {
        self.source.location(self.at)
    }

    /// The requests of which an `expect` compares the cost.
    pub(crate) fn costed(&self) -> BTreeSet<String> {
        let expects = self.steps.iter().filter_map(|step| step.expect.as_ref());
        let named = expects.flat_map(|expect| expect.cost.keys());
        named.map(|name| name.get_ref().clone()).collect()
    }
}

/// The steps in a text that has nothing else, of which no name is checked.
///
/// # Errors
/// The first thing that is wrong with the text.
pub(crate) fn action_steps(text: &str) -> Result<Vec<Step>, TomlError> {
    #[derive(Deserialize)]
    struct Steps {
        #[serde(default)]
        step: Vec<Spanned<StepTable>>,
    }
    let source = TomlText::new(Path::new("steps.toml"), text);
    let steps: Steps = toml::from_str(text).map_err(|error| wrong(&source, &error))?;
    let steps = steps.step.into_iter();
    steps.map(|table| Step::of(&source, table)).collect()
}

/// An error of the deserializer, with its place.
fn wrong(source: &TomlText, error: &toml::de::Error) -> TomlError {
    let at = error.span().map_or(0, |span| span.start);
    source.error(at, with_hint(error.message()))
}

/// The properties of these names; `all` are all that a run shows.
fn properties(source: &TomlText, names: Option<Names>) -> Result<BTreeSet<Property>, TomlError> {
    let mut properties = BTreeSet::new();
    for name in names.into_iter().flat_map(|names| names.0) {
        let (at, name) = (name.span().start, name.get_ref().as_str());
        let known = Property::IN_RUNS.map(Property::name);
        if name == "all" {
            properties.extend(Property::IN_RUNS);
        } else if let Some(place) = known.iter().position(|known| *known == name) {
            properties.insert(Property::IN_RUNS[place]);
        } else {
            let text = format!("unknown property `{name}`; {}", instead(name, &known));
            return Err(source.error(at, text));
        }
    }
    Ok(properties)
}

/// A message of the deserializer, which puts names between backquotes: first the unknown one, then
/// those it knows. The nearest of these is added.
fn with_hint(message: &str) -> String {
    let is_about_a_name = ["unknown field ", "unknown variant "]
        .iter()
        .any(|start| message.starts_with(start));
    let mut names = message.split('`').skip(1).step_by(2);
    match names.next().filter(|_| is_about_a_name) {
        Some(name) => format!("{message}{}", did_you_mean(name, names)),
        None => message.to_owned(),
    }
}

/// The end of a sentence about an unknown name: the nearest known one, if one is near.
fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(name, known).map_or(String::new(), |meant| format!("; did you mean `{meant}`?"))
}

fn config(source: &TomlText, table: &Spanned<MachineTable>) -> Result<Config, TomlError> {
    let set = table.get_ref();
    let mut plain = Config::default();
    if let Some(wait_max) = set.wait_max {
        plain.wait(micros(wait_max));
    }
    let time = |given: Option<Time>, plain: Micros| given.map_or(plain, micros);
    let wrong = |text: String| source.error(table.span().start, text);
    let whole = |time: Time| {
        let secs = time.whole_secs();
        secs.ok_or_else(|| wrong(format!("retry-after must be whole seconds, not {time}")))
    };
    let retry_after = set.retry_after.map(whole).transpose()?;
    let retry_after = retry_after.map(|secs| u32::try_from(secs).unwrap_or(u32::MAX));
    let config = Config {
        queue_max: set.queue_max.unwrap_or(plain.queue_max),
        parking_max: set.parking_max.unwrap_or(plain.parking_max),
        executors_max: set.executors_max.unwrap_or(plain.executors_max),
        batch_max: set.batch_max.unwrap_or(plain.batch_max),
        overlaps_max: set.overlaps_max.unwrap_or(plain.overlaps_max),
        tier_blocks_max: set.tier_blocks_max.unwrap_or(plain.tier_blocks_max),
        attempts_max: set.attempts_max.unwrap_or(plain.attempts_max),
        degraded_after: set.degraded_after.unwrap_or(plain.degraded_after),
        down_after: set.down_after.unwrap_or(plain.down_after),
        down_for: time(set.down_for, plain.down_for),
        wait_max: plain.wait_max,
        unserved_max: time(set.unserved_max, plain.unserved_max),
        unplaced_max: time(set.unplaced_max, plain.unplaced_max),
        held_max: time(set.held_max, plain.held_max),
        overtaken_max: set.overtaken_max.unwrap_or(plain.overtaken_max),
        tokenless_steps_max: set.tokenless_steps_max.unwrap_or(plain.tokenless_steps_max),
        evict_retry: time(set.evict_retry, plain.evict_retry),
        change_log_max: set.change_log_max.unwrap_or(plain.change_log_max),
        completions_max: set.completions_max.unwrap_or(plain.completions_max),
        retry_after_secs: retry_after.unwrap_or(plain.retry_after_secs),
    };
    match config.validate() {
        Ok(()) => Ok(config),
        Err(error) => Err(wrong(error.to_string())),
    }
}

fn bindings(
    source: &TomlText,
    tables: Option<BTreeMap<Name, PolicyTable>>,
) -> Result<Vec<PolicyBinding>, TomlError> {
    let Some(tables) = tables else {
        let default = DEFAULT_POLICIES.map(|name| PolicyBinding {
            name: name.to_owned(),
            at: 0,
            settings: Map::new(),
            hooks: None,
            refuses: Vec::new(),
        });
        return Ok(default.into());
    };
    let bound = tables.into_iter().map(|(name, table)| {
        let named = |hooks: Vec<Name>| hooks.iter().map(|name| hook(source, name)).collect();
        Ok(PolicyBinding {
            at: name.span().start,
            name: name.into_inner(),
            settings: table.settings,
            hooks: table.hooks.map(named).transpose()?,
            refuses: table.refuses,
        })
    });
    bound.collect()
}

fn hook(source: &TomlText, name: &Name) -> Result<Hook, TomlError> {
    let (at, name) = (name.span().start, name.get_ref());
    Hook::named(name).ok_or_else(|| {
        let known = Hook::ALL.map(Hook::as_str);
        source.error(
            at,
            format!("unknown hook `{name}`; {}", instead(name, &known)),
        )
    })
}
