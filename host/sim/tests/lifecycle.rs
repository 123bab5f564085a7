//! A request's life: it ends exactly once, wherever it is when its end comes, and leaves nothing
//! behind.

mod common;

use common::{
    END, World, add_device, add_executor, arrive, assert_nothing_held, background, cancel,
    device_elsewhere, device_with, executor_with, facts, is_queued, is_running, placed, placements,
    refusals, request, seconds, sequence_of, single, steps, world, world_with,
};
use pointsman_core::rows::{Change, ExecutorKind, Health, SequenceState};
use pointsman_core::{
    Config, Effect, ExecutorId, ExecutorUpdate, ExpiredWhy, Fact, FailedWhy, Feed, Incarnation,
    Input, KvReport, KvSpec, Micros, Needs, NewRequest, Outcome, Progress, PromptCount,
    RefusalCause, RefusedWhy, RequestId, RequeuedWhy, RetryClass, RowKind, RowKinds, SequenceRef,
    StepReport, admission,
};

/// The report of a server elsewhere with 8 blocks, all of them in use.
const FULL: KvReport = KvReport {
    block_bytes: 1,
    blocks_total: 8,
    blocks_free: 0,
    blocks_cached: 0,
    blocks_evicted_total: 0,
};

/// The places where a request can be when its end comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Arrived,
    Parked,
    Queued,
    DeviceQueue,
    Prefill,
    MidStream,
    Leaving,
}

const EVERYWHERE: [At; 7] = [
    At::Arrived,
    At::Parked,
    At::Queued,
    At::DeviceQueue,
    At::Prefill,
    At::MidStream,
    At::Leaving,
];

/// Brings `new`, a prompt of 10 tokens, to the place that a test wants. Engines are so slow that
/// they make no step by themselves for 100 seconds.
fn request_at(at: At, new: NewRequest) -> (World, ExecutorId, RequestId) {
    let mut world = world_with(Config {
        queue_max: 1,
        ..Config::default()
    });
    world.policies.on_admit(|_| admission::Choice::Park);
    let device = device_with(&mut world, 64, Some(4));
    let executor = executor_with(&mut world, device, |spec, profile| {
        spec.queue_limit = u32::from(at == At::DeviceQueue);
        // What runs there runs longer than anybody may wait.
        profile.step = seconds(200);
        profile.leave_steps = 3;
    });
    let blocked = matches!(at, At::Parked | At::Queued | At::DeviceQueue);
    if blocked {
        arrive(&mut world, request(4, 4));
    }
    if at == At::Parked {
        arrive(&mut world, request(4, 4));
    }
    let id = world.arrive(new, u32::MAX);
    if at != At::Arrived {
        world.settle();
    }
    match at {
        At::Arrived => assert_eq!(world.facts().len(), 0),
        At::Parked => assert_eq!(world.machine.queue_snapshot().parked, [id]),
        At::Queued => assert!(is_queued(&world, id)),
        At::DeviceQueue => {
            assert_eq!(placed(&world, id), Some((executor, SequenceState::Queued)));
        }
        At::Prefill => {
            world.step(executor);
            assert!(is_running(&world, id));
        }
        At::MidStream => {
            steps(&mut world, executor, 4);
            assert!(is_running(&world, id));
        }
        At::Leaving => {
            world.step(executor);
            arrive(&mut world, request(4, 4));
            assert_eq!(placed(&world, id), Some((executor, SequenceState::Leaving)));
        }
    }
    (world, executor, id)
}

fn ends_of(world: &World, id: RequestId) -> (usize, usize) {
    let ended = facts(world).filter(|fact| matches!(fact, Fact::Ended(r, _) if *r == id));
    let told = world.effects().iter();
    let told =
        told.filter(|effect| matches!(effect, Effect::Finish { request, .. } if *request == id));
    (ended.count(), told.count())
}

#[test]
fn a_served_request_ends_once_and_leaves_nothing_behind() {
    let (mut world, executor) = single(1, 16);
    let id = arrive(&mut world, request(10, 5));
    steps(&mut world, executor, 5);
    assert_eq!(
        world.outcome(id),
        Some(Outcome::Finished { output_tokens: 5 })
    );
    cancel(&mut world, id);
    assert_eq!(ends_of(&world, id), (1, 1), "a late cancel changes nothing");
    assert_nothing_held(&mut world);
}

#[test]
fn a_cancelled_request_ends_at_once_wherever_it_is_and_leaves_nothing_behind() {
    for at in EVERYWHERE {
        let (mut world, _, id) = request_at(at, background(10, 5));
        cancel(&mut world, id);
        assert_eq!(world.outcome(id), Some(Outcome::Cancelled), "{at:?}");
        assert!(world.run_out(END), "{at:?}");
        assert_eq!(ends_of(&world, id), (1, 1), "{at:?}");
        world.run_until(world.now().after(seconds(1000)));
        assert_nothing_held(&mut world);
    }
}

#[test]
fn a_cancelled_sequence_keeps_its_slot_until_its_engine_has_let_go() {
    let (mut world, executor, id) = request_at(At::MidStream, background(10, 5));
    cancel(&mut world, id);
    let follower = arrive(&mut world, request(4, 4));
    steps(&mut world, executor, 2);
    assert!(is_queued(&world, follower));
    world.step(executor);
    assert!(is_running(&world, follower), "the third step is the last");
}

#[test]
fn a_deadline_ends_a_request_wherever_it_is() {
    let deadline = seconds(5);
    for at in EVERYWHERE {
        let new = NewRequest {
            deadline: Some(deadline),
            ..background(10, 5)
        };
        let (mut world, executor, id) = request_at(at, new);
        world.run_until(Micros(deadline.0 - 1));
        assert_eq!(world.outcome(id), None, "{at:?}");
        world.run_until(deadline);
        if at == At::Leaving {
            // It is already on its way out, and ends when it is there.
            steps(&mut world, executor, 3);
            world.run_until(deadline.after(seconds(1)));
        }
        let expired = Outcome::Expired(ExpiredWhy::Deadline);
        assert_eq!(world.outcome(id), Some(expired), "{at:?}");
        assert!(world.run_out(END));
        world.run_until(world.now().after(seconds(1000)));
        assert_nothing_held(&mut world);
    }
}

#[test]
fn a_request_that_finds_no_place_for_wait_max_expires() {
    let wait_max = Config::default().wait_max;
    for at in [At::Parked, At::Queued] {
        let (mut world, _, id) = request_at(at, background(10, 5));
        world.run_until(Micros(wait_max.0 - 1));
        assert_eq!(world.outcome(id), None, "{at:?}");
        world.run_until(wait_max);
        let expired = Outcome::Expired(ExpiredWhy::Wait);
        assert_eq!(world.outcome(id), Some(expired), "{at:?}");
    }
}

#[test]
fn a_request_that_can_never_fit_is_refused_at_arrival_with_the_numbers() {
    let (mut world, _) = single(1, 4);
    let id = arrive(&mut world, request(10, 7));
    let why = RefusedWhy::NeverFits {
        blocks_needed: 5,
        blocks_total: 4,
    };
    assert_eq!(world.outcome(id), Some(Outcome::Refused(why)));
    let fits = arrive(&mut world, request(10, 6));
    assert!(is_running(&world, fits), "16 tokens fit 4 blocks");
    assert!(world.run_out(END));
    assert_nothing_held(&mut world);
}

/// Tests that a prompt whose tokens are a guess is the server's to refuse.
#[test]
fn a_prompt_larger_than_all_that_a_server_elsewhere_reports_goes_there_once_half_of_it_is_free() {
    let mut world = world();
    let device = device_elsewhere(&mut world, KvSpec::Remote);
    let executor = executor_with(&mut world, device, |spec, _| {
        spec.kind = ExecutorKind::Remote;
        spec.preempts = false;
    });
    let report = |world: &mut World, blocks_free| {
        let report = KvReport {
            block_bytes: 1,
            blocks_total: 5,
            blocks_free,
            blocks_cached: 0,
            blocks_evicted_total: 0,
        };
        world.input(Input::KvReported(device, report));
        world.settle();
    };
    report(&mut world, 2);
    let ids = [request(20, 1), request(400, 90)].map(|new| arrive(&mut world, new));
    assert!(
        ids.iter().all(|id| is_queued(&world, *id)),
        "half of 5 is 3"
    );
    report(&mut world, 3);
    assert!(is_running(&world, ids[0]));
    assert!(world.run_out(END));
    for (id, output_tokens) in ids.into_iter().zip([1, 90]) {
        assert_eq!(placements(&world, id), [executor]);
        let finished = Outcome::Finished { output_tokens };
        assert_eq!(world.outcome(id), Some(finished));
    }
}

/// Tests that a policy that goes by the rows is not refused for what it was not told.
#[test]
fn a_server_elsewhere_has_fewer_blocks_by_what_was_placed_there_since_its_report() {
    let mut world = world();
    let device = device_elsewhere(&mut world, KvSpec::Remote);
    executor_with(&mut world, device, |spec, _| {
        spec.kind = ExecutorKind::Remote;
        spec.preempts = false;
    });
    let report = KvReport {
        block_bytes: 1,
        blocks_total: 8,
        blocks_free: 2,
        blocks_cached: 4,
        blocks_evicted_total: 0,
    };
    world.input(Input::KvReported(device, report));
    let kinds = RowKinds::from_iter([RowKind::Device]);
    let mut feed = Feed::new(Needs::every(kinds));
    // The free and cached blocks of each row that a policy is told since it was last told.
    let mut told = |world: &World| {
        let mut changes = Vec::new();
        feed.changes(&world.machine.view(), kinds, &mut changes);
        let idle = changes.into_iter().filter_map(|change| {
            let Change::Device(row) = change else {
                return None;
            };
            Some((row.blocks_free, row.blocks_cached))
        });
        idle.collect::<Vec<_>>()
    };
    assert_eq!(told(&world), [(2, 4)]);
    let placed = arrive(&mut world, request(10, 8));
    assert!(is_running(&world, placed));
    // Three blocks of four tokens.
    assert_eq!(told(&world), [(0, 3)]);
    let too_large = arrive(&mut world, request(15, 1));
    assert!(is_queued(&world, too_large), "it needs four");
    world.input(Input::KvReported(device, report));
    assert_eq!(told(&world), [(2, 4)], "the report has all that was placed");
}

/// Tests that a policy does not go by the last counts for ever.
#[test]
fn that_a_server_elsewhere_tells_of_no_blocks_any_more_is_told() {
    let mut world = world();
    let device = device_elsewhere(&mut world, KvSpec::Remote);
    let kinds = RowKinds::from_iter([RowKind::Device]);
    let mut feed = Feed::new(Needs::every(kinds));
    // All blocks by each row that a policy is told since it was last told.
    let told = |feed: &mut Feed, world: &World| {
        let mut changes = Vec::new();
        feed.changes(&world.machine.view(), kinds, &mut changes);
        let all = changes.into_iter().filter_map(|change| {
            let Change::Device(row) = change else {
                return None;
            };
            Some(row.blocks_total)
        });
        all.collect::<Vec<u32>>()
    };
    assert_eq!(told(&mut feed, &world), [0; 0]);
    for (report, expected) in [(FULL, 8), (KvReport::default(), 0)] {
        world.input(Input::KvReported(device, report));
        assert_eq!(told(&mut feed, &world), [expected]);
        feed.reset();
        assert_eq!(told(&mut feed, &world), [expected], "to one that is new");
    }
    assert_eq!(world.machine.devices().count(), 0);
}

/// Tests that a server which comes under an old name is not judged by what the one before it told.
#[test]
fn what_a_server_elsewhere_reported_is_forgotten_when_it_is_taken_away() {
    let mut world = world();
    let device = device_elsewhere(&mut world, KvSpec::Remote);
    let server = |world: &mut World| {
        executor_with(world, device, |spec, _| {
            spec.kind = ExecutorKind::Remote;
            spec.preempts = false;
        })
    };
    let first = server(&mut world);
    world.input(Input::KvReported(device, FULL));
    world.update(first, ExecutorUpdate::Detach);
    world.settle();
    assert_eq!(world.machine.devices().count(), 0);
    let second = server(&mut world);
    let id = arrive(&mut world, request(10, 1));
    assert_eq!(placements(&world, id), [second]);
}

#[test]
fn a_request_too_large_for_one_executor_is_served_by_another() {
    let (mut world, small) = single(1, 4);
    let large_device = add_device(&mut world, 16);
    let large = add_executor(&mut world, large_device, 1);
    let id = arrive(&mut world, request(20, 4));
    assert_eq!(placements(&world, id), [large]);

    world.policies.route_to(&[small]);
    let id = arrive(&mut world, request(20, 4));
    assert!(world.run_out(END));
    let too_large = RefusalCause::NeverFits {
        needed: 6,
        total: 4,
    };
    assert!(refusals(&world).contains(&too_large));
    assert_eq!(placements(&world, id), [large]);
}

/// All messages that an executor can send about a sequence.
fn every_message(request: RequestId, executor: ExecutorId, incarnation: Incarnation) -> Vec<Input> {
    let sequence = sequence_of(request, executor, incarnation);
    let made = Progress {
        request,
        prefilled: 1,
        generated: 1,
    };
    let report = StepReport {
        executor,
        incarnation,
        progress: vec![made],
    };
    vec![
        Input::SequenceStarted(sequence),
        Input::StepFinished(report),
        Input::PromptCounted(
            sequence,
            PromptCount {
                tokens: 1,
                cached: 0,
            },
        ),
        Input::KeptTo(sequence, Vec::new()),
        Input::SequenceFinished(sequence),
        Input::SequenceFailed {
            sequence,
            retry: RetryClass::Elsewhere,
            kept: 0,
        },
        left(sequence),
        Input::ExecutorLost {
            executor,
            incarnation,
            kept: Vec::new(),
        },
    ]
}

/// A sequence has left, with nothing in host memory.
fn left(sequence: SequenceRef) -> Input {
    Input::SequenceLeft(sequence, 0)
}

fn assert_ignored(world: &mut World, message: Input) {
    let (facts, effects) = (world.facts().len(), world.effects().len());
    world.input(message.clone());
    world.settle();
    assert_eq!(world.facts().len(), facts, "{message:?}");
    assert_eq!(world.effects().len(), effects, "{message:?}");
}

#[test]
fn what_an_executor_said_in_an_earlier_life_is_ignored() {
    let (mut world, executor) = single(1, 16);
    world.lose(executor);
    world.update(executor, ExecutorUpdate::Health(Health::Up));
    let id = arrive(&mut world, request(10, 5));
    assert!(is_running(&world, id));
    for message in every_message(id, executor, Incarnation(0)) {
        assert_ignored(&mut world, message);
    }
    assert!(world.run_out(END));
    assert_eq!(
        world.outcome(id),
        Some(Outcome::Finished { output_tokens: 5 })
    );
}

#[test]
fn a_message_about_a_sequence_that_is_not_there_is_ignored() {
    let (mut world, executor) = single(1, 16);
    let ended = arrive(&mut world, request(1, 1));
    steps(&mut world, executor, 1);
    let running = arrive(&mut world, request(10, 5));
    for unknown in [ended, RequestId(99)] {
        for message in every_message(unknown, executor, Incarnation(0)) {
            if !matches!(message, Input::ExecutorLost { .. }) {
                assert_ignored(&mut world, message);
            }
        }
    }
    let elsewhere = ExecutorId(7);
    for message in every_message(running, elsewhere, Incarnation(0)) {
        assert_ignored(&mut world, message);
    }
    assert!(is_running(&world, running));
}

#[test]
fn an_executor_that_lets_go_of_a_sequence_unasked_has_failed_it() {
    let (mut world, first) = single(1, 16);
    let device = add_device(&mut world, 16);
    let second = add_executor(&mut world, device, 1);
    let id = arrive(&mut world, request(10, 5));
    let sequence = sequence_of(id, first, Incarnation(0));
    world.input(left(sequence));
    world.settle();
    let requeued = Fact::Requeued(id, RequeuedWhy::Failed);
    assert!(facts(&world).any(|fact| *fact == requeued));
    assert_eq!(placements(&world, id), [first, second]);
}

#[test]
fn an_answer_that_few_can_go_on_with_goes_to_one_of_them_or_ends() {
    let (mut world, first) = single(1, 16);
    let others: Vec<ExecutorId> = (0..3)
        .map(|_| {
            let device = add_device(&mut world, 16);
            add_executor(&mut world, device, 1)
        })
        .collect();
    let id = arrive(&mut world, request(10, 5));
    let sequence = sequence_of(id, first, Incarnation(0));
    world.input(Input::KeptTo(sequence, vec![first, others[2]]));
    world.fail(first, id, RetryClass::Elsewhere);
    world.settle();
    assert_eq!(placements(&world, id), [first, others[2]]);
    // Of those that may go on one has failed, and then the other.
    let sequence = sequence_of(id, others[2], Incarnation(0));
    world.input(Input::KeptTo(sequence, others.clone()));
    world.fail(others[2], id, RetryClass::Elsewhere);
    world.settle();
    let nowhere = Outcome::Failed(FailedWhy::NowhereLeft);
    assert_eq!(world.outcome(id), Some(nowhere));
}

#[test]
fn a_deadline_that_passes_while_a_request_is_evicted_ends_it_at_once() {
    let (mut world, executor) = single(1, 16);
    let victim = arrive(
        &mut world,
        NewRequest {
            deadline: Some(seconds(1)),
            ..request(10, 5)
        },
    );
    let mut urgent = request(10, 5);
    urgent.priority = 1;
    arrive(&mut world, urgent);
    assert_eq!(
        placed(&world, victim),
        Some((executor, SequenceState::Leaving))
    );
    assert_eq!(world.machine.next_timeout(), Some(seconds(1)));
}

#[test]
fn a_request_that_arrives_after_its_deadline_is_not_placed() {
    let (mut world, _) = single(1, 16);
    world.run_until(seconds(2));
    let late = arrive(
        &mut world,
        NewRequest {
            deadline: Some(seconds(1)),
            ..request(10, 5)
        },
    );
    let expired = Some(Outcome::Expired(ExpiredWhy::Deadline));
    assert_eq!(world.outcome(late), expired);
    assert!(placements(&world, late).is_empty());
}

/// The prompt tokens that the only tenant has used, as policies are told them.
fn prompt_tokens(world: &World) -> u64 {
    let kinds = RowKinds::from_iter([RowKind::Tenant]);
    let mut changes = Vec::new();
    let mut feed = Feed::new(Needs::every(kinds));
    feed.changes(&world.machine.view(), kinds, &mut changes);
    let told = changes.iter().find_map(|change| {
        let Change::Tenant(tenant) = change else {
            return None;
        };
        Some(tenant.prompt_tokens_total)
    });
    told.expect("there is a tenant")
}

#[test]
fn a_tenant_pays_for_a_prompt_as_the_server_counts_it_and_its_total_never_goes_back() {
    let (mut world, executor) = single(1, 16);
    let mut total = 0;
    // Booked as 10 each. What was too much is taken off the next ones.
    for (tokens, cached, expected) in [
        (30, 5, 25),
        (4, 0, 35),
        (10, 0, 39),
        (10, 10, 49),
        (10, 0, 49),
    ] {
        let id = arrive(&mut world, request(10, 1));
        let progress = vec![Progress {
            request: id,
            prefilled: 10,
            generated: 1,
        }];
        let sequence = sequence_of(id, executor, Incarnation(0));
        world.input(Input::SequenceStarted(sequence));
        world.input(Input::StepFinished(StepReport {
            executor,
            incarnation: Incarnation(0),
            progress,
        }));
        assert!(prompt_tokens(&world) >= total);
        let count = PromptCount { tokens, cached };
        world.input(Input::PromptCounted(sequence, count));
        // Said once, it counts once.
        world.input(Input::PromptCounted(sequence, count));
        world.input(Input::SequenceFinished(sequence));
        world.settle();
        total = prompt_tokens(&world);
        assert_eq!(total, expected, "{tokens} {cached}");
        let stay = world.facts().iter().rev().find_map(|stamped| {
            let Fact::StayEnded(stay) = stamped.fact else {
                return None;
            };
            Some(stay)
        });
        let stay = stay.expect("it ran");
        assert_eq!((stay.prompt_tokens, stay.cached_tokens), (tokens, cached));
    }
}
