//! The changed rows in order, from which each policy is told the changes that it has not heard yet.
//!
//! Readers keep their own position ([`crate::Feed`]); the log knows none of them. A reader that has
//! fallen behind the entries kept is told everything anew.

use std::collections::VecDeque;

use pointsman_interface::rows::{NameKind, Presence};
use pointsman_interface::{DeviceId, ExecutorId, ModelId, RequestId, TenantId};

/// The key of a row that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum RowKey {
    Name(NameKind, u32),
    Executor(ExecutorId),
    Load(ExecutorId),
    Residency(Presence),
    Device(DeviceId),
    Model(ModelId),
    Tenant(TenantId),
    Waiting(RequestId),
    Sequence(RequestId),
    Completion(u64),
}

/// Position of a row's newest entry in the log; an older entry of the same row is skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Stamp(u64);

/// The state of a row that a reader asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// The row behind this entry, if that is its newest.
    Entry(Stamp),
    /// The row as it is, if it has not changed from this position on.
    Untold(u64),
}

impl Wanted {
    /// Tells whether a live row with this stamp is wanted.
    pub(crate) fn live(self, stamp: Stamp) -> bool {
        match self {
            Wanted::Entry(entry) => entry == stamp,
            Wanted::Untold(position) => stamp.0 < position,
        }
    }

    /// Tells whether the news that a row is gone is wanted.
    pub(crate) fn gone(self) -> bool {
        matches!(self, Wanted::Entry(_))
    }
}

/// The newest row changes.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    pub(crate) entries: VecDeque<RowKey>,
    pub(crate) entries_max: usize,
    /// Position of the first entry kept. Positions start at 1, so that a default stamp is older
    /// than every entry.
    pub(crate) base: u64,
}

impl ChangeLog {
    pub(crate) fn new(entries_max: u32) -> Self {
        Self {
            entries: VecDeque::new(),
            entries_max: entries_max as usize,
            base: 1,
        }
    }

    /// Notes that `key` changed, and stamps the row with the entry's position.
    pub(crate) fn mark(&mut self, key: RowKey, stamp: &mut Stamp) {
        *stamp = Stamp(self.end());
        self.note(key);
    }

    /// Notes that `key` changed, for a row that is gone or changes once.
    pub(crate) fn note(&mut self, key: RowKey) {
        if self.entries.len() == self.entries_max {
            self.entries.pop_front();
            self.base += 1;
        }
        self.entries.push_back(key);
    }

    /// Position after the newest entry.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// The entries from `position` on, each with its own; absent where they are no longer kept.
    pub(crate) fn since(&self, position: u64) -> Option<impl Iterator<Item = (Stamp, RowKey)>> {
        let skip = position.checked_sub(self.base)?;
        let skip = usize::try_from(skip).ok()?;
        if skip > self.entries.len() {
            return None;
        }
        let entries = self.entries.range(skip..);
        Some(entries.zip(position..).map(|(key, at)| (Stamp(at), *key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_behind_what_is_kept_gets_nothing() {
        let mut log = ChangeLog::new(2);
        let start = log.end();
        for id in 0..3 {
            log.note(RowKey::Load(ExecutorId(id)));
        }
        assert!(log.since(start).is_none());
        let kept: Vec<_> = log.since(start + 1).unwrap().map(|(_, key)| key).collect();
        assert_eq!(
            kept,
            [RowKey::Load(ExecutorId(1)), RowKey::Load(ExecutorId(2))]
        );
        assert_eq!(log.since(log.end()).unwrap().count(), 0);
    }
}
