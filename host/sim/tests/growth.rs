//! Running sequences that lack a block: the victims, the takers of free blocks, and that nobody
//! stalls for ever.

mod common;

use common::{
    END, World, add_device, add_executor, arrive, assert_nothing_held, background, cancel, evict,
    evictions, executor_with, is_queued, is_running, placed, refusals, request, seconds, steps,
    strikes, world,
};
use pointsman_core::{
    Clock, Config, Effect, ExecutorId, ExecutorUpdate, Micros, NewRequest, Outcome, RefusalCause,
    RequestId, Shortage, ShortageCause,
};

/// A host with six blocks and two slots.
fn tight(leave_steps: u32) -> (World, ExecutorId) {
    let mut world = world();
    let device = add_device(&mut world, 6);
    let executor = executor_with(&mut world, device, |spec, profile| {
        spec.slots_total = 2;
        profile.leave_steps = leave_steps;
    });
    (world, executor)
}

/// A request that takes two blocks at its start, lacks a fourth after five steps, and could use all
/// six.
fn growing(priority: i32) -> NewRequest {
    NewRequest {
        priority,
        ..request(7, 16)
    }
}

fn finished(world: &World, ids: &[RequestId]) -> bool {
    let whole = Some(Outcome::Finished { output_tokens: 16 });
    ids.iter().all(|id| world.outcome(*id) == whole)
}

/// Two requests that grow at once, in a host whose policy lets them.
fn short(priorities: [i32; 2], leave_steps: u32) -> (World, ExecutorId, [RequestId; 2]) {
    let (mut world, executor) = tight(leave_steps);
    let ids = priorities.map(|priority| arrive(&mut world, growing(priority)));
    steps(&mut world, executor, 4);
    assert_eq!(world.policies.asked.evict, []);
    (world, executor, ids)
}

#[test]
fn the_later_of_two_equals_gives_its_blocks_to_the_earlier_one() {
    let (mut world, executor, [first, second]) = short([0, 0], 1);
    steps(&mut world, executor, 1);
    assert_eq!(evictions(&world), [(second, first)]);
    world.step(executor);
    assert!(is_queued(&world, second) && is_running(&world, first));
    assert_eq!(world.machine.block_table(first).len(), 4);
    assert!(world.run_out(END));
    assert!(finished(&world, &[first, second]));
    assert_eq!(evictions(&world).len(), 1);
    assert_nothing_held(&mut world);
}

#[test]
fn the_more_urgent_of_two_gets_the_blocks_though_it_came_later() {
    let (mut world, executor, [first, urgent]) = short([0, 1], 1);
    steps(&mut world, executor, 1);
    assert_eq!(evictions(&world), [(first, urgent)]);
    assert!(world.run_out(END));
    assert!(finished(&world, &[first, urgent]));
}

#[test]
fn a_policy_is_asked_for_the_most_urgent_one_and_how_many_blocks_it_lacks() {
    let (mut world, executor, [_, urgent]) = short([0, 1], 1);
    world.policies.on_evict(|_| None);
    steps(&mut world, executor, 1);
    let shortages = world
        .policies
        .asked
        .evict
        .iter()
        .map(|(_, shortage)| *shortage);
    let shortage = Shortage {
        cause: ShortageCause::Blocks,
        needy: urgent,
        executor: Some(executor),
        blocks: 1,
    };
    assert_eq!(shortages.collect::<Vec<_>>(), [shortage]);
    assert_eq!(evictions(&world), [], "nobody, it said");
}

#[test]
fn a_running_sequence_grows_only_where_it_runs() {
    let (mut world, executor, [_, second]) = short([0, 0], 1);
    let device = world.machine.executor_snapshot(executor).unwrap().device;
    let other = add_executor(&mut world, device, 1);
    world
        .policies
        .on_evict(move |_| Some(evict(other, &[second])));
    steps(&mut world, executor, 1);
    assert_eq!(refusals(&world), [RefusalCause::WrongExecutor]);
}

#[test]
fn nobody_is_asked_again_while_the_blocks_are_on_their_way() {
    let (mut world, executor, [first, second]) = short([0, 0], 300);
    steps(&mut world, executor, 1);
    assert_eq!(evictions(&world), [(second, first)]);
    for weight in 2..4 {
        world.update(executor, ExecutorUpdate::ShareWeight(weight));
        world.run_until(world.now().after(seconds(1)));
    }
    assert!(placed(&world, second).is_some(), "it has not left yet");
    assert_eq!(world.policies.evict_questions_for(first), 1);
    world.run_until(world.now().after(seconds(2)));
    assert!(finished(&world, &[first]));
    assert_eq!(evictions(&world).len(), 1);
}

#[test]
fn what_comes_free_is_for_the_running_before_the_waiting() {
    let (mut world, executor) = tight(1);
    world.policies.on_evict(|_| None);
    let short = arrive(&mut world, growing(0));
    let large = arrive(&mut world, background(12, 3));
    let urgent = NewRequest {
        priority: 9,
        ..request(3, 1)
    };
    steps(&mut world, executor, 2);
    let [small] = [arrive(&mut world, urgent)];
    assert!(is_queued(&world, small), "both slots are taken");
    // The large one takes its four blocks with it when it ends.
    world.step(executor);
    assert!(world.outcome(large).is_some());
    assert!(is_running(&world, small) && is_running(&world, short));
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn a_newcomer_gets_what_the_running_leave_over() {
    let (mut world, executor, [first, second]) = short([0, 0], 1);
    world.policies.on_evict(|_| None);
    steps(&mut world, executor, 1);
    let newcomer = arrive(&mut world, request(10, 1));
    cancel(&mut world, second);
    world.step(executor);
    assert_eq!(world.machine.block_table(first).len(), 4);
    assert!(
        is_queued(&world, newcomer),
        "two of three blocks are left for it"
    );
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn a_policy_that_lets_sequences_stall_is_overruled_in_time() {
    let unplaced_max = Config::default().unplaced_max;
    let (mut world, _, [first, second]) = short([0, 0], 1);
    world.policies.on_evict(|_| None);
    let stalled = world.now();
    world.run_until(Micros(unplaced_max.0 - 1));
    assert_eq!((evictions(&world), strikes(&world)), (vec![], vec![]));
    world.run_until(stalled.after(unplaced_max).after(seconds(1)));
    assert_eq!(strikes(&world), [(Clock::Stalled, first)]);
    assert_eq!(evictions(&world), [(second, first)]);
    assert!(world.run_out(END));
    assert!(finished(&world, &[first, second]));
    assert_nothing_held(&mut world);
}

/// A request that cannot be put back has the blocks that another one lacks.
#[test]
fn a_sequence_that_nobody_can_give_way_to_is_no_strike_and_the_policy_is_asked_on() {
    let mut world = world();
    let device = add_device(&mut world, 6);
    executor_with(&mut world, device, |spec, profile| {
        spec.preempts = false;
        profile.step = seconds(30);
    });
    let settled = arrive(&mut world, request(15, 1));
    add_executor(&mut world, device, 1);
    let short = arrive(&mut world, growing(0));
    assert!(is_running(&world, settled) && is_running(&world, short));
    let asked = [12, 24].map(|second| {
        world.run_until(seconds(second));
        world.policies.evict_questions_for(short)
    });
    assert!(asked[0] < asked[1], "{asked:?}");
    assert_eq!((evictions(&world), strikes(&world)), (vec![], vec![]));
    assert!(world.run_out(END));
    assert!(finished(&world, &[short]));
    assert_nothing_held(&mut world);
}

#[test]
fn many_that_outgrow_their_device_all_finish() {
    let mut world = world();
    let device = add_device(&mut world, 9);
    add_executor(&mut world, device, 5);
    let ids: Vec<_> = (0..6).map(|n| arrive(&mut world, growing(n % 2))).collect();
    assert!(world.run_out(END));
    assert!(finished(&world, &ids));
    assert!(!evictions(&world).is_empty());
    assert_eq!(strikes(&world), []);
    assert_nothing_held(&mut world);
}

#[test]
fn a_cancelled_sequence_lacks_nothing_any_more() {
    let (mut world, executor, [first, second]) = short([0, 0], 3);
    steps(&mut world, executor, 1);
    assert_eq!(evictions(&world), [(second, first)]);
    cancel(&mut world, first);
    steps(&mut world, executor, 3);
    assert!(
        is_running(&world, second),
        "both have left, and it is taken up again"
    );
    let granted = world.effects().iter();
    let granted = granted
        .filter(|e| matches!(e, Effect::Grant { sequence, .. } if sequence.request == first));
    assert_eq!(granted.count(), 1, "its third block, and no fourth");
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}
