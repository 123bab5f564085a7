//! The mirror: what the host has told this policy, by id.
//!
//! The SDK feeds it; a policy reads it. Rows come back in ascending id order, which for executors
//! is the order they were attached in. What the policy's feed leaves out is simply not there.
//!
//! # Invariants
//! 1. A row replaces the one with its id, and `everything` forgets all rows (`tests`).
//! 2. The lists by executor and by model agree with the rows (`tests::lists_follow_their_rows`).
//!
//! # Not here
//! What the policy means to do: see [`Tentative`](crate::Tentative).

use std::collections::BTreeMap;

use crate::rows::Rows;
use crate::wire::types::{
    Change, Device, ExecutorInfo, ExecutorLoad, Extent, Health, Model, NameKind, Request,
    Residency, Sequence, Tenant,
};

/// Everything the host has told, by id.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    now: u64,
    executors: Rows<ExecutorSlot>,
    devices: Rows<Option<Device>>,
    models: Rows<ModelSlot>,
    tenants: Rows<Option<Tenant>>,
    /// Boxed: they are large, and a map moves its entries.
    requests: BTreeMap<u64, Box<Request>>,
    sequences: BTreeMap<u64, Sequence>,
    names: BTreeMap<(NameKind, u32), String>,
}

/// An executor, once both its rows have come.
#[derive(Clone, Copy, Debug)]
pub struct Executor<'a> {
    /// Its place among the rows; good until the next `observe`.
    pub position: usize,
    /// What rarely changes.
    pub info: &'a ExecutorInfo,
    /// What changes all the time.
    pub load: &'a ExecutorLoad,
    /// The models present there, by ascending id.
    pub residencies: &'a [Residency],
}

#[derive(Clone, Debug, Default)]
struct ExecutorSlot {
    info: Option<ExecutorInfo>,
    load: Option<ExecutorLoad>,
    residencies: Vec<Residency>,
    /// Requests placed there, ascending.
    sequences: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
struct ModelSlot {
    row: Option<Model>,
    /// Executors with a residency of it, ascending.
    executors: Vec<u32>,
}

// === impl Mirror ===

impl Mirror {
    /// Time of the last `observe`.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The executors, in attach order.
    pub fn executors(&self) -> impl Iterator<Item = Executor<'_>> {
        self.executors
            .iter()
            .enumerate()
            .filter_map(|(position, (_, slot))| slot.view(position))
    }

    /// The executors that share a device, in attach order.
    pub fn executors_on(&self, device: u32) -> impl Iterator<Item = Executor<'_>> {
        self.executors()
            .filter(move |executor| executor.info.device == device)
    }

    /// One executor.
    #[must_use]
    #[inline]
    pub fn executor(&self, id: u32) -> Option<Executor<'_>> {
        let position = self.executors.position(id)?;
        self.executors.at(position)?.1.view(position)
    }

    /// The executor at a position.
    #[must_use]
    #[inline]
    pub fn executor_at(&self, position: usize) -> Option<Executor<'_>> {
        self.executors.at(position)?.1.view(position)
    }

    /// One device.
    #[must_use]
    #[inline]
    pub fn device(&self, id: u32) -> Option<&Device> {
        self.devices.get(id)?.as_ref()
    }

    /// A device's place among the rows; good until the next `observe`.
    #[must_use]
    #[inline]
    pub fn device_position(&self, id: u32) -> Option<usize> {
        self.devices.position(id)
    }

    /// The devices.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter_map(|(_, row)| row.as_ref())
    }

    /// One model.
    #[must_use]
    #[inline]
    pub fn model(&self, id: u32) -> Option<&Model> {
        self.models.get(id)?.row.as_ref()
    }

    /// A model's place among the rows; good until the next `observe`.
    #[must_use]
    #[inline]
    pub fn model_position(&self, id: u32) -> Option<usize> {
        self.models.position(id)
    }

    /// The models.
    pub fn models(&self) -> impl Iterator<Item = &Model> {
        self.models.iter().filter_map(|(_, slot)| slot.row.as_ref())
    }

    /// Where a model is present, in attach order.
    pub fn presences(&self, model: u32) -> impl Iterator<Item = (Executor<'_>, &Residency)> {
        let executors = self
            .models
            .get(model)
            .map_or(&[][..], |slot| &slot.executors);
        executors.iter().filter_map(move |&id| {
            let executor = self.executor(id)?;
            Some((executor, executor.residency(model)?))
        })
    }

    /// One tenant.
    #[must_use]
    pub fn tenant(&self, id: u32) -> Option<&Tenant> {
        self.tenants.get(id)?.as_ref()
    }

    /// The tenants.
    pub fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.iter().filter_map(|(_, row)| row.as_ref())
    }

    /// A request without a place.
    #[must_use]
    pub fn request(&self, id: u64) -> Option<&Request> {
        self.requests.get(&id).map(Box::as_ref)
    }

    /// The requests without a place, by id.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.values().map(Box::as_ref)
    }

    /// A placed request.
    #[must_use]
    pub fn sequence(&self, request: u64) -> Option<&Sequence> {
        self.sequences.get(&request)
    }

    /// The placed requests, by id.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.values()
    }

    /// The requests placed on one executor, by id.
    pub fn sequences_on(&self, executor: u32) -> impl Iterator<Item = &Sequence> {
        let requests = self
            .executors
            .get(executor)
            .map_or(&[][..], |slot| &slot.sequences);
        requests
            .iter()
            .filter_map(|request| self.sequences.get(request))
    }

    /// The text behind an id.
    #[must_use]
    pub fn name(&self, kind: NameKind, id: u32) -> Option<&str> {
        self.names.get(&(kind, id)).map(String::as_str)
    }

    /// Begins an `observe`.
    pub(crate) fn begin(&mut self, now: u64, extent: Extent) {
        if extent == Extent::Everything {
            *self = Self::default();
        }
        self.now = now;
    }

    #[inline]
    pub(crate) fn apply(&mut self, change: Change) {
        match change {
            Change::Name(row) => {
                self.names.insert((row.kind, row.id), row.text);
            }
            Change::Executor(row) => {
                let slot = self.executors.entry(row.id);
                slot.info = Some(row);
            }
            Change::Load(row) => self.executors.entry(row.id).load = Some(row),
            Change::ExecutorGone(id) => self.executor_gone(id),
            Change::Residency(row) => self.residency(row),
            Change::ResidencyGone(gone) => self.residency_gone(gone.executor, gone.model),
            Change::Device(row) => *self.devices.entry(row.id) = Some(row),
            Change::Model(row) => self.models.entry(row.id).row = Some(row),
            Change::Tenant(row) => *self.tenants.entry(row.id) = Some(row),
            Change::Waiting(row) => {
                self.requests.insert(row.id, Box::new(row));
            }
            Change::WaitingGone(id) => {
                self.requests.remove(&id);
            }
            Change::Sequence(row) => self.sequence_changed(row),
            Change::SequenceGone(request) => self.sequence_gone(request),
            // Kept by policies that learn, through `Policy::changed`.
            Change::Completed(_) => {}
        }
    }

    fn executor_gone(&mut self, id: u32) {
        let Some(slot) = self.executors.remove(id) else {
            return;
        };
        for residency in slot.residencies {
            self.model_leaves(residency.model, id);
        }
    }

    fn residency(&mut self, row: Residency) {
        let here = &mut self.executors.entry(row.executor).residencies;
        match here.binary_search_by_key(&row.model, |residency| residency.model) {
            Ok(at) => here[at] = row,
            Err(at) => {
                let executors = &mut self.models.entry(row.model).executors;
                if let Err(at) = executors.binary_search(&row.executor) {
                    executors.insert(at, row.executor);
                }
                here.insert(at, row);
            }
        }
    }

    fn residency_gone(&mut self, executor: u32, model: u32) {
        let Some(slot) = self.executors.get_mut(executor) else {
            return;
        };
        let here = &mut slot.residencies;
        if let Ok(at) = here.binary_search_by_key(&model, |residency| residency.model) {
            here.remove(at);
            self.model_leaves(model, executor);
        }
        self.forget_if_empty(executor);
    }

    fn model_leaves(&mut self, model: u32, executor: u32) {
        if let Some(slot) = self.models.get_mut(model)
            && let Ok(at) = slot.executors.binary_search(&executor)
        {
            slot.executors.remove(at);
        }
    }

    fn sequence_changed(&mut self, row: Sequence) {
        let (request, executor) = (row.request, row.executor);
        let before = self.sequences.insert(request, row);
        if before.as_ref().is_some_and(|row| row.executor == executor) {
            return;
        }
        if let Some(row) = before {
            self.sequence_leaves(request, row.executor);
        }
        let here = &mut self.executors.entry(executor).sequences;
        if let Err(at) = here.binary_search(&request) {
            here.insert(at, request);
        }
    }

    fn sequence_gone(&mut self, request: u64) {
        if let Some(row) = self.sequences.remove(&request) {
            self.sequence_leaves(request, row.executor);
        }
    }

    fn sequence_leaves(&mut self, request: u64, executor: u32) {
        if let Some(slot) = self.executors.get_mut(executor)
            && let Ok(at) = slot.sequences.binary_search(&request)
        {
            slot.sequences.remove(at);
        }
        self.forget_if_empty(executor);
    }

    /// A row that came after its executor went leaves nothing behind when it goes too.
    fn forget_if_empty(&mut self, executor: u32) {
        if self.executors.get(executor).is_some_and(|slot| {
            slot.info.is_none()
                && slot.load.is_none()
                && slot.residencies.is_empty()
                && slot.sequences.is_empty()
        }) {
            self.executors.remove(executor);
        }
    }
}

// === impl ExecutorSlot ===

impl ExecutorSlot {
    #[inline]
    fn view(&self, position: usize) -> Option<Executor<'_>> {
        Some(Executor {
            position,
            info: self.info.as_ref()?,
            load: self.load.as_ref()?,
            residencies: &self.residencies,
        })
    }
}

// === impl Executor ===

impl<'a> Executor<'a> {
    /// Its id.
    #[must_use]
    #[inline]
    pub fn id(&self) -> u32 {
        self.info.id
    }

    /// Whether it takes new work: up or degraded.
    #[must_use]
    #[inline]
    pub fn is_live(&self) -> bool {
        matches!(self.load.health, Health::Up | Health::Degraded)
    }

    /// A model's presence there.
    #[must_use]
    #[inline]
    pub fn residency(&self, model: u32) -> Option<&'a Residency> {
        self.residencies.iter().find(|row| row.model == model)
    }

    /// Whether a sequence of the model runs there.
    #[must_use]
    #[inline]
    pub fn runs(&self, model: u32) -> bool {
        self.residency(model).is_some_and(|row| row.sequences > 0)
    }

    /// Whether the model runs there or is kept loaded.
    #[must_use]
    #[inline]
    pub fn is_warm(&self, model: u32, now: u64) -> bool {
        self.residency(model)
            .is_some_and(|row| row.sequences > 0 || row.warm_until.is_some_and(|until| until > now))
    }

    /// Requests placed there: running, and placed but not started.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> u64 {
        u64::from(self.load.slots_used)
            + u64::from(self.load.queued_critical)
            + u64::from(self.load.queued_throughput)
    }
}

#[cfg(test)]
mod tests;
