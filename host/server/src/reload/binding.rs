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

use pointsman_core::Hook;
use pointsman_policy::{HookSet, Mode};

use crate::driver::message::Stand;
use crate::state::Bound;

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

/// What a canary may be tried at: where single requests can be told apart.
pub(crate) fn can_be_tried(hook: Hook) -> bool {
    match hook {
        Hook::Admission | Hook::Routing => true,
        Hook::Priority | Hook::Preemption | Hook::Budget => false,
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
        for hook in Hook::ALL.into_iter().filter(|hook| can_be_tried(*hook)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: [&str; 3] = ["aging", "memory-aware", "budget"];

    /// Policies by name and hooks; those of the folder begin with `/`.
    fn claims(policies: &[(&'static str, &[Hook])]) -> BTreeMap<&'static str, Claim> {
        let claims = policies.iter().map(|(name, hooks)| {
            let place = match name.starts_with('/') {
                true => Place::Folder,
                false => Place::Embedded,
            };
            let hooks = hooks.iter().copied().collect();
            (name.trim_start_matches('/'), Claim { place, hooks })
        });
        claims.collect()
    }

    fn answer(
        bound: &[(Hook, &str)],
        policies: &[(&'static str, &[Hook])],
        held: &[(Hook, &'static str)],
    ) -> Bindings {
        let bound: Vec<(Hook, String)> = bound
            .iter()
            .map(|(hook, name)| (*hook, (*name).to_owned()))
            .collect();
        let claims = claims(policies);
        let nothing = BTreeMap::new();
        let answer = |holders: &BTreeMap<Hook, &str>| {
            bind(Circumstances {
                ordered: &BTreeMap::new(),
                bound: &bound,
                defaults: &DEFAULTS,
                claims: &claims,
                embedded: &BTreeMap::new(),
                trials: &BTreeMap::new(),
                shut: &nothing,
                holders,
                canaries: &nothing,
            })
        };
        let bindings = answer(&held.iter().copied().collect());
        for (hook, holder) in &bindings.holders {
            let claim = &claims[holder.name.as_str()];
            assert!(claim.hooks.contains(*hook), "{holder:?}");
            assert_eq!(claim.place, holder.place);
        }
        let held = holders(&bindings).into_iter().collect();
        assert_eq!(answer(&held), bindings, "it stays as it is");
        bindings
    }

    fn holders(bindings: &Bindings) -> Vec<(Hook, &str)> {
        let holders = bindings.holders.iter();
        holders
            .map(|(hook, holder)| (*hook, holder.name.as_str()))
            .collect()
    }

    /// With a file `mine` in force for priority, a file called like a default, and these orders.
    fn ordered(orders: &[(Hook, Bound)], shut: &[(Hook, &'static str)]) -> Bindings {
        let claims = claims(&[
            ("/mine", &[Hook::Priority]),
            ("/memory-aware", &[Hook::Routing]),
        ]);
        let embedded = BTreeMap::from([
            ("aging", HookSet::from_iter([Hook::Priority])),
            ("memory-aware", HookSet::from_iter([Hook::Routing])),
        ]);
        let shadow = Trial {
            mode: Mode::Shadow,
            hooks: [Hook::Priority].into_iter().collect(),
        };
        bind(Circumstances {
            ordered: &orders.iter().cloned().collect(),
            bound: &[],
            defaults: &DEFAULTS,
            claims: &claims,
            embedded: &embedded,
            trials: &BTreeMap::from([("shade", shadow)]),
            shut: &shut.iter().copied().collect(),
            holders: &BTreeMap::new(),
            canaries: &BTreeMap::new(),
        })
    }

    #[test]
    fn an_ejected_hook_is_the_embedded_defaults_whatever_is_in_the_folder() {
        let orders = Hook::ALL.map(|hook| (hook, Bound::Embedded));
        let bindings = ordered(&orders, &[]);
        let expected = [(Hook::Priority, "aging"), (Hook::Routing, "memory-aware")];
        assert_eq!(holders(&bindings), expected, "the others are the rule's");
        let mut places = bindings.holders.values();
        assert!(places.all(|holder| holder.place == Place::Embedded));
        assert_eq!(bindings.conflicts, []);
    }

    #[test]
    fn an_order_that_cannot_be_followed_is_said_and_the_rest_of_the_rule_holds() {
        let to = |name: &str| Bound::Policy(name.to_owned());
        let policy = |name: &str| name.to_owned();
        let hook = Hook::Priority;
        for (name, conflict) in [
            (
                "gone",
                Conflict::Absent {
                    hook,
                    policy: policy("gone"),
                },
            ),
            (
                "memory-aware",
                Conflict::NotExported {
                    hook,
                    policy: policy("memory-aware"),
                },
            ),
            (
                "shade",
                Conflict::NotEnforced {
                    hook,
                    policy: policy("shade"),
                },
            ),
        ] {
            let bindings = ordered(&[(hook, to(name))], &[]);
            let expected = [(hook, "mine"), (Hook::Routing, "memory-aware")];
            assert_eq!(holders(&bindings), expected);
            assert_eq!(bindings.conflicts, [conflict]);
        }
    }

    #[test]
    fn a_hook_that_was_left_shut_is_nobodys_but_by_order() {
        let hook = Hook::Priority;
        let bindings = ordered(&[], &[(hook, "mine")]);
        assert_eq!(holders(&bindings), [(Hook::Routing, "memory-aware")]);
        let policy = "mine".to_owned();
        assert_eq!(bindings.conflicts, [Conflict::Shut { hook, policy }]);
        let bindings = ordered(&[(hook, Bound::Embedded)], &[(hook, "mine")]);
        assert_eq!(holders(&bindings)[0], (hook, "aging"));
        assert_eq!(bindings.conflicts, []);
    }

    #[test]
    fn shadows_stand_beside_each_other_and_one_canary_for_a_hook() {
        let both: HookSet = [Hook::Routing, Hook::Priority].into_iter().collect();
        let canary = Mode::Canary("10%".parse().unwrap());
        let trial = |mode| Trial { mode, hooks: both };
        let trials = BTreeMap::from([
            ("a", trial(Mode::Shadow)),
            ("b", trial(canary)),
            ("c", trial(canary)),
            ("d", trial(Mode::Shadow)),
        ]);
        for (present, stays) in [(None, "b"), (Some("c"), "c"), (Some("gone"), "b")] {
            let bindings = bind(Circumstances {
                ordered: &BTreeMap::new(),
                bound: &[],
                defaults: &DEFAULTS,
                claims: &BTreeMap::new(),
                embedded: &BTreeMap::new(),
                trials: &trials,
                shut: &BTreeMap::new(),
                holders: &BTreeMap::new(),
                canaries: &present
                    .map(|name| (Hook::Routing, name))
                    .into_iter()
                    .collect(),
            });
            assert_eq!(holders(&bindings), []);
            let tried = bindings.trials.iter();
            let tried: Vec<_> = tried.map(|(name, it)| (name.as_str(), it.hooks)).collect();
            let routing: HookSet = [Hook::Routing].into_iter().collect();
            assert_eq!(tried, [("a", both), (stays, routing), ("d", both)]);
            assert_eq!(bindings.conflicts.len(), 1, "the other canary is told of");
        }
    }

    const AGING: (&str, &[Hook]) = ("aging", &[Hook::Priority]);
    const ROUTER: (&str, &[Hook]) = ("memory-aware", &[Hook::Routing]);

    #[test]
    fn the_defaults_hold_what_nobody_else_claims() {
        let bindings = answer(&[], &[AGING, ROUTER], &[]);
        let expected = [(Hook::Priority, "aging"), (Hook::Routing, "memory-aware")];
        assert_eq!(holders(&bindings), expected);
        assert_eq!(bindings.conflicts, []);
    }

    #[test]
    fn a_file_takes_every_hook_it_exports() {
        let mine: (&str, &[Hook]) = ("/mine", &[Hook::Priority, Hook::Budget]);
        let bindings = answer(&[], &[AGING, ROUTER, mine], &[(Hook::Priority, "aging")]);
        let expected = [
            (Hook::Priority, "mine"),
            (Hook::Routing, "memory-aware"),
            (Hook::Budget, "mine"),
        ];
        assert_eq!(holders(&bindings), expected);
    }

    #[test]
    fn the_configuration_goes_before_the_folder() {
        let mine: (&str, &[Hook]) = ("/mine", &[Hook::Priority]);
        let bindings = answer(&[(Hook::Priority, "aging")], &[AGING, mine], &[]);
        assert_eq!(holders(&bindings), [(Hook::Priority, "aging")]);
    }

    #[test]
    fn gives_only_what_is_exported() {
        let bound = [(Hook::Priority, "mine"), (Hook::Routing, "nobody")];
        let mine: (&str, &[Hook]) = ("/mine", &[Hook::Budget]);
        let bindings = answer(&bound, &[AGING, ROUTER, mine], &[]);
        let expected = [
            (Hook::Priority, "aging"),
            (Hook::Routing, "memory-aware"),
            (Hook::Budget, "mine"),
        ];
        assert_eq!(holders(&bindings), expected);
        let conflicts = [
            Conflict::NotExported {
                hook: Hook::Priority,
                policy: "mine".to_owned(),
            },
            Conflict::Absent {
                hook: Hook::Routing,
                policy: "nobody".to_owned(),
            },
        ];
        assert_eq!(bindings.conflicts, conflicts);
    }

    #[test]
    fn of_two_files_the_one_that_holds_the_hook_stays() {
        let (one, two): ((&str, &[Hook]), _) = (("/one", &[Hook::Priority]), "/two");
        let two: (&str, &[Hook]) = (two, &[Hook::Priority]);
        let contested = [Conflict::Contested {
            hook: Hook::Priority,
            claimants: vec!["one".to_owned(), "two".to_owned()],
        }];
        for (held, stays) in [
            (vec![(Hook::Priority, "two")], "two"),
            (vec![(Hook::Priority, "one")], "one"),
            (vec![(Hook::Priority, "aging")], "aging"),
            (vec![(Hook::Priority, "gone")], "aging"),
            (vec![], "aging"),
        ] {
            let bindings = answer(&[], &[AGING, one, two], &held);
            assert_eq!(holders(&bindings), [(Hook::Priority, stays)], "{held:?}");
            assert_eq!(bindings.conflicts, contested);
        }
        let bindings = answer(&[], &[one, two], &[]);
        assert_eq!(holders(&bindings), []);
    }

    #[test]
    fn what_is_bound_by_name_is_not_contested() {
        let (one, two) = (("/one", [Hook::Priority]), ("/two", [Hook::Priority]));
        let policies: [(&str, &[Hook]); 2] = [(one.0, &one.1), (two.0, &two.1)];
        let bindings = answer(&[(Hook::Priority, "two")], &policies, &[]);
        assert_eq!(holders(&bindings), [(Hook::Priority, "two")]);
        assert_eq!(bindings.conflicts, []);
    }

    #[test]
    fn a_file_named_like_a_default_is_that_default() {
        let router: (&str, &[Hook]) = ("/memory-aware", &[Hook::Priority]);
        let bindings = answer(&[], &[AGING, router], &[(Hook::Routing, "memory-aware")]);
        assert_eq!(holders(&bindings), [(Hook::Priority, "memory-aware")]);
        // Where another file claims its hook too, it is the default of old that holds it.
        let (own, other): (&[Hook], &[Hook]) = (&[Hook::Routing], &[Hook::Routing]);
        let policies = [("/memory-aware", own), ("/other", other)];
        for held in [vec![], vec![(Hook::Routing, "memory-aware")]] {
            let bindings = answer(&[], &policies, &held);
            assert_eq!(holders(&bindings), [(Hook::Routing, "memory-aware")]);
            assert_eq!(bindings.conflicts.len(), 1);
        }
    }

    /// Whatever there is, a second answer from what the first one bound is the same: `answer`
    /// checks it.
    #[test]
    fn what_is_bound_stays_bound() {
        let names: [&str; 4] = ["/one", "/two", "aging", "/budget"];
        let sets: [&[Hook]; 3] = [&[], &[Hook::Priority], &[Hook::Priority, Hook::Budget]];
        for combination in 0..81_usize {
            let policies: Vec<(&str, &[Hook])> = (0..4_u32)
                .map(|n| (n, combination / 3_usize.pow(n) % 3))
                .filter_map(|(n, set)| Some((*names.get(n as usize)?, *sets.get(set)?)))
                .collect();
            for held in ["one", "two", "aging", "budget", "gone"] {
                answer(&[], &policies, &[(Hook::Priority, held)]);
                answer(
                    &[(Hook::Budget, "one")],
                    &policies,
                    &[(Hook::Priority, held)],
                );
            }
        }
    }
}
