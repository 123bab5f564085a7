//! The rows of a fleet of any size, and the questions about it.

use std::sync::Arc;

use pointsman_component::{Fault, Instance, PolicyComponent};
use pointsman_core::rows::{
    Cached, Change, Device, ExecutorInfo, ExecutorLoad, Name, NameKind, Request, RequestClass,
    Sequence,
};
use pointsman_core::{
    DeviceId, ExecutorId, Hook, Micros, Moment, Question, RequestId, Round, RowKinds, Shortage,
    ShortageCause, TokensUsed, fixture,
};

/// Executors that share a device.
const PER_DEVICE: u32 = 8;
/// Number of waiting requests.
const WAITING: u64 = 64;
/// The lowest id of a sequence, above the ids of all waiting requests.
const RUNNING: u64 = 1_000_000;

/// A call that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measured {
    /// A question of this hook.
    Decision(Hook),
    /// An explanation of where a request would go.
    Explanation,
}

/// A fleet that changes a little between two questions.
pub(super) struct Fleet {
    executors: u32,
    kinds: RowKinds,
    /// Changes so far.
    round: u64,
}

// === impl Measured ===

impl Measured {
    /// All calls that are measured, in the order of a round.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let decisions = Hook::ALL.into_iter().map(Self::Decision);
        decisions.chain([Self::Explanation])
    }

    /// True if the policy answers this question.
    pub(super) fn is_answered_by(self, policy: &PolicyComponent) -> bool {
        match self {
            Self::Decision(hook) => policy.hooks().contains(hook),
            Self::Explanation => policy.explains(),
        }
    }

    /// The name of the question's interface.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Decision(hook) => hook.as_str(),
            Self::Explanation => "explanation",
        }
    }
}

// === impl Fleet ===

impl Fleet {
    /// A fleet of this number of executors, for a policy that is told rows of `kinds`.
    pub(super) fn new(executors: u32, kinds: RowKinds) -> Self {
        Self {
            executors,
            kinds,
            round: 0,
        }
    }

    /// Every row of the fleet that the policy is told.
    pub(super) fn everything(&self) -> Vec<Change> {
        let mut rows = self.all();
        rows.retain(|row| self.kinds.contains(row.kind()));
        rows
    }

    fn all(&self) -> Vec<Change> {
        let mut rows = vec![Change::Tenant(fixture::tenant(0))];
        for id in 0..self.executors {
            if id % PER_DEVICE == 0 {
                rows.push(Change::Device(self.device(id)));
            }
            let (kind, text) = (NameKind::Executor, format!("executor-{id}"));
            rows.push(Change::Name(Name { kind, id, text }));
            rows.push(Change::Executor(Box::new(info(id))));
            rows.push(Change::Load(self.load(id)));
            rows.push(Change::Sequence(sequence(id)));
        }
        rows.extend((0..WAITING).map(waiting));
        rows
    }

    /// Rows that changed since the last call: one executor's load and its device, and a request
    /// that the last answer may have named.
    pub(super) fn change(&mut self) -> Vec<Change> {
        self.round += 1;
        let id = self.round % u64::from(self.executors);
        let id = u32::try_from(id).unwrap_or(0);
        let rows = [
            Change::Load(self.load(id)),
            Change::Device(self.device(id)),
            waiting(0),
        ];
        let told = rows.into_iter();
        told.filter(|row| self.kinds.contains(row.kind())).collect()
    }

    /// Asks a policy.
    pub(super) fn ask(&self, policy: &mut dyn Instance, question: Measured) -> Result<(), Fault> {
        let at = Moment {
            now: Micros(0),
            round: Round(self.round),
        };
        let first = RequestId(0);
        let cached = fixture::cached(first.0);
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
            slots_used: u32::try_from(busy).unwrap_or(0),
            prefill_tokens_pending: busy * 100,
            blocks_used: busy * 100,
            placed_total: self.round,
            ..fixture::load(id)
        }
    }

    /// The device of an executor.
    fn device(&self, executor: u32) -> Device {
        let id = executor / PER_DEVICE;
        let free = 50_000 + (u64::from(id) * 37 + self.round * 11) % 40_000;
        Device {
            blocks_total: 100_000,
            blocks_free: u32::try_from(free).unwrap_or(0),
            ..fixture::device(id)
        }
    }
}

/// The question of `hook` that is measured.
fn decision(hook: Hook, first: RequestId, cached: Cached) -> Question<'static> {
    let used = (0..PER_DEVICE).map(|id| TokensUsed {
        executor: ExecutorId(id),
        tokens: 0,
    });
    match hook {
        Hook::Admission => Question::Admission {
            arrivals: fixture::asked(&[first.0]).into(),
            room: 1000,
        },
        Hook::Priority => {
            let all: Vec<u64> = (0..WAITING).collect();
            Question::Priority(fixture::asked(&all).into())
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
            used: used.collect(),
        },
    }
}

fn info(id: u32) -> ExecutorInfo {
    ExecutorInfo {
        device: DeviceId(id / PER_DEVICE),
        slots_total: 8,
        ..fixture::executor(id)
    }
}

fn waiting(id: u64) -> Change {
    Change::Waiting(Arc::new(request(id)))
}

fn request(id: u64) -> Request {
    Request {
        class: RequestClass::LatencyCritical,
        prompt_tokens: 512 - u32::try_from(id).unwrap_or(0),
        output_tokens_max: 64,
        ..fixture::request(id)
    }
}

/// A sequence less urgent than the waiting requests, so that the sequence could give way.
fn sequence(executor: u32) -> Sequence {
    Sequence {
        tokens_generated: 10,
        blocks: 32,
        blocks_exclusive: 32,
        ..fixture::sequence(RUNNING + u64::from(executor), executor)
    }
}
