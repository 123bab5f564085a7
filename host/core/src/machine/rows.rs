//! What policies are told: rows made from the records.

use std::collections::VecDeque;

use crate::ids::RequestId;
use crate::log::{RowKey, Wanted};
use crate::rows::{
    Cached, Change, Completion, FeedKinds, Name, NameKind, Overlap, Presence, Request, Sequence,
    SequenceState,
};

use super::Machine;
use super::request::{InSlot, Phase};

/// The newest completions, numbered.
#[derive(Debug)]
pub(super) struct Completions {
    kept: VecDeque<Completion>,
    kept_max: usize,
    first: u64,
}

impl Completions {
    pub(super) fn new(kept_max: u32) -> Self {
        Self {
            kept: VecDeque::new(),
            kept_max: kept_max as usize,
            first: 0,
        }
    }

    /// Keeps a completion and returns its number.
    pub(super) fn push(&mut self, completion: Completion) -> u64 {
        if self.kept.len() == self.kept_max {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(completion);
        self.first + self.kept.len() as u64 - 1
    }

    fn get(&self, number: u64) -> Option<Completion> {
        let idx = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.kept.get(idx).copied()
    }
}

impl Machine {
    pub(crate) fn waiting_row(&self, id: RequestId) -> Option<&Request> {
        let request = self.requests.get(&id)?;
        request.waiting().map(|_| &*request.row)
    }

    pub(super) fn sequence_row(&self, id: RequestId) -> Option<Sequence> {
        let request = self.requests.get(&id)?;
        let placed = request.placed()?;
        let executor = self.executors.get(placed.executor)?;
        let pool = self.pool_of(placed.executor);
        let state = match (&request.phase, placed.in_slot) {
            (Phase::Leaving(..), _) => SequenceState::Leaving,
            (_, InSlot::Queued) => SequenceState::Queued,
            (_, InSlot::Running) => SequenceState::Running,
        };
        Some(Sequence {
            request: id,
            executor: placed.executor,
            model: request.row.model,
            tenant: request.row.tenant,
            class: request.row.class,
            priority: request.row.priority,
            state,
            started: placed.started_at.unwrap_or(placed.placed_at),
            tokens_generated: request.generated,
            blocks: pool.map_or(0, |pool| super::executor::count(pool.lease(id).len())),
            blocks_exclusive: pool.map_or(0, |pool| pool.exclusive(id)),
            preemptible: executor.spec.preempts,
            swappable: false,
            preemptions: request.preemptions,
        })
    }

    /// What is cached of a waiting request's prompt: by owned pools, the devices' leading hits.
    pub(crate) fn cached_row(&self, id: RequestId) -> Option<Cached> {
        let request = self.requests.get(&id)?;
        let overlaps = if request.prompt_hashes.is_empty() {
            Vec::new()
        } else {
            self.overlaps(request)
        };
        Some(Cached {
            request: id,
            overlaps,
            floor_tokens: 0,
            shared_tokens: 0,
        })
    }

    fn overlaps(&self, request: &super::Request) -> Vec<Overlap> {
        let mut overlaps = Vec::new();
        for device in &self.devices {
            let Some(pool) = device.pool() else { continue };
            let hits = pool.leading_hits(&request.prompt_hashes);
            if hits == 0 {
                continue;
            }
            for executor in &device.executors {
                let executor = self.executors.get(*executor);
                let Some(executor) = executor.filter(|e| e.serves(request.row.model)) else {
                    continue;
                };
                let held = hits.saturating_mul(executor.spec.tokens_per_block.unwrap_or(0));
                overlaps.push(Overlap {
                    executor: executor.id,
                    device_tokens: held.min(request.row.prompt_tokens),
                    host_tokens: 0,
                    disk_tokens: 0,
                });
            }
        }
        overlaps.sort_by_key(|overlap| std::cmp::Reverse(overlap.device_tokens));
        overlaps.truncate(self.config.overlaps_max as usize);
        overlaps
    }

    /// The row behind a key as it is now, if it is wanted.
    pub(crate) fn row(&self, key: RowKey, wanted: Wanted, kinds: FeedKinds) -> Option<Change> {
        match key {
            RowKey::Name(kind, id) => self.names.row(kind, id).map(Change::Name),
            RowKey::Executor(id) => match self.executors.get(id) {
                Some(executor) => wanted
                    .live(executor.info_stamp)
                    .then(|| Change::Executor(Box::new(executor.info()))),
                None => wanted.gone().then_some(Change::ExecutorGone(id)),
            },
            RowKey::Load(id) => {
                let executor = self.executors.get(id)?;
                wanted
                    .live(executor.load_stamp)
                    .then(|| Change::Load(executor.load()))
            }
            RowKey::Residency(presence) => self.residency_change(presence, wanted),
            RowKey::Device(id) => {
                let device = self.devices.get(id.0 as usize)?;
                let row = device.row().filter(|_| wanted.live(device.stamp));
                row.map(Change::Device)
            }
            RowKey::Model(id) => {
                let model = self.models.get(&id).filter(|m| wanted.live(m.stamp))?;
                Some(Change::Model(model_row(id, model)))
            }
            RowKey::Tenant(id) => {
                let tenant = self.tenants.get(&id).filter(|t| wanted.live(t.stamp))?;
                Some(Change::Tenant(tenant_row(id, tenant)))
            }
            RowKey::Waiting(id) if kinds.waiting => self.waiting_change(id, wanted),
            RowKey::Sequence(id) if kinds.sequences => self.sequence_change(id, wanted),
            RowKey::Completion(number) if kinds.completed => {
                self.completions.get(number).map(Change::Completed)
            }
            RowKey::Waiting(_) | RowKey::Sequence(_) | RowKey::Completion(_) => None,
        }
    }

    fn residency_change(&self, key: Presence, wanted: Wanted) -> Option<Change> {
        let executor = self.executors.get(key.executor);
        match executor.and_then(|executor| executor.residency(key.model)) {
            Some(row) => {
                let stamp = executor?.models_stamps.get(&key.model).copied();
                wanted
                    .live(stamp.unwrap_or_default())
                    .then_some(Change::Residency(row))
            }
            None => wanted.gone().then_some(Change::ResidencyGone(key)),
        }
    }

    fn waiting_change(&self, id: RequestId, wanted: Wanted) -> Option<Change> {
        match self.requests.get(&id).filter(|r| r.waiting().is_some()) {
            Some(request) => wanted
                .live(request.waiting_stamp)
                .then(|| Change::Waiting(request.row.clone())),
            None => wanted.gone().then_some(Change::WaitingGone(id)),
        }
    }

    fn sequence_change(&self, id: RequestId, wanted: Wanted) -> Option<Change> {
        match (self.requests.get(&id), self.sequence_row(id)) {
            (Some(request), Some(row)) => wanted
                .live(request.sequence_stamp)
                .then_some(Change::Sequence(row)),
            _ => wanted.gone().then_some(Change::SequenceGone(id)),
        }
    }

    /// Every row there is, names first, so that each id is known before it is used.
    pub(crate) fn all_rows(&self, kinds: FeedKinds, out: &mut Vec<Change>) {
        out.extend(
            self.names
                .rows()
                .filter(|name| self.names_something(name))
                .map(Change::Name),
        );
        let devices = self.devices.iter().filter_map(super::Device::row);
        out.extend(devices.map(Change::Device));
        let models = self.models.iter();
        out.extend(models.map(|(id, model)| Change::Model(model_row(*id, model))));
        let tenants = self.tenants.iter();
        out.extend(tenants.map(|(id, tenant)| Change::Tenant(tenant_row(*id, tenant))));
        for executor in self.executors.iter() {
            out.push(Change::Executor(Box::new(executor.info())));
            out.push(Change::Load(executor.load()));
            let models = executor.models.keys();
            out.extend(
                models
                    .filter_map(|m| executor.residency(*m))
                    .map(Change::Residency),
            );
        }
        for (id, request) in &self.requests {
            if kinds.waiting && request.waiting().is_some() {
                out.push(Change::Waiting(request.row.clone()));
            }
            if kinds.sequences {
                out.extend(self.sequence_row(*id).map(Change::Sequence));
            }
        }
    }

    /// Whether a name belongs to something that is still there.
    fn names_something(&self, name: &Name) -> bool {
        match name.kind {
            NameKind::Executor => self.executors.get(crate::ExecutorId(name.id)).is_some(),
            NameKind::Device
            | NameKind::Model
            | NameKind::Tenant
            | NameKind::Adapter
            | NameKind::Label => true,
        }
    }
}

fn model_row(id: crate::ModelId, model: &super::Model) -> crate::rows::Model {
    crate::rows::Model {
        id,
        running_max: model.running_max,
        running: model.running,
        waiting: model.waiting,
    }
}

fn tenant_row(id: crate::TenantId, tenant: &super::Tenant) -> crate::rows::Tenant {
    crate::rows::Tenant {
        id,
        weight: tenant.weight,
        tokens_per_minute: tenant.tokens_per_minute,
        running: tenant.running,
        waiting: tenant.waiting,
        prompt_tokens_total: tenant.prompt_tokens_total,
        output_tokens_total: tenant.output_tokens_total,
    }
}
