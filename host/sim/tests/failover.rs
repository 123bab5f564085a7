//! The fate of requests when executors fail them, die, drain or are taken away.

mod common;

use common::{
    END, World, add_device, add_executor, arrive, assert_nothing_held, executor_with, facts,
    is_queued, is_running, placed, placements, refusals, request, starts, steps, waiting_row,
    world, world_with,
};
use pointsman_core::rows::{Health, SequenceState};
use pointsman_core::{
    Config, Effect, ExecutorId, ExecutorUpdate, Fact, FailedWhy, Incarnation, Input, Outcome,
    RefusalCause, RequestId, RequeuedWhy, RetryClass,
};

/// Attaches so many executors of one slot, each with its own device.
fn fleet<const N: usize>(world: &mut World) -> [ExecutorId; N] {
    [(); N].map(|()| {
        let device = add_device(world, 16);
        add_executor(world, device, 1)
    })
}

/// A host that lets requests wait while nobody serves them.
fn patient() -> World {
    world_with(Config {
        unserved_max: Config::default().wait_max,
        ..Config::default()
    })
}

fn fail(world: &mut World, executor: ExecutorId, id: RequestId, retry: RetryClass) {
    world.fail(executor, id, retry);
    world.settle();
}

fn failed(why: FailedWhy) -> Option<Outcome> {
    Some(Outcome::Failed(why))
}

fn requeued(world: &World, id: RequestId, why: RequeuedWhy) -> bool {
    facts(world).any(|fact| *fact == Fact::Requeued(id, why))
}

fn detached(world: &World, id: ExecutorId) -> bool {
    let gone = Effect::Detached { executor: id };
    world.effects().contains(&gone) && world.machine.executor_snapshot(id).is_none()
}

#[test]
fn a_request_that_failed_before_its_first_token_is_tried_elsewhere() {
    let mut world = world();
    let [first, second] = fleet(&mut world);
    let id = arrive(&mut world, request(10, 5));
    fail(&mut world, first, id, RetryClass::Elsewhere);
    assert!(requeued(&world, id, RequeuedWhy::Failed));
    assert!(world.run_out(END));
    assert_eq!(placements(&world, id), [first, second]);
    assert_eq!(
        world.outcome(id),
        Some(Outcome::Finished { output_tokens: 5 })
    );
    assert_nothing_held(&mut world);
}

#[test]
fn the_executor_that_failed_a_request_is_refused_for_it() {
    let mut world = world();
    let [first, second] = fleet(&mut world);
    world.policies.route_to(&[first]);
    let id = arrive(&mut world, request(10, 5));
    fail(&mut world, first, id, RetryClass::Elsewhere);
    assert_eq!(refusals(&world), [RefusalCause::FailedBefore]);
    let row = waiting_row(&mut world, id).unwrap();
    assert_eq!((row.attempts, row.failed_on), (1, vec![first]));

    world.policies.route_to(&[first, second]);
    world.update(first, ExecutorUpdate::ShareWeight(2));
    world.settle();
    assert_eq!(placements(&world, id), [first, second]);
}

/// Attaches two executors, and has the first one generate three tokens of five.
fn half_served(world: &mut World) -> ([ExecutorId; 2], RequestId) {
    let executors = fleet(world);
    let id = arrive(world, request(10, 5));
    steps(world, executors[0], 3);
    (executors, id)
}

/// The prompt and the bound with which each placement of a request began.
fn orders(world: &World, id: RequestId) -> Vec<(u32, u32)> {
    let starts = starts(world, id);
    let orders = starts
        .iter()
        .map(|s| (s.prompt_tokens, s.output_tokens_max));
    orders.collect()
}

#[test]
fn a_half_answer_goes_on_elsewhere_from_the_tokens_that_are_left() {
    for (left, total) in [(3, 2), (2, 3), (0, 5)] {
        let mut world = world();
        let ([first, second], id) = half_served(&mut world);
        world.lose_keeping(first, |generated| {
            assert_eq!(generated, 3);
            left
        });
        world.settle();
        assert!(requeued(&world, id, RequeuedWhy::Lost));
        assert_eq!(placements(&world, id), [first, second]);
        assert_eq!(orders(&world, id), [(10, 5), (10 + left, total)]);
        assert!(world.run_out(END));
        let finished = Outcome::Finished { output_tokens: 5 };
        assert_eq!(world.outcome(id), Some(finished));
        assert_nothing_held(&mut world);
    }
}

#[test]
fn a_half_answer_that_its_executor_failed_goes_on_elsewhere() {
    let mut world = world();
    let ([first, second], id) = half_served(&mut world);
    fail(&mut world, first, id, RetryClass::Elsewhere);
    assert_eq!(placements(&world, id), [first, second]);
    assert_eq!(orders(&world, id), [(10, 5), (13, 2)]);
    assert!(world.run_out(END));
    let finished = Outcome::Finished { output_tokens: 5 };
    assert_eq!(world.outcome(id), Some(finished));
    assert_nothing_held(&mut world);
}

#[test]
fn tokens_that_were_given_back_before_are_left_whatever_is_lost() {
    let mut world = world();
    let ([first, second], id) = half_served(&mut world);
    fail(&mut world, first, id, RetryClass::Elsewhere);
    steps(&mut world, second, 1);
    let [third] = fleet(&mut world);
    let sequence = starts(&world, id)[1].sequence;
    world.input(Input::ExecutorLost {
        executor: second,
        incarnation: sequence.incarnation,
        kept: Vec::new(),
    });
    world.settle();
    assert_eq!(placements(&world, id), [first, second, third]);
    assert_eq!(orders(&world, id), [(10, 5), (13, 2), (13, 2)]);
}

#[test]
fn a_failure_of_the_request_itself_is_not_retried() {
    let mut world = world();
    let [first, _] = fleet(&mut world);
    let id = arrive(&mut world, request(10, 5));
    fail(&mut world, first, id, RetryClass::Never);
    assert_eq!(world.outcome(id), failed(FailedWhy::NotRetryable));
    assert_nothing_held(&mut world);
}

#[test]
fn a_request_is_tried_at_most_attempts_max_times() {
    let mut world = world_with(Config {
        attempts_max: 2,
        ..Config::default()
    });
    let [first, second, _] = fleet(&mut world);
    let id = arrive(&mut world, request(10, 5));
    fail(&mut world, first, id, RetryClass::Elsewhere);
    fail(&mut world, second, id, RetryClass::Elsewhere);
    assert_eq!(world.outcome(id), failed(FailedWhy::AttemptsMax));
    assert_eq!(placements(&world, id), [first, second]);
    assert_nothing_held(&mut world);
}

#[test]
fn a_request_that_every_executor_failed_fails() {
    let mut world = world();
    let [first, second] = fleet(&mut world);
    let id = arrive(&mut world, request(10, 5));
    fail(&mut world, first, id, RetryClass::Elsewhere);
    fail(&mut world, second, id, RetryClass::Elsewhere);
    assert_eq!(world.outcome(id), failed(FailedWhy::NowhereLeft));
    assert_nothing_held(&mut world);
}

#[test]
fn what_a_lost_executor_ran_and_had_queued_goes_elsewhere() {
    let mut world = world();
    let device = add_device(&mut world, 16);
    let lost = executor_with(&mut world, device, |spec, _| spec.queue_limit = 1);
    let running = arrive(&mut world, request(10, 5));
    let queued = arrive(&mut world, request(10, 5));
    assert_eq!(placed(&world, queued), Some((lost, SequenceState::Queued)));
    let [second, third] = fleet(&mut world);
    world.lose(lost);
    world.settle();
    for (id, refuge) in [(running, second), (queued, third)] {
        assert!(requeued(&world, id, RequeuedWhy::Lost));
        assert_eq!(placements(&world, id), [lost, refuge]);
    }
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn a_lost_executor_takes_nothing_until_it_is_back_in_its_next_life() {
    let mut world = patient();
    let [executor] = fleet(&mut world);
    world.lose(executor);
    let id = arrive(&mut world, request(10, 5));
    assert!(is_queued(&world, id));
    world.update(executor, ExecutorUpdate::Health(Health::Up));
    world.settle();
    let lives: Vec<_> = starts(&world, id)
        .iter()
        .map(|s| s.sequence.incarnation)
        .collect();
    assert_eq!(lives, [Incarnation(1)]);
    assert!(world.run_out(END));
    assert_eq!(
        world.outcome(id),
        Some(Outcome::Finished { output_tokens: 5 })
    );
}

#[test]
fn a_draining_executor_finishes_what_it_has_and_takes_nothing_new() {
    let mut world = world();
    let device = add_device(&mut world, 16);
    let executor = executor_with(&mut world, device, |spec, _| {
        spec.slots_total = 2;
        spec.queue_limit = 1;
    });
    let [first, second, queued] = [(); 3].map(|()| arrive(&mut world, request(10, 5)));
    assert_eq!(
        placed(&world, queued),
        Some((executor, SequenceState::Queued))
    );
    world.update(executor, ExecutorUpdate::Health(Health::Draining));
    let late = arrive(&mut world, request(10, 5));
    steps(&mut world, executor, 10);
    for id in [first, second, queued] {
        assert_eq!(
            world.outcome(id),
            Some(Outcome::Finished { output_tokens: 5 })
        );
    }
    assert!(is_queued(&world, late));

    world.policies.route_to(&[executor]);
    let [other] = fleet(&mut world);
    world.settle();
    let unavailable = RefusalCause::Unavailable(Health::Draining);
    assert_eq!(refusals(&world), [unavailable]);
    world.policies.route_to(&[executor, other]);
    world.update(other, ExecutorUpdate::ShareWeight(2));
    world.settle();
    assert_eq!(placements(&world, late), [other]);
}

#[test]
fn a_detached_executor_is_gone_after_its_last_sequence() {
    let mut world = patient();
    let device = add_device(&mut world, 16);
    let executor = add_executor(&mut world, device, 2);
    let id = arrive(&mut world, request(10, 5));
    world.update(executor, ExecutorUpdate::Detach);
    let late = arrive(&mut world, request(10, 5));
    steps(&mut world, executor, 4);
    assert!(is_running(&world, id) && is_queued(&world, late));
    assert!(!detached(&world, executor));
    steps(&mut world, executor, 1);
    assert_eq!(
        world.outcome(id),
        Some(Outcome::Finished { output_tokens: 5 })
    );
    assert!(detached(&world, executor));
    assert!(facts(&world).any(|fact| *fact == Fact::ExecutorDetached(executor)));

    let [idle] = fleet(&mut world);
    world.settle();
    assert!(is_running(&world, late));
    steps(&mut world, idle, 5);
    world.update(idle, ExecutorUpdate::Detach);
    world.settle();
    assert!(detached(&world, idle), "an idle one goes at once");
}

#[test]
fn what_a_lost_executor_had_not_taken_up_may_go_back_when_it_returns() {
    let mut world = patient();
    let device = add_device(&mut world, 16);
    let only = executor_with(&mut world, device, |spec, _| {
        spec.slots_total = 2;
        spec.queue_limit = 1;
    });
    let running = arrive(&mut world, request(10, 5));
    steps(&mut world, only, 1);
    let [ordered, queued] = [(); 2].map(|()| arrive(&mut world, request(10, 5)));
    assert!(is_running(&world, ordered));
    assert_eq!(placed(&world, queued), Some((only, SequenceState::Queued)));
    world.lose(only);
    world.settle();
    assert_eq!(world.outcome(running), failed(FailedWhy::NowhereLeft));
    world.update(only, ExecutorUpdate::Health(Health::Up));
    assert!(world.run_out(END));
    let served = Some(Outcome::Finished { output_tokens: 5 });
    assert_eq!(world.outcome(ordered), served);
    assert_eq!(world.outcome(queued), served);
}

#[test]
fn evictions_are_not_counted_as_failures() {
    let mut world = world_with(Config {
        attempts_max: 2,
        ..Config::default()
    });
    let device = add_device(&mut world, 16);
    let first = add_executor(&mut world, device, 1);
    let victim = arrive(&mut world, request(10, 5));
    let mut urgent = request(10, 5);
    urgent.priority = 1;
    arrive(&mut world, urgent);
    steps(&mut world, first, 1);
    assert!(requeued(&world, victim, RequeuedWhy::Evicted));
    // Its first failure is not its last, though it was placed before.
    let second = add_executor(&mut world, device, 1);
    world.settle();
    assert_eq!(placements(&world, victim), [first, second]);
    fail(&mut world, second, victim, RetryClass::Elsewhere);
    assert!(requeued(&world, victim, RequeuedWhy::Failed));
}
