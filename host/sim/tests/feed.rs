//! The feed of a policy: its mirror equals the machine's rows at every question, the rows that a
//! refused answer named come again, and rows that the policy did not ask for never come.
//!
//! A failure prints its seed.

mod common;

use common::fed::{Fed, fed_with};
use common::{
    AnyWorld, MODEL_A, MODEL_B, SECOND, Scripted, add_device, add_executor, arrive, blocks,
    executor_with, request, sequence_of, single, world_of,
};
use fastrand::Rng;
use pointsman_core::rows::{Change, Extent, Health, RequestClass};
use pointsman_core::{
    Config, DeviceId, ExecutorId, ExecutorUpdate, Feed, Hook, Incarnation, Input, Micros, Needs,
    NewRequest, Policies, Progress, RefusalCause, RequestId, RetryClass, RowKind, RowKinds,
    StepReport, routing,
};
use pointsman_sim::{Adversary, EngineProfile};

// === Random runs ===

fn some_request(rng: &mut Rng) -> NewRequest {
    let prompt_tokens = rng.u32(1..40);
    let hashes = 0..rng.u32(0..6).min(prompt_tokens / 4);
    NewRequest {
        model: rng.choice([None, Some(MODEL_A), Some(MODEL_B)]).flatten(),
        class: if rng.bool() {
            RequestClass::LatencyCritical
        } else {
            RequestClass::Throughput
        },
        prompt_blocks: blocks(&hashes.map(u128::from).collect::<Vec<_>>()),
        ..request(prompt_tokens, rng.u32(1..40))
    }
}

fn some_update(rng: &mut Rng) -> ExecutorUpdate {
    match rng.u32(0..8) {
        0 => ExecutorUpdate::Health(Health::Down),
        1 => ExecutorUpdate::Health(Health::Draining),
        2..5 => ExecutorUpdate::Health(Health::Up),
        5 => ExecutorUpdate::SlotsTotal(rng.u32(1..4)),
        6 => ExecutorUpdate::ShareWeight(rng.u32(1..5)),
        _ => ExecutorUpdate::Detach,
    }
}

fn some_event<P: Policies>(rng: &mut Rng, world: &mut AnyWorld<P>) {
    let executor = rng.choice(world.machine.executor_ids().collect::<Vec<_>>());
    let request = rng.choice(world.unended().collect::<Vec<_>>());
    match (rng.u32(0..100), executor, request) {
        (0..40, _, _) => {
            let new = some_request(rng);
            world.arrive(new, u32::MAX);
        }
        (40..46, _, Some(request)) => drop(world.input(Input::RequestCancelled(request))),
        (46..52, Some(executor), _) => world.update(executor, some_update(rng)),
        (52..56, Some(executor), Some(request)) => {
            world.fail(executor, request, RetryClass::Elsewhere);
        }
        (56..60, _, _) => {
            let device = DeviceId(rng.u32(0..2));
            executor_with(world, device, |spec, profile| {
                *profile = EngineProfile {
                    leave_steps: rng.u32(1..4),
                    ..EngineProfile::default()
                };
                spec.slots_total = rng.u32(1..4);
                spec.models_max = rng.bool().then_some(1);
                spec.queue_limit = rng.u32(0..2);
                spec.preempts = rng.u32(0..4) > 0;
                spec.model_unload_delay = Micros(rng.u64(0..2) * SECOND);
            });
        }
        _ => {
            let until = world.now().after(Micros(rng.u64(0..SECOND)));
            world.run_until(until);
        }
    }
}

/// Every kind of rows, for every hook.
fn all() -> Needs {
    Needs::every(RowKinds::ALL)
}

/// Each kind of rows or not, by chance.
fn some_kinds(rng: &mut Rng) -> RowKinds {
    let kinds = RowKind::ALL.into_iter();
    kinds.filter(|_| rng.bool()).collect()
}

/// A random run; panics where the mirror of `fed` is wrong.
fn run<P: Policies>(seed: u64, fed: Fed<P>) -> AnyWorld<Fed<P>> {
    let mut rng = Rng::with_seed(seed);
    let config = Config {
        queue_max: rng.u32(1..30),
        parking_max: rng.u32(0..10),
        batch_max: rng.u32(1..8),
        unplaced_max: Micros(2 * SECOND),
        change_log_max: 64,
        ..Config::default()
    };
    let mut world = world_of(config, fed);
    for _ in 0..2 {
        let device = add_device(&mut world, rng.u32(10..40));
        add_executor(&mut world, device, 2);
    }
    for _ in 0..200 {
        some_event(&mut rng, &mut world);
        world.settle();
    }
    world
}

fn for_seeds(check: impl Fn(u64)) {
    for seed in 0..30 {
        let check = std::panic::AssertUnwindSafe(|| check(seed));
        let ran = std::panic::catch_unwind(check);
        assert!(ran.is_ok(), "failed with seed {seed}");
    }
}

#[test]
fn a_mirror_folded_from_changes_equals_the_rows_at_every_question() {
    for_seeds(|seed| {
        let sanity = [20, 90, 100][(seed % 3) as usize];
        let world = run(seed, fed_with(Adversary::new(seed, sanity), all()));
        let told = &world.policies.sink.told;
        assert!(told.len() > 50, "{} questions are few", told.len());
        let again = told
            .iter()
            .filter(|(extent, _)| *extent == Extent::SinceLast);
        assert!(again.count() > 50);
    });
}

#[test]
fn rows_of_the_kinds_that_a_hook_needs_are_current_at_its_questions() {
    for_seeds(|seed| {
        let mut rng = Rng::with_seed(seed);
        let mut needs = Needs::default();
        for hook in Hook::ALL {
            needs.decisions[hook] = some_kinds(&mut rng);
        }
        let world = run(seed, fed_with(Adversary::new(seed, 90), needs));
        assert!(world.policies.sink.told.len() > 50);
    });
}

#[test]
fn kinds_that_a_policy_does_not_want_never_come_and_the_others_do() {
    for_seeds(|seed| {
        let kinds = some_kinds(&mut Rng::with_seed(seed));
        let world = run(
            seed,
            fed_with(Adversary::new(seed, 90), Needs::every(kinds)),
        );
        let told = world.policies.sink.told.iter();
        let came: RowKinds = told.flat_map(|(_, rows)| rows).map(Change::kind).collect();
        assert_eq!(came, kinds);
    });
}

// === What comes again, and what comes anew ===

/// One executor, and a request that may not go there.
fn fed() -> (AnyWorld<Fed<Scripted>>, ExecutorId, RequestId) {
    let config = Config {
        change_log_max: 64,
        ..Config::default()
    };
    let mut world = world_of(config, fed_with(Scripted::default(), all()));
    let device = add_device(&mut world, 16);
    let executor = add_executor(&mut world, device, 1);
    let elsewhere = add_executor(&mut world, device, 1);
    let new = NewRequest {
        allowed: Some(vec![elsewhere]),
        ..request(4, 4)
    };
    world
        .policies
        .inner
        .on_route(|_, _| routing::Choice::Hold(None));
    let id = arrive(&mut world, new);
    (world, executor, id)
}

/// Changes a model's row, so that the policy is asked again. Returns the changes that it is told
/// then.
fn told_next(world: &mut AnyWorld<Fed<Scripted>>) -> (Extent, Vec<Change>) {
    let before = world.policies.sink.told.len();
    world.input(Input::ModelLimitSet(MODEL_A, Some(9)));
    world.settle();
    world.policies.sink.told[before].clone()
}

fn is_model(change: &Change) -> bool {
    matches!(change, Change::Model(model) if model.id == MODEL_A)
}

#[test]
fn only_what_changed_is_told() {
    let (mut world, _, _) = fed();
    // The first time, the answer to admission named the request.
    told_next(&mut world);
    let (extent, changes) = told_next(&mut world);
    assert_eq!(extent, Extent::SinceLast);
    assert!(
        matches!(&changes[..], [model] if is_model(model)),
        "{changes:?}"
    );
}

#[test]
fn what_a_refused_answer_named_is_told_again_though_unchanged() {
    let (mut world, executor, id) = fed();
    world.policies.inner.route_to(&[executor]);
    told_next(&mut world);
    let (_, refusal) = world.policies.inner.refused.last().unwrap();
    assert_eq!(refusal.cause, RefusalCause::NotAllowed);
    let (extent, changes) = told_next(&mut world);
    assert_eq!(extent, Extent::SinceLast);
    let [model, load, waiting] = &changes[..] else {
        panic!("{changes:?}");
    };
    assert!(is_model(model));
    assert!(matches!(load, Change::Load(load) if load.id == executor));
    assert!(matches!(waiting, Change::Waiting(request) if request.id == id));
}

#[test]
fn a_policy_that_fell_behind_the_change_log_is_told_everything() {
    let (mut world, executor, _) = fed();
    for weight in 0..31 {
        world.update(executor, ExecutorUpdate::ShareWeight(weight));
    }
    assert_eq!(
        told_next(&mut world).0,
        Extent::SinceLast,
        "63 changes are kept"
    );
    for weight in 0..33 {
        world.update(executor, ExecutorUpdate::ShareWeight(weight));
    }
    let (extent, changes) = told_next(&mut world);
    assert_eq!(extent, Extent::Everything);
    assert!(
        changes
            .iter()
            .any(|change| matches!(change, Change::Name(_)))
    );
    assert_eq!(told_next(&mut world).0, Extent::SinceLast);
}

// === What is told once, late, or not at all ===

/// The needs of a policy whose `route` reads loads and waiting requests, and `admit` nothing.
fn only_routing() -> Needs {
    let mut needs = Needs::default();
    needs.decisions[Hook::Routing] = RowKinds::from_iter([RowKind::Load, RowKind::Waiting]);
    needs
}

#[test]
fn what_changed_twice_is_told_once_and_what_came_and_went_is_not_told() {
    let mut world = world_of(
        Config::default(),
        fed_with(Scripted::default(), only_routing()),
    );
    let device = add_device(&mut world, 64);
    let executor = add_executor(&mut world, device, 1);
    let route = |world: &mut AnyWorld<Fed<Scripted>>, hold: bool| {
        let place = routing::Choice::Place(vec![executor]);
        let choice = if hold {
            routing::Choice::Hold(None)
        } else {
            place
        };
        let inner = &mut world.policies.inner;
        inner.on_route(move |_, _| choice.clone());
    };
    // The first runs, so that nobody is routed while others come, change and go.
    route(&mut world, false);
    let first = arrive(&mut world, request(4, 200));
    world.settle();
    let before = world.policies.sink.told.len();
    let waits = arrive(&mut world, request(4, 4));
    let gone = arrive(&mut world, request(4, 4));
    world.settle();
    world.input(Input::RequestCancelled(gone));
    for _ in 0..5 {
        world.run_until(world.now().after(Micros(SECOND / 100)));
    }
    let told = &world.policies.sink.told[before..];
    assert!(
        told.iter().all(|(_, changes)| changes.is_empty()),
        "admit needs nothing: {told:?}"
    );
    route(&mut world, true);
    let before = world.policies.sink.told.len();
    world.input(Input::RequestCancelled(first));
    let told = loop {
        world.run_until(world.now().after(Micros(SECOND / 100)));
        let mut told = world.policies.sink.told[before..].iter();
        if let Some(told) = told.find(|(_, changes)| !changes.is_empty()) {
            break told;
        }
    };
    let (extent, changes) = told;
    assert_eq!(*extent, Extent::SinceLast);
    let [load, first_gone, waiting] = sorted(changes);
    assert!(matches!(first_gone, Change::WaitingGone(id) if *id == first));
    assert!(matches!(load, Change::Load(load) if load.id == executor && load.slots_used == 0));
    assert!(matches!(waiting, Change::Waiting(row) if row.id == waits));
}

/// Three changes: the load, what is gone, and what waits.
fn sorted(changes: &[Change]) -> [&Change; 3] {
    let mut sorted: Vec<_> = changes.iter().collect();
    sorted.sort_by_key(|change| (change.kind(), matches!(change, Change::Waiting(_))));
    sorted.try_into().unwrap_or_else(|_| panic!("{changes:?}"))
}

// === Times to first tokens ===

/// Has an executor report these numbers of tokens of a prompt, and generated, one after the other, and the end of the request.
/// Returns the times to the first token that policies are told: of the executor, and of the request.
fn first_token(reports: &[[u32; 2]]) -> [Option<u64>; 2] {
    let (mut world, executor) = single(1, 16);
    let kinds = RowKinds::from_iter([RowKind::Load, RowKind::Completion]);
    let mut feed = Feed::new(Needs::every(kinds));
    let mut changes = Vec::new();
    feed.changes(&world.machine.view(), kinds, &mut changes);
    let id = arrive(&mut world, request(4, 3));
    let sequence = sequence_of(id, executor, Incarnation(0));
    world.input(Input::SequenceStarted(sequence));
    for &[prefilled, generated] in reports {
        let made = Progress {
            request: id,
            prefilled,
            generated,
        };
        world.input(Input::StepFinished(StepReport {
            executor,
            incarnation: Incarnation(0),
            progress: vec![made],
        }));
    }
    world.input(Input::SequenceFinished(sequence));
    world.settle();
    changes.clear();
    feed.changes(&world.machine.view(), kinds, &mut changes);
    let mut told = [None; 2];
    for change in &changes {
        if let Change::Load(load) = change {
            told[0] = load.ttft_micros;
        } else if let Change::Completed(completion) = change {
            told[1] = completion.ttft_micros;
        }
    }
    told
}

#[test]
fn tokens_that_come_at_once_tell_no_time_to_the_first() {
    // A stream, in no time.
    assert_eq!(first_token(&[[4, 1], [0, 2]]), [Some(0); 2]);
    // Whole answers, also of more than one report.
    assert_eq!(first_token(&[[4, 3]]), [None; 2]);
    assert_eq!(first_token(&[[4, 0], [0, 3]]), [None; 2]);
    assert_eq!(first_token(&[[4, 0], [0, 2], [0, 1]]), [None; 2]);
}
