//! The difference between the policies that the host has and those it shall have.
//!
//! # Invariants
//! 1. A plan that was carried out leaves nothing to do: otherwise the host was asked for something
//!    else than it did (`host/server/tests/reload`).

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_interface::{Hook, HookSet};
use pointsman_policy::{Assignment, Commit, OnFailure};

use super::{Entry, Registry, Version};
use crate::binding::{Bindings, Place};

/// The changes that give the host the wanted policies.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// All but the policies to install, which have to be started.
    pub(crate) commit: Commit,
    pub(crate) install: Vec<Wanted>,
}

/// A version that the host lacks.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) version: Arc<Version>,
    pub(crate) assignment: Assignment,
    /// Hooks whose embedded default the version is.
    pub(crate) default_of: HookSet,
}

// === impl Registry ===

impl Registry {
    /// The changes after which hooks are held as `bindings` say.
    pub(crate) fn plan(&self, bindings: &Bindings) -> Plan {
        let mut plan = Plan::default();
        let serving = self.serving(bindings);
        for (name, entry) in self.iter() {
            let hooks = bindings.held_by(name, Place::Folder);
            if !hooks.is_empty() {
                self.give(&mut plan, name, entry, (Place::Folder, hooks));
            }
            // A default is kept ready, whether it holds anything or not.
            let hooks = bindings.held_by(name, Place::Embedded);
            let hooks = without(hooks, bindings.ejected);
            self.give(&mut plan, name, entry, (Place::Embedded, hooks));
            let trial = bindings.trials.get(name);
            if let Some(trial) = trial
                && entry.trying(*trial).is_none()
            {
                plan.install(name, entry, (Place::Folder, *trial));
            }
            let gone = entry.installed.iter().filter(|installed| {
                let mut held = installed.held.iter();
                let is_unwanted = held.any(|hook| bindings.is_nobodys(hook));
                let is_wanted = serving.contains(&installed.number) || entry.is_default(installed);
                let is_tried = trial.is_some() && installed.version.place() == Place::Folder;
                !is_wanted && (is_unwanted || is_tried || entry.has_outgrown(installed))
            });
            plan.commit
                .remove
                .extend(gone.map(|installed| installed.number));
        }
        plan.commit.eject = self.to_eject(bindings);
        let defaults = self.defaults();
        for wanted in &mut plan.install {
            if wanted.version.place() == Place::Embedded {
                let its = defaults.iter().filter(|(_, name)| **name == wanted.name);
                wanted.default_of = its.map(|(hook, _)| *hook).collect();
            }
        }
        let on_failure = self.wanted_on_failure(bindings);
        plan.commit.on_failure = (on_failure != self.on_failure).then_some(on_failure);
        plan.commit.close = without(bindings.closed, self.closed);
        plan
    }

    /// Plans `hooks` for the version of `entry` from `place`. Hooks that are closed are bound
    /// again, which opens them.
    fn give(&self, plan: &mut Plan, name: &str, entry: &Entry, (place, hooks): (Place, HookSet)) {
        let Some(serving) = entry.enforcing(place) else {
            return plan.install(name, entry, (place, Assignment::Enforce(hooks)));
        };
        let missing = without(hooks, without(serving.held, self.closed));
        if !missing.is_empty() {
            plan.commit.bind.push((serving.number, missing));
        }
    }

    /// Hooks that are in other hands than those of their embedded default, and shall not be.
    fn to_eject(&self, bindings: &Bindings) -> HookSet {
        let held = self.installed().flat_map(|(name, installed)| {
            let place = installed.version.place();
            let hooks = installed.held.iter();
            hooks.map(move |hook| (hook, (name, place)))
        });
        let held: BTreeMap<Hook, (&str, Place)> = held.collect();
        let shall = |hook: Hook| {
            let holder = bindings.holders.get(&hook);
            holder.map(|holder| (holder.name.as_str(), holder.place))
        };
        let hooks = Hook::ALL.into_iter().filter(|hook| {
            let holder = held.get(hook).copied();
            let is_nobodys = holder.is_some() && bindings.is_nobodys(*hook);
            let is_others = holder != shall(*hook) || self.closed.contains(*hook);
            is_nobodys || bindings.ejected.contains(*hook) && is_others
        });
        hooks.collect()
    }

    /// The embedded default of each hook.
    fn defaults(&self) -> BTreeMap<Hook, &'static str> {
        let exporters = |hook: Hook| {
            let mut defaults = self.defaults.iter().copied();
            defaults.find(|name| {
                let embedded = self.get(name).and_then(|entry| entry.embedded.as_ref());
                embedded.is_some_and(|version| version.hooks.contains(hook))
            })
        };
        let hooks = Hook::ALL.into_iter();
        hooks
            .filter_map(|hook| Some((hook, exporters(hook)?)))
            .collect()
    }

    /// The fate of arrivals that nobody answers for, as the policy wants it that holds admission,
    /// or that has left admission closed.
    fn wanted_on_failure(&self, bindings: &Bindings) -> OnFailure {
        let holder = bindings.holders.get(&Hook::Admission);
        let version = holder.and_then(|it| self.get(&it.name)?.version(it.place));
        let mut entries = self.entries.values();
        match version {
            Some(version) => version.on_failure,
            None if entries.any(|entry| entry.closed.contains(Hook::Admission)) => {
                OnFailure::Closed
            }
            None => OnFailure::Fallback,
        }
    }
}

// === impl Plan ===

impl Plan {
    pub(crate) fn is_empty(&self) -> bool {
        self.install.is_empty() && self.commit.is_empty()
    }

    /// Plans to install the version of `entry` from that place, if there is one.
    fn install(&mut self, name: &str, entry: &Entry, (place, assignment): (Place, Assignment)) {
        self.install
            .extend(entry.version(place).map(|version| Wanted {
                name: name.to_owned(),
                version: Arc::clone(version),
                assignment,
                default_of: HookSet::EMPTY,
            }));
    }
}

fn without(hooks: HookSet, others: HookSet) -> HookSet {
    let hooks = hooks.iter();
    hooks.filter(|hook| !others.contains(*hook)).collect()
}
