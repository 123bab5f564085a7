//! The changed rows in order, from which each policy is told the changes that it has not heard yet.
//!
//! Readers keep their own position ([`crate::Feed`]); the log knows none of them. A reader that has
//! fallen behind the entries kept is told everything anew.
//!
//! # Invariants
//! 1. A row has one entry at most, its newest: an entry is void once the row changes again
//!    (`tests`). So a reader is told a row once, however often it changed.
//! 2. That a row is gone is told to those alone who were told of the row (`tests`).

use std::collections::VecDeque;

use pointsman_interface::rows::{NameKind, Presence};
use pointsman_interface::{DeviceId, ExecutorId, ModelId, RequestId, RowKind, TenantId};

/// The key of a row that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RowKey {
    /// A name, by its kind and id.
    Name(NameKind, u32),
    /// The lasting facts of an executor.
    Executor(ExecutorId),
    /// The load of an executor.
    Load(ExecutorId),
    /// A model on an executor.
    Residency(Presence),
    /// The KV blocks of a device.
    Device(DeviceId),
    /// A model.
    Model(ModelId),
    /// A tenant.
    Tenant(TenantId),
    /// A request that has not started.
    Waiting(RequestId),
    /// A request that is placed.
    Sequence(RequestId),
    /// The end of a request, by its number.
    Completion(u64),
}

impl RowKey {
    /// The kind of the row.
    #[inline]
    pub fn kind(self) -> RowKind {
        match self {
            RowKey::Name(..) => RowKind::Name,
            RowKey::Executor(_) => RowKind::Executor,
            RowKey::Load(_) => RowKind::Load,
            RowKey::Residency(_) => RowKind::Residency,
            RowKey::Device(_) => RowKind::Device,
            RowKey::Model(_) => RowKind::Model,
            RowKey::Tenant(_) => RowKind::Tenant,
            RowKey::Waiting(_) => RowKind::Waiting,
            RowKey::Sequence(_) => RowKind::Sequence,
            RowKey::Completion(_) => RowKind::Completion,
        }
    }
}

/// The positions of a row's entries in the log; 0 where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stamp {
    first: u64,
    newest: u64,
}

impl Stamp {
    /// Tells whether the row has not changed from `position` on.
    #[inline]
    pub fn is_before(self, position: u64) -> bool {
        self.newest < position
    }
}

/// The news of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The row is new or has changed.
    Changed(RowKey),
    /// The row is gone, which was there from this position on.
    Gone {
        /// The row.
        key: RowKey,
        /// The position of its first entry.
        since: u64,
    },
    /// Nothing any more: a later entry has the row's news.
    Void,
}

/// The newest row changes.
#[derive(Clone, Debug)]
pub struct ChangeLog {
    entries: VecDeque<News>,
    entries_max: usize,
    /// Position of the first entry kept. Positions start at 1, so that a default stamp is older
    /// than every entry.
    base: u64,
}

impl ChangeLog {
    /// An empty log, which keeps so many entries.
    #[must_use]
    pub fn new(entries_max: u32) -> Self {
        Self {
            entries: VecDeque::new(),
            entries_max: entries_max as usize,
            base: 1,
        }
    }

    /// Notes that `key` changed, and stamps the row with the entry's position.
    #[inline]
    pub fn mark(&mut self, key: RowKey, stamp: &mut Stamp) {
        let position = self.replace(News::Changed(key), *stamp);
        if stamp.first == 0 {
            stamp.first = position;
        }
        stamp.newest = position;
    }

    /// Notes that the row of `key` is gone.
    #[inline]
    pub fn gone(&mut self, key: RowKey, stamp: &mut Stamp) {
        let since = stamp.first;
        stamp.newest = self.replace(News::Gone { key, since }, *stamp);
    }

    /// Notes a row that changes only this once.
    #[inline]
    pub fn note(&mut self, key: RowKey) {
        self.push(News::Changed(key));
    }

    /// Adds the newest entry of a row in place of the one before it. Returns its position.
    fn replace(&mut self, news: News, stamp: Stamp) -> u64 {
        let before = stamp.newest.checked_sub(self.base);
        let before = before.and_then(|at| self.entries.get_mut(usize::try_from(at).ok()?));
        if let Some(before) = before {
            *before = News::Void;
        }
        let position = self.end();
        self.push(news);
        position
    }

    fn push(&mut self, news: News) {
        if self.entries.len() == self.entries_max {
            self.entries.pop_front();
            self.base += 1;
        }
        self.entries.push_back(news);
    }

    /// Position after the newest entry.
    #[inline]
    pub fn end(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// The entries from `position` on, each with its own; absent where they are no longer kept. There are many:
    /// [`Iterator::for_each`] goes through them much faster than a loop.
    #[inline]
    pub fn since(&self, position: u64) -> Option<impl Iterator<Item = (u64, &News)>> {
        let skip = position.checked_sub(self.base)?;
        let skip = usize::try_from(skip).ok()?;
        if skip > self.entries.len() {
            return None;
        }
        let entries = self.entries.range(skip..).enumerate();
        Some(entries.map(move |(n, news)| (position + n as u64, news)))
    }
}

/// Writes only its end: nobody has read the entries.
#[cfg(feature = "serde")]
impl serde::Serialize for ChangeLog {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct("ChangeLog", &(self.end(), self.entries_max))
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for ChangeLog {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (base, entries_max) = serde::Deserialize::deserialize(deserializer)?;
        Ok(Self {
            entries: VecDeque::new(),
            entries_max,
            base,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(id: u32) -> RowKey {
        RowKey::Load(ExecutorId(id))
    }

    fn kept(log: &ChangeLog, position: u64) -> Vec<News> {
        let entries = log.since(position).unwrap().map(|(_, news)| *news);
        entries.filter(|news| *news != News::Void).collect()
    }

    #[test]
    fn a_reader_behind_what_is_kept_gets_nothing() {
        let mut log = ChangeLog::new(2);
        let start = log.end();
        for id in 0..3 {
            log.note(load(id));
        }
        assert!(log.since(start).is_none());
        let rows = [News::Changed(load(1)), News::Changed(load(2))];
        assert_eq!(kept(&log, start + 1), rows);
        assert_eq!(log.since(log.end()).unwrap().count(), 0);
    }

    #[test]
    fn a_row_has_one_entry_however_often_it_changes_comes_and_goes() {
        let mut log = ChangeLog::new(100);
        let (mut one, mut other) = (Stamp::default(), Stamp::default());
        let start = log.end();
        for _ in 0..3 {
            log.mark(load(1), &mut one);
            log.mark(load(2), &mut other);
        }
        let rows = [News::Changed(load(1)), News::Changed(load(2))];
        assert_eq!(kept(&log, start), rows);
        let told = log.end();
        for _ in 0..2 {
            log.gone(load(1), &mut one);
            log.mark(load(1), &mut one);
        }
        assert_eq!(kept(&log, told), [News::Changed(load(1))]);
        log.gone(load(1), &mut one);
        let key = load(1);
        assert_eq!(kept(&log, told), [News::Gone { key, since: start }]);
    }

    #[test]
    fn an_entry_that_is_kept_no_longer_is_nobody_elses() {
        let mut log = ChangeLog::new(1);
        let mut stamp = Stamp::default();
        log.mark(load(1), &mut stamp);
        log.note(load(2));
        log.mark(load(1), &mut stamp);
        assert_eq!(kept(&log, log.base), [News::Changed(load(1))]);
    }
}
