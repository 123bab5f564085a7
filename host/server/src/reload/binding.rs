//! Which policy holds which hook: a pure function of what was ordered, of the configuration, of
//! the policies there are, and of who holds what now.
//!
//! 1. A hook that an operator's order binds is that policy's, or the embedded default's.
//! 2. Otherwise, if the configuration binds it to a policy by name, it is that policy's.
//! 3. Otherwise a policy in the folder has every hook it exports. Where several claim one, the
//!    one that holds it stays, and all are reported.
//! 4. Otherwise it is the default's that exports it, or nobody's: the built-in rule decides.
//!
//! A shadow and a canary hold nothing: the rule is asked as if they were not there, and they stand
//! beside whoever it names.
//!
//! A policy is known by its name. A file named like a default is that default, from another
//! source: it has not been displaced by it, it has become it. The embedded policy decides only what
//! the file does not export.
//!
//! # Invariants
//! 1. Nobody is given a hook that it does not export (`gives_only_what_is_exported`).
//! 2. Without a change of its inputs the answer stays what it is, so that a hook does not move
//!    back and forth (`what_is_bound_stays_bound`).

use std::collections::BTreeMap;

use pointsman_core::{Hook, HookSet};
use pointsman_policy::Mode;

use crate::driver::message::Stand;
use crate::state::Bound;

#[cfg(test)]
mod tests;

/// Where a policy's code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Embedded,
    Folder,
}

/// A policy that can be put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) place: Place,
    /// What it exports.
    pub(crate) hooks: HookSet,
}

/// Everything the answer depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances<'a> {
    /// Hooks bound by an operator's order.
    pub(crate) ordered: &'a BTreeMap<Hook, Bound>,
    /// Hooks bound by name, by the configuration.
    pub(crate) bound: &'a [(Hook, String)],
    /// Names of the embedded policies, the first of two that export a hook having it.
    pub(crate) defaults: &'a [&'static str],
    /// Policies by name: those whose answers count.
    pub(crate) claims: &'a BTreeMap<&'a str, Claim>,
    /// What the embedded policies export, by name, whatever there is in the folder.
    pub(crate) embedded: &'a BTreeMap<&'a str, HookSet>,
    /// Hooks that policies have left shut, which nobody has but by order.
    pub(crate) shut: &'a BTreeMap<Hook, &'a str>,
    /// Policies of the folder that are shadows or canaries, by name.
    pub(crate) trials: &'a BTreeMap<&'a str, Trial>,
    /// Who holds what now.
    pub(crate) holders: &'a BTreeMap<Hook, &'a str>,
    /// Who is a canary for what now.
    pub(crate) canaries: &'a BTreeMap<Hook, &'a str>,
}

/// A policy that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    pub(crate) mode: Mode,
    pub(crate) hooks: HookSet,
}

/// Who holds a hook: a policy by name, from one of the places it may come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) name: String,
    pub(crate) place: Place,
}

/// Who shall hold what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bindings {
    /// A hook that is not in it is the built-in rule's.
    pub(crate) holders: BTreeMap<Hook, Holder>,
    /// Hooks behind whose embedded default nobody shall stand.
    pub(crate) ejected: HookSet,
    /// Hooks that stay shut.
    pub(crate) shut: HookSet,
    /// Who is tried at what, by name.
    pub(crate) trials: BTreeMap<String, Trial>,
    pub(crate) conflicts: Vec<Conflict>,
}

/// What an operator has to sort out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Several policies in the folder claim one hook.
    Contested {
        /// Which hook.
        hook: Hook,
        /// Who claims it.
        claimants: Vec<String>,
    },
    /// An order or the configuration binds a hook to a policy that is not there.
    Absent {
        /// Which hook.
        hook: Hook,
        /// The policy's name.
        policy: String,
    },
    /// An order or the configuration binds a hook to a policy that does not export it.
    NotExported {
        /// Which hook.
        hook: Hook,
        /// The policy's name.
        policy: String,
    },
    /// An order or the configuration binds a hook to a policy whose answers do not count.
    NotEnforced {
        /// Which hook.
        hook: Hook,
        /// The policy's name.
        policy: String,
    },
    /// A policy that faulted too often held a hook for which nobody may answer in its stead.
    Shut {
        /// Which hook.
        hook: Hook,
        /// The policy's name.
        policy: String,
    },
    /// Several policies in the folder want to be the canary for one hook.
    ContestedCanary {
        /// Which hook.
        hook: Hook,
        /// Who wants it.
        claimants: Vec<String>,
    },
}

// === impl Trial and Bindings ===

impl Trial {
    pub(crate) fn stand(&self) -> Stand {
        match self.mode {
            Mode::Enforce => Stand::Enforce(self.hooks),
            Mode::Shadow => Stand::Shadow(self.hooks),
            Mode::Canary(share) => Stand::Canary(self.hooks, share),
        }
    }
}

impl Bindings {
    /// Whether the built-in rule is to decide.
    pub(crate) fn is_nobodys(&self, hook: Hook) -> bool {
        !self.holders.contains_key(&hook) && !self.shut.contains(hook)
    }

    /// The hooks of the policy `name`, from that place.
    pub(crate) fn held_by(&self, name: &str, place: Place) -> HookSet {
        let holders = self.holders.iter();
        let its = holders.filter(|(_, holder)| holder.name == name && holder.place == place);
        its.map(|(hook, _)| *hook).collect()
    }
}

/// The binding rule.
pub(crate) fn bind(at: Circumstances<'_>) -> Bindings {
    let mut bindings = Bindings::default();
    for hook in Hook::ALL {
        let conflicts = &mut bindings.conflicts;
        if at.ordered.get(&hook) == Some(&Bound::Embedded) {
            bindings.ejected.insert(hook);
        }
        if let Some(ordered) = at.by_order(hook, conflicts) {
            bindings
                .holders
                .extend(ordered.map(|holder| (hook, holder)));
            continue;
        }
        if let Some(policy) = at.shut.get(&hook) {
            let policy = (*policy).to_owned();
            conflicts.push(Conflict::Shut { hook, policy });
            bindings.shut.insert(hook);
            continue;
        }
        let named = at
            .by_configuration(hook, conflicts)
            .or_else(|| at.by_folder(hook, conflicts));
        let holder = named.map(|name| at.holder(name));
        let holder = holder.or_else(|| at.by_default(hook));
        bindings.holders.extend(holder.map(|holder| (hook, holder)));
    }
    at.try_out(&mut bindings);
    bindings
}

// === impl Circumstances ===

impl<'a> Circumstances<'a> {
    /// Who holds `hook` by order; nobody, if there is an order that nobody can follow. Absent:
    /// there is none, or none that can be followed for now.
    fn by_order(&self, hook: Hook, conflicts: &mut Vec<Conflict>) -> Option<Option<Holder>> {
        match self.ordered.get(&hook)? {
            Bound::Embedded => {
                let mut embedded = self.defaults.iter();
                Some(embedded.find_map(|name| self.embedded(hook, name)))
            }
            Bound::Policy(name) => {
                let name = self.by_name(hook, name, conflicts)?;
                Some(Some(self.holder(name)))
            }
        }
    }

    fn by_configuration(&self, hook: Hook, conflicts: &mut Vec<Conflict>) -> Option<&'a str> {
        let (_, name) = self.bound.iter().find(|(bound, _)| *bound == hook)?;
        self.by_name(hook, name, conflicts)
    }

    fn by_name(&self, hook: Hook, name: &'a str, conflicts: &mut Vec<Conflict>) -> Option<&'a str> {
        let policy = name.to_owned();
        match self.claims.get(name) {
            Some(claim) if claim.hooks.contains(hook) => return Some(name),
            Some(_) => conflicts.push(Conflict::NotExported { hook, policy }),
            None if self.trials.contains_key(name) => {
                conflicts.push(Conflict::NotEnforced { hook, policy });
            }
            None => conflicts.push(Conflict::Absent { hook, policy }),
        }
        None
    }

    fn by_folder(&self, hook: Hook, conflicts: &mut Vec<Conflict>) -> Option<&'a str> {
        let in_folder = self.exporters(hook);
        let in_folder = in_folder.filter(|(_, claim)| claim.place == Place::Folder);
        let claimants: Vec<&str> = in_folder.map(|(name, _)| name).collect();
        match claimants.as_slice() {
            [] => None,
            [only] => Some(only),
            several => {
                conflicts.push(Conflict::Contested {
                    hook,
                    claimants: several.iter().copied().map(str::to_owned).collect(),
                });
                let holder = self.holders.get(&hook)?;
                several.iter().copied().find(|name| name == holder)
            }
        }
    }

    /// A file called like a default has become it. What the file does not export, the embedded
    /// policy still does.
    fn by_default(&self, hook: Hook) -> Option<Holder> {
        let mut defaults = self.defaults.iter();
        defaults.find_map(|name| {
            let claim = self.claims.get(name);
            let claims = claim.is_some_and(|claim| claim.hooks.contains(hook));
            let holder = claims.then(|| self.holder(name));
            holder.or_else(|| self.embedded(hook, name))
        })
    }

    /// The embedded policy `name`, if it exports `hook`.
    fn embedded(&self, hook: Hook, name: &str) -> Option<Holder> {
        let exported = self.embedded.get(name)?;
        exported.contains(hook).then(|| Holder {
            name: name.to_owned(),
            place: Place::Embedded,
        })
    }

    /// The policy `name`, from where its answers count.
    fn holder(&self, name: &str) -> Holder {
        Holder {
            name: name.to_owned(),
            place: self.claims.get(name).map_or(Place::Folder, |it| it.place),
        }
    }

    /// Who is tried at what. Shadows do not stand in each other's way; of several canaries for a
    /// hook, the one that is stays, or the first by name is.
    fn try_out(&self, bindings: &mut Bindings) {
        let mut at: BTreeMap<&str, Vec<Hook>> = BTreeMap::new();
        for hook in Hook::ALL.into_iter().filter(|hook| hook.is_by_request()) {
            let trials = self.trials.iter();
            let claimants = trials.filter(|(_, trial)| {
                matches!(trial.mode, Mode::Canary(_)) && trial.hooks.contains(hook)
            });
            let claimants: Vec<&str> = claimants.map(|(name, _)| *name).collect();
            let present = self.canaries.get(&hook).copied();
            let stays = present.filter(|name| claimants.contains(name));
            if let Some(name) = stays.or(claimants.first().copied()) {
                at.entry(name).or_default().push(hook);
            }
            if claimants.len() > 1 {
                let claimants = claimants.into_iter().map(str::to_owned).collect();
                let contested = Conflict::ContestedCanary { hook, claimants };
                bindings.conflicts.push(contested);
            }
        }
        for (name, trial) in self.trials {
            let hooks = match trial.mode {
                Mode::Shadow => trial.hooks,
                Mode::Canary(_) => at.remove(*name).into_iter().flatten().collect(),
                Mode::Enforce => continue,
            };
            if !hooks.is_empty() {
                let trial = Trial { hooks, ..*trial };
                bindings.trials.insert((*name).to_owned(), trial);
            }
        }
    }

    fn exporters(&self, hook: Hook) -> impl Iterator<Item = (&'a str, &'a Claim)> {
        let claims = self.claims.iter().map(|(name, claim)| (*name, claim));
        claims.filter(move |(_, claim)| claim.hooks.contains(hook))
    }
}
