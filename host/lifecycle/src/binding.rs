//! The binding rule, which gives each hook to a policy. A pure function of orders, configuration,
//! policies and present holders.
//!
//! 1. A hook that an operator's order binds is that policy's, or the embedded default's.
//! 2. Otherwise, if the configuration binds it to a policy by name, it is that policy's.
//! 3. Otherwise a policy in the folder has every hook it exports. Where several claim one, the
//!    one that holds it stays, or at a start the one that held it last, and all are reported. While
//!    that one is late, no other has it.
//! 4. Otherwise it is the default's that exports it, or nobody's: the built-in rule decides.
//!
//! A shadow and a canary hold nothing: the rule is asked as if they were not there, and they stand
//! beside the holder.
//!
//! A policy is known by its name. A file named like a default is that default, from another
//! source: the file has not displaced the default, it has become the default. The embedded policy
//! decides only the hooks that the file does not export.
//!
//! # Invariants
//! 1. Nobody is given a hook that it does not export (`gives_only_what_is_exported`).
//! 2. Without a change of its inputs the answer stays the same, so that a hook does not move back
//!    and forth (`what_is_bound_stays_bound`).

use std::collections::BTreeMap;
use std::fmt;

use pointsman_interface::{Hook, HookSet};
use pointsman_policy::Assignment;
use pointsman_state::BoundTo;

#[cfg(test)]
mod tests;

/// The place of a policy's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Embedded,
    Folder,
}

/// A policy as the binding rule sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claimant {
    /// Hooks that the embedded version exports.
    pub(crate) embedded: HookSet,
    /// The mode of the file, and the hooks that the file exports; absent: no file is of use.
    pub(crate) file: Option<Assignment>,
    /// True if no file is of use yet, and one comes that nothing waits for any longer.
    pub(crate) is_late: bool,
    /// Hooks that the policy has left closed: they have no holder, except by order.
    pub(crate) closed: HookSet,
    /// Hooks that the policy holds now.
    pub(crate) holds: HookSet,
    /// Hooks for which the policy is the canary now.
    pub(crate) tries: HookSet,
}

/// The inputs of the binding rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances<'a> {
    /// Hooks bound by an operator's order.
    pub(crate) ordered: &'a BTreeMap<Hook, BoundTo>,
    /// Hooks bound by name, by the configuration.
    pub(crate) configured: &'a [(Hook, String)],
    /// Names of the embedded policies, the first of two that export a hook having it.
    pub(crate) defaults: &'a [&'static str],
    pub(crate) claimants: &'a BTreeMap<&'a str, Claimant>,
    /// Files that held a hook last, in this life of the server or an earlier one.
    pub(crate) holders: &'a BTreeMap<Hook, String>,
    /// Files that were the canary for a hook last.
    pub(crate) canaries: &'a BTreeMap<Hook, String>,
}

/// The holder of a hook: a policy by name, and the place of its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) name: String,
    pub(crate) place: Place,
}

/// The rule by which a hook has its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundBy {
    /// An order binds the hook to the policy.
    Order,
    /// An order has ejected the hook.
    Ejection,
    /// The configuration binds the hook to the policy.
    Configuration,
    /// The policy in the folder claims the hook.
    Folder,
    /// Nobody else claims the hook.
    Default,
}

/// The answer of the binding rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bindings {
    /// Holders by hook; the built-in rule decides the hooks that are missing.
    pub(crate) holders: BTreeMap<Hook, Holder>,
    /// The rule by which each of them is the holder.
    pub(crate) by: BTreeMap<Hook, BoundBy>,
    /// Hooks that a policy in the folder claims, by its name.
    claims: BTreeMap<String, HookSet>,
    /// Hooks behind whose embedded default nobody shall stand.
    pub(crate) ejected: HookSet,
    /// Hooks that stay closed.
    pub(crate) closed: HookSet,
    /// Hooks that are kept for the file that held them last, which is late.
    late: HookSet,
    /// Shadows and canaries, by name.
    pub(crate) trials: BTreeMap<String, Assignment>,
    pub(crate) conflicts: Vec<Conflict>,
}

/// A contradiction that an operator has to sort out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Several policies in the folder claim one hook.
    Contested { hook: Hook, claimants: Vec<String> },
    /// An order or the configuration binds a hook to a policy that is not there.
    Absent { hook: Hook, policy: String },
    /// An order or the configuration binds a hook to a policy that does not export it.
    NotExported { hook: Hook, policy: String },
    /// An order or the configuration binds a hook to a policy whose answers do not count.
    NotEnforced { hook: Hook, policy: String },
    /// A policy that faulted too often held a hook for which nobody may answer in its stead.
    Closed { hook: Hook, policy: String },
    /// Several policies in the folder want to be the canary for one hook.
    ContestedCanary { hook: Hook, claimants: Vec<String> },
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conflict::Contested { hook, claimants } => {
                let claimants = claimants.join(", ");
                write!(
                    f,
                    "{} is claimed by several policies: {claimants}",
                    hook.as_str()
                )
            }
            Conflict::Absent { hook, policy } => {
                write!(
                    f,
                    "{} is bound to {policy}, which is not there",
                    hook.as_str()
                )
            }
            Conflict::NotExported { hook, policy } => {
                write!(
                    f,
                    "{} is bound to {policy}, which does not export it",
                    hook.as_str()
                )
            }
            Conflict::NotEnforced { hook, policy } => {
                write!(
                    f,
                    "{} is bound to {policy}, whose answers do not count",
                    hook.as_str()
                )
            }
            Conflict::Closed { hook, policy } => write!(
                f,
                "{} stays closed: {policy} faulted too often, and nobody may answer instead",
                hook.as_str()
            ),
            Conflict::ContestedCanary { hook, claimants } => {
                let claimants = claimants.join(", ");
                write!(
                    f,
                    "several policies want to be the canary for {}: {claimants}",
                    hook.as_str()
                )
            }
        }
    }
}

/// The binding rule.
pub(crate) fn bind(at: Circumstances<'_>) -> Bindings {
    let mut bindings = Bindings::default();
    for hook in Hook::ALL {
        let holder = match at.ordered.get(&hook) {
            Some(BoundTo::Embedded) => {
                bindings.ejected.insert(hook);
                at.by_embedded(hook)
                    .map(|holder| (holder, BoundBy::Ejection))
            }
            Some(BoundTo::Policy(name)) => {
                let named = at.by_name(hook, name, &mut bindings.conflicts);
                let named = named.map(|name| (at.holder(name), BoundBy::Order));
                named.or_else(|| at.by_rule(hook, &mut bindings))
            }
            None => at.by_rule(hook, &mut bindings),
        };
        if let Some((holder, by)) = holder {
            bindings.holders.insert(hook, holder);
            bindings.by.insert(hook, by);
        }
    }
    at.try_out(&mut bindings);
    let claims = at.claimants.iter().filter_map(|(name, claimant)| {
        let claimed = Hook::ALL.into_iter();
        let claimed: HookSet = claimed.filter(|it| claimant.file_claims(*it)).collect();
        (!claimed.is_empty()).then(|| ((*name).to_owned(), claimed))
    });
    bindings.claims = claims.collect();
    bindings
}

// === impl Bindings ===

impl Bindings {
    /// True if the built-in rule is to decide `hook`.
    pub(crate) fn is_nobodys(&self, hook: Hook) -> bool {
        !self.holders.contains_key(&hook) && !self.closed.contains(hook)
    }

    /// The hooks of the policy `name`, from that place.
    pub(crate) fn held_by(&self, name: &str, place: Place) -> HookSet {
        let holders = self.holders.iter();
        let its = holders.filter(|(_, holder)| holder.name == name && holder.place == place);
        its.map(|(hook, _)| *hook).collect()
    }
}

// === impl Bindings: reasons ===

impl Bindings {
    /// The hooks that the policy `name` in the folder claims and does not have, each with the reason.
    pub(crate) fn denied(&self, name: &str) -> Vec<(Hook, String)> {
        let claimed = self.claims.get(name).copied().unwrap_or(HookSet::EMPTY);
        let held = self.held_by(name, Place::Folder);
        let denied = claimed.iter().filter(|hook| !held.contains(*hook));
        denied
            .map(|hook| (hook, self.reason_to_deny(hook)))
            .collect()
    }

    /// The reasons for which the policy `name` holds nothing, in one line.
    pub(crate) fn idle_because(&self, name: &str) -> String {
        let denied = self.denied(name).into_iter();
        let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
        for (hook, why) in denied {
            match reasons.iter_mut().find(|(known, _)| *known == why) {
                Some((_, hooks)) => hooks.push(hook.as_str()),
                None => reasons.push((why, vec![hook.as_str()])),
            }
        }
        let lines = reasons
            .iter()
            .map(|(why, hooks)| format!("{} {why}", hooks.join(", ")));
        let lines: Vec<String> = lines.collect();
        if lines.is_empty() {
            return "it claims no hook that another version of it does not hold".to_owned();
        }
        lines.join("; ")
    }

    fn reason_to_deny(&self, hook: Hook) -> String {
        if self.closed.contains(hook) {
            return "stays closed: its policy faulted too often, and nobody may answer instead"
                .to_owned();
        }
        if self.late.contains(hook) {
            return "is kept for the file that held it last, which is still being made ready"
                .to_owned();
        }
        let Some((holder, by)) = self.holders.get(&hook).zip(self.by.get(&hook)) else {
            return "is contested: other files claim it too".to_owned();
        };
        let name = &holder.name;
        match by {
            BoundBy::Order => format!("is bound to `{name}` by order"),
            BoundBy::Ejection => {
                "was ejected by order, and is the embedded default's until it is bound again"
                    .to_owned()
            }
            BoundBy::Configuration => format!("is bound to `{name}` by [policies.bind]"),
            BoundBy::Folder => format!("is contested, and `{name}` had it before"),
            BoundBy::Default => "is contested: other files claim it too".to_owned(),
        }
    }
}

// === impl BoundBy ===

impl BoundBy {
    /// The name of the rule.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            BoundBy::Order => "order",
            BoundBy::Ejection => "ejection",
            BoundBy::Configuration => "configuration",
            BoundBy::Folder => "folder",
            BoundBy::Default => "default",
        }
    }
}

// === impl Claimant ===

impl Claimant {
    /// The hooks that the policy claims, and the place from which its answers count; absent: they
    /// count nowhere.
    fn claim(&self) -> Option<(Place, HookSet)> {
        match self.file {
            Some(Assignment::Enforce(hooks)) => Some((Place::Folder, hooks)),
            Some(Assignment::Canary(..) | Assignment::Shadow(_)) | None => {
                (!self.embedded.is_empty()).then_some((Place::Embedded, self.embedded))
            }
        }
    }

    /// True if the policy claims `hook`.
    fn claims(&self, hook: Hook) -> bool {
        self.claim().is_some_and(|(_, hooks)| hooks.contains(hook))
    }

    /// True if the policy's file claims `hook`.
    fn file_claims(&self, hook: Hook) -> bool {
        matches!(self.file, Some(Assignment::Enforce(hooks)) if hooks.contains(hook))
    }

    /// True if the policy wants to be the canary for `hook`.
    fn wants_to_try(&self, hook: Hook) -> bool {
        matches!(self.file, Some(Assignment::Canary(hooks, _)) if hooks.contains(hook))
    }
}

// === impl Circumstances ===

impl<'a> Circumstances<'a> {
    /// The holder of a hook, where no order about the hook can be followed.
    fn by_rule(&self, hook: Hook, bindings: &mut Bindings) -> Option<(Holder, BoundBy)> {
        let mut claimants = self.claimants.iter().rev();
        if let Some((name, _)) = claimants.find(|(_, it)| it.closed.contains(hook)) {
            let policy = (*name).to_owned();
            bindings.conflicts.push(Conflict::Closed { hook, policy });
            bindings.closed.insert(hook);
            return None;
        }
        let conflicts = &mut bindings.conflicts;
        let configured = self.by_configuration(hook, conflicts);
        let named = match configured {
            Some(name) => Some((name, BoundBy::Configuration)),
            None if self.is_late(self.holders.get(&hook)) => {
                bindings.late.insert(hook);
                let holder = self.by_embedded(hook)?;
                return Some((holder, BoundBy::Default));
            }
            None => self
                .by_folder(hook, conflicts)
                .map(|name| (name, BoundBy::Folder)),
        };
        let Some((name, by)) = named else {
            let holder = self.by_default(hook)?;
            let by = match holder.place {
                Place::Folder => BoundBy::Folder,
                Place::Embedded => BoundBy::Default,
            };
            return Some((holder, by));
        };
        Some((self.holder(name), by))
    }

    fn by_configuration(&self, hook: Hook, conflicts: &mut Vec<Conflict>) -> Option<&'a str> {
        let (_, name) = self.configured.iter().find(|(bound, _)| *bound == hook)?;
        self.by_name(hook, name, conflicts)
    }

    fn by_name(&self, hook: Hook, name: &'a str, conflicts: &mut Vec<Conflict>) -> Option<&'a str> {
        let policy = name.to_owned();
        let claimant = self.claimants.get(name);
        conflicts.push(match claimant.map(|it| (it.claim(), it.file)) {
            Some((Some((_, hooks)), _)) if hooks.contains(hook) => return Some(name),
            Some((Some(_), _)) => Conflict::NotExported { hook, policy },
            Some((None, Some(_))) => Conflict::NotEnforced { hook, policy },
            Some((None, None)) | None => Conflict::Absent { hook, policy },
        });
        None
    }

    fn by_folder(&self, hook: Hook, conflicts: &mut Vec<Conflict>) -> Option<&'a str> {
        let files = self.claimants.iter().filter(|(_, it)| it.file_claims(hook));
        let claimants: Vec<&str> = files.clone().map(|(name, _)| *name).collect();
        if claimants.len() < 2 {
            return claimants.first().copied();
        }
        conflicts.push(Conflict::Contested {
            hook,
            claimants: claimants.into_iter().map(str::to_owned).collect(),
        });
        let mut holders = files.clone().filter(|(_, it)| it.holds.contains(hook));
        let present = holders.next();
        let mut files = files;
        let last = || files.find(|(name, _)| self.holders.get(&hook).is_some_and(|it| it == *name));
        present.or_else(last).map(|(name, _)| *name)
    }

    /// The default for `hook`. A file named like a default has become that default; the embedded
    /// policy keeps the hooks that the file does not export.
    fn by_default(&self, hook: Hook) -> Option<Holder> {
        self.defaults.iter().find_map(|name| {
            let claimant = self.claimants.get(name)?;
            let holder = claimant.claims(hook).then(|| self.holder(name));
            holder.or_else(|| self.embedded(hook, name))
        })
    }

    fn by_embedded(&self, hook: Hook) -> Option<Holder> {
        let mut defaults = self.defaults.iter();
        defaults.find_map(|name| self.embedded(hook, name))
    }

    /// The embedded policy `name`, if it exports `hook`.
    fn embedded(&self, hook: Hook, name: &str) -> Option<Holder> {
        let exported = self.claimants.get(name)?.embedded;
        exported.contains(hook).then(|| Holder {
            name: name.to_owned(),
            place: Place::Embedded,
        })
    }

    /// True if `last`, which held or tried a hook last, is late. It is not known to claim the hook
    /// still, and another would keep it for good.
    fn is_late(&self, last: Option<&String>) -> bool {
        let last = last.and_then(|name| self.claimants.get(name.as_str()));
        last.is_some_and(|claimant| claimant.is_late)
    }

    /// The policy `name`, at the place from which its answers count.
    fn holder(&self, name: &str) -> Holder {
        let claim = self.claimants.get(name).and_then(Claimant::claim);
        Holder {
            name: name.to_owned(),
            place: claim.map_or(Place::Folder, |(place, _)| place),
        }
    }

    /// Adds shadows and canaries to `bindings`. Shadows do not stand in each other's way; of
    /// several canaries for a hook, the present one stays, or the last one is it again, or the first by
    /// name.
    fn try_out(&self, bindings: &mut Bindings) {
        let mut tried: BTreeMap<&str, Vec<Hook>> = BTreeMap::new();
        for hook in Hook::ALL.into_iter().filter(|hook| hook.is_by_request()) {
            let canaries = self
                .claimants
                .iter()
                .filter(|(_, it)| it.wants_to_try(hook));
            let mut all = self.claimants.iter().rev();
            let present = all.find(|(_, it)| it.tries.contains(hook));
            let stays = present.filter(|(_, it)| it.wants_to_try(hook));
            let former = self.canaries.get(&hook);
            let mut others = canaries.clone();
            let last = || others.find(|(name, _)| former.is_some_and(|former| former == *name));
            let mut firsts = canaries.clone();
            let first = || firsts.next().filter(|_| !self.is_late(former));
            if let Some((name, _)) = stays.or_else(last).or_else(first) {
                tried.entry(*name).or_default().push(hook);
            }
            let claimants: Vec<String> = canaries.map(|(name, _)| (*name).to_owned()).collect();
            if claimants.len() > 1 {
                let contested = Conflict::ContestedCanary { hook, claimants };
                bindings.conflicts.push(contested);
            }
        }
        for (name, claimant) in self.claimants {
            let trial = match claimant.file {
                Some(Assignment::Shadow(hooks)) => Assignment::Shadow(hooks),
                Some(Assignment::Canary(_, share)) => {
                    let hooks = tried.remove(*name).into_iter().flatten().collect();
                    Assignment::Canary(hooks, share)
                }
                Some(Assignment::Enforce(_)) | None => continue,
            };
            if !trial.hooks().is_empty() {
                bindings.trials.insert((*name).to_owned(), trial);
            }
        }
    }
}
