//! The queued requests by tenant, in the order they would be displaced; and who waits for which model,
//! parked requests included.
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

use crate::pace::Pace;
use crate::surge::Surge;

/// The queued requests, by tenant, and the lines for the models.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    lanes: BTreeMap<u32, Lane>,
    length: usize,
    /// Requests that wait outside the queue.
    parked: usize,
    lines: BTreeMap<Model, Line>,
}

/// The model of a request, if it names one.
type Model = Option<u32>;

/// Time for which an empty line goes on, in microseconds: if nobody joins it by then, it has ended.
const REST: u64 = 5_000_000;

/// The requests that wait for one model.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) pace: Pace,
    pub(crate) surge: Surge,
    /// The time since which nobody waits.
    empty_since: Option<u64>,
    waiting: Ranks,
    by_tenant: BTreeMap<u32, Ranks>,
}

/// Numbers of requests by urgency; none is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranks(BTreeMap<Urgency, usize>);

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
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
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
        if let (None, Some(request)) = (before, after) {
            self.arrives(mirror, request);
        }
        self.line_up(mirror.now(), before, after);
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

    /// The line for a model, where somebody waits or did of late.
    pub(crate) fn line(&self, model: Option<u32>) -> Option<&Line> {
        self.lines.get(&model)
    }

    /// Has a new request meet those who wait for its model.
    fn arrives(&mut self, mirror: &Mirror, request: &Request) {
        if request.stage == Stage::Arrived
            && let Some(line) = self.lines.get_mut(&request.model)
            && line.empty_since.is_none()
        {
            line.meets(request, mirror.now(), mirror.bounds().wait_max);
        }
    }

    /// Has the request join or leave its line. A change of its row alone moves nobody.
    fn line_up(&mut self, now: u64, before: Option<&Request>, after: Option<&Request>) {
        let before = before.filter(waits);
        let after = after.filter(waits);
        let stays = |before: &Request, after: &Request| {
            let rank = |request: &Request| (request.tenant, Urgency::from(request));
            before.model == after.model && rank(before) == rank(after)
        };
        if let (Some(before), Some(after)) = (before, after)
            && stays(before, after)
        {
            return;
        }
        if let Some(request) = after {
            self.end_empty(request.model, now);
            let line = self.lines.entry(request.model);
            line.or_insert_with(|| Line::beginning(now))
                .join(request, now);
        }
        if let Some(request) = before
            && let Some(line) = self.lines.get_mut(&request.model)
        {
            line.leave(request, now);
            if after.is_none() {
                line.pace.leaves(now);
                line.surge.leaves(now);
            }
        }
    }

    /// Forgets the line for a model if nobody has waited there for long enough.
    fn end_empty(&mut self, model: Model, now: u64) {
        let line = self.lines.get(&model);
        let empty_since = line.and_then(|line| line.empty_since);
        if empty_since.is_some_and(|since| now.saturating_sub(since) >= REST) {
            self.lines.remove(&model);
        }
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

/// Returns whether a request waits for a place, in the queue or outside it.
fn waits(request: &&Request) -> bool {
    matches!(request.stage, Stage::Queued | Stage::Parked)
}

// === impl Line ===

impl Line {
    fn beginning(now: u64) -> Self {
        Self {
            pace: Pace::beginning(now),
            surge: Surge::beginning(now),
            empty_since: None,
            waiting: Ranks::default(),
            by_tenant: BTreeMap::new(),
        }
    }

    /// Has a request come where somebody waits, which may not be let in. `wait_max` is how long anybody may wait, in
    /// microseconds.
    fn meets(&mut self, request: &Request, now: u64, wait_max: u64) {
        self.surge.comes(now);
        let wait = self.pace.time_for(self.ahead(Urgency::from(request)), now);
        if wait.is_some_and(|wait| wait >= wait_max) {
            self.surge.begins();
        }
    }

    fn join(&mut self, request: &Request, now: u64) {
        if let Some(since) = self.empty_since.take() {
            self.pace.skip(now.saturating_sub(since));
        }
        let urgency = Urgency::from(request);
        self.waiting.add(urgency);
        self.by_tenant
            .entry(request.tenant)
            .or_default()
            .add(urgency);
    }

    fn leave(&mut self, request: &Request, now: u64) {
        let urgency = Urgency::from(request);
        self.waiting.remove(urgency);
        if let Some(ranks) = self.by_tenant.get_mut(&request.tenant) {
            ranks.remove(urgency);
            if ranks.0.is_empty() {
                self.by_tenant.remove(&request.tenant);
            }
        }
        if self.waiting.0.is_empty() {
            self.empty_since = Some(now);
        }
    }

    /// Requests at least as urgent as that.
    pub(crate) fn ahead(&self, urgency: Urgency) -> usize {
        self.waiting.from(urgency)
    }

    /// The same of one tenant.
    pub(crate) fn ahead_of(&self, tenant: u32, urgency: Urgency) -> usize {
        let ranks = self.by_tenant.get(&tenant);
        ranks.map_or(0, |ranks| ranks.from(urgency))
    }

    /// The same of each tenant that has some in the line.
    pub(crate) fn ahead_by_tenant(&self, urgency: Urgency) -> impl Iterator<Item = (u32, usize)> {
        let tenants = self.by_tenant.iter();
        tenants.map(move |(tenant, ranks)| (*tenant, ranks.from(urgency)))
    }
}

// === impl Ranks ===

impl Ranks {
    fn add(&mut self, urgency: Urgency) {
        *self.0.entry(urgency).or_default() += 1;
    }

    fn remove(&mut self, urgency: Urgency) {
        if let Some(count) = self.0.get_mut(&urgency) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&urgency);
            }
        }
    }

    /// The number of those at least as urgent.
    fn from(&self, urgency: Urgency) -> usize {
        self.0.range(urgency..).map(|(_, count)| count).sum()
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
