//! The three default policies together as they ship: as components in three stores, over random
//! work, and natively over the same work.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking, and looks only for the facts it is about"
)]

use fastrand::Rng;
use pointsman_component::PolicyEngine;
use pointsman_core::rows::{Health, NameKind, RequestClass};
use pointsman_core::{
    Author, Config, ExecutorId, ExecutorSpec, ExecutorUpdate, Fact, Hook, Input, Micros, ModelId,
    NewRequest, Outcome, Stamped, TenantId,
};
use pointsman_policy::PolicyHost;
use pointsman_sim::{EngineProfile, World, replay};
use pointsman_testkit::Flavour;
use pointsman_tests::fleet::{self, Defaults};

const SECOND: u64 = 1_000_000;

fn names(world: &mut World<PolicyHost>) {
    for n in 0..3 {
        for (kind, text) in [
            (NameKind::Tenant, format!("tenant{n}")),
            (NameKind::Model, format!("model{n}")),
        ] {
            world.input(Input::NameInterned { kind, text });
        }
    }
}

/// Bounds of a host that lets requests wait for an executor that is lost.
fn config() -> Config {
    Config {
        unserved_max: Config::default().wait_max,
        ..Config::default()
    }
}

/// Four engines on one device, two of them with one model at a time.
fn fleet_of_four(host: PolicyHost) -> (World<PolicyHost>, Vec<ExecutorId>) {
    let (mut world, mut executors) = fleet::small_world(config(), host, (2, 3, 120));
    names(&mut world);
    let device = world
        .machine
        .executor_snapshot(executors[0])
        .unwrap()
        .device;
    for name in ["single0", "single1"] {
        let spec = ExecutorSpec {
            models_max: Some(1),
            model_unload_delay: Micros(3 * SECOND),
            queue_limit: 1,
            ..fleet::executor(name, device, 2)
        };
        executors.push(
            world
                .attach_executor(spec, EngineProfile::default())
                .unwrap(),
        );
    }
    (world, executors)
}

/// A request that waits: one that would not is refused where all that could take it are saturated.
fn request(rng: &mut Rng) -> NewRequest {
    NewRequest {
        model: Some(ModelId(rng.u32(0..3))),
        class: if rng.u32(0..3) == 0 {
            RequestClass::Throughput
        } else {
            RequestClass::LatencyCritical
        },
        priority: rng.i32(-1..2),
        ..NewRequest::new(TenantId(rng.u32(0..3)), rng.u32(1..200), rng.u32(1..150))
    }
}

fn run(seed: u64, host: PolicyHost) -> World<PolicyHost> {
    let mut rng = Rng::with_seed(seed);
    let (mut world, executors) = fleet_of_four(host);
    for _ in 0..120 {
        let new = request(&mut rng);
        let request = world.arrive(new, rng.u32(1..150));
        match rng.u32(0..30) {
            0 => drop(world.input(Input::RequestCancelled(request))),
            1 => world.lose(executors[rng.usize(0..4)]),
            2..5 => {
                let up = ExecutorUpdate::Health(Health::Up);
                world.update(executors[rng.usize(0..4)], up);
            }
            _ => {}
        }
        let pause = world.now().after(Micros(rng.u64(0..SECOND / 3)));
        world.run_until(pause);
    }
    for executor in executors {
        world.update(executor, ExecutorUpdate::Health(Health::Up));
    }
    let end = world.now().after(Micros(300 * SECOND));
    assert!(world.run_out(end), "seed {seed}: something is left");
    world
}

/// True for a fact that no default policy should cause.
fn is_misbehaviour(fact: &Stamped) -> bool {
    matches!(
        fact.fact,
        Fact::Refused(Author::Policy(_), ..) | Fact::Fault(..) | Fact::Strike(..)
    )
}

fn decisions_by_policies(world: &World<PolicyHost>) -> usize {
    let placed = world.facts().iter().filter(
        |stamped| matches!(&stamped.fact, Fact::Placed { by, .. } if by.author != Author::BuiltIn),
    );
    placed.count()
}

#[test]
fn the_defaults_serve_everything_and_are_never_refused() {
    let defaults = Defaults::load(&PolicyEngine::new().unwrap()).unwrap();
    for seed in 0..8 {
        let host = defaults.host(Flavour::Component).unwrap();
        let world = run(seed, host);
        let wrong: Vec<&Stamped> = world
            .facts()
            .iter()
            .filter(|f| is_misbehaviour(f))
            .collect();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
        assert!(decisions_by_policies(&world) > 100, "seed {seed}");
        let unserved = world.facts().iter().filter(|stamped| match stamped.fact {
            Fact::Ended(_, outcome) => !matches!(
                outcome,
                Outcome::Finished { .. } | Outcome::Cancelled | Outcome::Failed(_)
            ),
            _ => false,
        });
        let unserved: Vec<&Stamped> = unserved.collect();
        assert!(unserved.is_empty(), "seed {seed}: {unserved:#?}");
    }
}

#[test]
fn components_decide_exactly_as_the_same_policies_linked_in() {
    let defaults = Defaults::load(&PolicyEngine::new().unwrap()).unwrap();
    for seed in 0..4 {
        let facts = [Flavour::Component, Flavour::Native].map(|flavour| {
            let host = defaults.host(flavour).unwrap();
            run(seed, host).facts().to_vec()
        });
        let [component, native] = facts;
        let differs = component.iter().zip(&native).find(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(component.len(), native.len(), "seed {seed}");
    }
}

#[test]
fn a_recorded_run_is_decided_the_same_by_fresh_components() {
    let defaults = Defaults::load(&PolicyEngine::new().unwrap()).unwrap();
    let host = defaults.host(Flavour::Component).unwrap();
    let world = run(11, host);
    let mut again = defaults.host(Flavour::Component).unwrap();
    let (facts, effects) = replay(config(), &mut again, world.recording()).unwrap();
    assert_eq!(facts, world.facts());
    assert_eq!(effects, world.effects());
}

/// Tests a fault, a restart and a swap in the middle of a run: sequences in flight go on.
#[test]
fn a_swap_between_two_rounds_keeps_everything_in_flight() {
    let defaults = Defaults::load(&PolicyEngine::new().unwrap()).unwrap();
    let host = defaults.host(Flavour::Component).unwrap();
    let (mut world, _) = fleet_of_four(host);
    let mut rng = Rng::with_seed(3);
    for n in 0..60 {
        world.arrive(request(&mut rng), 60);
        if n % 5 == 4 {
            let source = defaults.source("memory-aware", Flavour::Component);
            let started = pointsman_policy::start(source.unwrap()).unwrap();
            let old = world.policies.holder(Hook::Routing).unwrap();
            let new = world.policies.add(started).unwrap();
            world.policies.swap(world.now(), old, new).unwrap();
        }
        let pause = world.now().after(Micros(100_000));
        world.run_until(pause);
    }
    let end = world.now().after(Micros(300 * SECOND));
    assert!(world.run_out(end));
    let wrong: Vec<&Stamped> = world
        .facts()
        .iter()
        .filter(|f| is_misbehaviour(f))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let routers = world
        .facts()
        .iter()
        .filter_map(|stamped| match &stamped.fact {
            Fact::Placed { by, .. } => Some(by.author),
            _ => None,
        });
    let routers: std::collections::BTreeSet<Author> = routers.collect();
    assert!(
        routers.len() > 10,
        "each of twelve swaps decided: {routers:?}"
    );
}
