//! The evictions that the interlock refuses, and that nothing of a refused answer is done.

mod common;

use common::{
    World, add_device, add_executor, arrive, background, device_with_host_memory, evict, evictions,
    executor_with, is_queued, refusals, request, swap, world,
};
use pointsman_core::{Eviction, ExecutorId, NewRequest, RefusalCause, RequestId, ShortageCause};

/// A host with nothing free, and a request that needs a slot.
struct Cast {
    world: World,
    executor: ExecutorId,
    victim: RequestId,
    urgent: RequestId,
    /// A request that runs on another device.
    elsewhere: RequestId,
    /// A request that runs on the same device, on an executor that cannot preempt.
    settled: RequestId,
    waiting: RequestId,
}

impl Cast {
    fn new() -> Self {
        let mut world = world();
        let device = add_device(&mut world, 64);
        let executor = add_executor(&mut world, device, 2);
        let rigid = executor_with(&mut world, device, |spec, _| spec.preempts = false);
        let other = add_device(&mut world, 64);
        let other = add_executor(&mut world, other, 1);
        let mut on = |executor, new: NewRequest| {
            world.policies.route_to(&[executor]);
            arrive(&mut world, new)
        };
        let victim = on(executor, background(10, 20));
        let urgent = NewRequest {
            priority: 5,
            ..request(10, 20)
        };
        let urgent = on(executor, urgent);
        let elsewhere = on(other, background(10, 20));
        let settled = on(rigid, background(10, 20));
        let waiting = on(executor, background(10, 20));
        Self {
            world,
            executor,
            victim,
            urgent,
            elsewhere,
            settled,
            waiting,
        }
    }
}

/// The next request, which is the needy one.
const NEEDY: RequestId = RequestId(5);

#[track_caller]
fn check_refused(cause: RefusalCause, answer: impl Fn(&Cast) -> Eviction) {
    let mut cast = Cast::new();
    let answer = answer(&cast);
    cast.world.policies.on_evict(move |_| Some(answer.clone()));
    let needy = arrive(&mut cast.world, request(10, 5));
    assert_eq!(needy, NEEDY);
    let (_, shortage) = cast
        .world
        .policies
        .asked
        .evict
        .last()
        .copied()
        .expect("somebody lacks a slot");
    assert_eq!(
        (shortage.needy, shortage.cause),
        (needy, ShortageCause::Slots)
    );
    assert_eq!(refusals(&cast.world), [cause]);
    assert_eq!(
        evictions(&cast.world),
        [],
        "nothing of a refused answer is done"
    );
    assert!(is_queued(&cast.world, needy));
}

#[test]
fn a_victim_must_not_be_more_urgent_than_the_needy() {
    check_refused(RefusalCause::MoreUrgent, |cast| {
        evict(cast.executor, &[cast.urgent])
    });
}

#[test]
fn a_victim_must_be_preemptible() {
    check_refused(RefusalCause::NotPreemptible, |cast| {
        evict(cast.executor, &[cast.settled])
    });
}

#[test]
fn a_victim_must_be_on_the_device_where_the_room_is_needed() {
    check_refused(RefusalCause::WrongDevice, |cast| {
        evict(cast.executor, &[cast.elsewhere])
    });
}

#[test]
fn a_victim_must_be_placed_and_known_and_somebody_else() {
    check_refused(RefusalCause::NotPlaced, |cast| {
        evict(cast.executor, &[cast.waiting])
    });
    check_refused(RefusalCause::UnknownRequest, |cast| {
        evict(cast.executor, &[RequestId(99)])
    });
    check_refused(RefusalCause::IsNeedy, |cast| evict(cast.executor, &[NEEDY]));
}

#[test]
fn a_victim_is_named_once() {
    check_refused(RefusalCause::NamedTwice, |cast| {
        evict(cast.executor, &[cast.victim, cast.victim])
    });
}

#[test]
fn a_victim_is_swapped_only_where_that_can_be_done() {
    check_refused(RefusalCause::NotSwappable, |cast| {
        swap(cast.executor, &[cast.victim])
    });
}

#[test]
fn victims_that_are_swapped_must_find_room_in_host_memory() {
    // Ten tokens and the first of the answer are three blocks, and five of host memory are there.
    let mut world = world();
    let device = device_with_host_memory(&mut world, 64, 5);
    let executor = add_executor(&mut world, device, 2);
    let victims = [(); 2].map(|()| arrive(&mut world, background(10, 20)));
    world
        .policies
        .on_evict(move |_| Some(swap(executor, &victims)));
    let needy = arrive(&mut world, request(10, 5));
    let full = RefusalCause::HostFull {
        needed: 6,
        available: 5,
    };
    assert_eq!(refusals(&world), [full]);
    assert_eq!(evictions(&world), []);
    world
        .policies
        .on_evict(move |_| Some(swap(executor, &victims[..1])));
    // Victims are asked for again, since a more urgent request has come.
    let more_urgent = NewRequest {
        priority: 1,
        ..request(10, 5)
    };
    arrive(&mut world, more_urgent);
    assert_eq!(evictions(&world), [(victims[0], needy)]);
}

#[test]
fn victims_must_cover_the_shortage_on_an_executor_that_is_there() {
    check_refused(RefusalCause::NotCovered, |cast| evict(cast.executor, &[]));
    check_refused(RefusalCause::UnknownExecutor, |cast| {
        evict(ExecutorId(99), &[cast.victim])
    });
}
