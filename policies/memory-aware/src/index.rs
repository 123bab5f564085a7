//! The executors that may have room, best first, kept current as rows change.
//!
//! # Invariants
//! Between [`Index::refresh`] and the next change the ranks are those of the mirror and of the
//! placements made in this batch (`tests::the_index_finds_what_a_scan_finds`).

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::{Change, Request};
use pointsman_sdk::{Executor, Mirror, Ranking, Tentative, open_seat};

use crate::rank::{Key, Memory};

/// Executors by rank.
#[derive(Debug, Default)]
pub(crate) struct Index {
    ranking: Ranking<Key>,
    /// Executor ids by device, in attach order: they share the blocks that a rank is made of.
    by_device: BTreeMap<u32, Vec<u32>>,
    /// Devices placed on in this batch; a placement that is refused changes them back.
    placed_on: Vec<u32>,
}

// === impl Index ===

impl Index {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Notes what a row changes, before it does.
    pub(crate) fn note(&mut self, mirror: &Mirror, change: &Change) {
        self.ranking.changed(change);
        match change {
            Change::Device(device) => self.touch_device(device.id),
            Change::Executor(info) => {
                self.leave_device(mirror, info.id);
                self.by_device.entry(info.device).or_default().push(info.id);
            }
            Change::ExecutorGone(id) => self.leave_device(mirror, *id),
            Change::Load(_)
            | Change::Name(_)
            | Change::Residency(_)
            | Change::ResidencyGone(_)
            | Change::Model(_)
            | Change::Tenant(_)
            | Change::Waiting(_)
            | Change::WaitingGone(_)
            | Change::Sequence(_)
            | Change::SequenceGone(_)
            | Change::Completed(_) => {}
        }
    }

    fn leave_device(&mut self, mirror: &Mirror, id: u32) {
        let device = mirror.executor(id).map(|executor| executor.info.device);
        if let Some(ids) = device.and_then(|device| self.by_device.get_mut(&device)) {
            ids.retain(|other| *other != id);
        }
    }

    /// The host has told what came of the last batch: what was placed in it is in the mirror, or
    /// void.
    pub(crate) fn begin(&mut self) {
        while let Some(device) = self.placed_on.pop() {
            self.touch_device(device);
        }
    }

    /// Something was placed on an executor of this device.
    pub(crate) fn placed(&mut self, device: u32) {
        self.touch_device(device);
        self.placed_on.push(device);
    }

    /// The ranks of a device's executors may have changed.
    fn touch_device(&mut self, device: u32) {
        for &id in self.by_device.get(&device).into_iter().flatten() {
            self.ranking.touch(id);
        }
    }

    /// Brings the ranks up to date with the mirror and what was placed in this batch.
    pub(crate) fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        self.ranking
            .refresh(mirror, |executor| key(mirror, placed, executor));
    }

    /// Executor ids that the request may go to as far as its model says, best first.
    pub(crate) fn best_first(&self, request: &Request) -> impl Iterator<Item = u32> {
        self.ranking.best_first(request, None)
    }
}

/// The rank of an executor for whatever it can take; absent where there is no room at all.
fn key(mirror: &Mirror, placed: &Tentative, executor: &Executor<'_>) -> Option<Key> {
    let seat = open_seat(placed, executor)?;
    let memory = Memory::new(mirror, placed, executor, seat);
    Some(Key::new(executor.load.health, &memory))
}
