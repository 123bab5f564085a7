//! Why a request waits, as operators are told.

mod common;

use std::collections::BTreeMap;

use common::{
    MODEL_A, MODEL_B, World, add_device, add_executor, arrive, background, device_with,
    executor_with, of_model, request, seconds, world, world_with,
};
use pointsman_core::rows::Health;
use pointsman_core::{
    Config, ExecutorId, ExecutorUpdate, Input, Micros, NewRequest, Obstacle, RequestId, WaitReason,
    admission, routing,
};

fn reason(world: &World, id: RequestId) -> Option<WaitReason> {
    world.machine.wait_reasons().of(id)
}

fn blocked<const N: usize>(obstacles: [(Obstacle, u32); N]) -> Option<WaitReason> {
    Some(WaitReason::Blocked(BTreeMap::from(obstacles)))
}

/// Two executors of one slot each, both taken.
fn full() -> (World, ExecutorId) {
    let mut world = world_with(Config {
        unserved_max: Micros(60_000_000),
        ..Config::default()
    });
    let device = add_device(&mut world, 64);
    let executor = add_executor(&mut world, device, 1);
    add_executor(&mut world, device, 1);
    arrive(&mut world, request(4, 2));
    arrive(&mut world, request(4, 2));
    (world, executor)
}

#[test]
fn each_obstacle_is_told_with_the_number_of_executors() {
    let (mut world, executor) = full();
    let waits = arrive(&mut world, request(4, 2));
    assert_eq!(reason(&world, waits), blocked([(Obstacle::NoSlot, 2)]));
    let draining = ExecutorUpdate::Health(Health::Draining);
    world.update(executor, draining);
    let both = [(Obstacle::NoSlot, 1), (Obstacle::Unavailable, 1)];
    assert_eq!(reason(&world, waits), blocked(both));
    let elsewhere = arrive(
        &mut world,
        NewRequest {
            allowed: Some(vec![executor]),
            ..request(4, 2)
        },
    );
    let both = [(Obstacle::Unavailable, 1), (Obstacle::NotAllowed, 1)];
    assert_eq!(reason(&world, elsewhere), blocked(both));
    let serves = ExecutorUpdate::Serves(Some(vec![MODEL_A]));
    for id in world.machine.executor_ids().collect::<Vec<_>>() {
        world.update(id, ExecutorUpdate::Health(Health::Up));
        world.update(id, serves.clone());
    }
    let unserved = arrive(&mut world, of_model(MODEL_B, request(4, 2)));
    assert_eq!(
        reason(&world, unserved),
        blocked([(Obstacle::NotServed, 2)])
    );
}

#[test]
fn limits_of_models_and_blocks_are_told() {
    let mut world = world();
    let device = device_with(&mut world, 8, Some(4));
    executor_with(&mut world, device, |spec, _| {
        spec.slots_total = 4;
        spec.models_max = Some(1);
    });
    arrive(&mut world, of_model(MODEL_A, request(12, 4)));
    let other = arrive(&mut world, of_model(MODEL_B, request(4, 2)));
    assert_eq!(reason(&world, other), blocked([(Obstacle::ModelsMax, 1)]));
    let large = arrive(&mut world, of_model(MODEL_A, request(20, 4)));
    assert_eq!(reason(&world, large), blocked([(Obstacle::NoBlocks, 1)]));
    world.input(Input::ModelLimitSet(MODEL_A, Some(1)));
    let limited = arrive(&mut world, of_model(MODEL_A, request(4, 2)));
    assert_eq!(
        reason(&world, limited),
        blocked([(Obstacle::RunningMax, 1)])
    );
}

#[test]
fn requests_that_are_alike_have_one_reason_and_longer_ones_their_own() {
    let (mut world, _) = full();
    let ids = [(40, 40), (4, 2), (80, 40)].map(|(prompt, output)| {
        let new = background(prompt, output);
        arrive(&mut world, new)
    });
    let mut reasons = world.machine.wait_reasons();
    for id in ids {
        assert_eq!(reasons.of(id), reason(&world, id));
    }
}

#[test]
fn those_who_are_held_who_are_parked_and_those_whose_turn_it_is_not_are_told_so() {
    let mut world = world_with(Config {
        queue_max: 2,
        ..Config::default()
    });
    let device = add_device(&mut world, 64);
    add_executor(&mut world, device, 1);
    let until = world.now().after(seconds(3));
    world
        .policies
        .on_route(move |_, _| routing::Choice::Hold(Some(until)));
    world.policies.on_admit(|_| admission::Choice::Admit);
    let held = arrive(&mut world, request(4, 2));
    assert_eq!(reason(&world, held), Some(WaitReason::Held(until)));
    world
        .policies
        .on_route(move |_, _| routing::Choice::Hold(None));
    let undecided = arrive(&mut world, request(4, 2));
    assert_eq!(reason(&world, undecided), Some(WaitReason::Turn));
    world.policies.on_admit(|_| admission::Choice::Park);
    let parked = arrive(&mut world, request(4, 2));
    assert_eq!(reason(&world, parked), Some(WaitReason::Parked));
    let new = world.arrive(request(4, 2), u32::MAX);
    assert_eq!(reason(&world, new), Some(WaitReason::Arrived));
    assert_eq!(reason(&world, RequestId(99)), None);
}

#[test]
fn one_that_others_give_way_to_is_told_where() {
    let mut world = world();
    let device = add_device(&mut world, 64);
    let executor = executor_with(&mut world, device, |_, profile| {
        profile.leave_steps = 3;
        profile.step = seconds(100);
    });
    let victim = arrive(&mut world, background(10, 20));
    let needy = arrive(&mut world, request(10, 5));
    assert_eq!(reason(&world, needy), Some(WaitReason::Reserved(executor)));
    assert_eq!(reason(&world, victim), None, "it has a place still");
}
