//! The feed of a policy: its mirror equals the machine's rows at every question, the rows that a
//! refused answer named come again, and rows that the policy did not ask for never come.
//!
//! A failure prints its seed.

mod common;

use common::fed::{ALL, Fed, fed_with};
use common::{
    AnyWorld, MODEL_A, MODEL_B, SECOND, Scripted, add_device, add_executor, arrive, executor_with,
    request, world_of,
};
use fastrand::Rng;
use pointsman_core::rows::{Change, Extent, FeedKinds, Health, RequestClass};
use pointsman_core::{
    BlockHash, Config, DeviceId, ExecutorId, ExecutorUpdate, Input, Micros, NewRequest, Policies,
    RefusalCause, RequestId, RetryClass, routing,
};
use pointsman_sim::{Adversary, EngineProfile};

// === Random runs ===

fn some_request(rng: &mut Rng) -> NewRequest {
    let prompt_tokens = rng.u32(1..40);
    let hashes = 0..rng.u32(0..6).min(prompt_tokens / 4);
    NewRequest {
        model: rng.choice([None, Some(MODEL_A), Some(MODEL_B)]).flatten(),
        class: if rng.bool() {
            RequestClass::LatencyCritical
        } else {
            RequestClass::Throughput
        },
        prompt_hashes: hashes.map(|n| BlockHash(n.into())).collect(),
        ..request(prompt_tokens, rng.u32(1..40))
    }
}

fn some_update(rng: &mut Rng) -> ExecutorUpdate {
    match rng.u32(0..8) {
        0 => ExecutorUpdate::Health(Health::Down),
        1 => ExecutorUpdate::Health(Health::Draining),
        2..5 => ExecutorUpdate::Health(Health::Up),
        5 => ExecutorUpdate::SlotsTotal(rng.u32(1..4)),
        6 => ExecutorUpdate::ShareWeight(rng.u32(1..5)),
        _ => ExecutorUpdate::Detach,
    }
}

fn some_event<P: Policies>(rng: &mut Rng, world: &mut AnyWorld<P>) {
    let executor = rng.choice(world.machine.executor_ids().collect::<Vec<_>>());
    let request = rng.choice(world.unended().collect::<Vec<_>>());
    match (rng.u32(0..100), executor, request) {
        (0..40, _, _) => {
            let new = some_request(rng);
            world.arrive(new, u32::MAX);
        }
        (40..46, _, Some(request)) => drop(world.input(Input::RequestCancelled(request))),
        (46..52, Some(executor), _) => world.update(executor, some_update(rng)),
        (52..56, Some(executor), Some(request)) => {
            world.fail(executor, request, RetryClass::Elsewhere);
        }
        (56..60, _, _) => {
            let device = DeviceId(rng.u32(0..2));
            executor_with(world, device, |spec, profile| {
                *profile = EngineProfile {
                    leave_steps: rng.u32(1..4),
                    ..EngineProfile::default()
                };
                spec.slots_total = rng.u32(1..4);
                spec.models_max = rng.bool().then_some(1);
                spec.queue_limit = rng.u32(0..2);
                spec.preempts = rng.u32(0..4) > 0;
                spec.model_unload_delay = Micros(rng.u64(0..2) * SECOND);
            });
        }
        _ => {
            let until = world.now().after(Micros(rng.u64(0..SECOND)));
            world.run_until(until);
        }
    }
}

/// A random run; panics where the mirror of `fed` is wrong.
fn run<P: Policies>(seed: u64, fed: Fed<P>) -> AnyWorld<Fed<P>> {
    let mut rng = Rng::with_seed(seed);
    let config = Config {
        queue_max: rng.u32(1..30),
        parking_max: rng.u32(0..10),
        batch_max: rng.u32(1..8),
        unplaced_max: Micros(2 * SECOND),
        change_log_max: 64,
        ..Config::default()
    };
    let mut world = world_of(config, fed);
    for _ in 0..2 {
        let device = add_device(&mut world, rng.u32(10..40));
        add_executor(&mut world, device, 2);
    }
    for _ in 0..200 {
        some_event(&mut rng, &mut world);
        world.settle();
    }
    world
}

fn for_seeds(check: impl Fn(u64)) {
    for seed in 0..30 {
        let check = std::panic::AssertUnwindSafe(|| check(seed));
        let ran = std::panic::catch_unwind(check);
        assert!(ran.is_ok(), "failed with seed {seed}");
    }
}

#[test]
fn a_mirror_folded_from_changes_equals_the_rows_at_every_question() {
    for_seeds(|seed| {
        let sanity = [20, 90, 100][(seed % 3) as usize];
        let world = run(seed, fed_with(Adversary::new(seed, sanity), ALL));
        let told = &world.policies.sink.told;
        assert!(told.len() > 50, "{} questions are few", told.len());
        let again = told
            .iter()
            .filter(|(extent, _)| *extent == Extent::SinceLast);
        assert!(again.count() > 50);
    });
}

#[test]
fn kinds_that_a_policy_does_not_want_never_come_and_the_others_do() {
    for_seeds(|seed| {
        let kinds = FeedKinds {
            waiting: seed & 1 > 0,
            sequences: seed & 2 > 0,
            completed: seed & 4 > 0,
        };
        let world = run(seed, fed_with(Adversary::new(seed, 90), kinds));
        let told = world
            .policies
            .sink
            .told
            .iter()
            .flat_map(|(_, changes)| changes);
        let mut came = FeedKinds::default();
        for change in told {
            match change {
                Change::Waiting(_) | Change::WaitingGone(_) => came.waiting = true,
                Change::Sequence(_) | Change::SequenceGone(_) => came.sequences = true,
                Change::Completed(_) => came.completed = true,
                Change::Name(_)
                | Change::Executor(_)
                | Change::Load(_)
                | Change::ExecutorGone(_)
                | Change::Residency(_)
                | Change::ResidencyGone(_)
                | Change::Device(_)
                | Change::Model(_)
                | Change::Tenant(_) => {}
            }
        }
        assert_eq!(came, kinds);
    });
}

// === What comes again, and what comes anew ===

/// One executor, and a request that may not go there.
fn fed() -> (AnyWorld<Fed<Scripted>>, ExecutorId, RequestId) {
    let config = Config {
        change_log_max: 64,
        ..Config::default()
    };
    let mut world = world_of(config, fed_with(Scripted::default(), ALL));
    let device = add_device(&mut world, 16);
    let executor = add_executor(&mut world, device, 1);
    let elsewhere = add_executor(&mut world, device, 1);
    let new = NewRequest {
        allowed: Some(vec![elsewhere]),
        ..request(4, 4)
    };
    world
        .policies
        .inner
        .on_route(|_, _| routing::Choice::Hold(None));
    let id = arrive(&mut world, new);
    (world, executor, id)
}

/// Changes a model's row, so that the policy is asked again. Returns the changes that it is told
/// then.
fn told_next(world: &mut AnyWorld<Fed<Scripted>>) -> (Extent, Vec<Change>) {
    let before = world.policies.sink.told.len();
    world.input(Input::ModelLimitSet(MODEL_A, Some(9)));
    world.settle();
    world.policies.sink.told[before].clone()
}

fn is_model(change: &Change) -> bool {
    matches!(change, Change::Model(model) if model.id == MODEL_A)
}

#[test]
fn only_what_changed_is_told() {
    let (mut world, _, _) = fed();
    // The first time, the answer to admission named the request.
    told_next(&mut world);
    let (extent, changes) = told_next(&mut world);
    assert_eq!(extent, Extent::SinceLast);
    assert!(
        matches!(&changes[..], [model] if is_model(model)),
        "{changes:?}"
    );
}

#[test]
fn what_a_refused_answer_named_is_told_again_though_unchanged() {
    let (mut world, executor, id) = fed();
    world.policies.inner.route_to(&[executor]);
    told_next(&mut world);
    let (_, refusal) = world.policies.inner.refused.last().unwrap();
    assert_eq!(refusal.cause, RefusalCause::NotAllowed);
    let (extent, changes) = told_next(&mut world);
    assert_eq!(extent, Extent::SinceLast);
    let [model, load, waiting] = &changes[..] else {
        panic!("{changes:?}");
    };
    assert!(is_model(model));
    assert!(matches!(load, Change::Load(load) if load.id == executor));
    assert!(matches!(waiting, Change::Waiting(request) if request.id == id));
}

#[test]
fn a_policy_that_fell_behind_the_change_log_is_told_everything() {
    let (mut world, executor, _) = fed();
    for weight in 0..31 {
        world.update(executor, ExecutorUpdate::ShareWeight(weight));
    }
    assert_eq!(
        told_next(&mut world).0,
        Extent::SinceLast,
        "63 changes are kept"
    );
    for weight in 0..33 {
        world.update(executor, ExecutorUpdate::ShareWeight(weight));
    }
    let (extent, changes) = told_next(&mut world);
    assert_eq!(extent, Extent::Everything);
    assert!(
        changes
            .iter()
            .any(|change| matches!(change, Change::Name(_)))
    );
    assert_eq!(told_next(&mut world).0, Extent::SinceLast);
}
