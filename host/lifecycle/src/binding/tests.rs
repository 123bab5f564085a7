//! The binding rule, case by case.

use super::*;

const DEFAULTS: [&str; 3] = ["aging", "memory-aware", "budget"];

/// Policies by name and hooks; those of the folder begin with `/`.
fn claimants(policies: &[(&'static str, &[Hook])]) -> BTreeMap<&'static str, Claimant> {
    let mut claimants: BTreeMap<&str, Claimant> = BTreeMap::new();
    for (name, hooks) in policies {
        let hooks = hooks.iter().copied().collect();
        let claimant = claimants.entry(name.trim_start_matches('/')).or_default();
        if name.starts_with('/') {
            claimant.file = Some(Assignment::Enforce(hooks));
        } else {
            claimant.embedded = hooks;
        }
    }
    claimants
}

fn answer(
    configured: &[(Hook, &str)],
    policies: &[(&'static str, &[Hook])],
    held: &[(Hook, &'static str)],
) -> Bindings {
    let configured: Vec<(Hook, String)> = configured
        .iter()
        .map(|(hook, name)| (*hook, (*name).to_owned()))
        .collect();
    let answer = |held: &[(Hook, &str)]| {
        let mut claimants = claimants(policies);
        for (hook, name) in held {
            if let Some(holder) = claimants.get_mut(name) {
                holder.holds.insert(*hook);
            }
        }
        bind(Circumstances {
            ordered: &BTreeMap::new(),
            configured: &configured,
            defaults: &DEFAULTS,
            claimants: &claimants,
            holders: &BTreeMap::new(),
            canaries: &BTreeMap::new(),
        })
    };
    let bindings = answer(held);
    for (hook, holder) in &bindings.holders {
        let claim = claimants(policies)[holder.name.as_str()].claim();
        let (place, hooks) = claim.unwrap();
        assert!(hooks.contains(*hook), "{holder:?}");
        assert_eq!(place, holder.place);
    }
    assert_eq!(answer(&holders(&bindings)), bindings, "it stays as it is");
    bindings
}

fn holders(bindings: &Bindings) -> Vec<(Hook, &str)> {
    let holders = bindings.holders.iter();
    holders
        .map(|(hook, holder)| (*hook, holder.name.as_str()))
        .collect()
}

/// Bindings with a file `mine`, a file called like a default, a shadow, these orders, and hooks
/// that policies have left closed.
fn ordered(orders: &[(Hook, BoundTo)], closed: &[(Hook, &'static str)]) -> Bindings {
    let mut claimants = claimants(&[
        ("aging", &[Hook::Priority]),
        ("memory-aware", &[Hook::Routing]),
        ("/mine", &[Hook::Priority]),
        ("/memory-aware", &[Hook::Routing]),
    ]);
    let shade = claimants.entry("shade").or_default();
    shade.file = Some(Assignment::Shadow(HookSet::from_iter([Hook::Priority])));
    for (hook, name) in closed {
        claimants.entry(name).or_default().closed.insert(*hook);
    }
    bind(Circumstances {
        ordered: &orders.iter().cloned().collect(),
        configured: &[],
        defaults: &DEFAULTS,
        claimants: &claimants,
        holders: &BTreeMap::new(),
        canaries: &BTreeMap::new(),
    })
}

#[test]
fn an_ejected_hook_is_the_embedded_defaults_whatever_is_in_the_folder() {
    let orders = Hook::ALL.map(|hook| (hook, BoundTo::Embedded));
    let bindings = ordered(&orders, &[]);
    let expected = [(Hook::Priority, "aging"), (Hook::Routing, "memory-aware")];
    assert_eq!(holders(&bindings), expected, "the others are the rule's");
    let mut places = bindings.holders.values();
    assert!(places.all(|holder| holder.place == Place::Embedded));
    assert_eq!(bindings.conflicts, []);
}

#[test]
fn an_order_that_cannot_be_followed_is_said_and_the_rest_of_the_rule_holds() {
    let to = |name: &str| BoundTo::Policy(name.to_owned());
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
fn a_hook_that_was_left_closed_is_nobodys_but_by_order() {
    let hook = Hook::Priority;
    let bindings = ordered(&[], &[(hook, "mine")]);
    assert_eq!(holders(&bindings), [(Hook::Routing, "memory-aware")]);
    let policy = "mine".to_owned();
    assert_eq!(bindings.conflicts, [Conflict::Closed { hook, policy }]);
    let bindings = ordered(&[(hook, BoundTo::Embedded)], &[(hook, "mine")]);
    assert_eq!(holders(&bindings)[0], (hook, "aging"));
    assert_eq!(bindings.conflicts, []);
}

#[test]
fn shadows_stand_beside_each_other_and_one_canary_for_a_hook() {
    let both: HookSet = [Hook::Routing, Hook::Priority].into_iter().collect();
    let canary = Assignment::Canary(both, "10%".parse().unwrap());
    for (present, stays) in [(None, "b"), (Some("c"), "c"), (Some("gone"), "b")] {
        let trials = [
            ("a", Assignment::Shadow(both)),
            ("b", canary),
            ("c", canary),
            ("d", Assignment::Shadow(both)),
        ];
        let mut claimants: BTreeMap<&str, Claimant> = BTreeMap::new();
        for (name, trial) in trials {
            claimants.entry(name).or_default().file = Some(trial);
        }
        if let Some(name) = present {
            let tries = &mut claimants.entry(name).or_default().tries;
            tries.insert(Hook::Routing);
        }
        let bindings = bind(Circumstances {
            ordered: &BTreeMap::new(),
            configured: &[],
            defaults: &DEFAULTS,
            claimants: &claimants,
            holders: &BTreeMap::new(),
            canaries: &BTreeMap::new(),
        });
        assert_eq!(holders(&bindings), []);
        let tried = bindings.trials.iter();
        let tried: Vec<_> = tried
            .map(|(name, it)| (name.as_str(), it.hooks()))
            .collect();
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
fn while_the_last_holder_is_late_no_other_file_has_its_hook() {
    let hook = Hook::Priority;
    let hooks: &[Hook] = &[hook];
    let kept = "is kept for the file that held it last, which is still being made ready";
    for file in ["/two", "/aging"] {
        for (is_late, place, reasons) in [
            (true, Place::Embedded, vec![kept]),
            (false, Place::Folder, vec![]),
        ] {
            let mut claimants = claimants(&[AGING, (file, hooks)]);
            claimants.entry("one").or_default().is_late = is_late;
            let bindings = bind(Circumstances {
                ordered: &BTreeMap::new(),
                configured: &[],
                defaults: &DEFAULTS,
                claimants: &claimants,
                holders: &BTreeMap::from([(hook, "one".to_owned())]),
                canaries: &BTreeMap::new(),
            });
            assert_eq!(bindings.holders[&hook].place, place, "{file}");
            let denied = bindings.denied(file.trim_start_matches('/'));
            let denied: Vec<&str> = denied.iter().map(|(_, why)| why.as_str()).collect();
            assert_eq!(denied, reasons, "{file}");
        }
    }
}

#[test]
fn while_the_last_canary_is_late_no_other_file_is_it() {
    let routing: HookSet = [Hook::Routing].into_iter().collect();
    for (is_late, n_trials) in [(true, 0), (false, 1)] {
        let mut claimants: BTreeMap<&str, Claimant> = BTreeMap::new();
        let canary = Assignment::Canary(routing, "10%".parse().unwrap());
        claimants.entry("two").or_default().file = Some(canary);
        claimants.entry("one").or_default().is_late = is_late;
        let bindings = bind(Circumstances {
            ordered: &BTreeMap::new(),
            configured: &[],
            defaults: &DEFAULTS,
            claimants: &claimants,
            holders: &BTreeMap::new(),
            canaries: &BTreeMap::from([(Hook::Routing, "one".to_owned())]),
        });
        assert_eq!(bindings.trials.len(), n_trials);
    }
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

/// For each combination, a second answer from the bindings of the first is the same: `answer`
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
