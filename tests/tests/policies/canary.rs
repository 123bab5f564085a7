//! Canaries: policies that answer for a share of the tenants.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pointsman_component::PolicyEngine;
use pointsman_core::{Author, Fact, Hook, Micros, RequestId};
use pointsman_policy::{
    BindError, Canary, CanaryShare, CanaryUnit, Mode, Patience, Percent, PolicyEventKind,
    PolicyHost, Probation, RollbackWhy,
};
use pointsman_tests::trial::{TENANTS, add, guest, hooks, routers, serve, world};

fn share(percent: u8) -> CanaryShare {
    Percent::new(percent).unwrap().into()
}

/// A fair draw of 10,000 tenants is off by more than 200 less than once in 15,000 times: four
/// standard deviations at a half, more elsewhere. The names are always the same, so the result is
/// too.
#[test]
fn a_canary_has_its_share_of_ten_thousand_tenants() {
    let names: Vec<String> = (0..10_000).map(|n| format!("tenant-{n}")).collect();
    for percent in 1..=100 {
        let canary = Canary {
            policy: 0,
            share: share(percent),
        };
        let has = names
            .iter()
            .filter(|name| canary.has(name.as_bytes()))
            .count();
        let off = has.abs_diff(usize::from(percent) * 100);
        assert!(off <= 200, "{has} of 10,000 tenants at {percent}%");
    }
}

#[test]
fn the_tenants_of_a_share_are_among_those_of_any_larger_one() {
    for n in 0..10_000 {
        let name = format!("tenant-{n}");
        let in_share = |percent| {
            let share = share(percent);
            Canary { policy: 0, share }.has(name.as_bytes())
        };
        let first = (1..=100).find(|percent| in_share(*percent)).unwrap();
        let all_above = (first..=100).all(in_share);
        assert!(all_above, "{name} is in {first}% and not in all above");
    }
}

#[test]
fn who_tries_a_canary_does_not_change_between_releases() {
    let tries = |name: &str| {
        let all = 1..=100;
        let share = all.into_iter().find(|percent| {
            let share = share(*percent);
            Canary { policy: 0, share }.has(name.as_bytes())
        });
        share.unwrap()
    };
    let known = ["default", "acme", "globex", ""].map(tries);
    assert_eq!(known, KNOWN_SHARES);
}

/// The smallest share that contains the tenants `default`, `acme`, `globex` and the nameless one:
/// the first eight bytes of SHA-256 of the name, as percent of 2^64, rounded down, plus one.
const KNOWN_SHARES: [u8; 4] = [22, 51, 36, 89];

/// A host with one plain guest in force, and another as a canary for half of the tenants.
fn half(engine: &PolicyEngine, canary: &str) -> (PolicyHost, u32, u32) {
    let mut host = PolicyHost::new(Patience::default());
    let steady = add(&mut host, guest(engine, "{}"));
    let tried = hooks(&[Hook::Admission, Hook::Routing]);
    host.bind(Micros(0), steady, tried).unwrap();
    let canary = add(&mut host, guest(engine, canary));
    host.bind_canary(Micros(0), canary, tried, share(50))
        .unwrap();
    assert_eq!(host.mode(canary), Some(Mode::Canary(share(50))));
    (host, steady, canary)
}

/// True if a request of [`serve`] belongs to a tenant that tries the canary.
fn tries(canary: u32, request: RequestId) -> bool {
    let canary = Canary {
        policy: canary,
        share: share(50),
    };
    let tenant = format!("tenant-{}", request.0 % u64::from(TENANTS));
    canary.has(tenant.as_bytes())
}

#[test]
fn the_same_sessions_and_requests_try_a_canary_in_every_release() {
    let share = CanaryShare {
        percent: Percent::new(30).unwrap(),
        of: CanaryUnit::Sessions,
    };
    let canary = Canary { policy: 0, share };
    let tries: Vec<u64> = (0..20)
        .filter(|n: &u64| canary.has(&n.to_be_bytes()))
        .collect();
    assert_eq!(tries, KNOWN_KEYS);
}

/// The keys below 20, as eight bytes, that a share of 30 percent contains.
const KNOWN_KEYS: [u64; 5] = [6, 8, 11, 13, 19];

#[test]
fn a_canary_answers_for_its_tenants_and_each_run_sees_what_the_one_before_it_placed() {
    let engine = PolicyEngine::new().unwrap();
    let (host, steady, canary) = half(&engine, "{}");
    let mut world = world(host);
    serve(&mut world, 200);
    let placed = routers(world.facts());
    assert_eq!(placed.len(), 200);
    for (request, author) in &placed {
        let expected = if tries(canary, *request) {
            canary
        } else {
            steady
        };
        assert_eq!(*author, Author::Policy(expected), "request {request}");
    }
    let both = [steady, canary].map(|policy| {
        let authors = placed
            .iter()
            .filter(|(_, author)| *author == Author::Policy(policy));
        authors.count()
    });
    assert!(
        both.iter().all(|count| *count >= 25),
        "{both:?} show little"
    );
    // Both policies take the first executor with a free slot. If they did not see each other's
    // placements they would take the same slots, and the second would be refused.
    let refused: Vec<_> = world
        .facts()
        .iter()
        .filter(|stamped| matches!(stamped.fact, Fact::Refused(..)))
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
    let admitted = world.facts().iter().filter_map(|stamped| {
        if let Fact::Admitted(request, by) = stamped.fact {
            return Some((request, by.author));
        }
        None
    });
    for (request, author) in admitted {
        let expected = if tries(canary, request) {
            canary
        } else {
            steady
        };
        assert_eq!(author, Author::Policy(expected), "request {request}");
    }
}

#[test]
fn where_a_canary_fails_the_policy_in_force_answers_for_its_tenants_too() {
    let engine = PolicyEngine::new().unwrap();
    let (host, steady, canary) = half(&engine, r#"{"outrage": "trap", "calls": ["route"]}"#);
    let mut world = world(host);
    serve(&mut world, 400);
    let placed = routers(world.facts());
    assert!(
        placed
            .iter()
            .all(|(_, author)| *author == Author::Policy(steady))
    );
    let faults = world.facts().iter().filter_map(|stamped| {
        if let Fact::Fault(_, fault) = &stamped.fact {
            return Some(fault.policy);
        }
        None
    });
    assert_eq!(faults.collect::<Vec<_>>(), [canary; 5]);
    assert_eq!(
        world.policies.canary(Hook::Routing),
        None,
        "it is in quarantine"
    );
    assert_eq!(world.policies.quarantined().count(), 1);
}

#[test]
fn a_strike_on_a_request_of_its_tenants_is_the_canarys() {
    let engine = PolicyEngine::new().unwrap();
    let (host, steady, canary) = half(&engine, r#"{"answers": "hold-for-ever"}"#);
    let mut world = world(host);
    serve(&mut world, 8);
    let struck = std::iter::from_fn(|| world.policies.poll_event()).filter_map(|event| {
        let is_strike = matches!(event.kind, PolicyEventKind::Struck { .. });
        is_strike.then_some(event.policy)
    });
    assert_eq!(struck.collect::<Vec<_>>().first(), Some(&canary));
    let strikes = world.policies.status().map(|status| {
        let struck = status.stats.faults.get(&pointsman_core::FaultKind::Struck);
        (status.number, struck.copied().unwrap_or(0))
    });
    let of_steady = strikes.into_iter().find(|(number, _)| *number == steady);
    assert_eq!(of_steady, Some((steady, 0)));
}

#[test]
fn a_promoted_canary_answers_for_everybody_and_one_that_is_rolled_back_for_nobody() {
    let engine = PolicyEngine::new().unwrap();
    let (host, steady, canary) = half(&engine, "{}");
    let mut promoted = world(host);
    promoted.policies.promote(Micros(0), canary).unwrap();
    assert_eq!(promoted.policies.mode(canary), Some(Mode::Enforce));
    serve(&mut promoted, 40);
    let mut placed = routers(promoted.facts()).into_iter();
    assert!(placed.all(|(_, author)| author == Author::Policy(canary)));

    let (host, _, canary) = half(&engine, "{}");
    let mut rolled_back = world(host);
    let to = rolled_back.policies.rollback(Micros(0), canary, "no");
    assert_eq!(to, Ok(vec![steady]));
    serve(&mut rolled_back, 40);
    let mut placed = routers(rolled_back.facts()).into_iter();
    assert!(placed.all(|(_, author)| author == Author::Policy(steady)));
}

#[test]
fn only_hooks_that_are_about_single_requests_have_canaries() {
    let engine = PolicyEngine::new().unwrap();
    let mut host = PolicyHost::new(Patience::default());
    let policy = add(&mut host, guest(&engine, "{}"));
    for hook in Hook::ALL {
        let bound = host.bind_canary(Micros(0), policy, hooks(&[hook]), share(10));
        let can = matches!(hook, Hook::Admission | Hook::Routing);
        let expected = if can {
            Ok(())
        } else {
            Err(BindError::NoCanary(hook))
        };
        assert_eq!(bound, expected);
    }
}

#[test]
fn a_canary_on_probation_is_held_against_the_policy_in_force_beside_it() {
    let engine = PolicyEngine::new().unwrap();
    let (mut host, steady, slow) = half(&engine, r#"{"toil": 300000}"#);
    host.begin_probation(Micros(0), slow, Probation::default())
        .unwrap();
    let mut world = world(host);
    serve(&mut world, 600);
    let rolled_back = std::iter::from_fn(|| world.policies.poll_event()).find_map(|event| {
        if let PolicyEventKind::RolledBack { to, why } = event.kind {
            return (event.policy == slow).then_some((to, why));
        }
        None
    });
    let (to, why) = rolled_back.expect("it is rolled back");
    assert_eq!(to, [steady]);
    assert!(matches!(why, RollbackWhy::Fuel { .. }), "{why}");
    assert_eq!(world.policies.canary(Hook::Routing), None);
    let last = routers(world.facts()).pop();
    assert_eq!(last.map(|(_, author)| author), Some(Author::Policy(steady)));
}
