//! The order of requests that wait elsewhere than in the queue: parked ones, and those in the queue of
//! an executor.

mod common;

use common::scripted::everything;
use common::{
    World, add_device, arrive, cancel, executor_with, is_running, refusals, request, steps,
    strikes, world_with,
};
use pointsman_core::rows::RequestClass::{self, LatencyCritical, Throughput};
use pointsman_core::rows::{Change, Stage};
use pointsman_core::{Clock, Config, ExecutorId, NewRequest, RefusalCause, RequestId, admission};

/// A host with one slot, which a long request has, and a policy that puts the newest first.
fn busy(config: Config, queue_limit: u32) -> (World, ExecutorId, RequestId) {
    let mut world = world_with(config);
    let device = add_device(&mut world, 200);
    let executor = executor_with(&mut world, device, |spec, _| spec.queue_limit = queue_limit);
    world
        .policies
        .on_order(|requests| requests.iter().rev().copied().collect());
    let first = arrive(&mut world, request(4, 100));
    (world, executor, first)
}

/// The stage in which policies are told of a request; absent: they are told that it has started.
fn stage(world: &World, id: RequestId) -> Option<Stage> {
    let rows = everything(&world.machine.view()).into_iter();
    let mut stages = rows.filter_map(|change| {
        if let Change::Waiting(row) = change {
            (row.id == id).then_some(row.stage)
        } else {
            None
        }
    });
    stages.next()
}

/// The questions about exactly these requests.
fn questions(world: &World, about: &[RequestId]) -> usize {
    let asked = world.policies.asked.order.iter();
    asked.filter(|asked| *asked == about).count()
}

const STRANGER: RequestId = RequestId(99);

// === Parked ===

fn one_place() -> Config {
    Config {
        queue_max: 1,
        overtaken_max: 2,
        ..Config::default()
    }
}

fn park(world: &mut World) -> RequestId {
    world.policies.on_admit(|_| admission::Choice::Park);
    arrive(world, request(4, 1))
}

/// A host with one slot and one place in the queue, both taken, and so many parked requests.
fn parked<const N: usize>() -> (World, ExecutorId, RequestId, [RequestId; N]) {
    let (mut world, executor, first) = busy(one_place(), 0);
    arrive(&mut world, request(4, 1));
    let parked = [(); N].map(|()| park(&mut world));
    assert_eq!(world.machine.queue_snapshot().parked, parked);
    (world, executor, first, parked)
}

#[test]
fn the_first_by_the_policys_order_of_those_parked_comes_in() {
    let (mut world, executor, first, [old, new]) = parked();
    cancel(&mut world, first);
    world.step(executor);
    assert_eq!(questions(&world, &[old, new]), 1);
    let queue = world.machine.queue_snapshot();
    assert_eq!((queue.queued, queue.parked), (vec![new], vec![old]));
    assert_eq!(stage(&world, old), Some(Stage::Parked));
}

#[test]
fn where_there_is_room_for_all_or_for_none_nobody_is_asked() {
    let (mut world, executor, first, [alone]) = parked();
    cancel(&mut world, first);
    world.step(executor);
    assert_eq!(world.machine.queue_snapshot().queued, [alone]);
    // It could start in the end: that question is about the queue.
    world.step(executor);
    assert!(is_running(&world, alone));
    assert_eq!(questions(&world, &[alone]), 1);

    let (mut world, executor, _, parked) = parked::<2>();
    world.step(executor);
    assert_eq!(questions(&world, &parked), 0, "the queue is full");
}

#[test]
fn without_an_order_those_parked_come_in_as_they_arrived() {
    let (mut world, executor, first, [old, new]) = parked();
    world.policies.on_order(|_| Vec::new());
    cancel(&mut world, first);
    world.step(executor);
    let queue = world.machine.queue_snapshot();
    assert_eq!((queue.queued, queue.parked), (vec![old], vec![new]));
    assert_eq!(refusals(&world), []);
}

#[test]
fn strangers_and_doubles_in_an_order_of_those_parked_are_passed_over() {
    let cases = [
        (STRANGER, RefusalCause::NotAsked),
        (RequestId(3), RefusalCause::NamedTwice),
    ];
    for (wrong, cause) in cases {
        let (mut world, executor, first, [old, middle, new]) = parked();
        assert_eq!(middle, RequestId(3));
        world.policies.on_order(move |asked| {
            let order = vec![middle, wrong, new];
            order.into_iter().filter(|_| asked.len() > 1).collect()
        });
        cancel(&mut world, first);
        for next in [middle, new, old] {
            world.step(executor);
            assert_eq!(world.machine.queue_snapshot().queued, [next]);
        }
        assert_eq!(refusals(&world), [cause, RefusalCause::NotAsked]);
    }
}

#[test]
fn a_parked_request_that_was_overtaken_too_often_comes_in_first() {
    let (mut world, executor, first, [old]) = parked();
    cancel(&mut world, first);
    for _ in 0..2 {
        let new = park(&mut world);
        steps(&mut world, executor, 1);
        assert_eq!(world.machine.queue_snapshot().queued, [new]);
    }
    assert_eq!(strikes(&world), []);
    let new = park(&mut world);
    steps(&mut world, executor, 1);
    let queue = world.machine.queue_snapshot();
    assert_eq!((queue.queued, queue.parked), (vec![old], vec![new]));
    assert_eq!(strikes(&world), [(Clock::Overtaken, old)]);
}

// === In the queue of an executor ===

/// A host with one slot, which is taken, and these requests in the queue of its executor.
fn queued<const N: usize>(
    config: Config,
    classes: [RequestClass; N],
) -> (World, ExecutorId, RequestId, [RequestId; N]) {
    let (mut world, executor, first) = busy(config, 8);
    let ids = classes.map(|class| {
        let new = request(4, 1);
        arrive(&mut world, NewRequest { class, ..new })
    });
    (world, executor, first, ids)
}

/// Steps the executor, and expects these requests to start, one in each step.
fn expect_starts(world: &mut World, executor: ExecutorId, order: &[RequestId]) {
    for next in order {
        world.step(executor);
        assert!(is_running(world, *next), "{next}");
        assert_eq!(stage(world, *next), None);
    }
}

#[test]
fn requests_in_an_executors_queue_start_in_the_policys_order_within_their_class() {
    let classes = [Throughput, LatencyCritical, LatencyCritical, Throughput];
    let (mut world, executor, first, ids) = queued(Config::default(), classes);
    let [bulk, old, new, newer_bulk] = ids;
    for id in ids {
        assert_eq!(stage(&world, id), Some(Stage::Placed));
    }
    assert_eq!(questions(&world, &[old, new]), 1);
    assert_eq!(questions(&world, &[bulk, newer_bulk]), 1);
    cancel(&mut world, first);
    expect_starts(&mut world, executor, &[new, old, newer_bulk, bulk]);
    assert_eq!(strikes(&world), []);
}

#[test]
fn an_order_of_an_executors_queue_cannot_name_the_other_class() {
    let classes = [LatencyCritical, LatencyCritical, Throughput];
    let (mut world, executor, first, [old, new, bulk]) = queued(Config::default(), classes);
    world.policies.on_order(move |_| vec![bulk, new, new]);
    let newest = arrive(&mut world, request(4, 1));
    assert!(refusals(&world).contains(&RefusalCause::NotAsked));
    world.policies.on_order(move |_| vec![new]);
    cancel(&mut world, first);
    expect_starts(&mut world, executor, &[new, old, newest, bulk]);
}

#[test]
fn an_executors_queue_in_which_one_waits_is_nobodys_question() {
    let (mut world, executor, first, [alone]) = queued(Config::default(), [LatencyCritical]);
    // Once for its place.
    assert_eq!(questions(&world, &[alone]), 1);
    assert_eq!(world.policies.asked.order.len(), 2);
    cancel(&mut world, first);
    expect_starts(&mut world, executor, &[alone]);
    assert_eq!(world.policies.asked.order.len(), 2);
}

#[test]
fn an_executors_queue_is_put_in_order_again_when_one_has_started() {
    let classes = [LatencyCritical; 3];
    let (mut world, executor, first, [old, middle, new]) = queued(Config::default(), classes);
    cancel(&mut world, first);
    // The policy changes its mind before the first one starts: too late for that one.
    world.policies.on_order(<[RequestId]>::to_vec);
    expect_starts(&mut world, executor, &[new]);
    assert_eq!(questions(&world, &[old, middle]), 2, "on arrival and now");
    expect_starts(&mut world, executor, &[old, middle]);
}

#[test]
fn a_request_in_an_executors_queue_that_leaves_it_is_told_as_gone() {
    let classes = [LatencyCritical; 3];
    let (mut world, executor, first, [old, middle, new]) = queued(Config::default(), classes);
    cancel(&mut world, new);
    assert_eq!(stage(&world, new), None);
    cancel(&mut world, first);
    expect_starts(&mut world, executor, &[middle, old]);
}

#[test]
fn a_request_overtaken_too_often_in_an_executors_queue_starts_next() {
    let config = Config {
        overtaken_max: 2,
        ..Config::default()
    };
    let (mut world, executor, first, [old, mut next]) = queued(config, [LatencyCritical; 2]);
    cancel(&mut world, first);
    for _ in 0..2 {
        world.step(executor);
        assert!(is_running(&world, next));
        next = arrive(&mut world, request(4, 1));
    }
    assert_eq!(strikes(&world), [(Clock::Overtaken, old)], "told once");
    expect_starts(&mut world, executor, &[old]);
    arrive(&mut world, request(4, 1));
    assert_eq!(strikes(&world).len(), 1);
}
