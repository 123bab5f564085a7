//! The rows of the mirror after changes.

use super::Mirror;
use crate::fixture::{device, executor, load, model, request, residency, sequence, tenant};
use crate::wire::types::{
    Change, Device, ExecutorInfo, ExecutorLoad, Extent, Name, NameKind, Presence, Request, Sequence,
};

fn mirror(changes: Vec<Change>) -> Mirror {
    let mut mirror = Mirror::default();
    mirror.begin(0, Extent::Everything);
    add(&mut mirror, changes);
    mirror
}

fn add(mirror: &mut Mirror, changes: Vec<Change>) {
    for mut change in changes {
        mirror.apply(&mut change);
    }
}

fn fleet() -> Mirror {
    mirror(vec![
        Change::Executor(executor(0)),
        Change::Load(load(0)),
        Change::Executor(executor(1)),
        Change::Load(load(1)),
        Change::Device(device(0)),
        Change::Model(model(0)),
        Change::Tenant(tenant(0)),
        Change::Residency(residency(0, 0)),
        Change::Waiting(request(1)),
        Change::Sequence(sequence(2, 0)),
    ])
}

#[test]
fn a_row_replaces_the_one_with_its_id() {
    let mut mirror = fleet();
    add(
        &mut mirror,
        vec![
            Change::Load(ExecutorLoad {
                slots_used: 3,
                ..load(0)
            }),
            Change::Waiting(Request {
                priority: 5,
                ..request(1)
            }),
        ],
    );
    let slots: Vec<_> = mirror.executors().map(|row| row.load.slots_used).collect();
    assert_eq!(slots, [3, 0]);
    let priorities: Vec<_> = mirror.requests().map(|row| row.priority).collect();
    assert_eq!(priorities, [5]);
}

#[test]
fn everything_forgets_what_came_before() {
    let mut mirror = fleet();
    mirror.begin(7, Extent::Everything);
    assert_eq!(mirror.now(), 7);
    assert_eq!(mirror.executors().count(), 0);
    assert_eq!(mirror.devices().count(), 0);
    assert_eq!(mirror.models().count(), 0);
    assert_eq!(mirror.tenants().count(), 0);
    assert_eq!(mirror.requests().count(), 0);
    assert_eq!(mirror.sequences().count(), 0);
    assert_eq!(mirror.presences(0).count(), 0);
}

#[test]
fn a_device_of_which_no_blocks_are_told_any_more_is_forgotten() {
    let mut mirror = fleet();
    let ended = Device {
        blocks_total: 0,
        blocks_free: 0,
        ..device(0)
    };
    add(&mut mirror, vec![Change::Device(ended)]);
    assert!(mirror.device(0).is_none());
    assert_eq!(mirror.devices().count(), 0);
    assert_eq!(mirror.executors_on(0).count(), 2, "they stay there");
    add(&mut mirror, vec![Change::Device(device(0))]);
    assert_eq!(mirror.device(0), Some(&device(0)));
}

#[test]
fn since_last_adds_to_what_is_there() {
    let mut mirror = fleet();
    mirror.begin(7, Extent::SinceLast);
    add(&mut mirror, vec![Change::Waiting(request(3))]);
    let ids: Vec<_> = mirror.requests().map(|row| row.id).collect();
    assert_eq!(ids, [1, 3]);
}

#[test]
fn gone_of_the_unknown_is_ignored() {
    let mut mirror = fleet();
    add(
        &mut mirror,
        vec![
            Change::ExecutorGone(9),
            Change::ResidencyGone(Presence {
                executor: 9,
                model: 9,
            }),
            Change::ResidencyGone(Presence {
                executor: 1,
                model: 0,
            }),
            Change::WaitingGone(9),
            Change::SequenceGone(9),
        ],
    );
    assert_eq!(mirror.executors().count(), 2);
    assert_eq!(mirror.presences(0).count(), 1);
    assert_eq!(mirror.requests().count(), 1);
    assert_eq!(mirror.sequences().count(), 1);
}

#[test]
fn an_executor_is_seen_once_both_its_rows_have_come() {
    let mut mirror = mirror(vec![Change::Load(load(0))]);
    assert!(mirror.executor(0).is_none());
    add(&mut mirror, vec![Change::Executor(executor(0))]);
    assert!(mirror.executor(0).is_some());
    add(&mut mirror, vec![Change::ExecutorGone(0)]);
    assert!(mirror.executor(0).is_none());
}

#[test]
fn lists_follow_their_rows() {
    let mut mirror = fleet();
    add(
        &mut mirror,
        vec![
            Change::Residency(residency(1, 0)),
            Change::Sequence(sequence(5, 0)),
            Change::Sequence(sequence(2, 1)),
        ],
    );
    let presences = |mirror: &Mirror| -> Vec<u32> {
        mirror
            .presences(0)
            .map(|(executor, _)| executor.id())
            .collect()
    };
    let placed = |mirror: &Mirror, executor| -> Vec<u64> {
        mirror
            .sequences_on(executor)
            .map(|row| row.request)
            .collect()
    };
    let on_device =
        |mirror: &Mirror, device| -> Vec<u32> { mirror.sharing_device(device).to_vec() };
    assert_eq!(on_device(&mirror, 0), [0, 1]);
    assert_eq!(presences(&mirror), [0, 1]);
    assert_eq!(placed(&mirror, 0), [5]);
    assert_eq!(placed(&mirror, 1), [2]);

    let elsewhere = ExecutorInfo {
        device: 1,
        ..executor(1)
    };
    add(&mut mirror, vec![Change::Executor(elsewhere)]);
    assert_eq!(on_device(&mirror, 0), [0]);
    assert_eq!(on_device(&mirror, 1), [1]);

    add(&mut mirror, vec![Change::ExecutorGone(0)]);
    assert!(on_device(&mirror, 0).is_empty());
    assert_eq!(presences(&mirror), [1]);
    assert!(placed(&mirror, 0).is_empty());
    assert!(mirror.sequence(5).is_some());

    add(
        &mut mirror,
        vec![
            Change::SequenceGone(5),
            Change::SequenceGone(2),
            Change::ResidencyGone(Presence {
                executor: 1,
                model: 0,
            }),
        ],
    );
    assert!(presences(&mirror).is_empty());
    assert!(placed(&mirror, 1).is_empty());
}

#[test]
fn a_sequence_that_outlives_its_executor_leaves_nothing_behind() {
    let mut mirror = fleet();
    let leaving = Sequence {
        blocks: 11,
        ..sequence(2, 0)
    };
    add(
        &mut mirror,
        vec![
            Change::ExecutorGone(0),
            Change::Sequence(leaving),
            Change::SequenceGone(2),
        ],
    );
    assert_eq!(mirror.executors.iter().count(), 1);
}

#[test]
fn names_are_kept_by_kind() {
    let name = |kind, text: &str| {
        Change::Name(Name {
            kind,
            id: 0,
            text: text.into(),
        })
    };
    let mirror = mirror(vec![
        name(NameKind::Model, "llama"),
        name(NameKind::Tenant, "acme"),
    ]);
    assert_eq!(mirror.name(NameKind::Model, 0), Some("llama"));
    assert_eq!(mirror.name(NameKind::Tenant, 0), Some("acme"));
    assert_eq!(mirror.name(NameKind::Label, 0), None);
}
