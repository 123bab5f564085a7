//! The order in which engines serve their sequences: the question, the answer, and who gets on.

mod common;

use common::{
    END, World, add_device, add_executor, arrive, assert_nothing_held, background, device_with,
    facts, is_running, refusals, request, steps, world,
};
use pointsman_core::rows::Health;
use pointsman_core::{
    Arrangement, Author, Effect, ExecutorId, ExecutorUpdate, Fact, Outcome, RefusalCause, RequestId,
};

/// An engine of four slots that schedules 20 tokens in a step.
fn engine() -> (World, ExecutorId) {
    let mut world = world();
    let device = device_with(&mut world, 200, Some(20));
    let executor = add_executor(&mut world, device, 4);
    (world, executor)
}

fn order(first: &[RequestId]) -> Arrangement {
    Arrangement {
        prefill_max: None,
        first: first.to_vec(),
    }
}

fn arranged(world: &World, executor: ExecutorId) -> Arrangement {
    let snapshot = world.machine.executor_snapshot(executor);
    snapshot.expect("it is attached").arrangement
}

fn is_finished(world: &World, id: RequestId) -> bool {
    matches!(world.outcome(id), Some(Outcome::Finished { .. }))
}

// === The answer ===

#[test]
fn the_built_in_rule_serves_the_most_urgent_first() {
    let (mut world, executor) = engine();
    let bulk = arrive(&mut world, background(100, 1));
    world.step(executor);
    let urgent = arrive(&mut world, request(38, 1));
    assert_eq!(arranged(&world, executor), order(&[urgent, bulk]));
    steps(&mut world, executor, 2);
    assert!(is_finished(&world, urgent) && is_running(&world, bulk));
    assert_eq!(arranged(&world, executor), order(&[]), "one alone");
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn equals_are_served_in_order_of_arrival_and_the_engine_is_told_nothing() {
    let (mut world, executor) = engine();
    let first = arrive(&mut world, request(30, 1));
    let second = arrive(&mut world, request(30, 1));
    steps(&mut world, executor, 2);
    assert!(is_finished(&world, first) && is_running(&world, second));
    let told = world.effects().iter();
    let mut told = told.filter(|effect| matches!(effect, Effect::Arrange { .. }));
    assert_eq!(told.next(), None);
}

#[test]
fn a_policy_says_who_is_prefilled_first_and_nobody_goes_without() {
    let (mut world, executor) = engine();
    world.policies.on_arrange(|running| Arrangement {
        prefill_max: None,
        first: running.iter().rev().copied().collect(),
    });
    let [first, second] = [(); 2].map(|()| arrive(&mut world, request(30, 1)));
    let arrangement = order(&[second, first]);
    assert_eq!(arranged(&world, executor), arrangement);
    let told = Fact::Arranged {
        executor,
        arrangement,
        author: Author::Policy(0),
    };
    assert!(facts(&world).any(|fact| *fact == told));
    // The later one gets 19 of 20 in each step, and the first one its token.
    steps(&mut world, executor, 2);
    assert!(is_finished(&world, second) && is_running(&world, first));
    let load = world.machine.executor_load(executor);
    let left = load.map(|load| load.prefill_tokens_pending);
    assert_eq!(left, Some(30 - 1 - 9), "and what the other one left");
}

#[test]
fn a_policy_says_how_much_of_a_step_prompts_may_take() {
    let (mut world, executor) = engine();
    world.policies.on_arrange(|_| Arrangement {
        prefill_max: Some(5),
        first: Vec::new(),
    });
    for _ in 0..2 {
        arrive(&mut world, request(100, 1));
    }
    let before = world.engine(executor).unwrap().tokens_total();
    steps(&mut world, executor, 3);
    let after = world.engine(executor).unwrap().tokens_total();
    assert_eq!(after - before, 15);
}

#[test]
fn strangers_and_those_named_twice_are_passed_over_and_the_rest_comes_by_urgency() {
    let (mut world, executor) = engine();
    let bulk = arrive(&mut world, background(100, 1));
    let early = arrive(&mut world, request(100, 1));
    let late = arrive(&mut world, request(100, 1));
    assert_eq!(arranged(&world, executor), order(&[early, late, bulk]));
    world
        .policies
        .on_arrange(move |_| order(&[RequestId(99), late, late]));
    let last = arrive(&mut world, background(100, 1));
    assert_eq!(refusals(&world), [RefusalCause::NotAsked]);
    let rest_by_urgency = order(&[late, early, bulk, last]);
    assert_eq!(arranged(&world, executor), rest_by_urgency);
}

// === The question ===

#[test]
fn a_policy_is_asked_when_others_run_than_before_and_not_about_one_alone() {
    let (mut world, executor) = engine();
    let mut told = 0;
    let mut asked = |world: &World| {
        let before = std::mem::replace(&mut told, world.policies.asked.arrange.len());
        told - before
    };
    let first = arrive(&mut world, request(4, 3));
    assert_eq!(asked(&world), 0, "one alone");
    let second = arrive(&mut world, request(4, 9));
    assert_eq!(asked(&world), 1, "a second one");
    let third = arrive(&mut world, request(4, 9));
    assert_eq!(asked(&world), 1, "a third one");
    let about = world.policies.asked.arrange.last();
    assert_eq!(about, Some(&(executor, vec![first, second, third])));
    steps(&mut world, executor, 2);
    assert_eq!(asked(&world), 0, "tokens");
    steps(&mut world, executor, 1);
    assert!(is_finished(&world, first));
    assert_eq!(asked(&world), 1, "one less");
    common::cancel(&mut world, second);
    steps(&mut world, executor, 1);
    assert_eq!(asked(&world), 0, "one alone again");
}

#[test]
fn an_engine_in_its_next_life_is_told_its_order_again() {
    let (mut world, executor) = engine();
    let [bulk, urgent] = [background(100, 1), request(100, 1)].map(|new| arrive(&mut world, new));
    let arrangement = order(&[urgent, bulk]);
    let times_told = |world: &World| {
        let told = world.effects().iter();
        let order = Effect::Arrange {
            executor,
            arrangement: arrangement.clone(),
        };
        told.filter(|effect| **effect == order).count()
    };
    assert_eq!(times_told(&world), 1);
    world.lose(executor);
    world.update(executor, ExecutorUpdate::Health(Health::Up));
    world.settle();
    assert!(is_running(&world, bulk) && is_running(&world, urgent));
    assert_eq!(arranged(&world, executor), arrangement);
    assert_eq!(times_told(&world), 2);
}

// === Blocks ===

/// The time at which a block is free for one of two sequences that lack one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreeBlock {
    AtOnce,
    After,
}

/// The one of two equal sequences, which come to lack a block in the same step, that gets the one
/// that is free then, or comes free after it. The order is an arrangement's, or the built-in one.
fn takes_the_free_block(first: Option<[RequestId; 2]>, comes: FreeBlock) -> RequestId {
    let mut world = world();
    let device = add_device(&mut world, 5);
    let executor = add_executor(&mut world, device, 3);
    world.policies.on_evict(|_| None);
    if let Some(first) = first {
        world.policies.on_arrange(move |_| order(&first));
    }
    // Two blocks each, and a third from the second token on.
    for _ in 0..2 {
        arrive(&mut world, request(6, 8));
    }
    if comes == FreeBlock::After {
        arrive(&mut world, request(2, 3));
    }
    steps(&mut world, executor, 3);
    let grants = world.effects().iter().filter_map(|effect| match effect {
        Effect::Grant { sequence, .. } => Some(sequence.request),
        Effect::Start(_)
        | Effect::Evict { .. }
        | Effect::Cancel(_)
        | Effect::SetBudget { .. }
        | Effect::Arrange { .. }
        | Effect::Finish { .. }
        | Effect::Detached { .. } => None,
    });
    let grants: Vec<RequestId> = grants.collect();
    let [granted] = grants[..] else {
        panic!("{grants:?}")
    };
    granted
}

#[test]
fn free_blocks_go_to_sequences_in_the_order_of_their_engine() {
    let [older, newer] = [RequestId(0), RequestId(1)];
    for comes in [FreeBlock::AtOnce, FreeBlock::After] {
        let taker = |first| takes_the_free_block(first, comes);
        assert_eq!(taker(None), older, "{comes:?}");
        assert_eq!(taker(Some([newer, older])), newer, "{comes:?}");
    }
}
