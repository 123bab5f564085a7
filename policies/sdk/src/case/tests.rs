//! Each obstacle alone, and what earlier placements of the batch change.

use super::{Case, Obstacle};
use crate::fixture::{bounds, device, executor, load, model, request, residency};
use crate::fleet::{Fleet, Seat};
use crate::mirror::Mirror;
use crate::placements::BatchPlacements;
use crate::wire::routing::Choice;
use crate::wire::types::{
    Cached, Change, Device, ExecutorInfo, ExecutorKind, ExecutorLoad, Extent, Health, Model,
    Overlap, Request, RequestClass, Residency,
};

/// Executor 0 on device 0, and a request for model 0.
struct Setup {
    info: ExecutorInfo,
    load: ExecutorLoad,
    device: Device,
    model: Model,
    residencies: Vec<Residency>,
    request: Request,
    /// Placed before, in the same batch.
    before: Vec<Request>,
}

fn setup() -> Setup {
    Setup {
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

// === impl Setup ===

impl Setup {
    fn mirror(&self) -> Mirror {
        let mut mirror = Mirror::default();
        mirror.bind(bounds());
        mirror.begin(100, Extent::Everything);
        mirror.apply(&mut Change::Executor(self.info.clone()));
        mirror.apply(&mut Change::Load(self.load));
        mirror.apply(&mut Change::Device(self.device));
        mirror.apply(&mut Change::Model(self.model));
        for row in &self.residencies {
            mirror.apply(&mut Change::Residency(*row));
        }
        mirror
    }
}

fn fit(mirror: &Mirror, placed: &BatchPlacements, request: &Request) -> Result<Seat, Obstacle> {
    let executor = mirror.executor(0).expect("both rows are there");
    Case::new(Fleet { mirror, placed }, request, 100).fit(&executor)
}

fn check(setup: Setup, expected: Result<Seat, Obstacle>) {
    let mirror = setup.mirror();
    let executor = mirror.executor(0).expect("both rows are there");
    let mut placed = BatchPlacements::default();
    for request in &setup.before {
        let seat = fit(&mirror, &placed, request).expect("the earlier ones fit");
        placed.place(&mirror, request, &executor, seat);
    }
    assert_eq!(fit(&mirror, &placed, &setup.request), expected);

    placed.clear();
    let alone = fit(&mirror, &placed, &setup.request);
    if setup.before.is_empty() {
        assert_eq!(alone, expected);
    } else {
        assert_eq!(alone, Ok(Seat::Slot), "a cleared count leaves nothing");
    }
}

#[test]
fn a_live_executor_with_a_slot_takes_it() {
    check(setup(), Ok(Seat::Slot));
    let mut degraded = setup();
    degraded.load.health = Health::Degraded;
    check(degraded, Ok(Seat::Slot));
}

#[test]
fn draining_and_down_take_nothing() {
    for health in [Health::Draining, Health::Down] {
        let mut setup = setup();
        setup.load.health = health;
        check(setup, Err(Obstacle::NotLive));
    }
}

#[test]
fn the_model_must_be_served() {
    let mut other = setup();
    other.info.serves = Some(vec![1, 2]);
    check(other, Err(Obstacle::NotServed));
    let mut served = setup();
    served.info.serves = Some(vec![1, 0]);
    check(served, Ok(Seat::Slot));
    let mut any = setup();
    any.info.serves = Some(vec![1, 2]);
    any.request.model = None;
    check(any, Ok(Seat::Slot));
}

#[test]
fn pins_and_failures_are_kept() {
    let mut pinned = setup();
    pinned.request.allowed = Some(vec![3]);
    check(pinned, Err(Obstacle::NotAllowed));
    let mut failed = setup();
    failed.request.failed_on = Some(vec![0]);
    check(failed, Err(Obstacle::FailedBefore));
}

#[test]
fn what_all_blocks_are_too_few_for_never_fits() {
    // 100 tokens and 60 more are 10 blocks of 16, though 7 are enough to start.
    let of = |kind, blocks_total| {
        let mut setup = setup();
        setup.info.kind = kind;
        setup.info.preempts = kind != ExecutorKind::Remote;
        setup.device.blocks_total = blocks_total;
        setup.device.blocks_free = blocks_total;
        setup.request.prompt_tokens = 100;
        setup.request.output_tokens_max = 60;
        setup
    };
    check(of(ExecutorKind::Simulated, 10), Ok(Seat::Slot));
    let never = Err(Obstacle::NeverFits);
    check(of(ExecutorKind::Simulated, 9), never);
    // A server elsewhere makes room for itself, and knows which prompts are too long for it.
    check(of(ExecutorKind::Remote, 7), Ok(Seat::Slot));
    check(of(ExecutorKind::Remote, 1), Ok(Seat::Slot));
}

#[test]
fn at_a_server_elsewhere_half_of_all_blocks_are_enough_for_any_prompt() {
    let of = |blocks_free| {
        let mut elsewhere = setup();
        elsewhere.info.kind = ExecutorKind::Remote;
        elsewhere.device.blocks_total = 9;
        elsewhere.device.blocks_free = blocks_free;
        elsewhere.request.prompt_tokens = 1000;
        elsewhere
    };
    check(of(5), Ok(Seat::Slot));
    check(of(4), Err(Obstacle::NoBlocks));
}

/// The fit of a prompt on an executor of this kind, whose device has so many tokens of it, and so many free and cached
/// blocks of 16; true if it fits by sharing alone.
fn fit_held(
    kind: ExecutorKind,
    (prompt_tokens, device_tokens): (u32, u32),
    (blocks_free, blocks_cached): (u32, u32),
) -> (Result<Seat, Obstacle>, bool) {
    let mut held = setup();
    held.info.kind = kind;
    held.device.blocks_free = blocks_free;
    held.device.blocks_cached = blocks_cached;
    held.request.prompt_tokens = prompt_tokens;
    let mirror = held.mirror();
    let overlap = Overlap {
        executor: 0,
        device_tokens,
        host_tokens: 0,
        disk_tokens: 0,
    };
    let cached = Cached {
        overlaps: Some(vec![overlap]),
        ..super::NOTHING_CACHED
    };
    let case = Case::new(Fleet::from(&mirror), &held.request, 100).with_cached(&cached);
    let executor = mirror.executor(0).expect("its rows are there");
    let fit = case.fit(&executor);
    let unshared = Case::new(Fleet::from(&mirror), &held.request, 100).fit(&executor);
    let is_by_sharing = fit.is_ok() && unshared.is_err();
    assert_eq!(case.finds_blocks_by_sharing(), is_by_sharing);
    (fit, is_by_sharing)
}

/// Tests a prompt of 7 blocks, of which the device has 5. The host would place it: what nobody holds is cached, so that
/// others hold as many as are more than the cached ones.
#[test]
fn what_others_hold_of_a_prompt_takes_no_blocks() {
    const ENGINE: ExecutorKind = ExecutorKind::Simulated;
    for kind in [ExecutorKind::Remote, ENGINE] {
        assert_eq!(fit_held(kind, (100, 80), (2, 0)), (Ok(Seat::Slot), true));
        assert_eq!(
            fit_held(kind, (100, 80), (1, 0)),
            (Err(Obstacle::NoBlocks), false)
        );
    }
    // Of these five no more than two are held by nobody.
    assert_eq!(fit_held(ENGINE, (100, 80), (2, 2)), (Ok(Seat::Slot), true));
    assert_eq!(
        fit_held(ENGINE, (100, 80), (1, 2)),
        (Err(Obstacle::NoBlocks), false)
    );
    assert_eq!(fit_held(ENGINE, (100, 80), (0, 7)), (Ok(Seat::Slot), false));
}

#[test]
fn the_block_of_the_last_prompt_token_is_not_shared() {
    for kind in [ExecutorKind::Remote, ExecutorKind::Simulated] {
        assert_eq!(fit_held(kind, (80, 80), (2, 0)), (Ok(Seat::Slot), true));
        assert_eq!(
            fit_held(kind, (80, 80), (1, 0)),
            (Err(Obstacle::NoBlocks), false)
        );
    }
}

#[test]
fn without_a_slot_the_queue_of_its_class_counts() {
    let mut full = setup();
    full.load.slots_used = 4;
    check(full, Err(Obstacle::NoSlot));
    let mut other_class = setup();
    other_class.load.slots_used = 4;
    other_class.info.queue_limit = 1;
    other_class.load.queued_critical = 1;
    check(other_class, Ok(Seat::Queue));
    let mut own_class = setup();
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
        let mut setup = setup();
        setup.info.preempts = false;
        setup.device.blocks_free = blocks_free;
        setup.request.prompt_tokens = 100;
        setup.request.output_tokens_max = 60;
        setup
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
    let mut enough = setup();
    enough.device.blocks_free = 3;
    enough.device.blocks_cached = 4;
    check(enough, Ok(Seat::Slot));
    let mut short = setup();
    short.device.blocks_free = 3;
    short.device.blocks_cached = 3;
    check(short, Err(Obstacle::NoBlocks));
    let mut unpaged = setup();
    unpaged.device.blocks_free = 0;
    unpaged.info.tokens_per_block = None;
    check(unpaged, Ok(Seat::Slot));
}

#[test]
fn running_models_are_limited() {
    let mut full = setup();
    full.info.models_max = Some(1);
    full.residencies = vec![residency(0, 1)];
    check(full, Err(Obstacle::ModelsMax));
    // Room is made for model 0, and model 1 has not left yet.
    let mut entering = setup();
    entering.info.models_max = Some(1);
    entering.residencies = vec![residency(0, 0), residency(0, 1)];
    check(entering, Err(Obstacle::ModelsMax));
    let mut running = setup();
    running.info.models_max = Some(1);
    running.residencies = vec![residency(0, 0)];
    check(running, Ok(Seat::Slot));
    let mut limited = setup();
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
    let mut held = setup();
    held.residencies = vec![warm(1, 101)];
    check(held, Err(Obstacle::WarmHold { until: 101 }));
    let mut over = setup();
    over.residencies = vec![warm(1, 100)];
    check(over, Ok(Seat::Slot));
    let mut own = setup();
    own.residencies = vec![warm(0, 101)];
    check(own, Ok(Seat::Slot));
}

#[test]
fn what_else_stands_in_the_way_is_named_before_a_warm_hold() {
    let mut full = setup();
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
    let mut slots = setup();
    slots.load.slots_used = 3;
    slots.before = vec![for_model(7, 0)];
    check(slots, Err(Obstacle::NoSlot));
    let mut blocks = setup();
    blocks.device.blocks_free = 13;
    blocks.before = vec![for_model(7, 0)];
    check(blocks, Err(Obstacle::NoBlocks));
    let mut models = setup();
    models.info.models_max = Some(1);
    models.before = vec![for_model(7, 1)];
    check(models, Err(Obstacle::ModelsMax));
    let mut limit = setup();
    limit.model.running_max = Some(1);
    limit.before = vec![for_model(7, 0)];
    check(limit, Err(Obstacle::ModelLimit));
}

#[test]
fn a_start_earlier_in_the_batch_has_ended_the_hold() {
    let mut setup = setup();
    setup.residencies = vec![warm(1, 101)];
    // Placed against the hold by a policy that waives it.
    let mirror = setup.mirror();
    let executor = mirror.executor(0).expect("both rows are there");
    let mut placed = BatchPlacements::default();
    placed.place(&mirror, &setup.request, &executor, Seat::Slot);
    assert_eq!(fit(&mirror, &placed, &setup.request), Ok(Seat::Slot));
}

#[test]
fn a_request_is_held_until_the_end_that_the_host_names_and_then_no_warm_hold_binds_it() {
    let held_max = bounds().held_max;
    for (hold_end, expected) in [
        (None, Some(100 + held_max)),
        (Some(700), Some(700)),
        (Some(100), None),
    ] {
        let mut setup = setup();
        setup.residencies = vec![warm(1, 500)];
        setup.request.hold_end = hold_end;
        let mirror = setup.mirror();
        let placed = BatchPlacements::default();
        let fleet = Fleet {
            mirror: &mirror,
            placed: &placed,
        };
        let case = Case::new(fleet, &setup.request, 100);
        assert_eq!(case.hold_end(), expected);
        let until = |until| case.hold(until, 7).choice;
        assert_eq!(until(None), Choice::Hold(expected));
        let earlier = expected.map_or(400, |end| end.min(400));
        assert_eq!(until(Some(400)), Choice::Hold(Some(earlier)));
        let fit = case.fit(&mirror.executor(0).expect("both rows are there"));
        match expected {
            Some(_) => assert_eq!(fit, Err(Obstacle::WarmHold { until: 500 })),
            None => assert_eq!(fit, Ok(Seat::Slot)),
        }
    }
}
