//! Which policy holds which hook: a pure function of the configuration, of the policies there are,
//! and of who holds what now.
//!
//! 1. A hook that the configuration binds to a policy by name is that policy's.
//! 2. Otherwise a policy in the folder has every hook it exports. Where several claim one, the
//!    one that holds it stays, and all are reported.
//! 3. Otherwise it is the default's that exports it, or nobody's: the built-in rule decides.
//!
//! A policy is known by its name. A file named like a default is that default, from another
//! source: it has not been displaced by it, it has become it.
//!
//! # Invariants
//! 1. Nobody is given a hook that it does not export (`gives_only_what_is_exported`).
//! 2. Without a change of its inputs the answer stays what it is, so that a hook does not move
//!    back and forth (`what_is_bound_stays_bound`).

use std::collections::BTreeMap;

use pointsman_core::Hook;
use pointsman_policy::HookSet;

/// Where a policy's code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Hooks bound by name, by the operator.
    pub(crate) bound: &'a [(Hook, String)],
    /// Names of the embedded policies, the first of two that export a hook having it.
    pub(crate) defaults: &'a [&'static str],
    /// Policies by name.
    pub(crate) claims: &'a BTreeMap<&'a str, Claim>,
    /// Who holds what now.
    pub(crate) holders: &'a BTreeMap<Hook, &'a str>,
}

/// Who shall hold what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bindings {
    /// A hook that is not in it is the built-in rule's.
    pub(crate) holders: BTreeMap<Hook, String>,
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
    /// The configuration binds a hook to a policy that is not there.
    Absent {
        /// Which hook.
        hook: Hook,
        /// The policy's name.
        policy: String,
    },
    /// The configuration binds a hook to a policy that does not export it.
    NotExported {
        /// Which hook.
        hook: Hook,
        /// The policy's name.
        policy: String,
    },
}

/// The binding rule.
pub(crate) fn bind(at: Circumstances<'_>) -> Bindings {
    let mut bindings = Bindings::default();
    for hook in Hook::ALL {
        let conflicts = &mut bindings.conflicts;
        let holder = at
            .by_configuration(hook, conflicts)
            .or_else(|| at.by_folder(hook, conflicts))
            .or_else(|| at.by_default(hook));
        if let Some(holder) = holder {
            bindings.holders.insert(hook, holder.to_owned());
        }
    }
    bindings
}

// === impl Circumstances ===

impl<'a> Circumstances<'a> {
    fn by_configuration(&self, hook: Hook, conflicts: &mut Vec<Conflict>) -> Option<&'a str> {
        let (_, name) = self.bound.iter().find(|(bound, _)| *bound == hook)?;
        let policy = name.clone();
        match self.claims.get(name.as_str()) {
            Some(claim) if claim.hooks.contains(hook) => return Some(name),
            Some(_) => conflicts.push(Conflict::NotExported { hook, policy }),
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

    fn by_default(&self, hook: Hook) -> Option<&'a str> {
        let mut defaults = self.defaults.iter().copied();
        defaults.find(|name| self.exporters(hook).any(|(exporter, _)| exporter == *name))
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
        let answer = |holders: &BTreeMap<Hook, &str>| {
            bind(Circumstances {
                bound: &bound,
                defaults: &DEFAULTS,
                claims: &claims,
                holders,
            })
        };
        let bindings = answer(&held.iter().copied().collect());
        for (hook, name) in &bindings.holders {
            assert!(claims[name.as_str()].hooks.contains(*hook), "{name}");
        }
        let holders = bindings.holders.iter();
        let holders = holders.map(|(hook, name)| (*hook, name.as_str()));
        assert_eq!(answer(&holders.collect()), bindings, "it stays as it is");
        bindings
    }

    fn holders(bindings: &Bindings) -> Vec<(Hook, &str)> {
        let holders = bindings.holders.iter();
        holders.map(|(hook, name)| (*hook, name.as_str())).collect()
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
