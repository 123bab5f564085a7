//! The queued requests in the order they would be displaced.
//!
//! Kept from change to change: a full queue is when nobody has time to sort it.
//!
//! # Invariants
//! 1. It holds the requests of the mirror whose stage is queued
//!    (`tests::the_queue_follows_the_mirror`).

use std::collections::BTreeSet;

use pointsman_sdk::wire::types::{Change, Request, Stage};
use pointsman_sdk::{Mirror, Urgency};

/// The queued requests, the first to be displaced first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    standing: BTreeSet<Standing>,
}

/// A queued request: the least urgent come first, among them the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Standing {
    pub(crate) urgency: Urgency,
    arrived: u64,
    pub(crate) request: u64,
}

impl Queue {
    pub(crate) fn clear(&mut self) {
        self.standing.clear();
    }

    /// `mirror` still holds what `change` replaces.
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
        if let Some(standing) = before.and_then(Standing::of) {
            self.standing.remove(&standing);
        }
        if let Some(standing) = after.and_then(Standing::of) {
            self.standing.insert(standing);
        }
    }

    /// The first to be displaced first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Standing> {
        self.standing.iter()
    }
}

impl Standing {
    fn of(request: &Request) -> Option<Self> {
        (request.stage == Stage::Queued).then(|| Self {
            urgency: Urgency::from(request),
            arrived: request.arrived,
            request: request.id,
        })
    }
}
