//! The rows that a policy has been told, and those that must be told before its next question.
//!
//! The protocol is `observe` of `wit/hooks.wit`: of the kinds that the question's hook needs each
//! row that changed since the policy was told of that kind, once, and each row the last answer
//! named, changed or not, so that what a policy counted while answering cannot outlive a refusal.
//!
//! # Invariants
//! 1. After [`Feed::changes`] the policy's mirror equals the machine's rows of the kinds asked for
//!    (`tests/feed.rs` folds random runs and compares).
//! 2. A row named by an answer is among the next changes (`tests/feed.rs`).
//! 3. With a [`Relay`], a policy elsewhere is told what it would be told here
//!    (`tests/tests/policies/shadow.rs`). But what lags in a row ([`pointsman_interface::rows::Sequence`]) is as old as
//!    the row's last news.

use std::collections::{BTreeMap, BTreeSet};

use crate::changes::{ChangeLog, News, RowKey, Stamp};
use pointsman_interface::rows::{Change, Extent};
use pointsman_interface::{NamedRow, Needs, Question, Reply, RowKind, RowKinds};

/// The rows of a machine, as a feed reads them.
pub trait RowSource {
    /// The rows that changed, in order.
    fn log(&self) -> &ChangeLog;

    /// The row behind `key` as it is now, if it is there.
    fn row(&self, key: RowKey) -> Option<Change>;

    /// The stamp of a row that an answer can name, if the row is there.
    fn stamp(&self, key: RowKey) -> Option<Stamp>;

    /// The news that the row behind `key` is gone, if it has not come back since.
    fn gone(&self, key: RowKey) -> Option<Change>;

    /// Adds every row there is of these kinds to `out`, in the order that a policy needs them: names
    /// first.
    fn everything(&self, kinds: RowKinds, out: &mut Vec<Change>);
}

/// One policy's position in the machine's changes.
#[derive(Debug)]
pub struct Feed {
    needs: Needs,
    /// The positions to go on from; absent: the policy knows nothing yet.
    positions: Option<Positions>,
    /// The rows that the last answers named.
    pub named: Named,
}

/// The positions up to which a policy has been told, by kind of rows: a kind that a question does
/// not need is left for the next one that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Positions([u64; RowKind::ALL.len()]);

/// Rows that an answer named, and that its policy is told again. Of the executors of a placement
/// that is the first, on which a policy counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named(Vec<RowKey>);

/// The far end of a feed, where the machine cannot be seen: it tells a policy that answers later
/// and elsewhere again what that policy's own answers named.
#[derive(Debug, Default)]
pub struct Relay {
    /// The rows that the last answers named.
    pub named: Named,
    /// The rows that an answer can name, each as it was told last.
    rows: BTreeMap<RowKey, Change>,
}

impl Positions {
    /// These positions for `kinds`, and positions that nothing reaches for all other kinds.
    fn only(self, kinds: RowKinds) -> Self {
        let mut only = Self([u64::MAX; RowKind::ALL.len()]);
        for kind in kinds.iter() {
            only.0[kind as usize] = self.0[kind as usize];
        }
        only
    }

    /// The position up to which the kind of a row was told.
    fn told(&self, key: RowKey) -> u64 {
        self.0[key.kind() as usize]
    }

    /// Tells whether the policy was told of a row that was there from `since` on. With an executor goes
    /// its name, which may have been told before its row.
    fn knew(&self, key: RowKey, since: u64) -> bool {
        let name = || self.0[RowKind::Name as usize];
        since < self.told(key) || matches!(key, RowKey::Executor(_)) && since < name()
    }

    /// The oldest position of `kinds`; absent: there are none.
    fn oldest(&self, kinds: RowKinds) -> Option<u64> {
        kinds.iter().map(|kind| self.0[kind as usize]).min()
    }

    fn set(&mut self, kinds: RowKinds, position: u64) {
        for kind in kinds.iter() {
            self.0[kind as usize] = position;
        }
    }
}

impl Feed {
    /// Makes the feed of a policy that knows nothing yet and whose hooks have these needs.
    #[must_use]
    pub fn new(needs: Needs) -> Self {
        Self {
            needs,
            positions: None,
            named: Named::default(),
        }
    }

    /// The kinds of rows that the policy's hooks read.
    #[inline]
    #[must_use]
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// The position in the machine's changes up to which the policy has been told of every kind
    /// that a decision of it reads; absent: the policy knows nothing.
    #[inline]
    #[must_use]
    pub fn told(&self) -> Option<u64> {
        let positions = self.positions?;
        Some(positions.oldest(self.needs.decided()).unwrap_or_default())
    }

    /// Begins anew, after a fresh instance took the policy's place and knows nothing.
    pub fn reset(&mut self) {
        self.positions = None;
        self.named.0.clear();
    }

    /// Writes to `out` the changes of these kinds that the policy must be told now, and takes them
    /// as told. A policy that knows nothing is told every kind that a decision of it reads. With
    /// nothing to tell, `out` stays empty and no `observe` is due.
    #[inline]
    pub fn changes(
        &mut self,
        source: &dyn RowSource,
        kinds: RowKinds,
        out: &mut Vec<Change>,
    ) -> Extent {
        out.clear();
        let Some(positions) = &mut self.positions else {
            return self.everything(source, out);
        };
        let Some(oldest) = positions.oldest(kinds) else {
            return Extent::SinceLast;
        };
        let Some(entries) = source.log().since(oldest) else {
            return self.everything(source, out);
        };
        // The log is long, and most of its news are void, of other kinds, or told: these must cost next to nothing.
        let due_from = positions.only(kinds);
        entries.for_each(|(at, news)| {
            let row = match *news {
                News::Changed(key) if at >= due_from.told(key) => source.row(key),
                News::Gone { key, since } if at >= due_from.told(key) => {
                    let knew = positions.knew(key, since);
                    knew.then(|| source.gone(key)).flatten()
                }
                News::Changed(_) | News::Gone { .. } | News::Void => return,
            };
            if let Some(row) = row {
                out.push(row);
            }
        });
        let is_as_told = |key: RowKey| {
            let stamp = source.stamp(key);
            stamp.is_some_and(|stamp| stamp.is_before(positions.told(key)))
        };
        let named = self.named.take(kinds, is_as_told);
        out.extend(named.into_iter().filter_map(|key| source.row(key)));
        positions.set(kinds, source.log().end());
        Extent::SinceLast
    }

    fn everything(&mut self, source: &dyn RowSource, out: &mut Vec<Change>) -> Extent {
        source.everything(self.needs.decided(), out);
        self.positions = Some(Positions([source.log().end(); RowKind::ALL.len()]));
        self.named.0.clear();
        Extent::Everything
    }
}

impl Named {
    /// Takes out the rows of these kinds. Returns those that are `wanted`, in order, each once.
    fn take(&mut self, kinds: RowKinds, wanted: impl Fn(RowKey) -> bool) -> Vec<RowKey> {
        let is_taken = |key: &mut RowKey| kinds.contains(key.kind());
        let taken = self.0.extract_if(.., is_taken);
        let mut taken: Vec<RowKey> = taken.filter(|key| wanted(*key)).collect();
        taken.sort_unstable();
        taken.dedup();
        taken
    }

    /// Notes a row that an answer named, if the hook that gave it reads such rows: on others it
    /// cannot have counted anything.
    fn add(&mut self, key: RowKey, kinds: RowKinds) {
        if kinds.contains(key.kind()) {
            self.0.push(key);
        }
    }

    /// Notes the rows that the reply of a policy with these needs to a question named.
    #[inline]
    pub fn by_reply(&mut self, needs: &Needs, question: &Question<'_>, reply: &Reply) {
        let kinds = needs.of(question.hook());
        reply.named(question, |row| match row {
            NamedRow::Request(request) => {
                self.add(RowKey::Waiting(request), kinds);
                self.add(RowKey::Sequence(request), kinds);
            }
            NamedRow::Load(executor) => self.add(RowKey::Load(executor), kinds),
        });
    }
}

impl Relay {
    /// Takes note of a feed's changes of these kinds, and adds the rows of them that the last
    /// answers named and that are not among the changes.
    pub fn pass(&mut self, kinds: RowKinds, extent: Extent, changes: &mut Vec<Change>) {
        if extent == Extent::Everything {
            self.rows.clear();
            self.named.0.clear();
        }
        let mut changed = BTreeSet::new();
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
            changed.insert(key);
            match row {
                Some(row) => self.rows.insert(key, row.clone()),
                None => self.rows.remove(&key),
            };
        }
        self.named.0.retain(|key| !changed.contains(key));
        let named = self.named.take(kinds, |_| true);
        changes.extend(named.iter().filter_map(|key| self.rows.get(key)).cloned());
    }
}
