//! The liveness of requests, which all get their turn under any policy: the clocks, and the
//! built-in rules behind refused answers.

mod common;

use common::{
    END, World, add_device, add_executor, arrive, device_with, executor_with, facts, is_queued,
    is_running, placements, refusals, request, seconds, single, steps, strikes, waiting_row,
    world_with,
};
use pointsman_core::rows::Health;
use pointsman_core::{
    Allotment, Allotments, Author, Clock, Config, Decided, ExecutorId, ExecutorUpdate, ExpiredWhy,
    Fact, Micros, Outcome, RefusalCause, RefusedWhy, RequestId, RetryClass, admission, routing,
};
use pointsman_sim::PrefillShares;

const HOLD: routing::Choice = routing::Choice::Hold(None);

fn unplaced_max() -> Micros {
    Config::default().unplaced_max
}

/// The author of a request's last placement.
fn placed_by(world: &World, id: RequestId) -> Option<Author> {
    facts(world).rev().find_map(|fact| {
        let Fact::Placed { request, by, .. } = fact else {
            return None;
        };
        (*request == id).then_some(by.author)
    })
}

// === Unplaced ===

#[test]
fn a_request_held_for_ever_is_placed_by_the_built_in_rule_in_time() {
    let (mut world, executor) = single(1, 64);
    world.policies.on_route(|_, _| HOLD);
    let id = arrive(&mut world, request(10, 5));
    world.run_until(Micros(unplaced_max().0 - 1));
    assert!(is_queued(&world, id));
    world.run_until(unplaced_max());
    assert_eq!(strikes(&world), [(Clock::Unplaced, id)]);
    assert_eq!(placements(&world, id), [executor]);
    assert_eq!(placed_by(&world, id), Some(Author::BuiltIn));
}

#[test]
fn the_time_in_which_nothing_could_take_a_request_does_not_count() {
    let (mut world, executor) = single(1, 64);
    let first = arrive(&mut world, request(10, 1));
    let held = arrive(&mut world, request(10, 5));
    world.policies.on_route(|_, _| HOLD);
    // The slot comes free after a while.
    assert!(is_running(&world, first));
    world.run_until(Micros(5));
    steps(&mut world, executor, 1);
    world.run_until(Micros(unplaced_max().0 + 4));
    assert!(is_queued(&world, held));
    world.run_until(Micros(unplaced_max().0 + 5));
    assert_eq!(strikes(&world), [(Clock::Unplaced, held)]);
}

#[test]
fn a_hold_is_asked_about_again_when_it_ends_at_the_latest() {
    let (mut world, executor) = single(1, 64);
    world.policies.on_route(|now, _| {
        if now < seconds(3) {
            routing::Choice::Hold(Some(seconds(3)))
        } else {
            routing::Choice::Place(vec![ExecutorId(0)])
        }
    });
    let id = arrive(&mut world, request(10, 5));
    assert_eq!(world.machine.next_timeout(), Some(seconds(3)));
    let held = Fact::Held(
        id,
        Some(seconds(3)),
        Decided {
            author: Author::Policy(0),
            reason: 0,
        },
    );
    assert!(facts(&world).any(|fact| *fact == held));
    world.run_until(seconds(3));
    assert_eq!(
        world.policies.route_questions_for(id),
        [Micros(0), seconds(3)]
    );
    assert_eq!(placements(&world, id), [executor]);
    assert_eq!(strikes(&world), []);
}

#[test]
fn a_hold_is_asked_about_again_when_something_changes() {
    let (mut world, executor) = single(1, 64);
    world.policies.on_route(|_, _| HOLD);
    let id = arrive(&mut world, request(10, 5));
    world.run_until(seconds(1));
    assert_eq!(world.policies.route_questions_for(id), [Micros(0)]);
    world.update(executor, ExecutorUpdate::SlotsTotal(2));
    world.settle();
    assert_eq!(
        world.policies.route_questions_for(id),
        [Micros(0), seconds(1)]
    );
}

#[test]
fn executors_that_do_not_exist_are_refused_and_the_request_is_placed_in_time() {
    let (mut world, executor) = single(1, 64);
    world.policies.route_to(&[ExecutorId(99)]);
    let id = arrive(&mut world, request(10, 5));
    assert_eq!(refusals(&world), [RefusalCause::UnknownExecutor]);
    world.policies.route_to(&[]);
    arrive(&mut world, request(10, 5));
    assert_eq!(refusals(&world)[1..], [RefusalCause::NamesNone; 2]);
    world.run_until(unplaced_max());
    assert_eq!(placements(&world, id), [executor]);
    assert_eq!(strikes(&world)[0], (Clock::Unplaced, id));
}

#[test]
fn more_executors_than_there_are_are_no_ranking() {
    let (mut world, executor) = single(1, 64);
    world.policies.route_to(&[executor; 2]);
    arrive(&mut world, request(10, 5));
    let (named, attached) = (2, 1);
    assert_eq!(
        refusals(&world),
        [RefusalCause::TooMany { named, attached }]
    );
}

// === Held on purpose ===

fn held_max() -> Micros {
    Config::default().held_max
}

/// One slot, and a policy that holds every request until `until`. Returns a request that it holds.
fn held_until(until: Micros) -> (World, ExecutorId, RequestId) {
    let (mut world, executor) = single(1, 64);
    let hold = routing::Choice::Hold(Some(until));
    world.policies.on_route(move |_, _| hold.clone());
    let id = arrive(&mut world, request(10, 5));
    (world, executor, id)
}

/// Makes the machine ask again, with nothing changed that matters.
fn stir(world: &mut World, executor: ExecutorId) {
    for slots in [2, 1] {
        world.update(executor, ExecutorUpdate::SlotsTotal(slots));
        world.settle();
    }
}

/// Has a held request placed at 20 s, fail so, and be held again for as long as may be.
fn place_and_fail(world: &mut World, (executor, id): (ExecutorId, RequestId), retry: RetryClass) {
    world.run_until(seconds(20));
    world.policies.route_to(&[executor]);
    stir(world, executor);
    assert!(is_running(world, id));
    world
        .policies
        .on_route(|_, _| routing::Choice::Hold(Some(Micros(u64::MAX))));
    world.fail(executor, id, retry);
    world.settle();
}

/// The ends of the holds of a request that the machine reported.
fn ends(world: &World, id: RequestId) -> Vec<Option<Micros>> {
    let held = facts(world).filter_map(|fact| {
        let Fact::Held(held, until, _) = fact else {
            return None;
        };
        (*held == id).then_some(*until)
    });
    held.collect()
}

#[test]
fn a_hold_on_purpose_is_no_strike_while_it_lasts() {
    let until = unplaced_max().after(seconds(15));
    let (mut world, executor, id) = held_until(until);
    world.run_until(Micros(until.0 - 1));
    assert!(is_queued(&world, id));
    world.policies.route_to(&[executor]);
    world.run_until(until);
    assert_eq!(placements(&world, id), [executor]);
    assert_eq!(
        (placed_by(&world, id), strikes(&world)),
        (Some(Author::Policy(0)), vec![])
    );
}

#[test]
fn a_hold_ends_at_the_bound_and_then_the_first_clock_begins() {
    let (mut world, executor, id) = held_until(Micros(u64::MAX));
    assert_eq!(ends(&world, id), [Some(held_max())]);
    world.run_until(held_max());
    let asked = world.policies.route_questions_for(id);
    assert_eq!(
        asked,
        [Micros(0), held_max()],
        "asked again at the end of the hold"
    );
    assert_eq!(ends(&world, id)[1], None, "its holds are used up");
    let placed_at = held_max().after(unplaced_max());
    world.run_until(Micros(placed_at.0 - 1));
    assert!(is_queued(&world, id) && strikes(&world).is_empty());
    world.run_until(placed_at);
    assert_eq!(strikes(&world), [(Clock::Unplaced, id)]);
    assert_eq!(placements(&world, id), [executor]);
    assert!(world.run_out(END));
    assert!(matches!(world.outcome(id), Some(Outcome::Finished { .. })));
}

#[test]
fn a_hold_that_stops_no_clock_is_asked_about_again_at_its_time_all_the_same() {
    let mut world = world_with(Config {
        held_max: Micros(0),
        ..Config::default()
    });
    let device = add_device(&mut world, 64);
    add_executor(&mut world, device, 1);
    world
        .policies
        .on_route(|now, _| routing::Choice::Hold(Some(now.after(seconds(3)))));
    let id = arrive(&mut world, request(10, 5));
    world.run_until(unplaced_max());
    let asked = world.policies.route_questions_for(id);
    assert_eq!(asked, [0, 3, 6, 9].map(seconds));
    assert_eq!(strikes(&world), [(Clock::Unplaced, id)]);
}

#[test]
fn short_holds_stop_the_clock_only_while_they_last() {
    let (mut world, executor) = single(1, 64);
    // A second is held on purpose, the next one is not, and so on.
    world.policies.on_route(|now, _| {
        let next = now.after(seconds(1));
        routing::Choice::Hold((now.0 / seconds(2).0 * seconds(2).0 == now.0).then_some(next))
    });
    let id = arrive(&mut world, request(10, 5));
    for second in 1..20 {
        world.run_until(seconds(second));
        stir(&mut world, executor);
        assert_eq!(strikes(&world), [], "{second} s");
    }
    world.run_until(seconds(20));
    assert_eq!(strikes(&world), [(Clock::Unplaced, id)]);
}

#[test]
fn a_return_begins_a_new_stay_with_holds_of_its_own() {
    let (mut world, executor, id) = held_until(Micros(u64::MAX));
    let other = add_device(&mut world, 64);
    add_executor(&mut world, other, 1);
    place_and_fail(&mut world, (executor, id), RetryClass::Elsewhere);
    assert_eq!(
        ends(&world, id).last(),
        Some(&Some(seconds(20).after(held_max())))
    );
}

#[test]
fn a_request_that_is_turned_back_has_been_held_for_as_long_as_before() {
    let (mut world, executor, id) = held_until(Micros(u64::MAX));
    place_and_fail(&mut world, (executor, id), RetryClass::Anywhere);
    assert_eq!(ends(&world, id).last(), Some(&Some(held_max())));
}

#[test]
fn the_end_of_holds_is_in_the_row_of_a_held_request() {
    let (mut world, executor, id) = held_until(seconds(4));
    let told = |world: &mut World| waiting_row(world, id).unwrap().hold_end;
    world.run_until(seconds(2));
    stir(&mut world, executor);
    assert_eq!(told(&mut world), Some(held_max()), "the same hold goes on");
    // Nothing could take it for a while: that is no hold.
    world.update(executor, ExecutorUpdate::Health(Health::Draining));
    world.settle();
    world.run_until(seconds(12));
    world.update(executor, ExecutorUpdate::Health(Health::Up));
    world.settle();
    assert_eq!(told(&mut world), Some(held_max().after(seconds(10))));
}

// === The end of the wait ===

/// The executor takes nothing for almost as long as a request may wait; then the policy holds.
#[test]
fn what_could_be_placed_at_the_end_of_its_wait_is_placed_and_not_refused() {
    for hold in [HOLD, routing::Choice::Hold(Some(Micros(u64::MAX)))] {
        let (mut world, executor) = single(1, 64);
        world.update(executor, ExecutorUpdate::Health(Health::Draining));
        world.policies.on_route(move |_, _| hold.clone());
        let [first, second] = [(); 2].map(|()| arrive(&mut world, request(10, 5)));
        let wait_max = Config::default().wait_max;
        world.run_until(Micros(wait_max.0 - 5));
        world.update(executor, ExecutorUpdate::Health(Health::Up));
        world.run_until(wait_max);
        assert_eq!(placements(&world, first), [executor]);
        assert_eq!(strikes(&world), []);
        let expired = Outcome::Expired(ExpiredWhy::Wait);
        assert_eq!(world.outcome(second), Some(expired), "one slot is for one");
    }
}

// === Tokenless ===

#[test]
fn a_sequence_without_tokens_for_too_many_steps_gets_a_built_in_allotment() {
    let mut world = world_with(Config {
        tokenless_steps_max: 5,
        ..Config::default()
    });
    let device = device_with(&mut world, 64, Some(100));
    let executor = executor_with(&mut world, device, |spec, profile| {
        spec.slots_total = 2;
        profile.prefill = PrefillShares::FirstOnly;
    });
    world.policies.on_allot(|_| Allotments {
        engines: vec![Allotment {
            executor: ExecutorId(0),
            tokens_max: 4,
        }],
        again: None,
    });
    let long = arrive(&mut world, request(90, 4));
    let starved = arrive(&mut world, request(4, 4));
    assert!(is_running(&world, long) && is_running(&world, starved));
    steps(&mut world, executor, 4);
    assert_eq!(strikes(&world), []);
    world.step(executor);
    assert_eq!(strikes(&world), [(Clock::Tokenless, starved)]);
    assert_eq!(world.engine(executor).unwrap().tokens_max(), Some(100));
    assert_eq!(world.policies.asked.allot.len(), 1, "the policy was not");
    world.step(executor);
    steps(&mut world, executor, 4);
    assert!(world.outcome(starved).is_some());
}

// === Answers that cannot be used ===

#[test]
fn without_an_order_requests_are_placed_as_they_arrived() {
    let (mut world, executor) = single(1, 64);
    world.policies.on_order(|_| Vec::new());
    let ids: Vec<_> = (0..4).map(|_| arrive(&mut world, request(4, 1))).collect();
    for id in &ids {
        assert!(is_running(&world, *id));
        world.step(executor);
    }
    assert_eq!(refusals(&world), []);
}

#[test]
fn an_order_that_names_strangers_or_one_twice_is_used_without_them() {
    let (mut world, _) = single(1, 64);
    world.policies.on_order(|requests| {
        let newest = *requests.last().unwrap();
        vec![RequestId(99), newest, newest]
    });
    let ids = [(); 2].map(|()| world.arrive(request(4, 1), 1));
    world.settle();
    assert!(is_running(&world, ids[1]));
    assert_eq!(refusals(&world)[0], RefusalCause::NotAsked);

    let seen = refusals(&world).len();
    world
        .policies
        .on_order(|requests| vec![requests[0], requests[0]]);
    assert!(world.run_out(END));
    assert_eq!(refusals(&world)[seen], RefusalCause::NamedTwice);
}

#[test]
fn a_wrong_number_of_verdicts_leaves_it_all_to_the_built_in_rule() {
    let (mut world, executor) = single(1, 64);
    world.policies.on_admit(|_| admission::Choice::Shed(9));
    world.policies.on_route(|_, _| routing::Choice::GiveUp);
    world.policies.verdicts_too_many = 1;
    let id = arrive(&mut world, request(4, 1));
    let wrong = RefusalCause::WrongCount {
        expected: 1,
        got: 2,
    };
    assert_eq!(refusals(&world), [wrong, wrong], "admission, and routing");
    let admitted = Fact::Admitted(id, Decided::BUILT_IN);
    assert!(facts(&world).any(|fact| *fact == admitted));
    assert_eq!(placements(&world, id), [executor]);
    assert_eq!(placed_by(&world, id), Some(Author::BuiltIn));
}

#[test]
fn routing_may_give_a_request_up() {
    let (mut world, _) = single(1, 64);
    world.policies.on_route(|_, _| routing::Choice::GiveUp);
    let id = arrive(&mut world, request(4, 1));
    let gave_up = Outcome::Refused(RefusedWhy::GaveUp);
    assert_eq!(world.outcome(id), Some(gave_up));
}

#[test]
fn one_verdict_is_refused_and_the_others_hold() {
    let (mut world, executor) = single(4, 64);
    world.policies.on_route(move |_, id| {
        let executor = if id == RequestId(1) {
            ExecutorId(99)
        } else {
            executor
        };
        routing::Choice::Place(vec![executor])
    });
    let ids: Vec<_> = (0..3).map(|_| world.arrive(request(4, 1), 1)).collect();
    world.settle();
    let running: Vec<bool> = ids.iter().map(|id| is_running(&world, *id)).collect();
    assert_eq!(running, [true, false, true]);
}
