//! The lines: who waits for which model, parked requests included, and how fast they come and leave. Those that are pinned to
//! executors are in lines of their own, and come after those of their model that are not, too.
//!
//! The requests follow the rows. How fast a line moves outlasts them: it is kept while all rows are told again, and in
//! the policy's snapshot.
//!
//! Rows are told before a question, and the next one may come hours after a line has moved. So those that a telling
//! says have left are taken to have left one after the other since the telling before, at the pace that the line had then.
//! What is told for the sake of engines says nothing of who waits, and is no such telling.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_sdk::rendezvous::split_mix;
use pointsman_sdk::snapshot::{put_len, put_option, take_option, take_u32, take_u64};
use pointsman_sdk::wire::types::{Request, Stage};
use pointsman_sdk::{Bounds, Mirror, Urgency};

use crate::pace::Pace;
use crate::surge::Surge;

/// Time for which an empty line goes on, in microseconds: if nobody joins it by then, it has ended.
const REST: u64 = 5_000_000;

/// Time that a line must take for its length alone to be a surge, in microseconds, where one who is in a hurry may wait for less.
const SURGE_MIN: u64 = 60_000_000;

/// Lines of a model for requests that are pinned to executors, at most: what they are pinned to is told apart by so many values
/// of a hash, and not by lists that clients could make without end.
const PINS_MAX: u64 = 64;

/// The requests of a line: those for one model that may go to the same executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LineKey {
    model: Option<u32>,
    /// A hash of the executors that they are pinned to, below [`PINS_MAX`]; absent: they may go to any.
    pins: Option<u64>,
}

/// The lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    lines: BTreeMap<LineKey, Line>,
    /// Requests that came, by the rows that are being told.
    came: Vec<(LineKey, Urgency)>,
    /// The lines that somebody joins or leaves, by the rows that are being told.
    moved: BTreeSet<LineKey>,
    /// The time up to which it is told who waits, in microseconds.
    told_at: u64,
    telling: Telling,
}

/// The requests that wait of which rows are being told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Telling {
    /// None: engines are asked about.
    #[default]
    Nobody,
    /// The ones that changed.
    Changed,
    /// All of them again, none of which was told yet.
    Cleared,
    /// All of them again, so that one that is new may have been met before.
    All,
}

/// The requests that wait for one model.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) pace: Pace,
    pub(crate) surge: Surge,
    /// The time since which nobody waits.
    empty_since: Option<u64>,
    waiting: Ranks,
    by_tenant: BTreeMap<u32, Ranks>,
    /// Requests that join, by the rows that are being told.
    joined: usize,
    /// Requests that leave, by those rows: the time until which routing could hold each, in microseconds.
    left: Vec<Option<u64>>,
}

/// Numbers of requests by urgency; none is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranks(BTreeMap<Urgency, usize>);

// === impl LineKey ===

impl LineKey {
    fn of(request: &Request) -> Self {
        let pins = request.allowed.as_ref().map(|executors| {
            let mixed = executors.iter().map(|id| split_mix(u64::from(*id)));
            mixed.fold(0, |all, one| all ^ one) % PINS_MAX
        });
        Self {
            model: request.model,
            pins,
        }
    }
}

// === impl Lines ===

impl Lines {
    /// The line that a request is in, or would be, where somebody waits or did of late.
    pub(crate) fn get(&self, request: &Request) -> Option<&Line> {
        self.lines.get(&LineKey::of(request))
    }

    /// The line of those that are not pinned, for a request of their model that is: they are tried in one order, so it is
    /// behind them too.
    pub(crate) fn unpinned(&self, request: &Request) -> Option<&Line> {
        request.allowed.as_ref()?;
        self.lines.get(&LineKey {
            pins: None,
            ..LineKey::of(request)
        })
    }

    /// Takes over a change of a request's row.
    pub(crate) fn changed(
        &mut self,
        mirror: &Mirror,
        before: Option<&Request>,
        after: Option<&Request>,
    ) {
        self.begin(mirror.now());
        if let (None, Some(request)) = (before, after) {
            self.comes(request);
        }
        self.line_up(mirror.now(), before, after);
    }

    /// Forgets who waits, as all rows are told again.
    pub(crate) fn clear(&mut self) {
        self.telling = Telling::Cleared;
        for line in self.lines.values_mut() {
            line.waiting = Ranks::default();
            line.by_tenant.clear();
        }
    }

    /// Begins a telling, unless it has begun.
    fn begin(&mut self, now: u64) {
        match self.telling {
            Telling::Nobody => self.telling = Telling::Changed,
            Telling::Cleared => {
                self.telling = Telling::All;
                let lines = self.lines.values_mut();
                for line in lines.filter(|line| line.empty_since.is_none()) {
                    line.goes_on(self.told_at, now);
                }
            }
            Telling::Changed | Telling::All => {}
        }
    }

    /// Takes note of all rows that were told: who came meets those who wait now, in whatever order the rows were. `wait_max`
    /// is how long one may wait who is in a hurry, in microseconds.
    pub(crate) fn told(&mut self, mirror: &Mirror, wait_max: u64) {
        let now = mirror.now();
        if self.telling == Telling::Nobody {
            return;
        }
        self.begin(now);
        let telling = std::mem::take(&mut self.telling);
        for key in std::mem::take(&mut self.moved) {
            if let Some(line) = self.lines.get_mut(&key) {
                line.settle(self.told_at, now);
            }
        }
        if telling == Telling::All {
            let lines = self.lines.values_mut();
            for line in lines.filter(|line| line.waiting.0.is_empty()) {
                line.empty_since.get_or_insert(now);
            }
        }
        self.came.sort_unstable();
        for (key, urgency) in self.came.drain(..) {
            let line = self.lines.get_mut(&key);
            if let Some(line) = line.filter(|line| line.empty_since.is_none()) {
                let longest = line.longest(mirror.bounds(), wait_max);
                line.meets(urgency, now, longest);
            }
        }
        self.told_until(now);
    }

    /// Takes note that all rows of who waits are told up to `now`, in microseconds: a question is asked that reads them.
    pub(crate) fn told_until(&mut self, now: u64) {
        self.told_at = now;
    }

    fn comes(&mut self, request: &Request) {
        let is_met = self.telling == Telling::All && request.arrived <= self.told_at;
        if request.stage == Stage::Arrived && !is_met {
            self.came
                .push((LineKey::of(request), Urgency::from(request)));
        }
    }

    /// Has the request join or leave its line. A change of its row alone moves nobody.
    fn line_up(&mut self, now: u64, before: Option<&Request>, after: Option<&Request>) {
        let before = before.filter(waits);
        let after = after.filter(waits);
        match (before, after) {
            (Some(before), Some(after)) if LineKey::of(before) == LineKey::of(after) => {
                if let Some(line) = self.lines.get_mut(&LineKey::of(after)) {
                    line.take_out(before);
                    line.put_in(after);
                }
            }
            (before, after) => {
                if let Some(request) = before {
                    self.leave(request);
                }
                if let Some(request) = after {
                    self.join(request, now);
                }
            }
        }
    }

    fn join(&mut self, request: &Request, now: u64) {
        let key = LineKey::of(request);
        self.moved.insert(key);
        let line = self.lines.entry(key);
        let line = line.or_insert_with(|| Line::beginning(now));
        line.put_in(request);
        line.joined += 1;
    }

    fn leave(&mut self, request: &Request) {
        let key = LineKey::of(request);
        if let Some(line) = self.lines.get_mut(&key) {
            self.moved.insert(key);
            line.take_out(request);
            line.left.push(request.hold_end);
        }
    }

    /// The lines that have not ended, without those who wait in them, as bytes with their number before them.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        let lines = self.lines.iter();
        let lines = lines.filter(|(_, line)| !line.has_ended(self.told_at));
        let lines: Vec<_> = lines.collect();
        let mut bytes = self.told_at.to_le_bytes().to_vec();
        put_len(&mut bytes, lines.len());
        for (key, line) in lines {
            put_option(&mut bytes, key.model.map(u64::from));
            put_option(&mut bytes, key.pins);
            put_option(&mut bytes, line.empty_since);
            line.pace.put(&mut bytes);
            line.surge.put(&mut bytes);
        }
        bytes
    }

    /// Takes the bytes that [`Self::snapshot`] made off the front.
    ///
    /// # Errors
    ///
    /// A sentence, where they end before their number is reached.
    pub(crate) fn restore(state: &mut &[u8]) -> Result<Self, String> {
        let all = state.len();
        let cut = || format!("a snapshot of {all} bytes ends within the lines");
        Self::taken(state).ok_or_else(cut)
    }

    fn taken(state: &mut &[u8]) -> Option<Self> {
        let mut lines = Self {
            told_at: take_u64(state)?,
            ..Self::default()
        };
        for _ in 0..take_u32(state)? {
            let model = take_option(state)?;
            let key = LineKey {
                model: model.map(u32::try_from).transpose().ok()?,
                pins: take_option(state)?,
            };
            let line = Line {
                empty_since: take_option(state)?,
                pace: Pace::taken(state)?,
                surge: Surge::taken(state)?,
                ..Line::beginning(lines.told_at)
            };
            lines.lines.insert(key, line);
        }
        Some(lines)
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
            joined: 0,
            left: Vec::new(),
        }
    }

    /// Takes note of those that have joined and left since `told_at`, in microseconds, in whatever order their rows were.
    fn settle(&mut self, told_at: u64, now: u64) {
        let joined = std::mem::take(&mut self.joined);
        let mut left = std::mem::take(&mut self.left);
        let waited = (self.waiting.len() + left.len()).saturating_sub(joined);
        let told = self.pace;
        let left_at = |left: usize| {
            let time = told.time_for(left, told_at).unwrap_or(0);
            told_at.saturating_add(time).min(now)
        };
        left.sort_unstable();
        for (number, hold_end) in (1..).zip(&left) {
            let at = left_at(number);
            self.pace.leaves(at);
            self.surge.leaves(at, *hold_end);
        }
        if waited > 0 && left.len() >= waited {
            self.empty_since = Some(left_at(waited));
        }
        if self.waiting.0.is_empty() {
            self.empty_since.get_or_insert(now);
        } else if let Some(since) = self.empty_since.take() {
            self.goes_on(since, now);
        }
    }

    /// Has a line go on at `now` that nobody waited in since some time, or of which nothing was told since then, in
    /// microseconds; after a while it is another one that begins.
    fn goes_on(&mut self, since: u64, now: u64) {
        let time = now.saturating_sub(since);
        if time < REST {
            self.pace.skip(time);
        } else {
            self.pace = Pace::beginning(now);
            self.surge = Surge::beginning(now);
        }
    }

    /// Returns whether it has been empty for so long that whoever joins it begins another one.
    fn has_ended(&self, now: u64) -> bool {
        let empty = self.empty_since.map(|since| now.saturating_sub(since));
        empty.is_some_and(|time| time >= REST)
    }

    /// Has a request come where somebody waits, which may not be let in. A line with a wait of `longest` is a surge, in microseconds.
    fn meets(&mut self, urgency: Urgency, now: u64, longest: u64) {
        self.surge.comes(now);
        let wait = self.pace.time_for(self.ahead(urgency), now);
        if wait.is_some_and(|wait| wait >= longest) {
            self.surge.begins();
        }
    }

    /// The wait from which on a line is a surge, in microseconds: that of one in a hurry that may wait no longer, or which routing
    /// may hold no longer and then has to place behind others somewhere. Half of that, since a pace is an estimate.
    fn longest(&self, bounds: &Bounds, wait_max: u64) -> u64 {
        let longest = wait_max.max(SURGE_MIN).min(bounds.wait_max);
        if self.surge.holds_run_out() {
            longest.min(bounds.held_max / 2)
        } else {
            longest
        }
    }

    fn put_in(&mut self, request: &Request) {
        let urgency = Urgency::from(request);
        self.waiting.add(urgency);
        self.by_tenant
            .entry(request.tenant)
            .or_default()
            .add(urgency);
    }

    fn take_out(&mut self, request: &Request) {
        let urgency = Urgency::from(request);
        self.waiting.remove(urgency);
        if let Some(ranks) = self.by_tenant.get_mut(&request.tenant) {
            ranks.remove(urgency);
            if ranks.0.is_empty() {
                self.by_tenant.remove(&request.tenant);
            }
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

    fn len(&self) -> usize {
        self.0.values().sum()
    }

    /// The number of those at least as urgent.
    fn from(&self, urgency: Urgency) -> usize {
        self.0.range(urgency..).map(|(_, count)| count).sum()
    }
}
