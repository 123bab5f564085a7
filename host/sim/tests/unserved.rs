//! Requests that nobody serves: refused at once, or after a while.

mod common;

use common::{
    END, MODEL_A, MODEL_B, World, add_device, add_executor, arrive, assert_nothing_held,
    executor_with, is_queued, is_running, of_model, placed, placements, request, seconds, world,
    world_with,
};
use pointsman_core::rows::Health;
use pointsman_core::{
    Config, ExecutorId, ExecutorUpdate, NewRequest, Outcome, RefusedWhy, RequestId, RetryClass,
};

const UNSERVED: Option<Outcome> = Some(Outcome::Refused(RefusedWhy::Unserved { retry_after: 1 }));
const UP: ExecutorUpdate = ExecutorUpdate::Health(Health::Up);

/// A host that lets requests wait so many seconds for somebody to serve them.
fn patient(secs: u64) -> World {
    world_with(Config {
        unserved_max: seconds(secs),
        ..Config::default()
    })
}

/// Attaches an executor of one slot that serves [`MODEL_A`] alone.
fn serves_a(world: &mut World) -> ExecutorId {
    let device = add_device(world, 16);
    executor_with(world, device, |spec, _| spec.serves = Some(vec![MODEL_A]))
}

fn wait(world: &mut World, secs: u64) {
    let until = world.now().after(seconds(secs));
    world.run_until(until);
}

fn of(model: pointsman_core::ModelId) -> NewRequest {
    of_model(model, request(4, 2))
}

fn lose(world: &mut World, executor: ExecutorId) {
    world.lose(executor);
    world.settle();
}

fn runs_on(world: &World, id: RequestId, executor: ExecutorId) -> bool {
    is_running(world, id) && placed(world, id).is_some_and(|(on, _)| on == executor)
}

#[test]
fn a_request_that_nobody_serves_is_refused_at_once() {
    let mut world = world();
    let executor = serves_a(&mut world);
    let stray = arrive(&mut world, of(MODEL_B));
    assert_eq!(world.outcome(stray), UNSERVED);
    let nowhere = NewRequest {
        allowed: Some(vec![]),
        ..of(MODEL_A)
    };
    let nowhere = arrive(&mut world, nowhere);
    assert_eq!(world.outcome(nowhere), UNSERVED);

    let served = arrive(&mut world, of(MODEL_A));
    assert!(runs_on(&world, served, executor));
    lose(&mut world, executor);
    let late = arrive(&mut world, of(MODEL_A));
    assert_eq!(world.outcome(late), UNSERVED, "its executor is down");
}

#[test]
fn what_waits_is_refused_when_the_last_that_serves_it_is_gone() {
    let mut world = world();
    let first = serves_a(&mut world);
    let second = serves_a(&mut world);
    let running = [(); 2].map(|()| arrive(&mut world, of(MODEL_A)));
    let waits = arrive(&mut world, of(MODEL_A));
    lose(&mut world, first);
    assert!(is_queued(&world, waits), "one is left");
    world.update(second, ExecutorUpdate::Detach);
    world.settle();
    assert_eq!(world.outcome(waits), UNSERVED);
    let ends_well = running.into_iter().find(|id| runs_on(&world, *id, second));
    assert!(ends_well.is_some(), "what it runs, it ends");
    assert!(world.run_out(END));
}

#[test]
fn an_executor_that_dies_and_is_back_at_once_disturbs_nobody_who_waits() {
    let mut world = world();
    let executor = serves_a(&mut world);
    let other = serves_a(&mut world);
    let running = [(); 2].map(|()| arrive(&mut world, of(MODEL_A)));
    let waits = arrive(&mut world, of(MODEL_A));
    world.step(executor);
    world.update(other, ExecutorUpdate::Detach);
    world.lose(executor);
    world.update(executor, UP);
    world.settle();
    assert!(world.outcome(waits).is_none());
    assert!(world.run_out(END));
    let served = Some(Outcome::Finished { output_tokens: 2 });
    assert_eq!(world.outcome(waits), served);
    assert_eq!(placements(&world, running[0]).len(), 1);
}

#[test]
fn an_executor_that_drains_still_serves_what_waits_for_it() {
    let mut world = world();
    let executor = serves_a(&mut world);
    world.update(executor, ExecutorUpdate::Health(Health::Draining));
    let waits = arrive(&mut world, of(MODEL_A));
    assert!(is_queued(&world, waits));
    world.update(executor, UP);
    world.settle();
    assert!(runs_on(&world, waits, executor));
}

#[test]
fn a_host_that_is_patient_lets_it_wait_so_long() {
    let mut world = patient(5);
    let executor = serves_a(&mut world);
    lose(&mut world, executor);
    let waits = arrive(&mut world, of(MODEL_A));
    let stray = arrive(&mut world, of(MODEL_B));
    wait(&mut world, 4);
    assert!(is_queued(&world, waits) && is_queued(&world, stray));
    world.update(executor, UP);
    world.settle();
    assert!(runs_on(&world, waits, executor));
    wait(&mut world, 1);
    assert_eq!(world.outcome(stray), UNSERVED);
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn an_executor_that_comes_stops_the_clock_and_one_that_goes_starts_it_anew() {
    let mut world = patient(5);
    let first = serves_a(&mut world);
    lose(&mut world, first);
    let waits = arrive(&mut world, of(MODEL_A));
    wait(&mut world, 4);
    // It is back, and takes nothing yet: what waits is served, though not placed.
    world.update(first, ExecutorUpdate::Health(Health::Draining));
    world.settle();
    wait(&mut world, 4);
    lose(&mut world, first);
    wait(&mut world, 4);
    assert!(world.outcome(waits).is_none(), "counted anew");
    wait(&mut world, 1);
    assert_eq!(world.outcome(waits), UNSERVED);
}

#[test]
fn an_executor_whose_rest_ends_by_an_answer_serves_again_at_once() {
    let mut world = world_with(Config {
        unserved_max: seconds(5),
        degraded_after: 1,
        down_after: 1,
        ..Config::default()
    });
    let device = add_device(&mut world, 1 << 14);
    let executor = add_executor(&mut world, device, 3);
    arrive(&mut world, request(4, 9000));
    let short = arrive(&mut world, request(4, 2));
    for _ in 0..2 {
        let id = arrive(&mut world, request(4, 2));
        world.fail(executor, id, RetryClass::Elsewhere);
        world.settle();
    }
    let waiting = [(); 3].map(|()| arrive(&mut world, request(4, 9000)));
    assert!(waiting.iter().all(|id| placements(&world, *id).is_empty()));
    wait(&mut world, 1);
    assert!(world.outcome(short).is_some());
    let [first, second, third] = waiting;
    assert!(runs_on(&world, first, executor) && runs_on(&world, second, executor));
    wait(&mut world, 6);
    assert!(is_queued(&world, third), "it waits for a slot");
}

#[test]
fn an_executor_that_rests_serves_nobody() {
    let mut world = world_with(Config {
        degraded_after: 1,
        down_after: 1,
        ..Config::default()
    });
    let device = add_device(&mut world, 16);
    let executor = add_executor(&mut world, device, 1);
    let waits = |world: &mut World| arrive(world, request(4, 2));
    for _ in 0..2 {
        let id = waits(&mut world);
        assert_eq!(placements(&world, id), [executor]);
        world.fail(executor, id, RetryClass::Elsewhere);
        world.settle();
    }
    let id = waits(&mut world);
    assert_eq!(world.outcome(id), UNSERVED);
    wait(&mut world, 10);
    let id = waits(&mut world);
    assert_eq!(placements(&world, id), [executor], "it has rested");
}
