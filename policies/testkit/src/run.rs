//! A run: the steps of a scenario, done to a world, and what was expected of each.
//!
//! `stage` is the world with its names, `check` compares it with what is expected, `timeline` says
//! what happened in those names, `watch` stands between machine and policies to have a failed run
//! explained.

mod check;
mod failure;
mod history;
mod stage;
mod timeline;
mod watch;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pointsman_core::{Effect, Hook, HookSet, Micros, RequestId, Stamped};
use pointsman_policy::{BindError, Patience, PolicyHost, PolicySource, StartError, start};

use crate::component::ComponentError;
use crate::native::panic_message;
use crate::scenario::{FormatError, HookName, Place, PolicyBinding, Scenario};
use check::Miss;
pub use failure::Unmet;
use stage::Stage;
use watch::{Watch, Watched};

#[cfg(test)]
mod tests;

/// What came of a run in which everything expected was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// What happened.
    pub facts: Vec<Stamped>,
    /// What the machine ordered.
    pub effects: Vec<Effect>,
}

/// Why a run came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The file cannot be read.
    #[error("{file} cannot be read", file = .0.display())]
    Read(std::path::PathBuf, #[source] std::io::Error),
    /// The file is no scenario.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A policy that is to be bound is not among those given.
    #[error("{place}: no policy is called `{name}`; those given are {given}")]
    UnknownPolicy {
        /// Where it is named.
        place: Place,
        /// The name.
        name: String,
        /// Those there are.
        given: String,
    },
    /// There is no component of a policy.
    #[error(transparent)]
    Component(#[from] ComponentError),
    /// A policy does not start.
    #[error("{0}: the policy does not start")]
    Start(Place, #[source] StartError),
    /// A policy cannot hold the hooks it is to hold.
    #[error("{0}: the policy cannot be bound")]
    Bind(Place, #[source] BindError),
    /// Two policies are to hold one hook.
    #[error("{place}: {hook} is already held by another policy; name the `hooks` of each")]
    TwoHolders {
        /// Where the second is named.
        place: Place,
        /// The hook.
        hook: &'static str,
    },
    /// A step cannot be done.
    #[error("{place}: step {step} cannot be done: {why}")]
    Impossible {
        /// Where the step stands.
        place: Place,
        /// Which step, from 1; 0: attaching the fleet.
        step: usize,
        /// Why.
        why: String,
    },
    /// Something expected was not met.
    #[error(transparent)]
    Unmet(#[from] Box<Unmet>),
    /// The host itself broke one of its invariants: not the policy's fault.
    #[error("{place}: the host broke an invariant: {detail}")]
    HostBroke {
        /// The scenario.
        place: Place,
        /// What it said.
        detail: String,
    },
}

impl RunError {
    /// Where in a scenario it is, if it is in one.
    #[must_use]
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Format(error) => Some(&error.place),
            Self::Unmet(unmet) => Some(&unmet.place),
            Self::UnknownPolicy { place, .. }
            | Self::Start(place, _)
            | Self::Bind(place, _)
            | Self::TwoHolders { place, .. }
            | Self::Impossible { place, .. }
            | Self::HostBroke { place, .. } => Some(place),
            Self::Read(..) | Self::Component(_) => None,
        }
    }
}

/// Where a policy under test comes from.
pub(crate) type Sources<'a> = &'a mut dyn FnMut(&PolicyBinding) -> Result<PolicySource, RunError>;

/// Runs a scenario. One that fails is run again to have the requests concerned explained.
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

/// A stage on which something was not met.
struct Failed {
    stage: Stage,
    /// From 1; 0: at the end.
    step: usize,
    misses: Vec<Miss>,
}

/// A broken invariant panics in the world; here it becomes an error with the scenario's name.
fn attempt(
    scenario: &Scenario,
    sources: Sources<'_>,
    about: &BTreeSet<RequestId>,
) -> Result<Attempt, RunError> {
    let (host, names) = bind(scenario, sources)?;
    let watched = Watched {
        inner: host,
        sink: Watch::new(about.clone()),
    };
    catch_unwind(AssertUnwindSafe(|| {
        play(scenario, Stage::new(scenario, watched, names)?)
    }))
    .unwrap_or_else(|payload| {
        Err(RunError::HostBroke {
            place: scenario.source.place(0),
            detail: panic_message(payload.as_ref()),
        })
    })
}

fn play(scenario: &Scenario, mut stage: Stage) -> Result<Attempt, RunError> {
    for (idx, step) in scenario.steps.iter().enumerate() {
        let number = idx + 1;
        if let Some(action) = &step.action {
            stage.act(action).map_err(|why| RunError::Impossible {
                place: scenario.source.place(step.at),
                step: number,
                why,
            })?;
        }
        if let Some(expect) = &step.expect {
            stage.settle();
            let misses = check::step(&stage, expect);
            if !misses.is_empty() {
                return Ok(Attempt::Unmet(failed(stage, number, misses)));
            }
            stage.set_mark();
        }
    }
    stage.settle();
    let misses = check::end(&stage, &scenario.end);
    if !misses.is_empty() {
        return Ok(Attempt::Unmet(failed(stage, 0, misses)));
    }
    Ok(Attempt::Met(Ran {
        facts: stage.world.facts().to_vec(),
        effects: stage.world.effects().to_vec(),
    }))
}

fn failed(mut stage: Stage, step: usize, misses: Vec<Miss>) -> Box<Failed> {
    stage.explain_waiting();
    Box::new(Failed {
        stage,
        step,
        misses,
    })
}

/// The policies under test, each in force for its hooks, and their names by number.
fn bind(scenario: &Scenario, sources: Sources<'_>) -> Result<(PolicyHost, Vec<String>), RunError> {
    let mut host = PolicyHost::new(Patience::default());
    let mut names = Vec::new();
    for binding in &scenario.policies {
        let place = || scenario.source.place(binding.at);
        let policy = start(sources(binding)?).map_err(|error| RunError::Start(place(), error))?;
        let hooks = match &binding.hooks {
            Some(hooks) => hooks.iter().map(|hook| Hook::from(*hook)).collect(),
            None => policy.hooks(),
        };
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
        let hooks: HookSet = hooks;
        host.bind(Micros(0), number, hooks)
            .map_err(|error| RunError::Bind(place(), error))?;
    }
    Ok((host, names))
}

impl From<HookName> for Hook {
    fn from(name: HookName) -> Self {
        match name {
            HookName::Admission => Self::Admission,
            HookName::Priority => Self::Priority,
            HookName::Routing => Self::Routing,
            HookName::Preemption => Self::Preemption,
            HookName::Budget => Self::Budget,
        }
    }
}
