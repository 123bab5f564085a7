//! The rows of a fleet of any size, of which policies are asked.

use std::sync::Arc;

use pointsman_component::{Fault, Instance};
use pointsman_core::rows::{
    Change, Device, ExecutorInfo, ExecutorLoad, Name, NameKind, Request, RequestClass, Sequence,
};
use pointsman_core::{DeviceId, Micros, Moment, Round, RowKinds, fixture};

use super::super::hooks::{Hook, PER_DEVICE, WAITING};

/// The lowest id of a sequence, above the ids of all waiting requests.
const RUNNING: u64 = 1_000_000;

/// A fleet that changes a little between two questions.
pub(super) struct Fleet {
    executors: u32,
    kinds: RowKinds,
    /// Changes so far.
    round: u64,
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

    /// Asks a policy the question of `hook` that is measured.
    pub(super) fn ask(&self, policy: &mut dyn Instance, hook: Hook) -> Result<(), Fault> {
        let at = Moment {
            now: Micros(0),
            round: Round(self.round),
        };
        match hook.question() {
            Some(question) => policy.ask(at, &question).map(drop),
            None => {
                let explained = policy.explain(at, &request(0), &fixture::cached(0));
                explained.map(drop)
            }
        }
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
