//! A run: the steps of a scenario, done to a world, and the expectations of each.
//!
//! `state` is the world with its names, `check` compares it with the expectations, `timeline` puts
//! facts in words with those names, `watch` stands between machine and policies to have a failed run
//! explained.

mod check;
mod failure;
mod history;
mod judge;
mod load;
mod ongoing;
mod state;
mod timeline;
mod watch;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pointsman_core::{Effect, Micros, RequestId, Stamped};
use pointsman_notation::{Location, TomlError};
use pointsman_policy::{BindError, Patience, PolicyHost, PolicySource, StartError, start};

use crate::component::ComponentError;
use crate::native::panic_message;
use crate::scenario::{PolicyBinding, RefusedSettings, Scenario};
use check::Miss;
pub use failure::Unmet;
pub(crate) use judge::Exercised;
use judge::Judge;
pub(crate) use state::ScenarioRun;
use watch::{Watch, Watched};

#[cfg(test)]
mod tests;

/// The result of a run that met all expectations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Facts, in order.
    pub facts: Vec<Stamped>,
    /// Effects, in order.
    pub effects: Vec<Effect>,
}

/// A reason why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The scenario cannot be read.
    #[error("{file} cannot be read", file = .0.display())]
    Read(std::path::PathBuf, #[source] std::io::Error),
    /// The file is no scenario.
    #[error(transparent)]
    Format(#[from] TomlError),
    /// The scenario binds a policy that is not among the given ones.
    #[error("{place}: no policy is called `{name}`; those given are {given}")]
    UnknownPolicy {
        /// The place of the name.
        place: Location,
        /// Name in the scenario.
        name: String,
        /// The names of the given policies.
        given: String,
    },
    /// A policy's component is missing.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// A policy does not start.
    #[error("{0}: the policy does not start")]
    Start(Location, #[source] StartError),
    /// A policy cannot hold the hooks of its binding.
    #[error("{0}: the policy cannot be bound")]
    Bind(Location, #[source] BindError),
    /// Two policies are bound to one hook.
    #[error("{place}: {hook} is already held by another policy; name the `hooks` of each")]
    TwoHolders {
        /// The place of the second name.
        place: Location,
        /// Name of the hook.
        hook: &'static str,
    },
    /// A policy takes settings that it must refuse, or refuses them for another reason.
    #[error("{place}: the settings must be refused{expected}, and {got}")]
    Settings {
        /// The place of the settings.
        place: Location,
        /// The words that the policy must say of them, after a comma; may be empty.
        expected: String,
        /// The answer of the policy.
        got: String,
    },
    /// A step is impossible.
    #[error("{place}: step {step} cannot be done: {why}")]
    Impossible {
        /// The place of the step.
        place: Location,
        /// The step's number, from 1; 0: attaching the fleet.
        step: usize,
        /// The reason.
        why: String,
    },
    /// An expectation is not met.
    #[error(transparent)]
    Unmet(#[from] Box<Unmet>),
    /// The host broke one of its own invariants. The policy is not to blame.
    #[error("{place}: the host broke an invariant: {detail}")]
    HostBroke {
        /// The scenario.
        place: Location,
        /// The broken invariant.
        detail: String,
    },
}

impl RunError {
    /// The place in the scenario, if the error has one.
    #[must_use]
    pub fn place(&self) -> Option<&Location> {
        match self {
            Self::Format(error) => Some(&error.location),
            Self::Unmet(unmet) => Some(&unmet.place),
            Self::UnknownPolicy { place, .. }
            | Self::Start(place, _)
            | Self::Bind(place, _)
            | Self::TwoHolders { place, .. }
            | Self::Settings { place, .. }
            | Self::Impossible { place, .. }
            | Self::HostBroke { place, .. } => Some(place),
            Self::Read(..) | Self::Component(_) => None,
        }
    }
}

/// The source of a policy under test.
pub(crate) type Sources<'a> = &'a mut dyn FnMut(&PolicyBinding) -> Result<PolicySource, RunError>;

/// Runs a scenario. If it fails, it runs again, to collect explanations for the requests concerned.
pub(crate) fn run(scenario: &Scenario, sources: Sources<'_>) -> Result<Ran, RunError> {
    let failed = match attempt(scenario, sources, &BTreeSet::new())? {
        Attempt::Met(ran) => return Ok(ran),
        Attempt::Unmet(failed) => failed,
    };
    let about = failed.misses.iter().flat_map(|miss| miss.about.clone());
    match attempt(scenario, sources, &about.collect())? {
        Attempt::Unmet(explained) => Err(Box::new(Unmet::of(scenario, *explained)).into()),
        Attempt::Met(_) => Err(Box::new(Unmet::of(scenario, *failed)).into()),
    }
}

enum Attempt {
    Met(Ran),
    Unmet(Box<Failed>),
}

/// A run with expectations that were not met.
struct Failed {
    run: ScenarioRun,
    /// Number of the step, from 1; 0 for the end.
    step: usize,
    misses: Vec<Miss>,
}

/// Runs a scenario once. A broken invariant panics in the world and becomes an error here.
fn attempt(
    scenario: &Scenario,
    sources: Sources<'_>,
    about: &BTreeSet<RequestId>,
) -> Result<Attempt, RunError> {
    let watched = watched(scenario, sources, about.clone(), EVERY_ANSWER)?;
    catch_unwind(AssertUnwindSafe(|| {
        let (watched, names) = watched;
        play(scenario, ScenarioRun::new(scenario, watched, names)?)
    }))
    .unwrap_or_else(|payload| {
        Err(RunError::HostBroke {
            place: scenario.place(),
            detail: panic_message(payload.as_ref()),
        })
    })
}

/// The answers that a scenario with properties compares: each of them, with this seed.
pub(crate) const EVERY_ANSWER: (u32, u64) = (1, 1);

/// Begins a run that its caller goes on with. Of the answers one in so many is compared with those of
/// copies, drawn by a seed.
pub(crate) fn begin(
    scenario: &Scenario,
    sources: Sources<'_>,
    sampling: (u32, u64),
) -> Result<ScenarioRun, RunError> {
    let (watched, names) = watched(scenario, sources, BTreeSet::new(), sampling)?;
    ScenarioRun::new(scenario, watched, names)
}

/// The policies of a scenario behind their watch, and their names.
fn watched(
    scenario: &Scenario,
    sources: Sources<'_>,
    about: BTreeSet<RequestId>,
    sampling: (u32, u64),
) -> Result<(Watched, Vec<String>), RunError> {
    for binding in &scenario.policies {
        refuses(scenario, binding, sources)?;
    }
    let mut bound = Vec::new();
    let mut kept = |binding: &PolicyBinding| {
        let source = sources(binding)?;
        bound.push(source.clone());
        Ok(source)
    };
    let (host, names) = bind(scenario, &mut kept)?;
    let properties = scenario.properties.clone();
    let is_judged = !properties.is_empty();
    let judge = is_judged.then(|| Judge::new(properties, bound.into_iter(), sampling));
    let watched = Watched {
        inner: host,
        sink: Watch::new(about, judge),
    };
    Ok((watched, names))
}

fn play(scenario: &Scenario, mut run: ScenarioRun) -> Result<Attempt, RunError> {
    for (idx, step) in scenario.steps.iter().enumerate() {
        let number = idx + 1;
        if let Some(action) = &step.action {
            run.act(action).map_err(|why| RunError::Impossible {
                place: scenario.source.location(step.at),
                step: number,
                why,
            })?;
        }
        let mut misses = Vec::new();
        if let Some(expect) = &step.expect {
            run.settle();
            misses = check::step(&run, expect);
        }
        misses.extend(check::properties(&mut run));
        if !misses.is_empty() {
            return Ok(Attempt::Unmet(failed(run, number, misses)));
        }
        if step.expect.is_some() {
            run.set_mark();
        }
    }
    run.settle();
    let mut misses = check::end(&run, scenario);
    misses.extend(check::properties(&mut run));
    if !misses.is_empty() {
        return Ok(Attempt::Unmet(failed(run, 0, misses)));
    }
    Ok(Attempt::Met(Ran {
        facts: run.world.facts().to_vec(),
        effects: run.world.effects().to_vec(),
    }))
}

fn failed(mut run: ScenarioRun, step: usize, misses: Vec<Miss>) -> Box<Failed> {
    run.explain_waiting();
    Box::new(Failed { run, step, misses })
}

/// Checks that a policy refuses the settings that it must.
fn refuses(
    scenario: &Scenario,
    binding: &PolicyBinding,
    sources: Sources<'_>,
) -> Result<(), RunError> {
    for RefusedSettings { settings, says } in &binding.refuses {
        let place = scenario.source.location(settings.span().start);
        let wrong = PolicyBinding {
            settings: settings.get_ref().clone(),
            ..binding.clone()
        };
        let got = match start(sources(&wrong)?) {
            Ok(_) => "it takes them".to_owned(),
            Err(StartError::SettingsRefused(why)) if why.contains(says) => continue,
            Err(StartError::SettingsRefused(why)) => format!("it says: {why}"),
            Err(error) => return Err(RunError::Start(place, error)),
        };
        let expected = if says.is_empty() {
            String::new()
        } else {
            format!(", with `{says}`")
        };
        return Err(RunError::Settings {
            place,
            expected,
            got,
        });
    }
    Ok(())
}

/// Starts the policies under test and binds each to its hooks. Returns their names, by number.
fn bind(scenario: &Scenario, sources: Sources<'_>) -> Result<(PolicyHost, Vec<String>), RunError> {
    let mut host = PolicyHost::new(Patience::default());
    let mut names = Vec::new();
    for binding in &scenario.policies {
        let place = || scenario.source.location(binding.at);
        let policy = start(sources(binding)?).map_err(|error| RunError::Start(place(), error))?;
        let hooks = binding.hooks.unwrap_or_else(|| policy.hooks());
        if let Some(hook) = hooks.iter().find(|hook| host.holder(*hook).is_some()) {
            return Err(RunError::TwoHolders {
                place: place(),
                hook: hook.as_str(),
            });
        }
        let number = host
            .add(policy)
            .map_err(|error| RunError::Bind(place(), error))?;
        debug_assert_eq!(number as usize, names.len(), "policies are numbered from 0");
        names.push(binding.name.clone());
        host.bind(Micros(0), number, hooks)
            .map_err(|error| RunError::Bind(place(), error))?;
    }
    Ok((host, names))
}
