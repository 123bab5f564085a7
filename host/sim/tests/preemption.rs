//! Victims for a waiting request: the choice of victims, and the use of the room that they leave.

mod common;

use common::{
    END, MODEL_A, MODEL_B, World, add_device, add_executor, arrive, assert_nothing_held,
    background, blocks_idle, cancel, evict, evictions, executor_with, facts, is_queued, is_running,
    of_model, placed, placements, refusals, request, seconds, starts, steps, waiting_row, world,
    world_with,
};
use pointsman_core::rows::{Health, SequenceState};
use pointsman_core::{
    Config, DeviceId, Effect, ExecutorId, ExecutorUpdate, Fact, Input, ModelId, NewRequest,
    Outcome, RefusalCause, RequestId, RequeuedWhy, ShortageCause,
};

/// One executor whose sequences take three steps to leave.
fn slow_to_leave(slots: u32, blocks: u32) -> (World, ExecutorId) {
    let mut world = world_with(Config {
        // What an executor loses waits for the next one.
        unserved_max: Config::default().wait_max,
        ..Config::default()
    });
    let device = add_device(&mut world, blocks);
    let executor = executor_with(&mut world, device, |spec, profile| {
        spec.slots_total = slots;
        profile.leave_steps = 3;
        // No step that a test does not make itself.
        profile.step = seconds(100);
    });
    (world, executor)
}

/// A full executor, with a victim that is leaving for a more urgent one.
fn leaving() -> (World, ExecutorId, RequestId, RequestId) {
    let (mut world, executor) = slow_to_leave(1, 64);
    let victim = arrive(&mut world, background(10, 20));
    let needy = arrive(&mut world, request(10, 5));
    assert_eq!(evictions(&world), [(victim, needy)]);
    assert_eq!(
        placed(&world, victim),
        Some((executor, SequenceState::Leaving))
    );
    (world, executor, victim, needy)
}

fn reservations(world: &World) -> Vec<(RequestId, ExecutorId)> {
    world.machine.queue_snapshot().reserved
}

fn has_fact(world: &World, fact: &Fact) -> bool {
    facts(world).any(|other| other == fact)
}

fn is_leaving(world: &World, id: RequestId) -> bool {
    placed(world, id).is_some_and(|(_, state)| state == SequenceState::Leaving)
}

/// Ends a victim whose last token crossed the order to leave.
fn finish(world: &mut World, executor: ExecutorId, victim: RequestId) {
    let Some(snapshot) = world.machine.executor_snapshot(executor) else {
        panic!("{executor} is attached");
    };
    let sequence = common::sequence_of(victim, executor, snapshot.incarnation);
    world.input(Input::SequenceFinished(sequence));
    world.settle();
}

// === The room is the needy one's ===

#[test]
fn the_needy_is_placed_on_the_room_its_victim_left_without_being_routed() {
    let (mut world, executor, victim, needy) = leaving();
    world.policies.route_to(&[executor]);
    assert_eq!(reservations(&world), [(needy, executor)]);
    steps(&mut world, executor, 2);
    assert!(is_queued(&world, needy), "the victim has not left yet");
    world.step(executor);
    assert!(has_fact(&world, &Fact::Left(victim, executor)));
    assert!(is_running(&world, needy) && is_queued(&world, victim));
    assert_eq!(world.policies.route_questions_for(needy), []);
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn an_older_and_equally_urgent_victim_does_not_take_its_place_back() {
    let (mut world, executor) = slow_to_leave(1, 64);
    let victim = arrive(&mut world, request(10, 20));
    world
        .policies
        .on_evict(move |shortage| (shortage.needy != victim).then(|| evict(executor, &[victim])));
    let needy = arrive(&mut world, request(10, 5));
    steps(&mut world, executor, 3);
    assert_eq!(evictions(&world), [(victim, needy)]);
    assert!(is_running(&world, needy) && is_queued(&world, victim));
    assert!(victim < needy);
}

#[test]
fn the_blocks_a_victim_leaves_go_to_nobody_but_the_needy() {
    let (mut world, executor) = slow_to_leave(4, 8);
    let victim = arrive(&mut world, background(23, 1));
    let needy = arrive(&mut world, request(19, 1));
    assert!(is_leaving(&world, victim));
    let small = arrive(&mut world, request(3, 1));
    assert!(is_queued(&world, small), "the two free blocks are kept");
    assert_eq!(blocks_idle(&mut world, DeviceId(0)), (0, 0));
    steps(&mut world, executor, 3);
    assert!(is_running(&world, needy));
    assert!(is_running(&world, small), "three blocks are left over");
    assert!(is_queued(&world, victim));
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn a_victim_resumes_from_its_tokens() {
    let (mut world, executor) = slow_to_leave(1, 64);
    let victim = arrive(&mut world, background(10, 20));
    steps(&mut world, executor, 6);
    arrive(&mut world, request(10, 5));
    steps(&mut world, executor, 3);
    let row = waiting_row(&mut world, victim).unwrap();
    assert_eq!((row.prompt_tokens, row.output_tokens_max), (16, 14));
    assert_eq!(row.attempts, 1);
    steps(&mut world, executor, 5 + 14);
    let [_, again] = starts(&world, victim)[..] else {
        panic!("it was started twice");
    };
    assert_eq!((again.prompt_tokens, again.output_tokens_max), (16, 14));
    let whole = Outcome::Finished { output_tokens: 20 };
    assert_eq!(world.outcome(victim), Some(whole));
}

#[test]
fn a_victim_that_had_no_slot_yet_is_back_at_once() {
    let mut world = world();
    let device = add_device(&mut world, 8);
    let busy = executor_with(&mut world, device, |spec, _| spec.queue_limit = 1);
    let urgent = NewRequest {
        priority: 1,
        ..request(3, 1)
    };
    arrive(&mut world, urgent);
    let victim = arrive(&mut world, background(19, 1));
    assert_eq!(placed(&world, victim), Some((busy, SequenceState::Queued)));
    let idle = add_executor(&mut world, device, 1);
    let needy = arrive(&mut world, request(15, 1));
    assert_eq!(evictions(&world), [(victim, needy)]);
    assert!(is_queued(&world, victim));
    assert_eq!(placements(&world, needy), [idle]);
    let told = world.effects().iter();
    let told = told.filter(|effect| matches!(effect, Effect::Evict { .. }));
    assert_eq!(told.count(), 0, "its engine has never heard of it");
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

// === A shortage is covered once ===

#[test]
fn nobody_is_asked_again_while_the_room_is_on_its_way() {
    let (mut world, executor, _, needy) = leaving();
    for weight in 2..5 {
        world.update(executor, ExecutorUpdate::ShareWeight(weight));
        world.run_until(world.now().after(seconds(1)));
        world.step(executor);
    }
    assert_eq!(world.policies.evict_questions_for(needy), 1);
    assert!(is_running(&world, needy));
}

#[test]
fn what_leaves_for_one_does_not_count_for_another() {
    let (mut world, executor) = slow_to_leave(4, 8);
    let [large, small] = [23, 7].map(|prompt| arrive(&mut world, background(prompt, 1)));
    let first = arrive(&mut world, request(19, 1));
    assert!(is_leaving(&world, large));
    // Six blocks leave, five are the first one's: one, and two more, make three.
    world.policies.on_evict(move |_| Some(evict(executor, &[])));
    let second = arrive(&mut world, request(11, 1));
    assert_eq!(refusals(&world), [RefusalCause::NotCovered]);
    world
        .policies
        .on_evict(move |_| Some(evict(executor, &[small])));
    world.run_until(world.now().after(seconds(1)));
    assert_eq!(evictions(&world), [(large, first), (small, second)]);
    steps(&mut world, executor, 3);
    assert!(is_running(&world, first) && is_running(&world, second));
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn what_a_victim_lacks_itself_is_not_kept_from_the_needy() {
    let (mut world, executor) = slow_to_leave(2, 8);
    let stays = arrive(&mut world, request(17, 3));
    let short = arrive(&mut world, background(11, 20));
    world
        .policies
        .on_evict(move |shortage| (shortage.needy != short).then(|| evict(executor, &[short])));
    steps(&mut world, executor, 2);
    assert!(has_fact(&world, &Fact::Short(short, ShortageCause::Blocks)));
    assert!(is_running(&world, stays));
    // It lacks a slot and three blocks, which the one that is short of a fourth leaves.
    let needy = arrive(&mut world, request(11, 1));
    assert_eq!(refusals(&world), []);
    assert_eq!(evictions(&world), [(short, needy)]);
}

#[test]
fn one_slot_that_comes_free_is_not_promised_twice() {
    let (mut world, executor) = slow_to_leave(2, 64);
    let [old, new] = [(); 2].map(|()| arrive(&mut world, background(10, 20)));
    let first = arrive(&mut world, request(10, 5));
    assert_eq!(evictions(&world), [(new, first)]);
    world.policies.on_evict(move |_| Some(evict(executor, &[])));
    let second = arrive(&mut world, request(10, 5));
    assert_eq!(refusals(&world), [RefusalCause::NotCovered]);
    assert_eq!(reservations(&world), [(first, executor)]);
    assert!(is_queued(&world, second) && is_running(&world, old));
}

#[test]
fn two_equals_do_not_evict_each_other_for_ever() {
    let mut world = world();
    let device = add_device(&mut world, 64);
    let executor = add_executor(&mut world, device, 1);
    let ids = [0, 1].map(RequestId);
    world.policies.on_evict(move |shortage| {
        let other = ids[usize::from(shortage.needy == ids[0])];
        Some(evict(executor, &[other]))
    });
    let arrived = [(); 2].map(|()| arrive(&mut world, request(10, 50)));
    assert_eq!(arrived, ids);
    assert!(world.run_out(END));
    let [first, second] = ids;
    assert_eq!(evictions(&world), [(first, second), (second, first)]);
    assert!(refusals(&world).contains(&RefusalCause::EvictedForVictim));
    for id in ids {
        let whole = Outcome::Finished { output_tokens: 50 };
        assert_eq!(world.outcome(id), Some(whole));
    }
}

// === Who is needy ===

fn urgent(model: ModelId, priority: i32) -> NewRequest {
    NewRequest {
        priority,
        ..of_model(model, request(10, 20))
    }
}

/// Lets victims be asked for again, after an answer that freed nothing.
fn wait_for_retry(world: &mut World) {
    let retry = world.now().after(Config::default().evict_retry);
    world.run_until(retry);
}

/// Two models with an executor of one slot each, which is taken. The most urgent request waits for the first
/// one, where nobody can give way or is less urgent.
#[test]
fn a_request_that_nobody_can_give_way_to_keeps_no_other_from_having_room_made() {
    for (preempts, priority) in [(false, 0), (true, 20), (true, 10)] {
        let mut world = world();
        let device = add_device(&mut world, 64);
        for model in [MODEL_A, MODEL_B] {
            executor_with(&mut world, device, |spec, _| {
                spec.serves = Some(vec![model]);
                spec.preempts = preempts || model == MODEL_B;
            });
        }
        arrive(&mut world, urgent(MODEL_A, priority));
        let victim = arrive(&mut world, urgent(MODEL_B, 0));
        let stuck = arrive(&mut world, urgent(MODEL_A, 10));
        let needy = arrive(&mut world, urgent(MODEL_B, 5));
        wait_for_retry(&mut world);
        assert_eq!(evictions(&world), [(victim, needy)]);
        assert!(is_queued(&world, stuck));
        assert!(world.run_out(END));
        assert_nothing_held(&mut world);
    }
}

#[test]
fn a_request_of_whose_model_as_many_run_as_may_keeps_no_other_from_having_room_made() {
    let mut world = world();
    let device = add_device(&mut world, 64);
    add_executor(&mut world, device, 2);
    world.input(Input::ModelLimitSet(MODEL_A, Some(1)));
    arrive(&mut world, urgent(MODEL_A, 0));
    let victim = arrive(&mut world, urgent(MODEL_B, 0));
    let stuck = arrive(&mut world, urgent(MODEL_A, 10));
    let needy = arrive(&mut world, urgent(MODEL_B, 5));
    wait_for_retry(&mut world);
    assert_eq!(evictions(&world), [(victim, needy)]);
    assert_eq!(world.policies.evict_questions_for(stuck), 0);
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

// === Who is left alone ===

#[test]
fn a_victim_that_is_leaving_for_one_is_not_evicted_for_another() {
    let (mut world, executor, victim, needy) = leaving();
    let other = arrive(&mut world, background(10, 20));
    // A slot for the needy one and a slot for the other.
    world.update(executor, ExecutorUpdate::SlotsTotal(3));
    world.settle();
    assert!(is_running(&world, needy) && is_running(&world, other));
    assert!(is_leaving(&world, victim));
    world
        .policies
        .on_evict(move |_| Some(evict(executor, &[victim])));
    arrive(&mut world, request(10, 5));
    assert_eq!(refusals(&world), [RefusalCause::AlreadyLeaving]);
}

#[test]
fn the_built_in_rule_evicts_the_newest_of_the_least_urgent_and_no_equal() {
    let (mut world, _) = slow_to_leave(3, 64);
    let [_old, urgent, new] = [background(10, 20), request(10, 20), background(10, 20)]
        .map(|new| arrive(&mut world, new));
    let equal = arrive(&mut world, background(10, 5));
    assert_eq!(evictions(&world), []);
    let needy = arrive(&mut world, request(10, 5));
    assert_eq!(evictions(&world), [(new, needy)]);
    assert!(is_running(&world, urgent) && is_queued(&world, equal));
}

// === Reservations end ===

#[track_caller]
fn assert_dropped(world: &World, needy: RequestId, executor: ExecutorId) {
    assert!(has_fact(world, &Fact::Reserved(needy, executor)));
    assert!(has_fact(world, &Fact::ReservationDropped(needy, executor)));
    assert_eq!(reservations(world), []);
}

#[test]
fn a_cancelled_needy_gives_its_reservation_up() {
    let (mut world, executor, victim, needy) = leaving();
    cancel(&mut world, needy);
    assert_dropped(&world, needy, executor);
    steps(&mut world, executor, 3);
    assert!(is_running(&world, victim), "it takes its place back");
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

#[test]
fn a_lost_executor_ends_the_reservations_on_it() {
    let (mut world, executor, victim, needy) = leaving();
    world.lose(executor);
    world.settle();
    assert_dropped(&world, needy, executor);
    let requeued = Fact::Requeued(victim, RequeuedWhy::Evicted);
    assert!(
        has_fact(&world, &requeued),
        "it was on its way out, and has not failed"
    );
    let device = add_device(&mut world, 64);
    let other = add_executor(&mut world, device, 2);
    assert!(world.run_out(END));
    assert_eq!(placements(&world, needy), [other]);
    assert_eq!(placements(&world, victim), [executor, other]);
    assert_nothing_held(&mut world);
}

#[test]
fn a_victim_whose_executor_dies_on_its_way_out_has_not_failed() {
    let (mut world, executor) = slow_to_leave(1, 64);
    let victim = arrive(&mut world, background(10, 20));
    steps(&mut world, executor, 3);
    arrive(&mut world, request(10, 5));
    assert!(is_leaving(&world, victim));
    world.lose_keeping(executor, |_| 1);
    world.settle();
    assert!(has_fact(
        &world,
        &Fact::Requeued(victim, RequeuedWhy::Evicted)
    ));
    let row = waiting_row(&mut world, victim).unwrap();
    assert_eq!((row.prompt_tokens, row.output_tokens_max), (11, 19));
    assert_eq!(row.failed_on, []);
}

#[test]
fn a_draining_executor_ends_the_reservations_on_it() {
    let (mut world, executor, _, needy) = leaving();
    world.update(executor, ExecutorUpdate::Health(Health::Draining));
    world.settle();
    assert_dropped(&world, needy, executor);
    steps(&mut world, executor, 3);
    assert!(is_queued(&world, needy));
}

/// An executor of twelve blocks on which room is kept for two requests. One of three victims has left four
/// blocks, and a slot where there are three: the first request has them, and the second one would have all that
/// it lacks by them.
fn two_reserved(slots: u32) -> (World, ExecutorId, [RequestId; 2]) {
    let (mut world, executor) = slow_to_leave(slots, 12);
    let [old, middle, new] = [(); 3].map(|()| arrive(&mut world, background(15, 1)));
    world
        .policies
        .on_evict(move |_| Some(evict(executor, &[new, middle])));
    let large = arrive(&mut world, request(31, 1));
    world
        .policies
        .on_evict(move |_| Some(evict(executor, &[old])));
    let small = arrive(&mut world, request(15, 1));
    let evicted = [(new, large), (middle, large), (old, small)];
    assert_eq!(evictions(&world), evicted);
    world.policies.on_evict(|_| None);
    finish(&mut world, executor, new);
    let kept = [large, small];
    assert_eq!(reservations(&world), kept.map(|id| (id, executor)));
    (world, executor, kept)
}

#[test]
fn where_reservations_end_with_an_executor_none_gets_the_room_of_another() {
    for slots in [3, 5] {
        for end in [
            ExecutorUpdate::Health(Health::Down),
            ExecutorUpdate::Health(Health::Draining),
            ExecutorUpdate::Detach,
        ] {
            let (mut world, executor, kept) = two_reserved(slots);
            world.update(executor, end.clone());
            world.settle();
            for id in kept {
                assert_dropped(&world, id, executor);
            }
            let device = add_device(&mut world, 64);
            let other = add_executor(&mut world, device, 4);
            assert!(world.run_out(END));
            let placed = kept.map(|id| placements(&world, id));
            assert_eq!(placed, [[other]; 2], "{end:?} with {slots} slots");
            assert_nothing_held(&mut world);
        }
    }
}

#[test]
fn a_reservation_whose_victims_do_not_leave_expires() {
    let unplaced_max = Config::default().unplaced_max;
    let (mut world, executor, _, needy) = leaving();
    let device = add_device(&mut world, 64);
    let other = add_executor(&mut world, device, 1);
    world.run_until(unplaced_max.after(seconds(1)));
    assert_dropped(&world, needy, executor);
    assert_eq!(placements(&world, needy), [other]);
}

#[test]
fn a_reservation_outlives_a_finish_of_the_victim() {
    let (mut world, executor) = slow_to_leave(1, 64);
    let victim = arrive(&mut world, background(10, 20));
    let needy = arrive(&mut world, request(10, 5));
    finish(&mut world, executor, victim);
    assert!(matches!(
        world.outcome(victim),
        Some(Outcome::Finished { .. })
    ));
    let started = world.effects().iter();
    let mut started =
        started.filter(|e| matches!(e, Effect::Start(order) if order.sequence.request == needy));
    assert!(started.next().is_some());
}
