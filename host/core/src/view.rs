//! The machine as a policy's host sees it while a question is asked: read-only.

use crate::machine::Machine;
use pointsman_events::changes::{ChangeLog, RowKey, Stamp};
use pointsman_events::rows::{Cached, Change, NameKind, Request};
use pointsman_events::{Eviction, ExecutorId, RequestId, RowKinds, RowSource, Shortage, Walk};

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

    /// Every row there is of these kinds, as a policy that knows nothing is told them.
    #[must_use]
    pub fn rows(&self, kinds: RowKinds) -> Vec<Change> {
        let mut rows = Vec::new();
        self.everything(kinds, &mut rows);
        rows
    }
}

impl RowSource for View<'_> {
    fn log(&self) -> &ChangeLog {
        self.machine.log()
    }

    fn row(&self, key: RowKey) -> Option<Change> {
        self.machine.row(key)
    }

    fn stamp(&self, key: RowKey) -> Option<Stamp> {
        self.machine.stamp(key)
    }

    fn gone(&self, key: RowKey) -> Option<Change> {
        self.machine.gone(key)
    }

    fn everything(&self, kinds: RowKinds, out: &mut Vec<Change>) {
        self.machine.all_rows(kinds, out);
    }
}
