//! Servers elsewhere that take nothing for a while: they have no room, or do not answer.

mod common;

use common::{
    END, MODEL_A, MODEL_B, World, add_device, add_executor, arrive, executor_with, facts,
    is_queued, of_model, placed, placements, request, seconds, slots_used, steps, world_with,
};
use pointsman_core::rows::{Health, SequenceState};
use pointsman_core::{
    Availability, Config, Effect, ExecutorId, ExecutorUpdate, ExpiredWhy, Fact, Outcome, RequestId,
    RequeuedWhy, RetryClass,
};

const WAITED: Option<Outcome> = Some(Outcome::Expired(ExpiredWhy::Wait));

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

/// Tests what those who choose go by: they named it for every request, however full it said it was.
#[test]
fn an_executor_without_room_has_no_free_slot_for_those_who_choose() {
    let (mut world, executor) = host();
    let told = |world: &World| {
        let load = world.machine.executor_load(executor);
        load.expect("it is attached").slots_used
    };
    is(&mut world, executor, Availability::Busy);
    assert_eq!((told(&world), slots_used(&world, executor)), (2, 0));
    world.update(executor, ExecutorUpdate::SlotsTotal(5));
    assert_eq!(told(&world), 5);
    is(&mut world, executor, Availability::Open);
    assert_eq!(told(&world), 0);
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

/// A server that was started anew loads its model first.
#[test]
fn a_silent_executor_that_is_back_without_room_is_whole_too() {
    let (mut world, executor) = host();
    let failed = arrive(&mut world, request(4, 2));
    world.fail(executor, failed, RetryClass::Elsewhere);
    world.settle();
    is(&mut world, executor, Availability::Silent);
    is(&mut world, executor, Availability::Busy);
    assert_eq!(seen(&world, executor), (Health::Up, true));
    is(&mut world, executor, Availability::Open);
    assert_eq!(seen(&world, executor), (Health::Up, false));
    // Any other executor without room has the faults that it had.
    let failed = arrive(&mut world, request(4, 2));
    world.fail(executor, failed, RetryClass::Elsewhere);
    for availability in [Availability::Busy, Availability::Open] {
        is(&mut world, executor, availability);
        assert_eq!(seen(&world, executor).0, Health::Degraded);
    }
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

/// Each time there is room again at once, by the server's word.
#[test]
fn a_request_that_is_turned_back_for_good_waits_no_longer_than_any_other() {
    let (mut world, executor) = host();
    let id = arrive(&mut world, request(4, 2));
    for minute in 1..=10 {
        assert_eq!(world.outcome(id), None, "before {minute} minutes");
        world.skip(seconds(60 * minute));
        world.fail(executor, id, RetryClass::Anywhere);
        world.settle();
    }
    assert_eq!(world.outcome(id), WAITED);
}

#[test]
fn a_request_that_is_turned_back_has_waited_since_it_arrived() {
    let (mut world, executor) = host();
    let id = arrive(&mut world, request(4, 2));
    world.skip(seconds(540));
    let busy = ExecutorUpdate::Availability(Availability::Busy);
    world.update(executor, busy);
    world.fail(executor, id, RetryClass::Anywhere);
    world.run_until(seconds(599));
    assert!(is_queued(&world, id));
    world.run_until(seconds(600));
    assert_eq!(world.outcome(id), WAITED);
}

// === The queue of an executor ===

/// An executor of one slot, which the first request has, and in whose queue the second one waits. Requests
/// may wait for a minute.
fn with_queue() -> (World, ExecutorId, [RequestId; 2]) {
    let mut config = Config {
        unserved_max: seconds(60),
        ..Config::default()
    };
    config.wait(seconds(60));
    let mut world = world_with(config);
    let device = add_device(&mut world, 64);
    let executor = executor_with(&mut world, device, |spec, profile| {
        spec.queue_limit = 1;
        // No step that a test does not make itself.
        profile.step = seconds(100);
    });
    let ids = [(); 2].map(|()| arrive(&mut world, request(4, 2)));
    let queued = Some((executor, SequenceState::Queued));
    assert_eq!(placed(&world, ids[1]), queued);
    (world, executor, ids)
}

#[test]
fn what_waits_in_the_queue_of_a_silent_executor_goes_elsewhere() {
    let (mut world, silent, [runs, waits]) = with_queue();
    is(&mut world, silent, Availability::Silent);
    assert!(is_queued(&world, waits));
    let requeued = Fact::Requeued(waits, RequeuedWhy::TurnedBack);
    assert!(facts(&world).any(|fact| *fact == requeued));
    let device = add_device(&mut world, 64);
    let other = add_executor(&mut world, device, 1);
    world.settle();
    assert_eq!(placements(&world, waits), [silent, other]);
    steps(&mut world, other, 2);
    steps(&mut world, silent, 2);
    assert!(has_finished(&world, waits));
    assert!(has_finished(&world, runs), "what runs there runs on");
}

#[test]
fn what_waited_in_the_queue_of_a_silent_executor_has_waited_since_it_arrived() {
    let (mut world, silent, [_, waits]) = with_queue();
    world.skip(seconds(50));
    is(&mut world, silent, Availability::Silent);
    world.run_until(seconds(59));
    assert!(is_queued(&world, waits));
    world.run_until(seconds(60));
    assert_eq!(world.outcome(waits), WAITED);
}

#[test]
fn what_waits_in_the_queue_of_a_busy_executor_waits_there() {
    let (mut world, busy, [_, waits]) = with_queue();
    is(&mut world, busy, Availability::Busy);
    let queued = Some((busy, SequenceState::Queued));
    assert_eq!(placed(&world, waits), queued);
}

#[test]
fn what_waits_in_the_queue_of_an_executor_that_serves_its_model_no_more_goes_elsewhere() {
    let mut world = world_with(Config {
        unserved_max: seconds(60),
        ..Config::default()
    });
    let device = add_device(&mut world, 64);
    let executor = executor_with(&mut world, device, |spec, profile| {
        spec.queue_limit = 4;
        // No step that a test does not make itself.
        profile.step = seconds(100);
    });
    let [runs, waits] = [(); 2].map(|()| arrive(&mut world, of_model(MODEL_A, request(4, 2))));
    let stays = [
        of_model(MODEL_B, request(4, 2)),
        // Of any model.
        request(4, 2),
    ];
    let stays = stays.map(|new| arrive(&mut world, new));
    let serves = ExecutorUpdate::Serves(Some(vec![MODEL_B]));
    world.update(executor, serves);
    world.settle();
    assert!(is_queued(&world, waits));
    let requeued = Fact::Requeued(waits, RequeuedWhy::TurnedBack);
    assert!(facts(&world).any(|fact| *fact == requeued));
    let queued = Some((executor, SequenceState::Queued));
    assert_eq!(stays.map(|id| placed(&world, id)), [queued; 2]);
    let device = add_device(&mut world, 64);
    let other = add_executor(&mut world, device, 1);
    world.settle();
    assert_eq!(placements(&world, waits), [executor, other]);
    steps(&mut world, executor, 2);
    assert!(has_finished(&world, runs), "what runs there runs on");
    assert!(world.run_out(END));
    assert_eq!(seen(&world, executor).0, Health::Up);
}

#[test]
fn an_executor_that_takes_nothing_and_is_taken_away_is_gone_without_its_queue() {
    let detach = ExecutorUpdate::Detach;
    // One that only drains stays, without its queue, too.
    let drain = ExecutorUpdate::Health(Health::Draining);
    for (availability, order) in [
        (Availability::Busy, &detach),
        (Availability::Busy, &drain),
        (Availability::Silent, &detach),
        (Availability::Silent, &drain),
    ] {
        let mut updates = [ExecutorUpdate::Availability(availability), order.clone()];
        for _ in 0..2 {
            let (mut world, executor, [runs, waits]) = with_queue();
            for update in &updates {
                world.update(executor, update.clone());
            }
            world.settle();
            assert!(is_queued(&world, waits), "{updates:?}");
            steps(&mut world, executor, 2);
            assert!(has_finished(&world, runs));
            let is_gone = world.effects().contains(&Effect::Detached { executor });
            assert_eq!(is_gone, *order == detach, "{updates:?}");
            updates.reverse();
        }
    }
}
