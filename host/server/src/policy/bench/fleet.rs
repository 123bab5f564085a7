//! A fleet of any size as a policy is told of it, and the questions it is asked.

use std::sync::Arc;

use pointsman_core::rows::{
    Cached, Change, Device, ExecutorInfo, ExecutorKind, ExecutorLoad, FeedKinds, Health, Name,
    NameKind, Request, RequestClass, Role, Sequence, SequenceState, Stage, Tenant,
};
use pointsman_core::{
    DeviceId, ExecutorId, Hook, Micros, Moment, Question, RequestId, Round, Shortage,
    ShortageCause, TenantId,
};
use pointsman_policy::{Fault, Instance, PolicyComponent};

/// Executors that share a device.
const PER_DEVICE: u32 = 8;
/// Requests that wait.
const WAITING: u64 = 64;
/// Sequences have ids above those of all that wait.
const RUNNING: u64 = 1_000_000;
const TENANT: TenantId = TenantId(0);

/// A call that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measured {
    /// A question of this hook.
    Decision(Hook),
    /// An explanation of where a request would go.
    Explanation,
}

/// What there is to be told.
pub(super) struct Fleet {
    executors: u32,
    feed: FeedKinds,
    /// Counts what has changed, which says what changes next.
    round: u64,
}

// === impl Measured ===

impl Measured {
    /// All of them, in the order of a round.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let decisions = Hook::ALL.into_iter().map(Self::Decision);
        decisions.chain([Self::Explanation])
    }

    /// Whether a policy answers it.
    pub(super) fn is_answered_by(self, policy: &PolicyComponent) -> bool {
        match self {
            Self::Decision(hook) => policy.hooks().contains(hook),
            Self::Explanation => policy.explains(),
        }
    }

    /// The interface that it belongs to.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Decision(hook) => hook.as_str(),
            Self::Explanation => "explanation",
        }
    }
}

// === impl Fleet ===

impl Fleet {
    /// `executors` of them, for a policy that wants to be told `feed`.
    pub(super) fn new(executors: u32, feed: FeedKinds) -> Self {
        Self {
            executors,
            feed,
            round: 0,
        }
    }

    /// All rows.
    pub(super) fn everything(&self) -> Vec<Change> {
        let mut rows = vec![Change::Tenant(tenant())];
        for id in 0..self.executors {
            if id % PER_DEVICE == 0 {
                rows.push(Change::Device(self.device(id)));
            }
            let (kind, text) = (NameKind::Executor, format!("executor-{id}"));
            rows.push(Change::Name(Name { kind, id, text }));
            rows.push(Change::Executor(Box::new(info(id))));
            rows.push(Change::Load(self.load(id)));
            if self.feed.sequences {
                rows.push(Change::Sequence(sequence(id)));
            }
        }
        if self.feed.waiting {
            rows.extend((0..WAITING).map(waiting));
        }
        rows
    }

    /// What changed since the last time: one executor's load and its device, and what the last
    /// answer may have named.
    pub(super) fn change(&mut self) -> Vec<Change> {
        self.round += 1;
        let id = self.round % u64::from(self.executors);
        let id = u32::try_from(id).unwrap_or(0);
        let mut rows = vec![Change::Load(self.load(id)), Change::Device(self.device(id))];
        if self.feed.waiting {
            rows.push(waiting(0));
        }
        rows
    }

    /// Asks it.
    pub(super) fn ask(&self, policy: &mut dyn Instance, question: Measured) -> Result<(), Fault> {
        let at = Moment {
            now: Micros(0),
            round: Round(self.round),
        };
        let first = RequestId(0);
        let cached = Cached {
            request: first,
            overlaps: Vec::new(),
            floor_tokens: 0,
            shared_tokens: 0,
        };
        let asked = match question {
            Measured::Decision(hook) => decision(hook, first, cached),
            Measured::Explanation => {
                return policy.explain(at, &request(0), &cached).map(drop);
            }
        };
        policy.ask(at, &asked).map(drop)
    }

    fn load(&self, id: u32) -> ExecutorLoad {
        let busy = (u64::from(id) * 7 + self.round) % 8;
        ExecutorLoad {
            id: ExecutorId(id),
            health: Health::Up,
            slots_used: u32::try_from(busy).unwrap_or(0),
            queued_critical: 0,
            queued_throughput: 0,
            prefill_tokens_pending: busy * 100,
            blocks_used: busy * 100,
            placed_total: self.round,
            ttft_micros: None,
            itl_micros: None,
        }
    }

    /// The device of an executor.
    fn device(&self, executor: u32) -> Device {
        let id = executor / PER_DEVICE;
        let free = 50_000 + (u64::from(id) * 37 + self.round * 11) % 40_000;
        Device {
            id: DeviceId(id),
            block_bytes: 1 << 20,
            blocks_total: 100_000,
            blocks_free: u32::try_from(free).unwrap_or(0),
            blocks_cached: 0,
            blocks_evicted_total: 0,
        }
    }
}

/// The question of `hook` that is measured.
fn decision(hook: Hook, first: RequestId, cached: Cached) -> Question<'static> {
    match hook {
        Hook::Admission => Question::Admission {
            arrivals: vec![first].into(),
            room: 1000,
        },
        Hook::Priority => {
            let all: Vec<_> = (0..WAITING).map(RequestId).collect();
            Question::Priority(all.into())
        }
        Hook::Routing => Question::Routing(vec![cached].into()),
        Hook::Preemption => Question::Preemption(Shortage {
            cause: ShortageCause::Slots,
            needy: first,
            executor: None,
            blocks: 0,
        }),
        Hook::Budget => Question::Budget {
            device: DeviceId(0),
            tokens_total: 8192,
        },
    }
}

fn tenant() -> Tenant {
    Tenant {
        id: TENANT,
        weight: 1,
        tokens_per_minute: None,
        running: 0,
        waiting: 0,
        prompt_tokens_total: 0,
        output_tokens_total: 0,
    }
}

fn info(id: u32) -> ExecutorInfo {
    ExecutorInfo {
        id: ExecutorId(id),
        device: DeviceId(id / PER_DEVICE),
        kind: ExecutorKind::Simulated,
        role: Role::Both,
        group: 0,
        share_weight: 1,
        serves: None,
        slots_total: 8,
        models_max: None,
        queue_limit: 0,
        tokens_per_block: Some(16),
        preempts: true,
    }
}

fn waiting(id: u64) -> Change {
    Change::Waiting(Arc::new(request(id)))
}

fn request(id: u64) -> Request {
    Request {
        id: RequestId(id),
        model: None,
        adapter: None,
        tenant: TENANT,
        session: None,
        class: RequestClass::LatencyCritical,
        priority: 0,
        head_start: Micros(0),
        stage: Stage::Queued,
        labels: Vec::new(),
        arrived: Micros(0),
        deadline: None,
        may_wait: true,
        prompt_tokens: 512 - u32::try_from(id).unwrap_or(0),
        output_tokens_max: 64,
        output_tokens_expected: None,
        group: None,
        allowed: None,
        failed_on: Vec::new(),
        preferred: None,
        attempts: 0,
    }
}

/// Less urgent than who waits, so that it could give way.
fn sequence(executor: u32) -> Sequence {
    Sequence {
        request: RequestId(RUNNING + u64::from(executor)),
        executor: ExecutorId(executor),
        model: None,
        tenant: TENANT,
        class: RequestClass::Throughput,
        priority: 0,
        state: SequenceState::Running,
        started: Micros(0),
        tokens_generated: 10,
        blocks: 32,
        blocks_exclusive: 32,
        preemptible: true,
        swappable: false,
        preemptions: 0,
    }
}
