//! Servers elsewhere that take nothing for a while: they have no room, or do not answer.

mod common;

use common::{
    END, World, add_device, add_executor, arrive, facts, placements, request, seconds, world_with,
};
use pointsman_core::rows::Health;
use pointsman_core::{
    Availability, Config, ExecutorId, ExecutorUpdate, Fact, Outcome, RequestId, RequeuedWhy,
    RetryClass,
};

/// A host with one executor of two slots.
fn host() -> (World, ExecutorId) {
    let mut world = world_with(Config {
        degraded_after: 1,
        unserved_max: seconds(30),
        ..Config::default()
    });
    let device = add_device(&mut world, 64);
    let executor = add_executor(&mut world, device, 2);
    (world, executor)
}

fn is(world: &mut World, executor: ExecutorId, availability: Availability) {
    world.update(executor, ExecutorUpdate::Availability(availability));
    world.settle();
}

fn seen(world: &World, executor: ExecutorId) -> (Health, bool) {
    let load = world
        .machine
        .executor_load(executor)
        .expect("it is attached");
    (load.health, load.saturated)
}

fn has_finished(world: &World, id: RequestId) -> bool {
    matches!(world.outcome(id), Some(Outcome::Finished { .. }))
}

#[test]
fn an_executor_without_room_is_well_and_takes_nothing_until_it_has_some() {
    let (mut world, executor) = host();
    let runs = arrive(&mut world, request(4, 2));
    world.settle();
    is(&mut world, executor, Availability::Busy);
    assert_eq!(seen(&world, executor), (Health::Up, true));
    let waits = arrive(&mut world, request(4, 2));
    let later = world.now().after(seconds(20));
    world.run_until(later);
    assert!(has_finished(&world, runs), "what runs there runs on");
    assert_eq!(placements(&world, waits), []);
    is(&mut world, executor, Availability::Open);
    assert_eq!(seen(&world, executor), (Health::Up, false));
    assert!(world.run_out(END));
    assert!(has_finished(&world, waits));
}

#[test]
fn a_silent_executor_is_down_for_new_requests_and_whole_when_it_is_back() {
    let (mut world, executor) = host();
    let failed = arrive(&mut world, request(4, 2));
    world.fail(executor, failed, RetryClass::Elsewhere);
    world.settle();
    assert_eq!(seen(&world, executor).0, Health::Degraded);
    let runs = arrive(&mut world, request(4, 2));
    world.settle();
    is(&mut world, executor, Availability::Silent);
    assert_eq!(seen(&world, executor).0, Health::Down);
    let waits = arrive(&mut world, request(4, 2));
    let later = world.now().after(seconds(20));
    world.run_until(later);
    assert!(has_finished(&world, runs), "what runs there runs on");
    assert_eq!(placements(&world, waits), []);
    is(&mut world, executor, Availability::Open);
    assert_eq!(seen(&world, executor).0, Health::Up);
    assert!(world.run_out(END));
    assert!(has_finished(&world, waits));
}

#[test]
fn a_request_that_is_turned_back_waits_for_the_same_executor_and_nobody_is_to_blame() {
    let (mut world, executor) = host();
    let id = arrive(&mut world, request(4, 2));
    for _ in 0..20 {
        world.fail(executor, id, RetryClass::Anywhere);
        world.settle();
    }
    assert_eq!(seen(&world, executor).0, Health::Up);
    let requeued = Fact::Requeued(id, RequeuedWhy::TurnedBack);
    assert_eq!(facts(&world).filter(|fact| **fact == requeued).count(), 20);
    assert!(world.run_out(END));
    assert!(has_finished(&world, id));
}
