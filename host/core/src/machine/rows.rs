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
use super::tiers::Hits;

/// The newest completions, numbered.
#[derive(Debug)]
pub(super) struct Completions {
    pub(super) kept: VecDeque<Completion>,
    pub(super) kept_max: usize,
    pub(super) first: u64,
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
        self.end() - 1
    }

    /// The number of the next.
    pub(super) fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
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

    /// What is cached of a waiting request's prompt.
    pub(crate) fn cached_row(&self, id: RequestId) -> Option<Cached> {
        Some(self.cached_of(self.requests.get(&id)?))
    }

    /// What is cached of the prompt of `request`, which need not have arrived.
    pub(super) fn cached_of(&self, request: &super::Request) -> Cached {
        let mut cached = Cached {
            request: request.row.id,
            overlaps: Vec::new(),
            floor_tokens: 0,
            shared_tokens: 0,
        };
        if !request.prompt_hashes.is_empty() {
            let shared = self.shared_cache.tokens(&request.prompt_hashes);
            cached.shared_tokens = shared.min(request.row.prompt_tokens);
            (cached.overlaps, cached.floor_tokens) = self.overlaps(request);
        }
        cached
    }

    /// What executors hold of the prompt, a bounded number of those that hold most, and what each
    /// of the others holds on its device at least.
    fn overlaps(&self, request: &super::Request) -> (Vec<Overlap>, u32) {
        let mut overlaps = Vec::new();
        let mut holds_nothing = false;
        for device in &self.devices {
            let hits = device.hits(&request.prompt_hashes);
            let ids = device.executors.iter();
            let mut serving = ids
                .filter_map(|id| self.executors.get(*id))
                .filter(|executor| executor.serves(request.row.model));
            if hits.total() > 0 {
                overlaps.extend(serving.map(|executor| overlap(request, executor, hits)));
            } else if !holds_nothing {
                holds_nothing = serving.next().is_some();
            }
        }
        let total = |it: &Overlap| {
            let tiers = [it.device_tokens, it.host_tokens, it.disk_tokens];
            tiers.map(u64::from).iter().sum::<u64>()
        };
        overlaps.sort_by_key(|it| std::cmp::Reverse((total(it), it.device_tokens)));
        let listed = overlaps.len().min(self.config.overlaps_max as usize);
        let unlisted = overlaps[listed..].iter().map(|it| it.device_tokens);
        let floor = unlisted.min().filter(|_| !holds_nothing);
        overlaps.truncate(listed);
        (overlaps, floor.unwrap_or(0))
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

/// What `executor` holds of the prompt of `request`, of which its device holds `hits`.
fn overlap(request: &super::Request, executor: &super::Executor, hits: Hits) -> Overlap {
    let prompt = request.row.prompt_tokens;
    let per_block = executor.spec.tokens_per_block.unwrap_or(0);
    let tokens = |blocks: u32| blocks.saturating_mul(per_block);
    let device = tokens(hits.device).min(prompt);
    let host = tokens(hits.host).min(prompt - device);
    Overlap {
        executor: executor.id,
        device_tokens: device,
        host_tokens: host,
        disk_tokens: tokens(hits.disk).min(prompt - device - host),
    }
}
