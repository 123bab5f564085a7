//! The health of executors: degraded and at rest by their faults, and saturated without being ill.

mod common;

use common::{
    END, World, add_device, add_executor, arrive, cancel, executor_with, facts, is_running, placed,
    placements, refusals, request, seconds, slots_used, steps, world_with,
};
use pointsman_core::rows::Health;
use pointsman_core::{
    Availability, Config, ExecutorId, ExecutorUpdate, Fact, Micros, Outcome, PlacementTerms,
    RequestId, RetryClass,
};

const CONFIG: fn() -> Config = || Config {
    degraded_after: 2,
    down_after: 2,
    down_for: seconds(5),
    unserved_max: seconds(60),
    ..Config::default()
};

/// A host with one executor of eight slots.
fn host() -> (World, ExecutorId) {
    let mut world = world_with(CONFIG());
    let device = add_device(&mut world, 64);
    let executor = add_executor(&mut world, device, 8);
    (world, executor)
}

/// Has an executor fail a request of its own.
fn fault(world: &mut World, executor: ExecutorId) {
    let id = arrive(world, request(4, 2));
    world.fail(executor, id, RetryClass::Elsewhere);
    world.settle();
}

fn health(world: &World, executor: ExecutorId) -> Health {
    let load = world.machine.executor_load(executor);
    load.expect("it is attached").health
}

/// The healths that `executor` was told to have, in order.
fn healths(world: &World, executor: ExecutorId) -> Vec<Health> {
    let told = facts(world).filter_map(|fact| {
        let Fact::HealthChanged(id, health) = fact else {
            return None;
        };
        (*id == executor).then_some(*health)
    });
    told.collect()
}

/// True if a request is in the queue of an executor.
fn is_queued_there(world: &World, id: RequestId) -> bool {
    placed(world, id).is_some() && !is_running(world, id)
}

fn is_waiting(world: &World, id: RequestId) -> bool {
    placements(world, id).is_empty() && world.outcome(id).is_none()
}

#[test]
fn an_executor_that_faults_in_a_row_is_degraded_and_then_rests() {
    let (mut world, executor) = host();
    fault(&mut world, executor);
    assert_eq!(health(&world, executor), Health::Up);
    fault(&mut world, executor);
    assert_eq!(health(&world, executor), Health::Degraded);
    fault(&mut world, executor);
    assert_eq!(
        health(&world, executor),
        Health::Degraded,
        "it still serves"
    );
    fault(&mut world, executor);
    assert_eq!(healths(&world, executor), [Health::Degraded, Health::Down]);

    let waits = arrive(&mut world, request(4, 2));
    let rested = world.now().after(seconds(4));
    world.run_until(rested);
    assert!(is_waiting(&world, waits));
    let over = world.now().after(seconds(1));
    world.run_until(over);
    assert_eq!(placements(&world, waits), [executor]);
    assert_eq!(health(&world, executor), Health::Degraded);
}

#[test]
fn after_its_rest_one_fault_brings_the_next_and_one_success_makes_whole() {
    let (mut world, executor) = host();
    for _ in 0..4 {
        fault(&mut world, executor);
    }
    let over = world.now().after(seconds(5));
    world.run_until(over);
    fault(&mut world, executor);
    assert_eq!(health(&world, executor), Health::Down);

    let over = world.now().after(seconds(5));
    world.run_until(over);
    arrive(&mut world, request(4, 2));
    assert!(world.run_out(END));
    assert_eq!(health(&world, executor), Health::Up);
    fault(&mut world, executor);
    assert_eq!(
        health(&world, executor),
        Health::Up,
        "its faults are forgiven"
    );
}

/// A host whose executor rests, and runs a request that began before.
fn running_and_resting() -> (World, ExecutorId, RequestId) {
    let (mut world, executor) = host();
    let running = arrive(&mut world, request(4, 3));
    for _ in 0..4 {
        fault(&mut world, executor);
    }
    (world, executor, running)
}

/// A host whose executor has just rested.
fn rested() -> (World, ExecutorId) {
    let (mut world, executor) = host();
    for _ in 0..4 {
        fault(&mut world, executor);
    }
    let failed: Vec<RequestId> = world.unended().collect();
    for id in failed {
        cancel(&mut world, id);
    }
    let over = world.now().after(seconds(5));
    world.run_until(over);
    (world, executor)
}

#[test]
fn after_its_rest_one_request_goes_there_until_one_has_been_served() {
    let (mut world, executor) = rested();
    let ids: Vec<RequestId> = (0..3).map(|_| arrive(&mut world, request(4, 3))).collect();
    let running =
        |world: &World| -> Vec<bool> { ids.iter().map(|id| is_running(world, *id)).collect() };
    steps(&mut world, executor, 2);
    assert_eq!(running(&world), [true, false, false]);
    let load = world.machine.executor_load(executor).expect("it is there");
    assert_eq!(load.slots_used, 8, "those who choose see no free slot");
    // The time for which it is doubtful is over, and nothing has been served yet.
    let over = world.now().after(seconds(6));
    world.skip(over);
    world.settle();
    assert_eq!(health(&world, executor), Health::Up);
    assert_eq!(running(&world), [true, false, false]);
    steps(&mut world, executor, 1);
    world.settle();
    assert_eq!(running(&world), [false, true, true]);
    assert!(refusals(&world).is_empty());
}

#[test]
fn a_probe_that_leaves_or_fails_lets_another_one_go_in_its_time() {
    let (mut world, executor) = rested();
    let first = arrive(&mut world, request(4, 3));
    let others = [(); 2].map(|()| arrive(&mut world, request(4, 3)));
    cancel(&mut world, first);
    steps(&mut world, executor, 1);
    assert_eq!(others.map(|id| is_running(&world, id)), [true, false]);
    world.fail(executor, others[0], RetryClass::Elsewhere);
    world.settle();
    assert_eq!(health(&world, executor), Health::Down);
    assert!(!is_running(&world, others[1]));
    let over = world.now().after(seconds(5));
    world.run_until(over);
    assert_eq!(slots_used(&world, executor), 1);
}

#[test]
fn of_the_queue_of_one_that_has_rested_one_starts() {
    let mut world = world_with(CONFIG());
    let device = add_device(&mut world, 64);
    let executor = executor_with(&mut world, device, |spec, _| {
        (spec.slots_total, spec.queue_limit) = (4, 8);
    });
    let ids: Vec<RequestId> = (0..10).map(|_| arrive(&mut world, request(4, 3))).collect();
    for id in &ids[..4] {
        world.fail(executor, *id, RetryClass::Elsewhere);
    }
    world.settle();
    assert_eq!(health(&world, executor), Health::Down);
    let started = slots_used(&world, executor);
    assert_eq!(started, 3, "the fourth fault was the last straw");
    for id in &ids[4..7] {
        cancel(&mut world, *id);
    }
    steps(&mut world, executor, 1);
    assert_eq!(
        slots_used(&world, executor),
        0,
        "nothing starts while it rests"
    );
    let over = world.now().after(seconds(5));
    world.run_until(over);
    assert_eq!(slots_used(&world, executor), 1);
    assert!(world.run_out(END));
}

#[test]
fn terms_that_are_lowered_count_for_what_comes_after_them() {
    let mut world = world_with(CONFIG());
    let device = add_device(&mut world, 64);
    let executor = executor_with(&mut world, device, |spec, _| {
        (spec.slots_total, spec.queue_limit) = (1, 2);
    });
    let ids = [(); 3].map(|()| arrive(&mut world, request(4, 2)));
    assert!(is_queued_there(&world, ids[2]));
    let terms = PlacementTerms {
        group: 7,
        models_max: Some(1),
        queue_limit: 1,
        model_unload_delay: Micros(0),
        assumes_prompts: false,
    };
    world.update(executor, ExecutorUpdate::Terms(terms));
    let info = world.machine.executor_info(executor).expect("it is there");
    assert_eq!((info.group, info.queue_limit), (7, 1));
    let waits = arrive(&mut world, request(4, 2));
    assert!(is_queued_there(&world, ids[2]) && is_waiting(&world, waits));
    steps(&mut world, executor, 2);
    world.settle();
    assert!(is_waiting(&world, waits), "one is in the queue");
    steps(&mut world, executor, 2);
    world.settle();
    assert!(is_queued_there(&world, waits));
    assert!(world.run_out(END));
}

#[test]
fn another_server_in_the_place_of_one_has_no_faults_and_is_heard_before_it_is_sent_anything() {
    let (mut world, executor, running) = running_and_resting();
    world.update(executor, ExecutorUpdate::Replaced);
    assert_eq!(health(&world, executor), Health::Up);
    let waits = arrive(&mut world, request(4, 3));
    assert!(is_waiting(&world, waits));
    let open = ExecutorUpdate::Availability(Availability::Open);
    world.update(executor, open);
    world.settle();
    assert!(is_running(&world, waits) && is_running(&world, running));
    assert!(world.run_out(END));
}

#[test]
fn a_degraded_executor_runs_on_and_a_resting_one_ends_what_it_runs() {
    let (mut world, executor, running) = running_and_resting();
    assert_eq!(health(&world, executor), Health::Down);
    steps(&mut world, executor, 3);
    let served = Outcome::Finished { output_tokens: 3 };
    assert_eq!(world.outcome(running), Some(served));
    assert_eq!(health(&world, executor), Health::Up, "it serves after all");
}

#[test]
fn an_executor_that_was_degraded_for_long_is_tried_again_and_one_fault_undoes_that() {
    let (mut world, executor) = host();
    for _ in 0..2 {
        fault(&mut world, executor);
    }
    let passed = world.now().after(seconds(5));
    world.run_until(passed);
    assert_eq!(healths(&world, executor), [Health::Degraded, Health::Up]);
    fault(&mut world, executor);
    assert_eq!(health(&world, executor), Health::Degraded);
    // The fourth in a row is as bad as it was before.
    let passed = world.now().after(seconds(5));
    world.run_until(passed);
    fault(&mut world, executor);
    assert_eq!(health(&world, executor), Health::Down);
    let passed = world.now().after(seconds(10));
    world.run_until(passed);
    assert_eq!(health(&world, executor), Health::Up);
    fault(&mut world, executor);
    assert_eq!(health(&world, executor), Health::Down);
}

#[test]
fn a_request_that_is_itself_at_fault_is_no_fault_of_its_executor() {
    let (mut world, executor) = host();
    for _ in 0..5 {
        let id = arrive(&mut world, request(4, 2));
        world.fail(executor, id, RetryClass::Never);
        world.settle();
    }
    assert_eq!(healths(&world, executor), []);
}

#[test]
fn an_executor_that_dies_again_and_again_comes_back_degraded() {
    let (mut world, executor) = host();
    let back = ExecutorUpdate::Health(Health::Up);
    world.lose(executor);
    world.update(executor, back.clone());
    assert_eq!(health(&world, executor), Health::Up);
    world.lose(executor);
    world.update(executor, back);
    assert_eq!(health(&world, executor), Health::Degraded);
}

#[test]
fn faults_do_not_hide_what_the_owner_of_an_executor_tells() {
    let (mut world, executor) = host();
    for _ in 0..2 {
        fault(&mut world, executor);
    }
    for (told, seen) in [
        (Health::Draining, Health::Draining),
        (Health::Up, Health::Degraded),
    ] {
        world.update(executor, ExecutorUpdate::Health(told));
        assert_eq!(health(&world, executor), seen, "{told:?}");
    }
    let id = arrive(&mut world, request(4, 2));
    world.update(executor, ExecutorUpdate::Health(Health::Degraded));
    assert!(world.run_out(END));
    assert!(world.outcome(id).is_some());
    assert_eq!(
        health(&world, executor),
        Health::Degraded,
        "its owner says so"
    );
}

#[test]
fn an_executor_that_is_taken_away_drains_until_it_is_gone() {
    let (mut world, executor) = host();
    arrive(&mut world, request(4, 2));
    world.update(executor, ExecutorUpdate::Detach);
    assert_eq!(health(&world, executor), Health::Draining);
    world.settle();
    assert_eq!(healths(&world, executor), [Health::Draining]);
    assert!(world.run_out(END));
    assert!(facts(&world).any(|fact| *fact == Fact::ExecutorDetached(executor)));
}

// === Saturation ===

/// The changes of saturation that were told, in order.
fn saturations(world: &World) -> Vec<&Fact> {
    facts(world)
        .filter(|fact| matches!(fact, Fact::Saturated(_) | Fact::Relieved(_)))
        .collect()
}

#[test]
fn a_queue_filled_to_80_percent_is_saturated_and_no_less_healthy() {
    let mut world = world_with(CONFIG());
    let device = add_device(&mut world, 256);
    let executor = executor_with(&mut world, device, |spec, _| spec.queue_limit = 5);
    let saturated = |world: &World| {
        let load = world.machine.executor_load(executor);
        load.map(|load| (load.saturated, load.health))
    };
    for _ in 0..4 {
        arrive(&mut world, request(4, 2));
    }
    assert_eq!(
        saturated(&world),
        Some((false, Health::Up)),
        "3 of 5 wait there"
    );
    arrive(&mut world, request(4, 2));
    assert_eq!(saturated(&world), Some((true, Health::Up)), "4 of 5");
    arrive(&mut world, request(4, 2));
    assert_eq!(
        saturations(&world),
        [&Fact::Saturated(executor)],
        "told once"
    );
    assert!(world.run_out(END));
    assert_eq!(saturated(&world), Some((false, Health::Up)));
    assert_eq!(
        saturations(&world),
        [&Fact::Saturated(executor), &Fact::Relieved(executor)]
    );
    assert_eq!(healths(&world, executor), [], "and never ill");
}

#[test]
fn a_queue_with_limit_0_is_never_saturated() {
    let (mut world, _) = host();
    for _ in 0..20 {
        arrive(&mut world, request(4, 2));
    }
    assert!(world.run_out(END));
    assert!(saturations(&world).is_empty());
}
