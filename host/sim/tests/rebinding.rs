//! Another policy takes over a hook: the answers of the one before that it is asked for anew, and those that
//! are done with.

mod common;

use common::{
    World, add_executor, arrive, device_with, evictions, executor_with, facts, is_running, placed,
    placements, request, single, steps, strikes, world, world_with,
};
use pointsman_core::rows::SequenceState;
use pointsman_core::{
    Allotment, Allotments, Arrangement, Author, Clock, Config, ExecutorId, Fact, Hook, Input,
    Micros, RequestId, StepReport, admission, routing,
};

/// Has the hook answered by the policies as they are set up now.
fn take_over(world: &mut World, hook: Hook) {
    world.input(Input::PolicyChanged(hook));
    world.settle();
}

/// Two engines of two slots on a device that schedules 20 tokens in a step.
fn pair() -> (World, [ExecutorId; 2]) {
    let mut world = world();
    let device = device_with(&mut world, 200, Some(20));
    let executors = [(); 2].map(|()| add_executor(&mut world, device, 2));
    world.settle();
    (world, executors)
}

fn give(world: &mut World, executors: [ExecutorId; 2], tokens: [u32; 2]) {
    world.policies.on_allot(move |_| {
        let engines = executors.into_iter().zip(tokens);
        let engines = engines.map(|(executor, tokens_max)| Allotment {
            executor,
            tokens_max,
        });
        Allotments {
            engines: engines.collect(),
            again: None,
        }
    });
}

fn budgets(world: &World, executors: [ExecutorId; 2]) -> [Option<u32>; 2] {
    executors.map(|id| world.machine.executor_snapshot(id)?.tokens_max)
}

fn start_on(world: &mut World, executor: ExecutorId, output_tokens: u32) -> RequestId {
    world.policies.route_to(&[executor]);
    let id = arrive(world, request(4, output_tokens));
    assert!(is_running(world, id));
    id
}

fn arranged(world: &World, executor: ExecutorId) -> Arrangement {
    let snapshot = world.machine.executor_snapshot(executor);
    snapshot.expect("it is attached").arrangement
}

// === Budgets ===

#[test]
fn engines_that_stay_busy_get_the_budgets_of_a_new_policy() {
    let (mut world, executors) = pair();
    give(&mut world, executors, [15, 5]);
    for executor in executors {
        start_on(&mut world, executor, 50);
    }
    assert_eq!(budgets(&world, executors), [Some(15), Some(5)]);
    give(&mut world, executors, [4, 16]);
    steps(&mut world, executors[0], 3);
    assert_eq!(budgets(&world, executors), [Some(15), Some(5)], "not asked");
    take_over(&mut world, Hook::Budget);
    assert_eq!(budgets(&world, executors), [Some(4), Some(16)]);
    let engines = executors.map(|id| world.engine(id).unwrap().tokens_max());
    assert_eq!(engines, budgets(&world, executors), "the engines know");
}

#[test]
fn engines_that_stay_busy_get_the_arrangement_of_a_new_policy() {
    let (mut world, [executor, _]) = pair();
    let running = [(); 2].map(|()| start_on(&mut world, executor, 50));
    assert_eq!(arranged(&world, executor), Arrangement::default());
    world.policies.on_arrange(|running| Arrangement {
        prefill_max: Some(7),
        first: running.iter().rev().copied().collect(),
    });
    let rounds = world.machine.round();
    take_over(&mut world, Hook::Budget);
    let [first, second] = running;
    let arrangement = Arrangement {
        prefill_max: Some(7),
        first: vec![second, first],
    };
    assert_eq!(arranged(&world, executor), arrangement);
    let told = Fact::Arranged {
        executor,
        arrangement,
        author: Author::Policy(0),
    };
    assert_eq!(facts(&world).filter(|fact| **fact == told).count(), 1);
    assert_eq!(world.machine.round().0, rounds.0 + 1);
}

#[test]
fn a_new_policy_is_not_struck_for_tokens_that_the_one_before_withheld() {
    let mut world = world_with(Config {
        tokenless_steps_max: 2,
        ..Config::default()
    });
    let device = device_with(&mut world, 200, Some(20));
    let executors = [(); 2].map(|()| add_executor(&mut world, device, 2));
    world.settle();
    let id = start_on(&mut world, executors[0], 50);
    give(&mut world, executors, [3, 2]);
    // The clock runs out in the second of these steps, and another policy takes over before the round.
    let incarnation = world
        .machine
        .executor_snapshot(executors[0])
        .unwrap()
        .incarnation;
    for _ in 0..2 {
        world.input(Input::StepFinished(StepReport {
            executor: executors[0],
            incarnation,
            progress: Vec::new(),
        }));
    }
    assert!(world.machine.is_due());
    take_over(&mut world, Hook::Budget);
    assert_eq!(strikes(&world), [(Clock::Tokenless, id)]);
    // Whoever is struck is not asked.
    assert_eq!(budgets(&world, executors), [Some(3), Some(2)]);
}

#[test]
fn the_other_hooks_leave_budgets_alone() {
    let (mut world, executors) = pair();
    give(&mut world, executors, [15, 5]);
    start_on(&mut world, executors[0], 50);
    let (asked, rounds) = (world.policies.asked.allot.len(), world.machine.round());
    for hook in Hook::ALL {
        if hook != Hook::Budget {
            take_over(&mut world, hook);
        }
    }
    assert_eq!(world.policies.asked.allot.len(), asked);
    assert_eq!(world.machine.round(), rounds, "there is nothing to decide");
}

#[test]
fn without_engines_there_is_nothing_to_ask() {
    let mut world = world();
    device_with(&mut world, 200, Some(20));
    world.settle();
    let rounds = world.machine.round();
    for hook in Hook::ALL {
        take_over(&mut world, hook);
    }
    assert_eq!(world.machine.round(), rounds);
}

// === Requests ===

#[test]
fn a_request_that_is_held_is_routed_by_a_new_policy_at_once() {
    let (mut world, executor) = single(1, 64);
    let until = Micros(20_000_000);
    world
        .policies
        .on_route(move |_, _| routing::Choice::Hold(Some(until)));
    let held = arrive(&mut world, request(4, 50));
    assert_eq!(placements(&world, held), []);
    world.policies.route_to(&[executor]);
    world.settle();
    assert_eq!(placements(&world, held), [], "no round is due");
    take_over(&mut world, Hook::Routing);
    assert_eq!(placements(&world, held), [executor]);
    assert!(world.now() < until);
}

#[test]
fn the_queue_of_an_executor_is_put_in_order_by_a_new_policy() {
    let (mut world, executor) = {
        let mut world = world();
        let device = device_with(&mut world, 200, None);
        let executor = executor_with(&mut world, device, |spec, _| spec.queue_limit = 4);
        (world, executor)
    };
    arrive(&mut world, request(4, 1));
    let queued = [(); 3].map(|()| arrive(&mut world, request(4, 1)));
    world
        .policies
        .on_order(|requests| requests.iter().rev().copied().collect());
    let asked = world.policies.asked.order.len();
    take_over(&mut world, Hook::Priority);
    assert_eq!(world.policies.asked.order[asked..], [queued.to_vec()]);
    let [_, _, last] = queued;
    world.step(executor);
    assert!(is_running(&world, last));
}

#[test]
fn a_new_policy_is_asked_for_victims_though_the_one_before_has_just_said_none() {
    let (mut world, executor) = single(1, 64);
    let victim = arrive(&mut world, request(4, 50));
    world.policies.on_evict(|_| None);
    let needy = arrive(&mut world, request(4, 5));
    assert_eq!(world.policies.evict_questions_for(needy), 1);
    world
        .policies
        .on_evict(move |_| Some(common::evict(executor, &[victim])));
    take_over(&mut world, Hook::Routing);
    assert_eq!(evictions(&world), [], "not asked so soon");
    take_over(&mut world, Hook::Preemption);
    assert_eq!(evictions(&world), [(victim, needy)]);
}

// === What is done with ===

#[test]
fn who_is_placed_or_parked_stays_so() {
    let mut world = world_with(Config {
        queue_max: 1,
        ..Config::default()
    });
    let device = device_with(&mut world, 200, None);
    let [here, there] =
        [(); 2].map(|()| executor_with(&mut world, device, |spec, _| spec.queue_limit = 1));
    world.policies.route_to(&[here]);
    let running = arrive(&mut world, request(4, 50));
    let waiting = arrive(&mut world, request(4, 50));
    world.policies.on_route(|_, _| routing::Choice::Hold(None));
    arrive(&mut world, request(4, 50));
    world.policies.on_admit(|_| admission::Choice::Park);
    let parked = arrive(&mut world, request(4, 50));
    world.policies.on_admit(|_| admission::Choice::Shed(1));
    for hook in Hook::ALL {
        take_over(&mut world, hook);
    }
    assert_eq!(world.machine.queue_snapshot().parked, [parked]);
    assert!(is_running(&world, running));
    let queued = Some((here, SequenceState::Queued));
    assert_eq!(placed(&world, waiting), queued, "though {there} is free");
}
