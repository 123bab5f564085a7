//! The mirror: the rows that the host has told this policy, by id.
//!
//! The SDK feeds the mirror and a policy reads it. Rows come in ascending id order, which for
//! executors is the order they were attached in. A hook may read the kinds of rows that it needs:
//! others are absent, or as old as the last question that needed them. To read them panics in tests.
//!
//! # Invariants
//! 1. A row replaces the one with its id, and `everything` forgets all rows (`tests`).
//! 2. The lists by device, by executor and by model agree with the rows
//!    (`tests::lists_follow_their_rows`).
//!
//! # Not here
//! Placements that the policy has answered and the host has not confirmed: see
//! [`BatchPlacements`](crate::BatchPlacements).

use std::collections::BTreeMap;

use crate::executor::{Executor, Residencies};
use crate::requests::Requests;
use crate::rows::Rows;
use crate::wire::lifecycle::{Bounds, Feed};
use crate::wire::types::{
    Change, Device, ExecutorInfo, ExecutorLoad, Extent, Model, NameKind, Request, Residency,
    Sequence, Tenant,
};

/// The rows of the host, by id.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    /// Absent: the policy is not configured.
    bounds: Option<Bounds>,
    now: u64,
    /// The kinds of rows that may be read now; absent: all.
    readable: Option<Feed>,
    executors: Rows<ExecutorSlot>,
    devices: Rows<DeviceSlot>,
    models: Rows<ModelSlot>,
    tenants: Rows<Option<Tenant>>,
    requests: Requests,
    sequences: BTreeMap<u64, Sequence>,
    names: BTreeMap<(NameKind, u32), String>,
}

#[derive(Clone, Debug, Default)]
struct ExecutorSlot {
    info: Option<ExecutorInfo>,
    load: Option<ExecutorLoad>,
    residencies: Vec<Residency>,
    /// Requests placed on the executor, ascending.
    sequences: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
struct DeviceSlot {
    row: Option<Device>,
    /// Executors on the device, ascending.
    executors: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
struct ModelSlot {
    row: Option<Model>,
    /// Executors with a residency of the model, ascending.
    executors: Vec<u32>,
}

// === impl Mirror ===

impl Mirror {
    /// The bounds that the host keeps whatever the policy says: known from the start.
    ///
    /// # Panics
    ///
    /// If the policy is not configured.
    #[must_use]
    #[inline]
    pub fn bounds(&self) -> &Bounds {
        let bounds = self.bounds.as_ref();
        bounds.expect("the host calls configure before anything else")
    }

    /// Takes the host's bounds.
    pub(crate) fn bind(&mut self, bounds: Bounds) {
        self.bounds = Some(bounds);
    }

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
            .filter_map(|(position, (_, slot))| self.view(position, slot))
    }

    /// The executors that share a device, in attach order.
    pub fn executors_on(&self, device: u32) -> impl Iterator<Item = Executor<'_>> {
        let executors = self.sharing_device(device);
        executors.iter().filter_map(|id| self.executor(*id))
    }

    /// Ids of the executors on a device, in attach order.
    #[inline]
    pub(crate) fn sharing_device(&self, device: u32) -> &[u32] {
        let slot = self.devices.get(device);
        slot.map_or(&[], |slot| &slot.executors)
    }

    /// Ids of the executors on the device of an executor, in attach order.
    pub(crate) fn sharing_device_of(&self, executor: u32) -> &[u32] {
        let slot = self.executors.get(executor);
        let info = slot.and_then(|slot| slot.info.as_ref());
        info.map_or(&[], |info| self.sharing_device(info.device))
    }

    /// The executor of this id.
    #[must_use]
    #[inline]
    pub fn executor(&self, id: u32) -> Option<Executor<'_>> {
        let position = self.executors.position(id)?;
        self.view(position, self.executors.at(position)?.1)
    }

    #[inline]
    fn view<'a>(&self, position: usize, slot: &'a ExecutorSlot) -> Option<Executor<'a>> {
        self.check(Feed::FLEET);
        let is_told = !cfg!(debug_assertions) || self.may_read(Feed::RESIDENCIES);
        Some(Executor {
            position,
            info: slot.info.as_ref()?,
            load: slot.load.as_ref()?,
            residencies: if is_told {
                Residencies::new(&slot.residencies)
            } else {
                Residencies::UNTOLD
            },
        })
    }

    /// The executor at a position.
    #[must_use]
    #[inline]
    pub fn executor_at(&self, position: usize) -> Option<Executor<'_>> {
        self.view(position, self.executors.at(position)?.1)
    }

    /// The device of this id; absent where nobody counts its blocks.
    #[must_use]
    #[inline]
    pub fn device(&self, id: u32) -> Option<&Device> {
        self.check(Feed::DEVICES);
        self.devices.get(id)?.row.as_ref()
    }

    /// Index of a device in the mirror; good until the next `observe`.
    #[must_use]
    #[inline]
    pub fn device_position(&self, id: u32) -> Option<usize> {
        self.devices.position(id)
    }

    /// The devices, by id.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.check(Feed::DEVICES);
        self.devices
            .iter()
            .filter_map(|(_, slot)| slot.row.as_ref())
    }

    /// The model of this id.
    #[must_use]
    #[inline]
    pub fn model(&self, id: u32) -> Option<&Model> {
        self.check(Feed::MODELS);
        self.models.get(id)?.row.as_ref()
    }

    /// Index of a model in the mirror; good until the next `observe`.
    #[must_use]
    #[inline]
    pub fn model_position(&self, id: u32) -> Option<usize> {
        self.models.position(id)
    }

    /// The models, by id.
    pub fn models(&self) -> impl Iterator<Item = &Model> {
        self.check(Feed::MODELS);
        self.models.iter().filter_map(|(_, slot)| slot.row.as_ref())
    }

    /// Executors that a model is present on, in attach order.
    pub fn presences(&self, model: u32) -> impl Iterator<Item = (Executor<'_>, &Residency)> {
        self.check(Feed::RESIDENCIES);
        let executors = self
            .models
            .get(model)
            .map_or(&[][..], |slot| &slot.executors);
        executors.iter().filter_map(move |&id| {
            let executor = self.executor(id)?;
            Some((executor, executor.residency(model)?))
        })
    }

    /// The tenant of this id.
    #[must_use]
    pub fn tenant(&self, id: u32) -> Option<&Tenant> {
        self.check(Feed::TENANTS);
        self.tenants.get(id)?.as_ref()
    }

    /// The tenants, by id.
    pub fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.check(Feed::TENANTS);
        self.tenants.iter().filter_map(|(_, row)| row.as_ref())
    }

    /// A request that has not started.
    #[must_use]
    pub fn request(&self, id: u64) -> Option<&Request> {
        self.check(Feed::WAITING);
        self.requests.get(id)
    }

    /// The requests that have not started, by id: those in the queue, and others, as `stage` tells.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.check(Feed::WAITING);
        self.requests.iter()
    }

    /// A placed request.
    #[must_use]
    pub fn sequence(&self, request: u64) -> Option<&Sequence> {
        self.check(Feed::SEQUENCES);
        self.sequences.get(&request)
    }

    /// The placed requests, by id.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.check(Feed::SEQUENCES);
        self.sequences.values()
    }

    /// The requests placed on an executor, by id.
    pub fn sequences_on(&self, executor: u32) -> impl Iterator<Item = &Sequence> {
        self.check(Feed::SEQUENCES);
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
        self.check(Feed::NAMES);
        self.names.get(&(kind, id)).map(String::as_str)
    }

    /// Begins an `observe`.
    pub(crate) fn begin(&mut self, now: u64, extent: Extent) {
        if extent == Extent::Everything {
            *self = Self {
                readable: self.readable,
                bounds: self.bounds,
                ..Self::default()
            };
        }
        self.now = now;
    }

    /// Lets rows of these kinds be read from now on, and no others.
    #[inline]
    pub(crate) fn let_read(&mut self, kinds: Feed) {
        self.readable = Some(kinds);
    }

    /// Tells whether rows of these kinds may be read.
    #[inline]
    fn may_read(&self, kinds: Feed) -> bool {
        self.readable
            .is_none_or(|readable| readable.contains(kinds))
    }

    /// Panics in tests where a hook reads rows of a kind that is not in its `NEEDS`: they would be
    /// missing or old.
    #[inline]
    fn check(&self, kinds: Feed) {
        debug_assert!(
            self.may_read(kinds),
            "a hook reads {kinds:?}, which is not in its NEEDS"
        );
    }

    /// Takes a row over, and with it the lists and texts that it holds. By reference, since a change
    /// is as large as the largest row, and moving one costs a component more than most rows do.
    #[inline]
    pub(crate) fn apply(&mut self, change: &mut Change) {
        match change {
            Change::Name(row) => {
                let text = std::mem::take(&mut row.text);
                self.names.insert((row.kind, row.id), text);
            }
            Change::Executor(row) => self.executor_changed(row),
            Change::Load(row) => self.executors.entry(row.id).load = Some(*row),
            Change::ExecutorGone(id) => self.executor_gone(*id),
            Change::Residency(row) => self.residency(*row),
            Change::ResidencyGone(gone) => self.residency_gone(gone.executor, gone.model),
            // Without blocks it is the last news of a server elsewhere, which tells of none any more.
            Change::Device(row) => {
                let counts = (row.blocks_total > 0).then_some(*row);
                self.devices.entry(row.id).row = counts;
            }
            Change::Model(row) => self.models.entry(row.id).row = Some(*row),
            Change::Tenant(row) => *self.tenants.entry(row.id) = Some(*row),
            Change::Waiting(row) => self.waiting(row),
            Change::WaitingGone(id) => self.requests.remove(*id),
            Change::Sequence(row) => self.sequence_changed(*row),
            Change::SequenceGone(request) => self.sequence_gone(*request),
            // Kept by policies that learn, through `Policy::changed`.
            Change::Completed(_) => {}
        }
    }

    fn waiting(&mut self, row: &mut Request) {
        let taken = Request {
            labels: row.labels.take(),
            allowed: row.allowed.take(),
            failed_on: row.failed_on.take(),
            ..*row
        };
        self.requests.insert(taken);
    }

    fn executor_changed(&mut self, row: &mut ExecutorInfo) {
        let (id, device) = (row.id, row.device);
        let taken = ExecutorInfo {
            serves: row.serves.take(),
            ..*row
        };
        let before = self.executors.entry(id).info.replace(taken);
        if before.as_ref().is_some_and(|row| row.device == device) {
            return;
        }
        if let Some(row) = before {
            self.device_loses(row.device, id);
        }
        let here = &mut self.devices.entry(device).executors;
        if let Err(at) = here.binary_search(&id) {
            here.insert(at, id);
        }
    }

    fn executor_gone(&mut self, id: u32) {
        let Some(slot) = self.executors.remove(id) else {
            return;
        };
        if let Some(row) = slot.info {
            self.device_loses(row.device, id);
        }
        for residency in slot.residencies {
            self.model_leaves(residency.model, id);
        }
    }

    fn device_loses(&mut self, device: u32, executor: u32) {
        if let Some(slot) = self.devices.get_mut(device)
            && let Ok(at) = slot.executors.binary_search(&executor)
        {
            slot.executors.remove(at);
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

#[cfg(test)]
mod tests;
