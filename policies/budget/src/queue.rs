//! The queued requests by tenant, in the order they would be displaced; and the lines for the models.
//!
//! They are kept in order from change to change: there is no time to sort a queue when it is full.
//!
//! # Invariants
//! 1. It holds the requests of the mirror whose stage is queued
//!    (`tests::the_queue_follows_the_mirror`).
//! 2. The lines hold those and the parked ones (`tests::the_lines_follow_the_mirror`), of which it has the
//!    number too (`tests::nothing_is_parked_beyond_the_room_there`).

use std::collections::{BTreeMap, BTreeSet};

use pointsman_sdk::wire::types::{Change, Request, Stage};
use pointsman_sdk::{Mirror, Urgency};

use crate::line::Lines;

/// The queued requests, by tenant, and the lines for the models.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    lanes: BTreeMap<u32, Lane>,
    length: usize,
    /// Requests that wait outside the queue.
    parked: usize,
    pub(crate) lines: Lines,
}

/// One tenant's queued requests; never empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lane {
    queued: BTreeSet<Queued>,
    demands: BTreeMap<Demand, u32>,
}

/// A queued request: the least urgent come first, among them the oldest. Those that came back from an
/// executor are behind all others: they were served in part, and past the bound of the queue the host
/// does not let them be displaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Queued {
    came_back: bool,
    pub(crate) urgency: Urgency,
    arrived: u64,
    pub(crate) request: u64,
}

/// The model and pins that decide which executors a request may go to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Demand {
    pub(crate) model: Option<u32>,
    pub(crate) allowed: Option<Vec<u32>>,
}

// === impl Queue ===

impl Queue {
    /// Forgets the requests, but not how fast they came and left: all rows are told again.
    pub(crate) fn clear(&mut self) {
        let mut lines = std::mem::take(&mut self.lines);
        lines.clear();
        *self = Self {
            lines,
            ..Self::default()
        };
    }

    /// Takes over a change; `mirror` still holds the row that it replaces.
    #[inline]
    pub(crate) fn changed(&mut self, mirror: &Mirror, change: &Change) {
        let (before, after) = match change {
            Change::Waiting(request) => (mirror.request(request.id), Some(request)),
            Change::WaitingGone(id) => (mirror.request(*id), None),
            Change::Name(_)
            | Change::Executor(_)
            | Change::Load(_)
            | Change::ExecutorGone(_)
            | Change::Residency(_)
            | Change::ResidencyGone(_)
            | Change::Device(_)
            | Change::Model(_)
            | Change::Tenant(_)
            | Change::Sequence(_)
            | Change::SequenceGone(_)
            | Change::Completed(_) => return,
        };
        self.lines.changed(mirror, before, after);
        let is_queued = |request: &&Request| request.stage == Stage::Queued;
        if let Some(request) = before.filter(is_queued) {
            self.remove(request);
        }
        if let Some(request) = after.filter(is_queued) {
            self.insert(request);
        }
        let parked = |row: Option<&Request>| {
            usize::from(row.is_some_and(|request| request.stage == Stage::Parked))
        };
        self.parked = self.parked + parked(after) - parked(before);
    }

    /// The number of requests of all tenants.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The number of requests outside the queue.
    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    pub(crate) fn lane(&self, tenant: u32) -> Option<&Lane> {
        self.lanes.get(&tenant)
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = (u32, &Lane)> {
        self.lanes.iter().map(|(tenant, lane)| (*tenant, lane))
    }

    fn insert(&mut self, request: &Request) {
        let lane = self.lanes.entry(request.tenant).or_default();
        if lane.queued.insert(Queued::of(request)) {
            self.length += 1;
            *lane.demands.entry(Demand::of(request)).or_default() += 1;
        }
    }

    fn remove(&mut self, request: &Request) {
        let Some(lane) = self.lanes.get_mut(&request.tenant) else {
            return;
        };
        if lane.queued.remove(&Queued::of(request)) {
            self.length -= 1;
            let demand = Demand::of(request);
            if let Some(count) = lane.demands.get_mut(&demand) {
                *count -= 1;
                if *count == 0 {
                    lane.demands.remove(&demand);
                }
            }
        }
        if lane.queued.is_empty() {
            self.lanes.remove(&request.tenant);
        }
    }
}

// === impl Lane ===

impl Lane {
    pub(crate) fn len(&self) -> usize {
        self.queued.len()
    }

    /// The oldest of the least urgent requests that is not `taken` and did not come back.
    pub(crate) fn oldest(&self, taken: &BTreeSet<u64>) -> Option<Queued> {
        let new = self.queued.iter().take_while(|row| !row.came_back);
        let mut left = new.filter(|row| !taken.contains(&row.request));
        left.next().copied()
    }

    /// The newest of the least urgent requests that is not `taken` and did not come back: it has
    /// waited least.
    pub(crate) fn newest(&self, taken: &BTreeSet<u64>) -> Option<Queued> {
        let last = Queued {
            arrived: u64::MAX,
            request: u64::MAX,
            ..self.oldest(taken)?
        };
        let as_urgent = self.queued.range(..=last).rev();
        as_urgent
            .filter(|row| !taken.contains(&row.request))
            .copied()
            .next()
    }

    /// The demands of the requests, each once.
    pub(crate) fn demands(&self) -> impl Iterator<Item = &Demand> {
        self.demands.keys()
    }
}

impl Queued {
    fn of(request: &Request) -> Self {
        Self {
            came_back: request.attempts > 0,
            urgency: Urgency::from(request),
            arrived: request.arrived,
            request: request.id,
        }
    }
}

impl Demand {
    fn of(request: &Request) -> Self {
        Self {
            model: request.model,
            allowed: request.allowed.clone(),
        }
    }
}
