//! The rows that a policy has been told, and those that must be told before its next question.
//!
//! The protocol is `observe` of `wit/hooks.wit`: each row that changed since the last time,
//! and each row the last answer named, changed or not, so that what a policy counted while
//! answering cannot outlive a refusal.
//!
//! # Invariants
//! 1. After [`Feed::changes`] the policy's mirror equals the machine's rows
//!    (`tests/feed.rs` folds random runs and compares).
//! 2. A row named by an answer is among the next changes (`tests/feed.rs`).
//! 3. With a [`Relay`], a policy elsewhere is told what it would be told here
//!    (`tests/tests/shadow.rs`). But what lags in a row ([`pointsman_interface::rows::Sequence`]) is as old as
//!    the row's last news.

use std::collections::{BTreeMap, BTreeSet};

use crate::log::{RowKey, Wanted};
use crate::view::View;
use pointsman_interface::Question;
use pointsman_interface::rows::{AskedRequest, Cached, Change, Extent, FeedKinds};
use pointsman_interface::{Eviction, Reply, admission, routing};
use pointsman_interface::{ExecutorId, RequestId};

/// One policy's position in the machine's changes.
#[derive(Debug)]
pub struct Feed {
    kinds: FeedKinds,
    /// The position to go on from; absent: the policy knows nothing yet.
    position: Option<u64>,
    /// The rows that the last answer named.
    pub named: Named,
}

/// Rows that an answer named, and that its policy is told again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named(BTreeSet<RowKey>);

/// The far end of a feed, where the machine cannot be seen: it tells a policy that answers later
/// and elsewhere again what that policy's own answers named.
#[derive(Debug, Default)]
pub struct Relay {
    /// The rows that the last answer named.
    pub named: Named,
    /// The rows that an answer can name, each as it was told last.
    rows: BTreeMap<RowKey, Change>,
}

impl Feed {
    /// Makes the feed of a policy that knows nothing yet and wants `kinds` besides the rows that
    /// every policy gets.
    #[must_use]
    pub fn new(kinds: FeedKinds) -> Self {
        Self {
            kinds,
            position: None,
            named: Named::default(),
        }
    }

    /// The kinds of rows that the policy gets besides those that every policy gets.
    #[must_use]
    pub fn kinds(&self) -> FeedKinds {
        self.kinds
    }

    /// The position in the machine's changes up to which the policy has been told; absent: the
    /// policy knows nothing.
    #[must_use]
    pub fn told(&self) -> Option<u64> {
        self.position
    }

    /// Begins anew, after a fresh instance took the policy's place and knows nothing.
    pub fn reset(&mut self) {
        self.position = None;
        self.named.0.clear();
    }

    /// Writes to `out` the changes that the policy must be told now, and takes them as told. With
    /// nothing to tell, `out` stays empty and no `observe` is due.
    pub fn changes(&mut self, view: &View<'_>, out: &mut Vec<Change>) -> Extent {
        out.clear();
        let kinds = self.kinds;
        let known = self.position.and_then(|at| Some((at, view.since(at)?)));
        let extent = match known {
            Some((position, entries)) => {
                out.extend(
                    entries.filter_map(|(stamp, key)| view.row(key, Wanted::Entry(stamp), kinds)),
                );
                let named = self.named.0.iter();
                out.extend(named.filter_map(|key| view.row(*key, Wanted::Untold(position), kinds)));
                Extent::SinceLast
            }
            None => {
                view.everything(self.kinds, out);
                Extent::Everything
            }
        };
        self.position = Some(view.end());
        self.named.0.clear();
        extent
    }
}

impl Named {
    /// Notes a request that an answer named.
    pub fn request(&mut self, request: RequestId) {
        self.0.insert(RowKey::Waiting(request));
        self.0.insert(RowKey::Sequence(request));
    }

    /// Notes an executor that an answer named.
    pub fn executor(&mut self, executor: ExecutorId) {
        self.0.insert(RowKey::Load(executor));
    }

    /// Notes the requests and executors that the reply to a question named. An order counts on
    /// nothing that could be refused, and an executor's row says nothing of its allotment.
    pub fn by_reply(&mut self, question: &Question<'_>, reply: &Reply) {
        match (question, reply) {
            (Question::Admission { arrivals, .. }, Reply::Admission(verdicts)) => {
                self.by_admit(arrivals, verdicts);
            }
            (Question::Routing(requests), Reply::Routing(verdicts)) => {
                self.by_route(requests, verdicts);
            }
            (Question::Preemption(_), Reply::Preemption(Some(eviction))) => self.by_evict(eviction),
            (
                Question::Admission { .. }
                | Question::Priority(_)
                | Question::Routing(_)
                | Question::Preemption(_)
                | Question::Budget { .. },
                _,
            ) => {}
        }
    }

    fn by_admit(&mut self, arrivals: &[AskedRequest], verdicts: &[admission::Verdict]) {
        for asked in arrivals {
            self.request(asked.request);
        }
        for verdict in verdicts {
            if let admission::Choice::Displace(displaced) = verdict.choice {
                self.request(displaced.request);
            }
        }
    }

    fn by_route(&mut self, requests: &[Cached], verdicts: &[routing::Verdict]) {
        for (cached, verdict) in requests.iter().zip(verdicts) {
            if let routing::Choice::Place(executors) = &verdict.choice {
                self.request(cached.request);
                for executor in executors {
                    self.executor(*executor);
                }
            }
        }
    }

    fn by_evict(&mut self, eviction: &Eviction) {
        self.executor(eviction.executor);
        for victim in &eviction.victims {
            self.request(victim.request);
        }
    }
}

impl Relay {
    /// Takes note of a feed's changes, and adds the rows that the last answer named and that are
    /// not among them.
    pub fn pass(&mut self, extent: Extent, changes: &mut Vec<Change>) {
        if extent == Extent::Everything {
            self.rows.clear();
            self.named.0.clear();
        }
        for change in changes.iter() {
            let (key, row) = match change {
                Change::Load(row) => (RowKey::Load(row.id), Some(change)),
                Change::Waiting(row) => (RowKey::Waiting(row.id), Some(change)),
                Change::Sequence(row) => (RowKey::Sequence(row.request), Some(change)),
                Change::ExecutorGone(id) => (RowKey::Load(*id), None),
                Change::WaitingGone(id) => (RowKey::Waiting(*id), None),
                Change::SequenceGone(id) => (RowKey::Sequence(*id), None),
                Change::Name(_)
                | Change::Executor(_)
                | Change::Residency(_)
                | Change::ResidencyGone(_)
                | Change::Device(_)
                | Change::Model(_)
                | Change::Tenant(_)
                | Change::Completed(_) => continue,
            };
            self.named.0.remove(&key);
            match row {
                Some(row) => self.rows.insert(key, row.clone()),
                None => self.rows.remove(&key),
            };
        }
        let named = std::mem::take(&mut self.named.0);
        changes.extend(named.iter().filter_map(|key| self.rows.get(key)).cloned());
    }
}
