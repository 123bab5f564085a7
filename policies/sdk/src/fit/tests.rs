//! Each obstacle alone, and what earlier placements of the batch change.

use super::{Fit, Need, Obstacle, Seat, fit};
use crate::fixture::{device, executor, load, model, request, residency};
use crate::mirror::Mirror;
use crate::tentative::Tentative;
use crate::wire::types::{
    Change, Device, ExecutorInfo, ExecutorLoad, Extent, Health, Model, Request, RequestClass,
    Residency,
};

/// Executor 0 on device 0, and a request for model 0.
struct Case {
    info: ExecutorInfo,
    load: ExecutorLoad,
    device: Device,
    model: Model,
    residencies: Vec<Residency>,
    request: Request,
    /// Placed before, in the same batch.
    before: Vec<Request>,
}

fn case() -> Case {
    Case {
        info: executor(0),
        load: load(0),
        device: device(0),
        model: model(0),
        residencies: Vec::new(),
        request: Request {
            model: Some(0),
            ..request(1)
        },
        before: Vec::new(),
    }
}

fn check(case: Case, expected: Fit) {
    let mut mirror = Mirror::default();
    mirror.begin(100, Extent::Everything);
    mirror.apply(Change::Executor(case.info));
    mirror.apply(Change::Load(case.load));
    mirror.apply(Change::Device(case.device));
    mirror.apply(Change::Model(case.model));
    for row in case.residencies {
        mirror.apply(Change::Residency(row));
    }
    let mut placed = Tentative::default();
    let executor = mirror.executor(0).expect("both rows are there");
    for request in &case.before {
        let need = Need::new(&mirror, &placed, request, 100);
        let seat = fit(&mirror, &placed, &need, &executor).expect("the earlier ones fit");
        placed.place(&mirror, &need, &executor, seat);
    }
    let need = Need::new(&mirror, &placed, &case.request, 100);
    assert_eq!(fit(&mirror, &placed, &need, &executor), expected);

    placed.clear();
    let need = Need::new(&mirror, &placed, &case.request, 100);
    let alone = fit(&mirror, &placed, &need, &executor);
    if case.before.is_empty() {
        assert_eq!(alone, expected);
    } else {
        assert_eq!(alone, Ok(Seat::Slot), "a cleared count leaves nothing");
    }
}

#[test]
fn a_live_executor_with_a_slot_takes_it() {
    check(case(), Ok(Seat::Slot));
    let mut degraded = case();
    degraded.load.health = Health::Degraded;
    check(degraded, Ok(Seat::Slot));
}

#[test]
fn draining_and_down_take_nothing() {
    for health in [Health::Draining, Health::Down] {
        let mut case = case();
        case.load.health = health;
        check(case, Err(Obstacle::NotLive));
    }
}

#[test]
fn the_model_must_be_served() {
    let mut other = case();
    other.info.serves = Some(vec![1, 2]);
    check(other, Err(Obstacle::NotServed));
    let mut served = case();
    served.info.serves = Some(vec![1, 0]);
    check(served, Ok(Seat::Slot));
    let mut any = case();
    any.info.serves = Some(vec![1, 2]);
    any.request.model = None;
    check(any, Ok(Seat::Slot));
}

#[test]
fn pins_and_failures_are_kept() {
    let mut pinned = case();
    pinned.request.allowed = Some(vec![3]);
    check(pinned, Err(Obstacle::NotAllowed));
    let mut failed = case();
    failed.request.failed_on = Some(vec![0]);
    check(failed, Err(Obstacle::FailedBefore));
}

#[test]
fn without_a_slot_the_queue_of_its_class_counts() {
    let mut full = case();
    full.load.slots_used = 4;
    check(full, Err(Obstacle::NoSlot));
    let mut other_class = case();
    other_class.load.slots_used = 4;
    other_class.info.queue_limit = 1;
    other_class.load.queued_critical = 1;
    check(other_class, Ok(Seat::Queue));
    let mut own_class = case();
    own_class.load.slots_used = 4;
    own_class.info.queue_limit = 1;
    own_class.load.queued_critical = 1;
    own_class.request.class = RequestClass::LatencyCritical;
    check(own_class, Err(Obstacle::NoSlot));
}

#[test]
fn what_cannot_be_taken_off_again_needs_blocks_for_all_it_may_generate() {
    // 100 tokens and 60 more are 10 blocks of 16.
    let bound = |blocks_free| {
        let mut case = case();
        case.info.preempts = false;
        case.device.blocks_free = blocks_free;
        case.request.prompt_tokens = 100;
        case.request.output_tokens_max = 60;
        case
    };
    check(bound(10), Ok(Seat::Slot));
    check(bound(9), Err(Obstacle::NoBlocks));
    let mut behind = bound(19);
    behind.before = vec![behind.request.clone()];
    check(behind, Err(Obstacle::NoBlocks));
}

#[test]
fn blocks_for_prompt_and_first_token_must_be_free_or_cached() {
    // 100 tokens and one more are 7 blocks of 16.
    let mut enough = case();
    enough.device.blocks_free = 3;
    enough.device.blocks_cached = 4;
    check(enough, Ok(Seat::Slot));
    let mut short = case();
    short.device.blocks_free = 3;
    short.device.blocks_cached = 3;
    check(short, Err(Obstacle::NoBlocks));
    let mut unpaged = case();
    unpaged.device.blocks_free = 0;
    unpaged.info.tokens_per_block = None;
    check(unpaged, Ok(Seat::Slot));
}

#[test]
fn running_models_are_limited() {
    let mut full = case();
    full.info.models_max = Some(1);
    full.residencies = vec![residency(0, 1)];
    check(full, Err(Obstacle::ModelsMax));
    let mut running = case();
    running.info.models_max = Some(1);
    running.residencies = vec![residency(0, 0)];
    check(running, Ok(Seat::Slot));
    let mut limited = case();
    limited.model.running_max = Some(2);
    limited.model.running = 2;
    check(limited, Err(Obstacle::ModelLimit));
}

fn warm(model: u32, until: u64) -> Residency {
    Residency {
        sequences: 0,
        warm_until: Some(until),
        ..residency(0, model)
    }
}

#[test]
fn another_warm_model_is_not_driven_out() {
    let mut held = case();
    held.residencies = vec![warm(1, 101)];
    check(held, Err(Obstacle::WarmHold { until: 101 }));
    let mut over = case();
    over.residencies = vec![warm(1, 100)];
    check(over, Ok(Seat::Slot));
    let mut own = case();
    own.residencies = vec![warm(0, 101)];
    check(own, Ok(Seat::Slot));
}

#[test]
fn what_else_stands_in_the_way_is_named_before_a_warm_hold() {
    let mut full = case();
    full.residencies = vec![warm(1, 101)];
    full.load.slots_used = 4;
    check(full, Err(Obstacle::NoSlot));
}

#[test]
fn earlier_placements_count() {
    let for_model = |id, model| Request {
        model: Some(model),
        ..request(id)
    };
    let mut slots = case();
    slots.load.slots_used = 3;
    slots.before = vec![for_model(7, 0)];
    check(slots, Err(Obstacle::NoSlot));
    let mut blocks = case();
    blocks.device.blocks_free = 13;
    blocks.before = vec![for_model(7, 0)];
    check(blocks, Err(Obstacle::NoBlocks));
    let mut models = case();
    models.info.models_max = Some(1);
    models.before = vec![for_model(7, 1)];
    check(models, Err(Obstacle::ModelsMax));
    let mut limit = case();
    limit.model.running_max = Some(1);
    limit.before = vec![for_model(7, 0)];
    check(limit, Err(Obstacle::ModelLimit));
}

#[test]
fn a_start_earlier_in_the_batch_has_ended_the_hold() {
    let mut case = case();
    case.residencies = vec![warm(1, 101)];
    // Placed against the hold by a policy that waives it.
    let mut mirror = Mirror::default();
    mirror.begin(100, Extent::Everything);
    mirror.apply(Change::Executor(case.info));
    mirror.apply(Change::Load(case.load));
    for row in case.residencies {
        mirror.apply(Change::Residency(row));
    }
    let mut placed = Tentative::default();
    let executor = mirror.executor(0).expect("both rows are there");
    let need = Need::new(&mirror, &placed, &case.request, 100);
    placed.place(&mirror, &need, &executor, Seat::Slot);
    let need = Need::new(&mirror, &placed, &case.request, 100);
    assert_eq!(fit(&mirror, &placed, &need, &executor), Ok(Seat::Slot));
}
