//! Rows for tests of policies: the plainest of each kind, to be changed where it matters. Behind the
//! feature `test-util`, which belongs into the dev-dependencies of a policy.
//!
//! ```
//! use pointsman_sdk::{fixture, wire::types::{Change, ExecutorLoad}};
//!
//! let busy = ExecutorLoad { slots_used: 3, ..fixture::load(0) };
//! let changes = vec![Change::Executor(fixture::executor(0)), Change::Load(busy)];
//! # assert_eq!(changes.len(), 2);
//! ```

use std::fmt::Debug;

use serde_json::{Map, Value};

use crate::hooks::Instance;
use crate::policy::Policy;
use crate::wire::lifecycle::{Bounds, Setting, SettingValues};
use crate::wire::types::{
    AskedRequest, Cached, Device, ExecutorInfo, ExecutorKind, ExecutorLoad, Health, LoadedModels,
    Model, Moment, Request, RequestClass, Residency, Role, Sequence, SequenceState, Stage, Tenant,
};

/// One second of the host's clock.
pub const SECOND: u64 = 1_000_000;

/// The moment of a question at time `now`, in microseconds.
#[must_use]
pub fn at(now: u64) -> Moment {
    Moment { now, round: 1 }
}

/// These requests in a question, nothing of whose prompts is cached, and which nobody overtook.
#[must_use]
pub fn asked(requests: &[u64]) -> Vec<AskedRequest> {
    let asked = requests.iter().map(|&request| AskedRequest {
        request,
        cached_tokens: 0,
        overtaken: 0,
    });
    asked.collect()
}

/// An engine on device 0 that serves any model in four slots, with 16 tokens to a block, and preempts.
#[must_use]
pub fn executor(id: u32) -> ExecutorInfo {
    ExecutorInfo {
        id,
        device: 0,
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
        id,
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
        id,
        block_bytes: 1 << 20,
        blocks_total: 1000,
        blocks_free: 1000,
        blocks_cached: 0,
        blocks_evicted_total: 0,
        host_blocks_total: 0,
        host_blocks_free: 0,
    }
}

/// A model that is unlimited and idle.
#[must_use]
pub fn model(id: u32) -> Model {
    Model {
        id,
        running_max: None,
        running: 0,
        waiting: 0,
    }
}

/// A tenant that is unlimited and idle.
#[must_use]
pub fn tenant(id: u32) -> Tenant {
    Tenant {
        id,
        weight: 1,
        tokens_per_minute: None,
        running: 0,
        waiting: 0,
        prompt_tokens_total: 0,
        output_tokens_total: 0,
    }
}

/// The presence of a model on an executor where one sequence of it runs.
#[must_use]
pub fn residency(executor: u32, model: u32) -> Residency {
    Residency {
        executor,
        model,
        sequences: 1,
        warm_until: None,
        started: 0,
        first_token: Some(0),
        loaded: false,
    }
}

/// A throughput request of tenant 0 for any model, queued since time 0, with 100 prompt tokens.
#[must_use]
pub fn request(id: u64) -> Request {
    Request {
        id,
        model: None,
        adapter: None,
        tenant: 0,
        session: None,
        class: RequestClass::Throughput,
        priority: 0,
        head_start: 0,
        stage: Stage::Queued,
        labels: None,
        arrived: 0,
        deadline: None,
        may_wait: true,
        prompt_tokens: 100,
        output_tokens_max: 100,
        output_tokens_expected: None,
        group: None,
        allowed: None,
        failed_on: None,
        preferred: None,
        attempts: 0,
        hold_end: None,
    }
}

/// A preemptible throughput sequence, running since time 0, with ten blocks of its own.
#[must_use]
pub fn sequence(request: u64, executor: u32) -> Sequence {
    Sequence {
        request,
        executor,
        model: None,
        tenant: 0,
        class: RequestClass::Throughput,
        priority: 0,
        state: SequenceState::Running,
        started: 0,
        prompt_tokens: 100,
        tokens_generated: 0,
        blocks: 10,
        blocks_exclusive: 10,
        preemptible: true,
        swappable: false,
        preemptions: 0,
    }
}

/// Bounds as a host has them that was not told others.
#[must_use]
pub fn bounds() -> Bounds {
    Bounds {
        queue_max: 4096,
        parking_max: 4096,
        batch_max: 64,
        attempts_max: 8,
        overtaken_max: 256,
        wait_max: 600_000_000,
        unplaced_max: 10_000_000,
        held_max: 30_000_000,
    }
}

/// A request of which nothing is cached.
#[must_use]
pub fn cached(request: u64) -> Cached {
    Cached {
        request,
        overlaps: None,
        floor_tokens: 0,
        shared_tokens: 0,
    }
}

/// Checks that an order keeps a request that waits behind another one, which came later, and puts it first once it was
/// overtaken three quarters as often as [`bounds`] allow.
///
/// # Panics
/// If it does not.
pub fn check_overtaken_first(policy: &mut dyn Instance, [behind, later]: [u64; 2]) {
    let mut order = |overtaken| {
        let mut requests = asked(&[behind, later]);
        requests[0].overtaken = overtaken;
        policy.order(at(0), requests)
    };
    let bound = bounds().overtaken_max;
    assert_eq!(order(bound * 3 / 4 - 1), [later, behind]);
    assert_eq!(order(bound * 3 / 4), [behind, later]);
}

/// Checks that a policy describes its settings as they are: each one that its type has and no other,
/// with the default that the type gives it.
///
/// # Panics
/// If it does not.
pub fn check_settings<P>()
where
    P: Policy,
    P::Settings: Default + Debug + PartialEq,
{
    let described = P::settings();
    let parsed = |table: Map<String, Value>| {
        let text = Value::Object(table).to_string();
        crate::settings::parse::<P::Settings>(&text, &described)
    };
    let unknown = Map::from_iter([("no such key".to_owned(), Value::Null)]);
    let refused = parsed(unknown).expect_err("an unknown key is refused");
    let mut known: Vec<&str> = refused.split('`').skip(3).step_by(2).collect();
    known.sort_unstable();
    let mut keys: Vec<&str> = described.iter().map(|it| it.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(
        keys, known,
        "the settings that are described and those there are"
    );
    let defaults = described.iter().filter_map(|setting| {
        let json = setting.default.as_ref()?;
        let value = serde_json::from_str(json).expect("a default is JSON");
        Some((setting.key.clone(), value))
    });
    assert_eq!(parsed(defaults.collect()), Ok(P::Settings::default()));
    for setting in &described {
        check_choices::<P>(setting);
    }
}

/// Checks that each text of a choice is one that the setting may have.
fn check_choices<P: Policy>(setting: &Setting) {
    let SettingValues::Choice(texts) = &setting.values else {
        return;
    };
    for text in texts {
        let table = Map::from_iter([(setting.key.clone(), Value::from(text.as_str()))]);
        let parsed = crate::settings::parse::<P::Settings>(&Value::Object(table).to_string(), &[]);
        assert!(parsed.is_ok(), "`{}` is not {text}", setting.key);
    }
}
