//! The executors that may have room, best first, kept current as rows change.
//!
//! A tournament over executors: each inner node names the better of its two children, so that a
//! changed row costs the depth of the tree and the next best is found without looking at the
//! rest. A decision costs about the same over sixty executors and over ten thousand.
//!
//! # Invariants
//! Between [`Index::refresh`] and the next change the ranks are those of the mirror and of the
//! placements made in this batch (`tests::the_index_finds_what_a_scan_finds`).

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::Change;
use pointsman_sdk::{Executor, Mirror, Seat, Tentative};

use crate::rank::{Key, Memory};

/// Executors by rank. Leaves are executor ids, which the host counts up.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// By executor id; absent where there is nothing to place on.
    ranks: Vec<Option<Key>>,
    /// Inner nodes from 1, leaves from `leaves`; the id of the best below, if there is one.
    winners: Vec<Option<u32>>,
    leaves: usize,
    /// Executor ids by device, in attach order.
    by_device: BTreeMap<u32, Vec<u32>>,
    /// Executors whose rank may have changed.
    dirty: Vec<u32>,
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
        match change {
            Change::Load(load) => self.dirty.push(load.id),
            Change::Device(device) => self.touch_device(device.id),
            Change::Executor(info) => {
                self.leave_device(mirror, info.id);
                self.by_device.entry(info.device).or_default().push(info.id);
                self.dirty.push(info.id);
            }
            Change::ExecutorGone(id) => {
                self.leave_device(mirror, *id);
                self.dirty.push(*id);
            }
            Change::Name(_)
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
        if let Some(ids) = self.by_device.get(&device) {
            self.dirty.extend(ids);
        }
    }

    /// Brings the ranks up to date with the mirror and what was placed in this batch.
    pub(crate) fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        for id in dirty.drain(..) {
            let executor = mirror.executor(id);
            let key = executor.and_then(|executor| key(mirror, placed, &executor));
            self.set(id, key);
        }
        self.dirty = dirty;
    }

    fn set(&mut self, id: u32, rank: Option<Key>) {
        let leaf = id as usize;
        if leaf >= self.ranks.len() {
            if rank.is_none() {
                return;
            }
            self.ranks.resize(leaf + 1, None);
        }
        if self.ranks[leaf] == rank {
            return;
        }
        self.ranks[leaf] = rank;
        if leaf >= self.leaves {
            self.rebuild();
            return;
        }
        let mut node = self.leaves + leaf;
        self.winners[node] = rank.map(|_| id);
        while node > 1 {
            node /= 2;
            self.winners[node] = self.better(self.winners[2 * node], self.winners[2 * node + 1]);
        }
    }

    /// Makes room for twice as many leaves as there are executors.
    fn rebuild(&mut self) {
        self.leaves = self.ranks.len().next_power_of_two();
        self.winners = vec![None; 2 * self.leaves];
        for (id, rank) in (0_u32..).zip(&self.ranks) {
            self.winners[self.leaves + id as usize] = rank.map(|_| id);
        }
        for node in (1..self.leaves).rev() {
            self.winners[node] = self.better(self.winners[2 * node], self.winners[2 * node + 1]);
        }
    }

    fn rank_of(&self, id: u32) -> Option<&Key> {
        self.ranks.get(id as usize)?.as_ref()
    }

    fn better(&self, a: Option<u32>, b: Option<u32>) -> Option<u32> {
        match (a, b) {
            (Some(left), Some(right)) => {
                let right_first = self.rank_of(right) < self.rank_of(left);
                Some(if right_first { right } else { left })
            }
            (Some(only), None) | (None, Some(only)) => Some(only),
            (None, None) => None,
        }
    }

    /// Executor ids, best first.
    pub(crate) fn best_first(&self) -> BestFirst<'_> {
        let mut beside = Vec::with_capacity(BESIDE_EXPECTED);
        let best = self.winners.get(1).copied().flatten();
        beside.extend(best.map(|id| Subtree { node: 1, best: id }));
        BestFirst {
            index: self,
            beside,
        }
    }
}

/// Parts of the tree that a walk to the third best leaves beside it, in a fleet of some thousands.
const BESIDE_EXPECTED: usize = 48;

/// Walks executors from the best on.
#[derive(Debug)]
pub(crate) struct BestFirst<'a> {
    index: &'a Index,
    /// Parts of the tree not walked yet. Few are taken out, so the best of them is looked for
    /// rather than kept in front.
    beside: Vec<Subtree>,
}

/// A part of the tree.
#[derive(Clone, Copy, Debug)]
struct Subtree {
    node: usize,
    /// The best executor in it.
    best: u32,
}

impl Iterator for BestFirst<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.index;
        let subtrees = self.beside.iter().enumerate();
        let (next, _) = subtrees.min_by_key(|(_, subtree)| index.rank_of(subtree.best))?;
        let Subtree { mut node, best } = self.beside.swap_remove(next);
        // What lies beside the way down to the best is left for later.
        while node < index.leaves {
            let (left, right) = (2 * node, 2 * node + 1);
            let (way, beside) = if index.winners[left] == Some(best) {
                (left, right)
            } else {
                (right, left)
            };
            let other = index.winners[beside];
            self.beside
                .extend(other.map(|best| Subtree { node: beside, best }));
            node = way;
        }
        Some(best)
    }
}

/// The rank of an executor for whatever it can take; absent where there is no room at all.
fn key(mirror: &Mirror, placed: &Tentative, executor: &Executor<'_>) -> Option<Key> {
    if !executor.is_live() {
        return None;
    }
    let counts = placed.counts(executor);
    let (load, info) = (executor.load, executor.info);
    let seat = if load.slots_used.saturating_add(counts.slots) < info.slots_total {
        Seat::Slot
    } else {
        let critical = load.queued_critical.saturating_add(counts.queued_critical);
        let throughput = load
            .queued_throughput
            .saturating_add(counts.queued_throughput);
        if critical.min(throughput) >= info.queue_limit {
            return None;
        }
        Seat::Queue
    };
    let memory = Memory::new(mirror, placed, executor, seat);
    Some(Key::new(load.health, &memory, executor.id()))
}
