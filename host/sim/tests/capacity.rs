//! Slots, models, device queues, the queue and the parking list: none is ever over its bound,
//! and what comes free is used.

mod common;

use common::{
    END, MODEL_A, MODEL_B, World, add_device, add_executor, arrive, assert_nothing_held,
    background, executor_with, facts, is_queued, is_running, of_model, placed, placements,
    refusals, request, residencies, seconds, single, slots_used, steps, waiting_row, world,
    world_with,
};
use pointsman_core::rows::{Health, SequenceState};
use pointsman_core::{
    Config, ExecutorId, ExecutorUpdate, Fact, Input, Micros, NewRequest, Outcome, RefusalCause,
    RefusedWhy, RequestId, RetryClass, admission,
};

fn running(world: &World, ids: &[RequestId]) -> Vec<bool> {
    ids.iter().map(|id| is_running(world, *id)).collect()
}

/// A host that may queue so many, with one executor of one slot, all taken by a first request.
fn busy(queue_max: u32, parking_max: u32) -> (World, ExecutorId, RequestId) {
    let mut world = world_with(Config {
        queue_max,
        parking_max,
        retry_after_secs: 7,
        ..Config::default()
    });
    let device = add_device(&mut world, 64);
    let executor = add_executor(&mut world, device, 1);
    let first = arrive(&mut world, request(4, 2));
    assert!(is_running(&world, first));
    (world, executor, first)
}

// === Slots ===

#[test]
fn no_more_run_than_there_are_slots() {
    let (mut world, executor) = single(2, 64);
    let ids: Vec<_> = (0..5)
        .map(|_| world.arrive(request(4, 3), u32::MAX))
        .collect();
    world.settle();
    assert_eq!(running(&world, &ids), [true, true, false, false, false]);
    while world.unended().next().is_some() {
        world.step(executor);
        assert!(slots_used(&world, executor) <= 2);
        assert!(world.engine(executor).unwrap().sequences().count() <= 2);
    }
    assert_nothing_held(&mut world);
}

/// Policies are told of them in attach order, too, in whatever order they were named.
#[test]
fn of_the_executors_that_a_request_is_allowed_it_gets_the_first_attached_one_with_room() {
    let mut world = world();
    let device = add_device(&mut world, 64);
    let all = [(); 4].map(|()| add_executor(&mut world, device, 1));
    let ids = [(); 3].map(|()| {
        let new = NewRequest {
            allowed: Some(vec![all[3], all[1]]),
            ..request(4, 2)
        };
        arrive(&mut world, new)
    });
    let places = ids.map(|id| placements(&world, id));
    // Others are open, to which the last one may not go.
    assert_eq!(places, [vec![all[1]], vec![all[3]], vec![]]);
    let row = waiting_row(&mut world, ids[2]).expect("it waits");
    assert_eq!(row.allowed, Some(vec![all[1], all[3]]));
    steps(&mut world, all[3], 2);
    assert_eq!(placements(&world, ids[2]), [all[3]]);
    assert_eq!(refusals(&world), []);
}

#[test]
fn slots_lowered_below_use_come_free_before_anything_new_starts() {
    let (mut world, executor) = single(3, 64);
    let running: Vec<_> = (2..5).map(|n| arrive(&mut world, request(4, n))).collect();
    world.update(executor, ExecutorUpdate::SlotsTotal(1));
    let next = arrive(&mut world, request(4, 2));
    assert_eq!(slots_used(&world, executor), 3, "nothing is thrown out");
    steps(&mut world, executor, 3);
    assert_eq!(slots_used(&world, executor), 1);
    assert!(is_queued(&world, next) && is_running(&world, running[2]));
    steps(&mut world, executor, 1);
    assert!(is_running(&world, next));
}

// === Models ===

#[test]
fn an_executor_runs_at_most_models_max_models_at_once() {
    let mut world = world();
    let device = add_device(&mut world, 64);
    let executor = executor_with(&mut world, device, |spec, _| {
        spec.slots_total = 3;
        spec.models_max = Some(1);
    });
    let a = arrive(&mut world, of_model(MODEL_A, request(4, 2)));
    let b = arrive(&mut world, of_model(MODEL_B, request(4, 2)));
    let a_too = arrive(&mut world, of_model(MODEL_A, request(4, 3)));
    assert_eq!(running(&world, &[a, b, a_too]), [true, false, true]);
    steps(&mut world, executor, 2);
    assert!(is_queued(&world, b), "the second of model a still runs");
    world.step(executor);
    assert!(is_running(&world, b));

    world.policies.route_to(&[executor]);
    world.policies.on_admit(|_| admission::Choice::Admit);
    let device = add_device(&mut world, 64);
    add_executor(&mut world, device, 1);
    arrive(&mut world, of_model(MODEL_A, request(4, 3)));
    assert_eq!(refusals(&world), [RefusalCause::ModelsMax]);
}

#[test]
fn a_model_runs_at_most_running_max_times_in_the_whole_host() {
    let mut world = world();
    let device = add_device(&mut world, 64);
    let executor = add_executor(&mut world, device, 2);
    add_executor(&mut world, device, 2);
    world.input(Input::ModelLimitSet(MODEL_A, Some(1)));
    let first = arrive(&mut world, of_model(MODEL_A, request(4, 2)));
    let second = arrive(&mut world, of_model(MODEL_A, request(4, 2)));
    let other = arrive(&mut world, of_model(MODEL_B, request(4, 2)));
    assert_eq!(
        running(&world, &[first, second, other]),
        [true, false, true]
    );
    steps(&mut world, executor, 2);
    assert!(is_running(&world, second));
    world.input(Input::ModelLimitSet(MODEL_A, None));
    let third = arrive(&mut world, of_model(MODEL_A, request(4, 2)));
    assert!(is_running(&world, third));
}

/// An executor with one slot on which model a has run until now and is kept for 5 seconds.
fn warm() -> (World, ExecutorId, Micros) {
    let mut world = world();
    let device = add_device(&mut world, 64);
    let executor = executor_with(&mut world, device, |spec, profile| {
        spec.model_unload_delay = seconds(5);
        profile.step = seconds(1);
    });
    arrive(&mut world, of_model(MODEL_A, request(4, 2)));
    let [running] = residencies(&mut world)[..] else {
        panic!("one model is there");
    };
    assert_eq!((running.sequences, running.warm_until), (1, None));
    assert!(world.run_out(END));
    let until = world.now().after(seconds(5));
    (world, executor, until)
}

#[test]
fn a_model_stays_warm_for_its_unload_delay_after_its_last_sequence() {
    let (mut world, executor, latest) = warm();
    let [warm] = residencies(&mut world)[..] else {
        panic!("the model is still there");
    };
    assert_eq!(
        (warm.executor, warm.model, warm.sequences),
        (executor, MODEL_A, 0)
    );
    let until = warm.warm_until.unwrap();
    assert!(until <= latest);
    world.run_until(Micros(until.0 - 1));
    assert_eq!(residencies(&mut world).len(), 1);
    world.run_until(until);
    assert_eq!(residencies(&mut world), []);
}

#[test]
fn of_several_models_on_an_executor_only_the_last_one_stays_warm() {
    let mut world = world();
    let device = add_device(&mut world, 64);
    let executor = executor_with(&mut world, device, |spec, _| {
        spec.slots_total = 2;
        spec.model_unload_delay = seconds(5);
    });
    arrive(&mut world, of_model(MODEL_A, request(4, 2)));
    arrive(&mut world, of_model(MODEL_B, request(4, 3)));
    let there = |world: &mut World| -> Vec<_> {
        let present = residencies(world).into_iter();
        let present = present.map(|row| (row.model, row.sequences, row.warm_until.is_some()));
        present.collect()
    };
    let both = [(MODEL_A, 1, false), (MODEL_B, 1, false)];
    assert_eq!(there(&mut world), both);
    steps(&mut world, executor, 2);
    assert_eq!(there(&mut world), both[1..]);
    steps(&mut world, executor, 1);
    assert_eq!(there(&mut world), [(MODEL_B, 0, true)]);
}

/// The stay lasts through the hold: the model was not loaded again.
#[test]
fn a_model_has_come_when_it_was_placed_and_is_there_from_its_first_token_on() {
    let (mut world, _, until) = warm();
    let times = |world: &mut World| {
        let row = residencies(world)[0];
        (row.started, row.first_token)
    };
    // The prompt took the first step of a second.
    let came = (Micros(0), Some(seconds(1)));
    assert_eq!(times(&mut world), came);
    arrive(&mut world, of_model(MODEL_A, request(4, 2)));
    assert_eq!(times(&mut world), came);
    assert!(world.run_out(END));
    world.run_until(until.after(seconds(60)));
    assert_eq!(residencies(&mut world), []);

    let again = world.now();
    arrive(&mut world, of_model(MODEL_A, request(4, 2)));
    assert_eq!(times(&mut world), (again, None));
    assert!(world.run_out(END));
    assert_eq!(times(&mut world), (again, Some(again.after(seconds(1)))));
}

#[test]
fn starting_another_model_ends_the_hold_of_a_warm_one() {
    let (mut world, _, _) = warm();
    arrive(&mut world, of_model(MODEL_B, request(4, 2)));
    let models: Vec<_> = residencies(&mut world).iter().map(|r| r.model).collect();
    assert_eq!(models, [MODEL_B]);
}

#[test]
fn a_warm_model_that_runs_again_is_not_unloaded() {
    let (mut world, executor, until) = warm();
    arrive(&mut world, of_model(MODEL_A, request(4, 100)));
    world.run_until(until);
    let [row] = residencies(&mut world)[..] else {
        panic!("the model is there");
    };
    assert_eq!(
        (row.executor, row.sequences, row.warm_until),
        (executor, 1, None)
    );
}

// === Device queues ===

#[test]
fn requests_are_bound_to_an_executor_only_when_it_has_a_slot() {
    let (mut world, executor, _) = busy(8, 0);
    let next = arrive(&mut world, request(4, 2));
    assert!(is_queued(&world, next));
    steps(&mut world, executor, 2);
    assert_eq!(placements(&world, next), [executor]);
}

#[test]
fn a_device_queue_is_bounded_and_starts_the_latency_critical_first() {
    let mut world = world();
    let device = add_device(&mut world, 64);
    let executor = executor_with(&mut world, device, |spec, _| spec.queue_limit = 1);
    let first = arrive(&mut world, request(4, 2));
    let patient = arrive(&mut world, background(4, 2));
    let urgent = arrive(&mut world, request(4, 2));
    let late = arrive(&mut world, request(4, 2));
    for id in [patient, urgent] {
        assert_eq!(placed(&world, id), Some((executor, SequenceState::Queued)));
    }
    assert!(is_queued(&world, late), "one of each class is the bound");
    steps(&mut world, executor, 2);
    assert!(world.outcome(first).is_some());
    assert!(is_running(&world, urgent));
    assert_eq!(
        placed(&world, late),
        Some((executor, SequenceState::Queued))
    );
    assert!(world.run_out(END));
    let ends = facts(&world).filter_map(|fact| {
        let Fact::Ended(id, _) = fact else {
            return None;
        };
        Some(*id)
    });
    assert_eq!(ends.collect::<Vec<_>>(), [first, urgent, late, patient]);
    assert_nothing_held(&mut world);
}

// === The queue and the parking list ===

fn no_room(retry_after: u32) -> Option<Outcome> {
    Some(Outcome::Refused(RefusedWhy::NoRoom { retry_after }))
}

#[test]
fn a_full_queue_refuses_by_the_built_in_rule() {
    let (mut world, _, _) = busy(1, 8);
    let queued = arrive(&mut world, request(4, 2));
    let refused = arrive(&mut world, request(4, 2));
    assert!(is_queued(&world, queued));
    assert_eq!(world.outcome(refused), no_room(7));
}

#[test]
fn admitting_past_the_bound_is_refused_and_the_built_in_rule_decides() {
    let (mut world, _, _) = busy(1, 8);
    world.policies.on_admit(|_| admission::Choice::Admit);
    arrive(&mut world, request(4, 2));
    assert_eq!(refusals(&world), []);
    let refused = arrive(&mut world, request(4, 2));
    assert_eq!(refusals(&world), [RefusalCause::QueueFull]);
    assert_eq!(world.policies.refused.len(), 1, "the policy is told");
    assert_eq!(world.outcome(refused), no_room(7));
}

#[test]
fn a_policy_may_refuse_with_its_own_retry_after() {
    let (mut world, _, _) = busy(8, 8);
    world.policies.on_admit(|_| admission::Choice::Shed(42));
    let refused = arrive(&mut world, request(4, 2));
    assert_eq!(world.outcome(refused), no_room(42));
}

#[test]
fn parked_requests_enter_the_queue_in_the_order_of_their_arrival() {
    let (mut world, executor, _) = busy(1, 2);
    world.policies.on_admit(|_| admission::Choice::Park);
    let ids: Vec<_> = (0..4).map(|_| arrive(&mut world, request(4, 2))).collect();
    let queue = world.machine.queue_snapshot();
    assert_eq!(
        queue.queued,
        ids[..1],
        "who could be admitted is not parked"
    );
    assert_eq!(queue.parked, ids[1..3]);
    assert_eq!(refusals(&world), [RefusalCause::ParkingFull]);
    assert_eq!(world.outcome(ids[3]), no_room(7));
    steps(&mut world, executor, 2);
    assert!(is_running(&world, ids[0]));
    assert_eq!(world.machine.queue_snapshot().queued, ids[1..2]);
    assert_eq!(world.machine.queue_snapshot().parked, ids[2..3]);
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn a_parked_request_does_not_wait_while_a_slot_is_free() {
    let mut world = world_with(Config {
        queue_max: 1,
        ..Config::default()
    });
    world.policies.on_admit(|_| admission::Choice::Park);
    let device = add_device(&mut world, 64);
    add_executor(&mut world, device, 3);
    let ids: Vec<_> = (0..3)
        .map(|_| world.arrive(request(4, 2), u32::MAX))
        .collect();
    world.settle();
    assert_eq!(running(&world, &ids), [true; 3]);
}

#[test]
fn a_request_that_may_not_wait_is_not_parked() {
    let (mut world, _, _) = busy(1, 8);
    world.policies.on_admit(|_| admission::Choice::Park);
    arrive(&mut world, request(4, 2));
    let hurried = NewRequest {
        may_wait: false,
        ..request(4, 2)
    };
    let refused = arrive(&mut world, hurried);
    assert_eq!(refusals(&world), [RefusalCause::MayNotWait]);
    assert_eq!(world.outcome(refused), no_room(7));
}

fn displace(request: RequestId, retry_after: u32) -> admission::Choice {
    admission::Choice::Displace(admission::Displacement {
        request,
        retry_after,
    })
}

#[test]
fn displacing_refuses_the_one_named_and_nobody_else() {
    let (mut world, running, first) = busy(2, 8);
    let [one, two] = [(); 2].map(|()| arrive(&mut world, request(4, 2)));
    world.policies.on_admit(move |_| displace(one, 33));
    let new = arrive(&mut world, request(4, 2));
    let displaced = RefusedWhy::Displaced { retry_after: 33 };
    assert_eq!(world.outcome(one), Some(Outcome::Refused(displaced)));
    assert_eq!(world.machine.queue_snapshot().queued, [two, new]);
    assert!(is_running(&world, first));

    world.policies.on_admit(move |_| displace(first, 33));
    let refused = arrive(&mut world, request(4, 2));
    assert_eq!(refusals(&world), [RefusalCause::NotQueued]);
    assert_eq!(world.outcome(refused), no_room(7));
    steps(&mut world, running, 1);
    assert_eq!(world.machine.queue_snapshot().queued, [two, new]);
}

/// Found by a seed of `seeds`, whose smallest case is kept there.
#[test]
fn a_place_past_the_bound_of_the_queue_is_not_given_away() {
    let (mut world, executor, first) = busy(1, 0);
    let device = add_device(&mut world, 64);
    let other = add_executor(&mut world, device, 1);
    arrive(&mut world, request(4, 2));
    let queued = arrive(&mut world, request(4, 2));
    world.step(executor);
    world.fail(executor, first, RetryClass::Elsewhere);
    world.update(executor, ExecutorUpdate::Health(Health::Draining));
    world.settle();
    assert_eq!(world.machine.queue_snapshot().queued, [first, queued]);

    world.policies.on_admit(move |_| displace(first, 33));
    let refused = arrive(&mut world, request(4, 2));
    assert_eq!(refusals(&world), [RefusalCause::QueueFull]);
    assert_eq!(world.outcome(refused), no_room(7));
    world.policies.on_admit(move |_| displace(queued, 33));
    let new = arrive(&mut world, request(4, 2));
    assert_eq!(world.machine.queue_snapshot().queued, [first, new]);
    steps(&mut world, other, 2);
    assert!(is_running(&world, first));
}
