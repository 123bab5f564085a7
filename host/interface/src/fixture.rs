//! Rows for tests: the plainest of each kind, to be changed where it matters.
//!
//! The SDK has the same rows in a guest's types.

use crate::rows::{
    AskedRequest, Cached, Device, ExecutorInfo, ExecutorKind, ExecutorLoad, Health, LoadedModels,
    Request, RequestClass, Role, Sequence, SequenceState, Stage, Tenant,
};
use crate::{DeviceId, ExecutorId, Micros, RequestId, TenantId};

/// These requests in a question, nothing of whose prompts is cached, and which nobody overtook.
#[must_use]
pub fn asked(requests: &[u64]) -> Vec<AskedRequest> {
    let asked = requests.iter().map(|id| AskedRequest {
        request: RequestId(*id),
        cached_tokens: 0,
        overtaken: 0,
    });
    asked.collect()
}

/// An engine on device 0 that serves any model in four slots, with 16 tokens to a block, and
/// preempts.
#[must_use]
pub fn executor(id: u32) -> ExecutorInfo {
    ExecutorInfo {
        id: ExecutorId(id),
        device: DeviceId(0),
        kind: ExecutorKind::Simulated,
        role: Role::Both,
        group: 0,
        share_weight: 1,
        serves: None,
        slots_total: 4,
        models_max: None,
        queue_limit: 0,
        tokens_per_block: Some(16),
        preempts: true,
        loaded_models: LoadedModels::Untold,
    }
}

/// The load of an executor that is up and idle.
#[must_use]
pub fn load(id: u32) -> ExecutorLoad {
    ExecutorLoad {
        id: ExecutorId(id),
        health: Health::Up,
        slots_used: 0,
        queued_critical: 0,
        queued_throughput: 0,
        saturated: false,
        prefill_tokens_pending: 0,
        blocks_used: 0,
        placed_total: 0,
        ttft_micros: None,
        itl_micros: None,
    }
}

/// A device with a thousand blocks of a mebibyte, all free.
#[must_use]
pub fn device(id: u32) -> Device {
    Device {
        id: DeviceId(id),
        block_bytes: 1 << 20,
        blocks_total: 1000,
        blocks_free: 1000,
        blocks_cached: 0,
        blocks_evicted_total: 0,
        host_blocks_total: 0,
        host_blocks_free: 0,
    }
}

/// A tenant without a limit and without requests.
#[must_use]
pub fn tenant(id: u32) -> Tenant {
    Tenant {
        id: TenantId(id),
        weight: 1,
        tokens_per_minute: None,
        running: 0,
        waiting: 0,
        prompt_tokens_total: 0,
        output_tokens_total: 0,
    }
}

/// A request queued since time 0: throughput, tenant 0, any model, 100 tokens in and 100 out.
#[must_use]
pub fn request(id: u64) -> Request {
    Request {
        id: RequestId(id),
        model: None,
        adapter: None,
        tenant: TenantId(0),
        session: None,
        class: RequestClass::Throughput,
        priority: 0,
        head_start: Micros(0),
        stage: Stage::Queued,
        labels: Vec::new(),
        arrived: Micros(0),
        deadline: None,
        may_wait: true,
        prompt_tokens: 100,
        output_tokens_max: 100,
        output_tokens_expected: None,
        group: None,
        allowed: None,
        failed_on: Vec::new(),
        preferred: None,
        attempts: 0,
        hold_end: None,
    }
}

/// A request of which nothing is cached.
#[must_use]
pub fn cached(request: u64) -> Cached {
    Cached {
        request: RequestId(request),
        overlaps: Vec::new(),
        floor_tokens: 0,
        shared_tokens: 0,
    }
}

/// A sequence running since time 0: throughput, tenant 0, preemptible, ten blocks of its own.
#[must_use]
pub fn sequence(request: u64, executor: u32) -> Sequence {
    Sequence {
        request: RequestId(request),
        executor: ExecutorId(executor),
        model: None,
        tenant: TenantId(0),
        class: RequestClass::Throughput,
        priority: 0,
        state: SequenceState::Running,
        started: Micros(0),
        prompt_tokens: 100,
        tokens_generated: 0,
        blocks: 10,
        blocks_exclusive: 10,
        preemptible: true,
        swappable: false,
        preemptions: 0,
    }
}
