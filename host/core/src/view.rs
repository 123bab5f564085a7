//! The machine as a policy's host sees it while a question is asked: read-only.

use crate::log::{News, RowKey};
use crate::machine::{Machine, Walk};
use pointsman_interface::rows::{Cached, Change, NameKind, Request};
use pointsman_interface::{Eviction, ExecutorId, RequestId, RowKinds, Shortage};

/// A read-only view of a [`Machine`].
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    machine: &'a Machine,
}

impl<'a> View<'a> {
    pub(crate) fn new(machine: &'a Machine) -> Self {
        Self { machine }
    }

    /// The request as a policy sees it, if it has not started.
    #[must_use]
    pub fn request(&self, request: RequestId) -> Option<&'a Request> {
        self.machine.waiting_row(request).map(|row| &**row)
    }

    /// The text behind an id.
    #[must_use]
    pub fn name(&self, kind: NameKind, id: u32) -> Option<&'a str> {
        self.machine.name(kind, id)
    }

    /// The part of a live request's prompt that is cached, by executor.
    #[must_use]
    pub fn cached(&self, request: RequestId) -> Option<Cached> {
        self.machine.cached(request)
    }

    /// Executors attached now.
    pub fn executors(&self) -> impl Iterator<Item = ExecutorId> + 'a {
        self.machine.executor_ids()
    }

    /// The ways of requests along the executors that an answer names, in order: where each would be
    /// placed now. Of the room that those before it would take, slots and places in queues are
    /// counted, blocks are not.
    #[must_use]
    pub fn walks<'p>(
        &self,
        placements: impl Iterator<Item = (RequestId, &'p [ExecutorId])>,
    ) -> Vec<Walk> {
        self.machine.walks(placements)
    }

    /// The victims of an eviction that could be spared, each for itself: without it the others would
    /// cover the shortage, also by the blocks that policies are told of.
    #[must_use]
    pub fn spared(&self, shortage: &Shortage, eviction: &Eviction) -> Vec<RequestId> {
        self.machine.spared(shortage, eviction)
    }

    /// Position after the newest row change.
    pub(crate) fn end(&self) -> u64 {
        self.machine.log().end()
    }

    /// Row changes from `position` on; absent where they are no longer kept.
    pub(crate) fn since(
        &self,
        position: u64,
    ) -> Option<impl Iterator<Item = (u64, &'a News)> + 'a> {
        self.machine.log().since(position)
    }

    /// The row behind `key` as it is now, if it is there.
    pub(crate) fn row(&self, key: RowKey) -> Option<Change> {
        self.machine.row(key)
    }

    /// Tells whether the row behind `key` has not changed from `position` on.
    pub(crate) fn is_unchanged(&self, key: RowKey, position: u64) -> bool {
        let stamp = self.machine.stamp(key);
        stamp.is_some_and(|stamp| stamp.is_before(position))
    }

    /// The news that the row behind `key` is gone, if it has not come back since.
    pub(crate) fn gone(&self, key: RowKey) -> Option<Change> {
        self.machine.gone(key)
    }

    /// Every row there is of these kinds, as a policy that knows nothing is told them.
    #[must_use]
    pub fn rows(&self, kinds: RowKinds) -> Vec<Change> {
        let mut rows = Vec::new();
        self.everything(kinds, &mut rows);
        rows
    }

    /// Every row there is of these kinds, in the order a policy needs them: names first.
    pub(crate) fn everything(&self, kinds: RowKinds, out: &mut Vec<Change>) {
        self.machine.all_rows(kinds, out);
    }
}
