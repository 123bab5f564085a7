//! The bytes of rows in a guest, beside those that the generated code writes.

use std::sync::Arc;

use pointsman_interface::rows::{
    Completion, Device, ExecutorLoad, Extent, Health, Model, Name, NameKind, Presence,
    RequestClass, Residency, Sequence, SequenceState, Stage, Tenant,
};
use pointsman_interface::{
    AdapterId, DeviceId, ExecutorId, LabelId, Micros, ModelId, RequestId, SessionKey, TenantId,
    fixture,
};

use super::super::WasmInstance;
use super::*;
use crate::engine::PolicyEngine;
use crate::fixture::Guest;
use crate::instance::Instance as _;
use crate::limits::Limits;

/// A guest whose snapshot is the rows that it was told last.
fn keeper() -> WasmInstance {
    let observe = format!(
        "(i32.store (i32.const 1200) (local.get 2))
        (i32.store (i32.const 1204) (i32.mul (local.get 3) (i32.const {ROW_BYTES})))"
    );
    let guest = Guest {
        observe: observe.leak(),
        ..Guest::default()
    };
    let component = guest.load(&PolicyEngine::new().unwrap());
    WasmInstance::new(&component, Limits::default()).unwrap()
}

/// The bytes of rows as they are passed to guests.
fn written(changes: &[Change]) -> Vec<u8> {
    let mut keeper = keeper();
    keeper
        .observe(Micros(1), Extent::SinceLast, changes)
        .unwrap();
    keeper.snapshot().unwrap()
}

/// The bytes of rows as wasmtime's generated code passes them.
fn generated(changes: &[Change]) -> Vec<u8> {
    let mut keeper = keeper();
    let rows: Vec<types::Change> = changes.iter().map(convert::change).collect();
    let observed = keeper.pass("observe", rows.len(), &mut |store, guest, _| {
        let observe = guest.lifecycle.func_observe();
        observe.call(store, (1, types::Extent::SinceLast, &rows))
    });
    observed.unwrap();
    keeper.snapshot().unwrap()
}

fn load() -> ExecutorLoad {
    ExecutorLoad {
        id: ExecutorId(0x0102_0304),
        health: Health::Down,
        slots_used: 2,
        queued_critical: 3,
        queued_throughput: 4,
        saturated: true,
        prefill_tokens_pending: 5,
        blocks_used: 6,
        placed_total: 0x0102_0304_0506_0708,
        ttft_micros: Some(8),
        itl_micros: None,
    }
}

fn residency() -> Residency {
    Residency {
        executor: ExecutorId(1),
        model: ModelId(2),
        sequences: 3,
        warm_until: Some(Micros(4)),
        started: Micros(5),
        first_token: Some(Micros(6)),
        loaded: true,
    }
}

fn request() -> Request {
    Request {
        model: Some(ModelId(2)),
        adapter: Some(AdapterId(3)),
        tenant: TenantId(4),
        session: Some(SessionKey(5)),
        class: RequestClass::LatencyCritical,
        priority: -6,
        head_start: Micros(7),
        stage: Stage::Placed,
        arrived: Micros(8),
        deadline: Some(Micros(9)),
        may_wait: true,
        prompt_tokens: 10,
        output_tokens_max: 11,
        output_tokens_expected: Some(12),
        group: Some(13),
        preferred: Some(ExecutorId(14)),
        attempts: 15,
        hold_end: Some(Micros(16)),
        ..fixture::request(1)
    }
}

fn sequence() -> Sequence {
    Sequence {
        request: RequestId(1),
        executor: ExecutorId(2),
        model: Some(ModelId(3)),
        tenant: TenantId(4),
        class: RequestClass::Throughput,
        priority: -5,
        state: SequenceState::Leaving,
        started: Micros(6),
        prompt_tokens: 7,
        tokens_generated: 8,
        blocks: 9,
        blocks_exclusive: 10,
        preemptible: true,
        swappable: false,
        preemptions: 11,
    }
}

fn completion() -> Completion {
    Completion {
        request: RequestId(1),
        executor: ExecutorId(2),
        model: None,
        tenant: TenantId(3),
        prompt_tokens: 4,
        cached_tokens: 5,
        output_tokens: 6,
        queued_micros: 7,
        ttft_micros: Some(8),
        total_micros: 9,
        ok: true,
    }
}

/// Rows of every kind, with a number of its own in each field.
fn every_kind() -> Vec<Change> {
    let device = Device {
        id: DeviceId(1),
        block_bytes: 2,
        blocks_total: 3,
        blocks_free: 4,
        blocks_cached: 5,
        blocks_evicted_total: 6,
        host_blocks_total: 7,
        host_blocks_free: 8,
    };
    let model = Model {
        id: ModelId(1),
        running_max: Some(2),
        running: 3,
        waiting: 4,
    };
    let tenant = Tenant {
        id: TenantId(1),
        weight: 2,
        tokens_per_minute: Some(3),
        running: 4,
        waiting: 5,
        prompt_tokens_total: 6,
        output_tokens_total: 7,
    };
    let name = Name {
        kind: NameKind::Model,
        id: 1,
        text: "a".to_owned(),
    };
    let presence = Presence {
        executor: ExecutorId(1),
        model: ModelId(2),
    };
    vec![
        Change::Name(name),
        Change::Executor(Box::new(fixture::executor(1))),
        Change::Load(load()),
        Change::ExecutorGone(ExecutorId(7)),
        Change::Residency(residency()),
        Change::ResidencyGone(presence),
        Change::Device(device),
        Change::Model(model),
        Change::Tenant(tenant),
        Change::Waiting(Arc::new(request())),
        Change::WaitingGone(RequestId(8)),
        Change::Sequence(sequence()),
        Change::SequenceGone(RequestId(9)),
        Change::Completed(completion()),
    ]
}

/// Rows of which other fields are absent, and requests with lists.
fn others() -> Vec<Change> {
    let load = ExecutorLoad {
        health: Health::Degraded,
        ttft_micros: None,
        itl_micros: Some(1 << 40),
        ..load()
    };
    let residency = Residency {
        warm_until: None,
        first_token: None,
        loaded: false,
        ..residency()
    };
    let labelled = Request {
        labels: vec![LabelId(3), LabelId(4)],
        stage: Stage::Parked,
        ..request()
    };
    let pinned = Request {
        allowed: Some(vec![ExecutorId(5)]),
        ..request()
    };
    let failed = Request {
        failed_on: vec![ExecutorId(6)],
        ..fixture::request(3)
    };
    let requests = [labelled, pinned, failed, fixture::request(2)];
    let requests = requests
        .into_iter()
        .map(|row| Change::Waiting(Arc::new(row)));
    let rows = [
        Change::Load(load),
        Change::Residency(residency),
        Change::Sequence(fixture::sequence(1, 2)),
        Change::Tenant(fixture::tenant(1)),
    ];
    rows.into_iter().chain(requests).collect()
}

#[test]
fn rows_are_written_as_the_generated_code_writes_them() {
    for rows in [every_kind(), others()] {
        let (written, generated) = (written(&rows), generated(&rows));
        assert_eq!(generated.len(), rows.len() * ROW_BYTES);
        for (at, row) in rows.iter().enumerate() {
            let bytes = at * ROW_BYTES..(at + 1) * ROW_BYTES;
            assert_eq!(written[bytes.clone()], generated[bytes], "{row:?}");
        }
    }
}

/// Otherwise the test above would not see a field that is written in the place of another.
#[test]
fn rows_of_each_kind_are_among_those_that_are_compared() {
    let rows = every_kind();
    let kinds: Vec<u8> = rows
        .iter()
        .map(|row| generated(std::slice::from_ref(row))[0])
        .collect();
    assert_eq!(kinds, (0..14).collect::<Vec<u8>>());
}
