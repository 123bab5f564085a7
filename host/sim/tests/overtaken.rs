//! The count of later requests that overtake one that waits, and the hook that is struck at its bound.

mod common;

use common::{
    World, add_device, add_executor, arrive, cancel, facts, is_queued, is_running, placements,
    request, strikes, world_with,
};
use pointsman_core::{
    Clock, Config, ExecutorId, Fact, Hook, Micros, NewRequest, RequestId, RetryClass, routing,
};

const HOLD: routing::Choice = routing::Choice::Hold(None);
const HOLD_ON_PURPOSE: routing::Choice = routing::Choice::Hold(Some(Micros(u64::MAX)));

/// One slot, and a policy that takes the newest first. Returns a request that waits while the
/// first runs.
fn newest_first(overtaken_max: u32) -> (World, ExecutorId, RequestId) {
    let mut world = world_with(Config {
        overtaken_max,
        ..Config::default()
    });
    let device = add_device(&mut world, 64);
    let executor = add_executor(&mut world, device, 1);
    world
        .policies
        .on_order(|requests| requests.iter().rev().copied().collect());
    arrive(&mut world, request(4, 1));
    let old = arrive(&mut world, request(4, 1));
    (world, executor, old)
}

/// Has routing hold this request so, and place the others on these executors.
fn route(world: &mut World, held: RequestId, hold: routing::Choice, executors: Vec<ExecutorId>) {
    world.policies.on_route(move |_, id| {
        if id == held {
            hold.clone()
        } else {
            routing::Choice::Place(executors.clone())
        }
    });
}

#[test]
fn a_request_that_later_ones_overtook_too_often_goes_first() {
    let (mut world, executor, old) = newest_first(2);
    for _ in 0..2 {
        let new = arrive(&mut world, request(4, 1));
        world.step(executor);
        assert!(is_running(&world, new));
    }
    let new = arrive(&mut world, request(4, 1));
    assert_eq!(strikes(&world), []);
    world.step(executor);
    assert!(is_running(&world, old) && is_queued(&world, new));
    assert_eq!(strikes(&world), [(Clock::Overtaken, old)]);
    // It was never routed: the order is to blame.
    assert_eq!(hooks_struck(&world), [Hook::Priority]);
}

#[test]
fn a_request_that_is_turned_back_was_overtaken_as_often_as_before_and_is_told_once() {
    let (mut world, executor, old) = newest_first(2);
    let turn_back = |world: &mut World| {
        world.fail(executor, old, RetryClass::Anywhere);
        world.settle();
    };
    let new = arrive(&mut world, request(4, 1));
    world.step(executor);
    assert!(is_running(&world, new));
    world.step(executor);
    assert!(is_running(&world, old));
    let newer = arrive(&mut world, request(4, 1));
    turn_back(&mut world);
    assert!(is_running(&world, newer));
    let newest = arrive(&mut world, request(4, 1));
    world.step(executor);
    assert!(is_running(&world, old) && is_queued(&world, newest));
    assert_eq!(strikes(&world), [(Clock::Overtaken, old)]);
    turn_back(&mut world);
    assert!(is_running(&world, newest) && is_queued(&world, old));
    assert_eq!(strikes(&world).len(), 1);
}

/// Two executors with a slot each, which come free together. The order is by arrival, and routing leaves the first.
#[test]
fn routing_is_struck_for_a_request_that_it_left_when_its_turn_came() {
    let mut world = world_with(Config {
        overtaken_max: 2,
        ..Config::default()
    });
    let device = add_device(&mut world, 64);
    let executors = [(); 2].map(|()| add_executor(&mut world, device, 1));
    for _ in executors {
        arrive(&mut world, request(4, 1));
    }
    let [left, ..] = [(); 3].map(|()| arrive(&mut world, request(4, 1)));
    route(&mut world, left, HOLD, executors.to_vec());
    for _ in 0..3 {
        world.step(executors[0]);
        world.step(executors[1]);
    }
    assert_eq!(strikes(&world), [(Clock::Overtaken, left)]);
    assert_eq!(hooks_struck(&world), [Hook::Routing]);
}

/// The hooks of all strikes.
fn hooks_struck(world: &World) -> Vec<Hook> {
    let hooks = facts(world).filter_map(|fact| {
        let Fact::Strike(_, hook, _) = fact else {
            return None;
        };
        Some(*hook)
    });
    hooks.collect()
}

#[test]
fn a_more_urgent_request_does_not_overtake() {
    let (mut world, executor, old) = newest_first(2);
    for _ in 0..4 {
        let urgent = NewRequest {
            priority: 1,
            ..request(4, 1)
        };
        let urgent = arrive(&mut world, urgent);
        world.step(executor);
        assert!(is_running(&world, urgent));
    }
    assert_eq!(strikes(&world), []);
    world.step(executor);
    assert!(is_running(&world, old));
}

#[test]
fn a_tenant_that_has_more_placed_is_not_overtaken_by_one_that_has_fewer() {
    let (mut world, executor, kept) = newest_first(2);
    let other_tenant = world.intern("other");
    let device = add_device(&mut world, 64);
    let elsewhere = add_executor(&mut world, device, 2);
    let here = || NewRequest {
        allowed: Some(vec![executor]),
        ..request(4, 1)
    };
    let waits = arrive(&mut world, here());
    let also_kept = arrive(&mut world, request(4, 1));
    for kept in [kept, also_kept] {
        assert_eq!(placements(&world, kept), [elsewhere]);
    }
    let overtake = |world: &mut World| {
        let of_other = NewRequest {
            tenant: other_tenant,
            ..here()
        };
        let new = arrive(world, of_other);
        world.step(executor);
        is_running(world, new)
    };
    // One tenant has two places elsewhere, and the other has one here.
    for _ in 0..4 {
        assert!(overtake(&mut world));
    }
    // It has none any more, and is overtaken.
    world.step(elsewhere);
    for _ in 0..2 {
        assert!(overtake(&mut world) && is_queued(&world, waits));
    }
    assert_eq!(strikes(&world), []);
    assert!(!overtake(&mut world) && is_running(&world, waits));
    assert_eq!(strikes(&world), [(Clock::Overtaken, waits)]);
}

#[test]
fn a_request_is_not_overtaken_where_it_could_not_run() {
    let (mut world, busy, old) = newest_first(1);
    cancel(&mut world, old);
    let device = add_device(&mut world, 64);
    let idle = add_executor(&mut world, device, 1);
    let new = NewRequest {
        allowed: Some(vec![idle]),
        ..request(4, 1)
    };
    let picky = RequestId(2);
    route(&mut world, picky, HOLD, vec![busy]);
    assert_eq!(arrive(&mut world, new), picky);
    for _ in 0..3 {
        let new = arrive(&mut world, request(4, 1));
        world.step(busy);
        assert_eq!(placements(&world, new), [busy]);
    }
    assert!(is_queued(&world, picky));
    assert_eq!(strikes(&world), []);
}

#[test]
fn a_request_held_on_purpose_is_not_overtaken() {
    let mut world = world_with(Config {
        overtaken_max: 2,
        ..Config::default()
    });
    let device = add_device(&mut world, 64);
    let executor = add_executor(&mut world, device, 1);
    let held = RequestId(0);
    route(&mut world, held, HOLD_ON_PURPOSE, vec![executor]);
    assert_eq!(arrive(&mut world, request(4, 1)), held);
    for _ in 0..5 {
        let new = arrive(&mut world, request(4, 1));
        assert!(is_running(&world, new));
        world.step(executor);
    }
    assert_eq!(strikes(&world), []);
    // Without a time it is, and goes first soon.
    route(&mut world, held, HOLD, vec![executor]);
    for _ in 0..3 {
        arrive(&mut world, request(4, 1));
        world.step(executor);
    }
    assert_eq!(strikes(&world), [(Clock::Overtaken, held)]);
    assert_eq!(hooks_struck(&world), [Hook::Routing]);
}

/// The place is taken by the time that it is routed.
#[test]
fn a_request_that_is_held_for_lack_of_room_is_overtaken_whatever_the_answer_says() {
    let (mut world, executor, old) = newest_first(2);
    route(&mut world, old, HOLD_ON_PURPOSE, vec![executor]);
    for _ in 0..2 {
        let new = arrive(&mut world, request(4, 1));
        world.step(executor);
        assert!(is_running(&world, new));
    }
    arrive(&mut world, request(4, 1));
    assert_eq!(strikes(&world), []);
    world.step(executor);
    assert!(is_running(&world, old));
    assert_eq!(strikes(&world), [(Clock::Overtaken, old)]);
    assert_eq!(hooks_struck(&world), [Hook::Priority]);
}
