//! Slots, and places of models.

use pointsman_sdk::fixture::{device, executor, load, request, residency, tenant};
use pointsman_sdk::wire::preemption::{Cause, Shortage};
use pointsman_sdk::wire::types::{
    Change, Device, ExecutorInfo, ExecutorLoad, Request, Sequence, Tenant,
};

use super::{Case, NEEDY, two_engines, urgent};
use crate::reason::Reason;

fn short_of(cause: Cause) -> Shortage {
    Shortage {
        cause,
        needy: NEEDY,
        executor: None,
        blocks: 7,
    }
}

/// Both engines have one slot, taken, and blocks enough. Slots are taken for whoever is more urgent, and
/// enough was served to compute them again.
fn no_slots() -> Case {
    let served = Tenant {
        output_tokens_total: 1_000_000,
        ..tenant(0)
    };
    let mut case = two_engines()
        .with(Change::Device(device(0)))
        .with(Change::Tenant(served));
    case.settings = r#"{"take-slots": "urgent"}"#;
    for id in 0..2 {
        let info = ExecutorInfo {
            slots_total: 1,
            ..executor(id)
        };
        let load = ExecutorLoad {
            slots_used: 1,
            ..load(id)
        };
        case = case.with(Change::Executor(info)).with(Change::Load(load));
    }
    case
}

#[test]
fn the_least_urgent_gives_its_slot() {
    no_slots()
        .waiting()
        .running([urgent(1, 0, 0), urgent(2, 1, -1)])
        .check(short_of(Cause::Slots), Some((1, &[2], Reason::SlotTaken)));
    no_slots()
        .waiting()
        .running([urgent(1, 0, 1), urgent(2, 1, 1)])
        .check(short_of(Cause::Slots), None);
}

#[test]
fn a_slot_is_given_only_where_the_request_may_go() {
    let pinned = Request {
        priority: 1,
        allowed: Some(vec![0]),
        ..request(NEEDY)
    };
    no_slots()
        .with(Change::Waiting(pinned))
        .running([urgent(1, 0, 0), urgent(2, 1, -1)])
        .check(short_of(Cause::Slots), Some((0, &[1], Reason::SlotTaken)));
}

#[test]
fn a_slot_comes_with_the_blocks_it_takes() {
    let none_free = Device {
        blocks_free: 0,
        ..device(0)
    };
    let small = Sequence {
        blocks_exclusive: 6,
        ..urgent(2, 1, -1)
    };
    no_slots()
        .with(Change::Device(none_free))
        .waiting()
        .running([urgent(1, 0, 0), small])
        .check(short_of(Cause::Slots), Some((0, &[1], Reason::SlotTaken)));
}

/// Executor 0 may run one model; model 1 runs there twice, and the needy one asks for model 0.
fn other_model(priorities: [i32; 2]) -> Case {
    let info = ExecutorInfo {
        models_max: Some(1),
        serves: Some(vec![0, 1]),
        ..executor(0)
    };
    let mut row = residency(0, 1);
    row.sequences = 2;
    let elsewhere = ExecutorInfo {
        serves: Some(vec![1]),
        ..executor(1)
    };
    let of_model = |request, priority| Sequence {
        model: Some(1),
        ..urgent(request, 0, priority)
    };
    two_engines()
        .with(Change::Device(device(0)))
        .with(Change::Executor(info))
        .with(Change::Executor(elsewhere))
        .with(Change::Residency(row))
        .with(Change::Waiting(Request {
            priority: 1,
            model: Some(0),
            ..request(NEEDY)
        }))
        .running([of_model(1, priorities[0]), of_model(2, priorities[1])])
}

#[test]
fn a_model_gives_its_place_whole_or_not_at_all() {
    other_model([0, -1]).check(
        short_of(Cause::Models),
        Some((0, &[2, 1], Reason::ModelDriven)),
    );
    other_model([0, 1]).check(short_of(Cause::Models), None);
}

#[test]
fn a_slot_of_a_model_that_stays_is_no_help() {
    other_model([0, -1]).check(short_of(Cause::Slots), None);
}
