//! The consequences for a policy in force that misbehaves: it loses its instance, then its hooks,
//! and no request is lost.
//!
//! `hostile.rs` tests the effects on requests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pointsman_component::{Limits, PolicyEngine};
use pointsman_core::HookSet;
use pointsman_core::{
    Author, Config, Fact, FaultKind, Hook, Input, Micros, NewRequest, Outcome, Question, TenantId,
    rows::NameKind,
};
use pointsman_policy::{
    Cause, Patience, PolicyEvent, PolicyEventKind, PolicyHost, PolicySource, PolicyStatus,
    Probation, Restored, RollbackWhy, SelfTestError, self_test, start,
};
use pointsman_sim::World;
use pointsman_testkit::Flavour;
use pointsman_tests::fleet::{self, Defaults};

const SECOND: u64 = 1_000_000;

/// Time between requests, long enough that each finds room.
const PAUSE: Micros = Micros(20_000);

fn guest(engine: &PolicyEngine, settings: &str) -> PolicySource {
    let component = fleet::load(engine, "test/hostile").unwrap();
    PolicySource::component(&component, &fleet::settings(settings), Limits::default())
}

/// Puts a policy in force for `hooks`.
fn bind(host: &mut PolicyHost, source: PolicySource, hooks: &[Hook]) -> u32 {
    let policy = host.add(start(source).unwrap()).unwrap();
    let hooks: HookSet = hooks.iter().copied().collect();
    host.bind(Micros(0), policy, hooks).unwrap();
    policy
}

/// A world of four engines with four slots each, blocks for all of them, and two tenants.
fn world(host: PolicyHost) -> World<PolicyHost> {
    let config = Config {
        unplaced_max: Micros(2 * SECOND),
        held_max: Micros(0),
        ..Config::default()
    };
    let (mut world, _) = fleet::small_world(config, host, (4, 4, 512));
    for text in ["rich", "poor"] {
        world.input(Input::NameInterned {
            kind: NameKind::Tenant,
            text: text.into(),
        });
    }
    world
}

/// Serves `requests` requests, one after the other, of both tenants in turn.
fn serve(world: &mut World<PolicyHost>, requests: u32) {
    for n in 0..requests {
        world.arrive(NewRequest::new(TenantId(n % 2), 20 + n % 7, 8), 4);
        let later = world.now().after(PAUSE);
        world.run_until(later);
    }
    let end = world.now().after(Micros(60 * SECOND));
    assert!(world.run_out(end), "left without an outcome");
    for stamped in world.facts() {
        if let Fact::Ended(request, outcome) = stamped.fact {
            let served = matches!(outcome, Outcome::Finished { .. });
            assert!(served, "request {request} ended as {outcome:?}");
        }
    }
}

/// The author of each placement, in order.
fn routers(world: &World<PolicyHost>) -> Vec<Author> {
    let facts = world.facts().iter();
    let placed = facts.filter_map(|stamped| {
        if let Fact::Placed { by, .. } = &stamped.fact {
            return Some(by.author);
        }
        None
    });
    placed.collect()
}

fn events(host: &mut PolicyHost) -> Vec<PolicyEvent> {
    std::iter::from_fn(|| host.poll_event()).collect()
}

fn status(host: &PolicyHost, policy: u32) -> PolicyStatus {
    let mut status = host.status();
    status.find(|status| status.number == policy).unwrap()
}

// === Faults ===

#[test]
fn a_guest_that_faults_after_a_thousand_good_answers_loses_its_hook_and_no_request() {
    let engine = PolicyEngine::new().unwrap();
    let defaults = Defaults::load(&engine).unwrap();
    let mut host = defaults.host(Flavour::Component).unwrap();
    let settings = r#"{"outrage": "trap", "calls": ["route"], "good-calls": 1000}"#;
    let policy = bind(&mut host, guest(&engine, settings), &[Hook::Routing]);
    let default = 1;
    let mut world = world(host);
    serve(&mut world, 2600);

    let routers = routers(&world);
    let good = routers.iter().position(|by| *by != Author::Policy(policy));
    assert_eq!(good, Some(1000), "good answers before the first other one");
    assert!(
        !routers.contains(&Author::BuiltIn),
        "the default stood behind"
    );
    assert_eq!(routers.last(), Some(&Author::Policy(default)));

    // Its fresh instances got its last snapshot, which counts the good answers.
    let events = events(&mut world.policies);
    let warm = events.iter().filter(|event| {
        let restored = Restored::Warm;
        matches!(&event.kind, PolicyEventKind::Restarted { restored: as_, .. } if *as_ == restored)
    });
    assert!(warm.count() >= 1, "{events:?}");
    let quarantined = world.policies.quarantined().next().unwrap();
    assert_eq!(
        (quarantined.name.as_str(), quarantined.cause),
        ("hostile", Cause::Faulted)
    );
    assert_eq!(world.policies.holder(Hook::Routing), Some(default));
}

#[test]
fn a_fault_leaves_a_dump_with_the_question_and_the_names_of_functions() {
    let engine = PolicyEngine::new().unwrap();
    let mut host = PolicyHost::new(Patience::default());
    let settings = r#"{"outrage": "trap", "calls": ["route"]}"#;
    let policy = bind(&mut host, guest(&engine, settings), &[Hook::Routing]);
    let mut world = world(host);
    serve(&mut world, 1);
    let dump = world.policies.poll_dump().unwrap();
    assert_eq!((dump.policy, dump.kind), (policy, FaultKind::Trap));
    let asked = dump.asked.question().map(Question::hook);
    assert_eq!(asked, Some(Hook::Routing));
    assert!(dump.mirror.is_some_and(|mirror| mirror.rows > 0));
    assert!(
        dump.detail.contains("outrage"),
        "no names in {}",
        dump.detail
    );
    assert!(dump.settings.contains("trap"), "{}", dump.settings);
}

#[test]
fn the_fault_of_one_policy_does_not_touch_the_store_of_another() {
    let engine = PolicyEngine::new().unwrap();
    // Two instances of one component: one traps in each of its answers, the other goes on.
    let trap = r#"{"outrage": "trap", "calls": ["route"]}"#;
    let count = r#"{"outrage": "trap", "calls": ["admit"], "good-calls": 4000000}"#;
    let run = |with: Option<&str>| {
        let mut host = PolicyHost::new(Patience::default());
        let other = bind(&mut host, guest(&engine, count), &[Hook::Admission]);
        if let Some(settings) = with {
            bind(&mut host, guest(&engine, settings), &[Hook::Routing]);
        }
        let mut world = world(host);
        serve(&mut world, 120);
        let now = world.now();
        let state = world.policies.handover(now, other).unwrap().state;
        (status(&world.policies, other), state, world)
    };
    let (alone, state_alone, _) = run(None);
    let (beside, state_beside, world) = run(Some(trap));
    assert_eq!(
        world.policies.quarantined().count(),
        1,
        "the other one went"
    );
    assert_eq!(beside.counters.generation, 1);
    assert!(beside.stats.faults.is_empty());
    assert_eq!(beside.stats.answers[Hook::Admission], 120);
    assert_eq!(beside.stats.answers, alone.stats.answers);
    assert_eq!(state_beside, state_alone, "what it knows is its own");
}

#[test]
fn a_guest_whose_restore_loops_begins_without_its_state() {
    let engine = PolicyEngine::new().unwrap();
    let mut host = PolicyHost::new(Patience {
        snapshot_every: 2,
        ..Patience::default()
    });
    let settings = r#"{"outrage": "loop", "calls": ["route", "restore"]}"#;
    let hooks = [Hook::Admission, Hook::Priority, Hook::Routing];
    let policy = bind(&mut host, guest(&engine, settings), &hooks);
    let mut world = world(host);
    serve(&mut world, 12);
    let events = events(&mut world.policies);
    let restored = events.iter().find_map(|event| {
        if let PolicyEventKind::Restarted { restored, .. } = &event.kind {
            return Some(restored.clone());
        }
        None
    });
    let Some(Restored::Faulted(fault)) = restored else {
        panic!("policy {policy} restarted as {restored:?}")
    };
    assert_eq!(fault.kind, FaultKind::Fuel);
}

#[test]
fn a_guest_whose_snapshot_is_a_gigabyte_gives_none_and_is_asked_on() {
    let engine = PolicyEngine::new().unwrap();
    let mut host = PolicyHost::new(Patience {
        snapshot_every: 8,
        ..Patience::default()
    });
    let settings = r#"{"outrage": "gigabyte", "calls": ["snapshot"]}"#;
    let policy = bind(&mut host, guest(&engine, settings), &[Hook::Routing]);
    let mut world = world(host);
    serve(&mut world, 60);
    let status = status(&world.policies, policy);
    let stats = status.stats;
    assert_eq!(status.counters.snapshots_kept, 0);
    assert_eq!(
        stats.faults.get(&FaultKind::Memory),
        Some(&1),
        "{:?}",
        stats.faults
    );
    assert_eq!(
        stats.faults.values().sum::<u64>(),
        1,
        "once, and never asked again"
    );
    let events = events(&mut world.policies);
    let ended = |event: &PolicyEvent| matches!(event.kind, PolicyEventKind::SnapshotsEnded { .. });
    assert_eq!(events.iter().filter(|event| ended(event)).count(), 1);
    assert_eq!(routers(&world).last(), Some(&Author::Policy(policy)));
}

// === Probation ===

/// A world in which the plain guest has answered for a while, and then this one displaces it, on
/// probation.
fn succeed(engine: &PolicyEngine, settings: &str) -> (World<PolicyHost>, u32, u32) {
    let mut host = PolicyHost::new(Patience::default());
    let plain = bind(&mut host, guest(engine, "{}"), &[Hook::Routing]);
    let mut world = world(host);
    serve(&mut world, 80);
    let now = world.now();
    let host = &mut world.policies;
    let new = host.add(start(guest(engine, settings)).unwrap()).unwrap();
    host.swap(now, plain, new).unwrap();
    host.begin_probation(now, new, Probation::default())
        .unwrap();
    while host.poll_event().is_some() {}
    (world, plain, new)
}

fn rolled_back(host: &mut PolicyHost, policy: u32) -> (Vec<u32>, RollbackWhy) {
    let found = events(host).into_iter().find_map(|event| {
        if let PolicyEventKind::RolledBack { to, why } = event.kind {
            return (event.policy == policy).then_some((to, why));
        }
        None
    });
    found.expect("it was rolled back")
}

#[test]
fn a_guest_that_is_right_but_slow_is_rolled_back_for_its_fuel() {
    let engine = PolicyEngine::new().unwrap();
    let (mut world, plain, slow) = succeed(&engine, r#"{"toil": 300000}"#);
    serve(&mut world, 80);
    let (to, why) = rolled_back(&mut world.policies, slow);
    assert_eq!(to, [plain]);
    assert!(matches!(why, RollbackWhy::Fuel { .. }), "{why}");
    let routers = routers(&world);
    assert_eq!(routers.len(), 160);
    assert!(routers.contains(&Author::Policy(slow)), "it was right");
    assert_eq!(routers.last(), Some(&Author::Policy(plain)));
    assert_eq!(world.policies.rolled_back().count(), 1);
}

#[test]
fn what_a_slow_guest_costs_is_shown_by_hook() {
    let engine = PolicyEngine::new().unwrap();
    let mut host = PolicyHost::new(Patience::default());
    let slow = bind(
        &mut host,
        guest(&engine, r#"{"toil": 300000}"#),
        &[Hook::Routing],
    );
    let plain = bind(&mut host, guest(&engine, "{}"), &[Hook::Priority]);
    let mut world = world(host);
    serve(&mut world, 20);
    let median = |policy, hook| {
        let stats = status(&world.policies, policy).stats;
        stats.fuel[hook].quantile(500)
    };
    let (much, little) = (median(slow, Hook::Routing), median(plain, Hook::Priority));
    assert!(much > Some(300_000), "{much:?}");
    assert!(little < Some(100_000), "{little:?}");
    let latency = status(&world.policies, slow).stats.latency;
    assert_eq!(latency[Hook::Routing].total(), 20);
    assert_eq!(latency[Hook::Priority].total(), 0);
}

#[test]
fn a_guest_that_starves_one_tenant_is_rolled_back_at_the_first_strike() {
    let engine = PolicyEngine::new().unwrap();
    let settings = r#"{"answers": "starve-tenant", "tenant": "poor"}"#;
    let (mut world, plain, unfair) = succeed(&engine, settings);
    serve(&mut world, 200);
    let (to, why) = rolled_back(&mut world.policies, unfair);
    assert_eq!(to, [plain]);
    let RollbackWhy::Faults { faults, detail } = why else {
        panic!("{why}")
    };
    assert_eq!(faults, 1);
    assert!(
        detail.contains(" let a bound run out at routing"),
        "{detail}"
    );
    assert_eq!(routers(&world).last(), Some(&Author::Policy(plain)));
}

#[test]
fn a_guest_that_starves_one_tenant_loses_its_hook_without_probation_too() {
    let engine = PolicyEngine::new().unwrap();
    let mut host = PolicyHost::new(Patience::default());
    let settings = r#"{"answers": "starve-tenant", "tenant": "poor"}"#;
    let policy = bind(&mut host, guest(&engine, settings), &[Hook::Routing]);
    let mut world = world(host);
    serve(&mut world, 1500);
    let struck = events(&mut world.policies).into_iter().filter(|event| {
        event.policy == policy && matches!(event.kind, PolicyEventKind::Struck { .. })
    });
    assert_eq!(struck.count(), 5);
    assert_eq!(world.policies.quarantined().count(), 1);
    assert_eq!(world.policies.holder(Hook::Routing), None);
}

// === Self-test ===

#[test]
fn every_default_policy_passes_the_self_test() {
    let engine = PolicyEngine::new().unwrap();
    let defaults = Defaults::load(&engine).unwrap();
    for (name, _) in fleet::DEFAULTS {
        let source = defaults.source(name, Flavour::Component).unwrap();
        assert_eq!(self_test(&source), Ok(()), "{name}");
    }
    assert_eq!(self_test(&guest(&engine, "{}")), Ok(()));
}

#[test]
fn guests_that_go_wrong_at_once_fail_the_self_test() {
    let engine = PolicyEngine::new().unwrap();
    for call in ["admit", "order", "route"] {
        let settings = format!(r#"{{"outrage": "trap", "calls": ["{call}"]}}"#);
        let error = self_test(&guest(&engine, &settings)).unwrap_err();
        assert!(
            matches!(error, SelfTestError::Faulted { .. }),
            "{call}: {error}"
        );
    }
    for answers in [
        "unknown-executors",
        "twice",
        "displace-unknown",
        "allot-too-much",
    ] {
        let settings = format!(r#"{{"answers": "{answers}"}}"#);
        let error = self_test(&guest(&engine, &settings)).unwrap_err();
        assert!(
            matches!(error, SelfTestError::Malformed { .. }),
            "{answers}: {error}"
        );
    }
}
