//! What the host must do so that hooks are held as they shall be.
//!
//! # Invariants
//! 1. A plan that was carried out leaves nothing to do: where it does not, the host was asked
//!    for something else than it did (`tests/reload`).

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_core::{Hook, HookSet};
use pointsman_policy::OnFailure;

use super::{Known, Roster, Version};
use crate::driver::message::Stand;
use crate::reload::binding::{Bindings, Place, Trial};

/// What the host must do so that it is as it shall be.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) install: Vec<Wanted>,
    pub(crate) bind: Vec<(u32, HookSet)>,
    pub(crate) remove: Vec<u32>,
    /// Hooks that nobody but their embedded default shall have anything to do with.
    pub(crate) eject: HookSet,
    /// What to do with arrivals that nobody answers for, if that changes.
    pub(crate) on_failure: Option<OnFailure>,
    /// Hooks to be left shut.
    pub(crate) shut: HookSet,
}

/// A version that the host lacks.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) version: Arc<Version>,
    pub(crate) stand: Stand,
    /// What it is the embedded default of.
    pub(crate) default_of: HookSet,
}

// === impl Roster ===

impl Roster {
    /// What is missing for hooks to be held as `bindings` say.
    pub(crate) fn plan(&self, bindings: &Bindings) -> Plan {
        let mut plan = Plan::default();
        let serving = self.serving(bindings);
        for (name, known) in self.iter() {
            let hooks = bindings.held_by(name, Place::Folder);
            if !hooks.is_empty() {
                plan.give(name, (known, Place::Folder), (hooks, self.shut));
            }
            // A default is kept ready, whether it holds anything or not.
            let hooks = bindings.held_by(name, Place::Embedded);
            let hooks = hooks
                .iter()
                .filter(|hook| !bindings.ejected.contains(*hook));
            let hooks = hooks.collect();
            plan.give(name, (known, Place::Embedded), (hooks, self.shut));
            if let Some(trial) = bindings.trials.get(name) {
                plan.try_out(name, known, trial);
            }
            let gone = known.standing.iter().filter(|standing| {
                let mut held = standing.held.iter();
                let unwanted = held.any(|hook| bindings.is_nobodys(hook));
                let wanted = serving.contains(&standing.number) || known.is_default(standing);
                let tried =
                    bindings.trials.contains_key(name) && standing.version.place() == Place::Folder;
                !wanted && (unwanted || tried || known.has_outgrown(standing))
            });
            plan.remove.extend(gone.map(|standing| standing.number));
        }
        plan.eject = self.to_eject(bindings);
        let defaults = self.defaults();
        for wanted in &mut plan.install {
            if wanted.version.place() == Place::Embedded {
                let its = defaults.iter().filter(|(_, name)| **name == wanted.name);
                wanted.default_of = its.map(|(hook, _)| *hook).collect();
            }
        }
        let on_failure = self.on_failure(bindings);
        plan.on_failure = (on_failure != self.on_failure).then_some(on_failure);
        let shut = bindings.shut.iter();
        plan.shut = shut.filter(|hook| !self.shut.contains(*hook)).collect();
        plan
    }

    /// Hooks that are in other hands than those of their embedded default, and shall not be.
    fn to_eject(&self, bindings: &Bindings) -> HookSet {
        let held = self.standing().flat_map(|(name, standing)| {
            let place = standing.version.place();
            let hooks = standing.held.iter();
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
            let is_others = holder != shall(*hook) || self.shut.contains(*hook);
            is_nobodys || bindings.ejected.contains(*hook) && is_others
        });
        hooks.collect()
    }

    /// The embedded default of each hook.
    fn defaults(&self) -> BTreeMap<Hook, &'static str> {
        let exporters = |hook: Hook| {
            let mut defaults = self.defaults.iter().copied();
            defaults.find(|name| {
                let embedded = self.get(name).and_then(|known| known.embedded.as_ref());
                embedded.is_some_and(|version| version.hooks.contains(hook))
            })
        };
        let hooks = Hook::ALL.into_iter();
        hooks
            .filter_map(|hook| Some((hook, exporters(hook)?)))
            .collect()
    }

    /// What shall happen to arrivals that nobody answers for: what the policy says that holds
    /// admission, or that has left it shut.
    fn on_failure(&self, bindings: &Bindings) -> OnFailure {
        let holder = bindings.holders.get(&Hook::Admission);
        let version = holder.and_then(|it| self.get(&it.name)?.version(it.place));
        let shut = self
            .known
            .values()
            .any(|known| known.shut.contains(Hook::Admission));
        match version {
            Some(version) => version.on_failure,
            None if shut => OnFailure::Closed,
            None => OnFailure::Fallback,
        }
    }
}

// === impl Plan ===

impl Plan {
    pub(crate) fn is_empty(&self) -> bool {
        self.install.is_empty()
            && self.bind.is_empty()
            && self.remove.is_empty()
            && self.eject.is_empty()
            && self.on_failure.is_none()
            && self.shut.is_empty()
    }

    /// `hooks` for the version of `known` from `place`.
    /// Those that are shut are bound again, which opens them.
    fn give(
        &mut self,
        name: &str,
        (known, place): (&Known, Place),
        (hooks, shut): (HookSet, HookSet),
    ) {
        if let Some(serving) = known.enforcing(place) {
            let has = |hook: &Hook| serving.held.contains(*hook) && !shut.contains(*hook);
            let missing = hooks.iter().filter(|hook| !has(hook));
            let missing: HookSet = missing.collect();
            if !missing.is_empty() {
                self.bind.push((serving.number, missing));
            }
        } else if let Some(version) = known.version(place) {
            self.install.push(Wanted {
                name: name.to_owned(),
                version: Arc::clone(version),
                stand: Stand::Enforce(hooks),
                default_of: HookSet::EMPTY,
            });
        }
    }

    /// `known` as a shadow or canary.
    fn try_out(&mut self, name: &str, known: &Known, trial: &Trial) {
        let stand = trial.stand();
        if let Some(version) = known.version(Place::Folder)
            && known.trying(&stand).is_none()
        {
            self.install.push(Wanted {
                name: name.to_owned(),
                version: Arc::clone(version),
                stand,
                default_of: HookSet::EMPTY,
            });
        }
    }
}
