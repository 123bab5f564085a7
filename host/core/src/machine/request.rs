//! One live request: what its client asked for, and where it is.
//!
//! The phase is the state machine of `DESIGN.md`: without a place (arrived, parked, queued) →
//! placed (in a device queue or a slot) → leaving → without a place again, or gone. A request
//! that has ended is not here.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::fact::Decided;
use crate::ids::{BlockHash, ExecutorId, Incarnation, Micros, RequestId};
use crate::input::SequenceRef;
use crate::log::Stamp;
use crate::rows::{Request as RequestRow, RequestClass};

/// How urgent a request is, before any policy: the greater, the more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Urgency {
    pub(super) class: RequestClass,
    pub(super) priority: i32,
}

/// Everything the machine keeps about one live request.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Request {
    /// As policies see it while it has no place.
    pub(super) row: Arc<RequestRow>,
    pub(super) prompt_hashes: Vec<BlockHash>,
    pub(super) phase: Phase,
    // Over all its placements.
    pub(super) generated: u32,
    pub(super) first_token_at: Option<Micros>,
    pub(super) preemptions: u32,
    /// Placements that ended because the executor failed it or died.
    pub(super) failures: u32,
    /// For whom it was evicted: it may not evict these in turn.
    pub(super) evicted_for: BTreeSet<RequestId>,
    // For the feed.
    pub(super) waiting_stamp: Stamp,
    pub(super) sequence_stamp: Stamp,
}

/// Where a request is.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Phase {
    /// Without a place.
    Waiting(Waiting),
    /// On an executor.
    Placed(Placed),
    /// On an executor, told to leave it.
    Leaving(Placed, AfterLeaving),
}

/// What becomes of a request when it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum AfterLeaving {
    /// It waits again.
    Requeue,
    /// Its outcome is set; only its room is still in use.
    Gone,
}

/// A request without a place.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Waiting {
    /// Since when, for the bound on waiting.
    pub(super) since: Micros,
    /// Since when some executor could have taken it in every round.
    pub(super) feasible_since: Option<Micros>,
    /// How often it was overtaken.
    pub(super) overtaken: u32,
    /// Until when a policy holds it.
    pub(super) held_until: Option<Micros>,
    /// Room kept for it.
    pub(super) reservation: Option<Reservation>,
}

impl Waiting {
    pub(super) fn new(since: Micros) -> Self {
        Self {
            since,
            feasible_since: None,
            overtaken: 0,
            held_until: None,
            reservation: None,
        }
    }
}

/// Room kept on an executor for a request that others give way to.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Reservation {
    pub(super) executor: ExecutorId,
    pub(super) since: Micros,
    /// Who made the others give way.
    pub(super) by: Decided,
}

/// A request on an executor.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Placed {
    pub(super) executor: ExecutorId,
    pub(super) incarnation: Incarnation,
    pub(super) in_slot: InSlot,
    pub(super) placed_at: Micros,
    pub(super) started_at: Option<Micros>,
    /// Leading prompt tokens its blocks held when it was placed.
    pub(super) cached_tokens: u32,
    /// Prompt tokens whose KV is there.
    pub(super) prefilled: u32,
    /// Generated in this placement.
    pub(super) generated: u32,
    pub(super) last_token_at: Option<Micros>,
    pub(super) steps_without_token: u32,
    /// Set while it lacks a block to go on.
    pub(super) short: Option<Short>,
}

impl Placed {
    /// The name by which executors know request `id` as long as it is here.
    pub(super) fn sequence(&self, id: RequestId) -> SequenceRef {
        SequenceRef {
            request: id,
            executor: self.executor,
            incarnation: self.incarnation,
        }
    }
}

/// Whether a placed request has its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum InSlot {
    /// It waits in the device queue.
    Queued,
    /// It runs.
    Running,
}

/// A running sequence that cannot grow.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Short {
    pub(super) since: Micros,
    /// When somebody was last asked who gives way.
    pub(super) asked: Option<Micros>,
    /// How many blocks it must have in all.
    pub(super) blocks: u32,
}

impl Request {
    pub(super) fn id(&self) -> RequestId {
        self.row.id
    }

    pub(super) fn urgency(&self) -> Urgency {
        Urgency {
            class: self.row.class,
            priority: self.row.priority,
        }
    }

    /// Whether this one comes before `other` by urgency, then arrival.
    pub(super) fn precedes(&self, other: &Request) -> bool {
        let key = |r: &Request| (std::cmp::Reverse(r.urgency()), r.id());
        key(self) < key(other)
    }

    pub(super) fn waiting(&self) -> Option<&Waiting> {
        match &self.phase {
            Phase::Waiting(waiting) => Some(waiting),
            Phase::Placed(_) | Phase::Leaving(..) => None,
        }
    }

    pub(super) fn waiting_mut(&mut self) -> Option<&mut Waiting> {
        match &mut self.phase {
            Phase::Waiting(waiting) => Some(waiting),
            Phase::Placed(_) | Phase::Leaving(..) => None,
        }
    }

    /// Its placement, leaving or not.
    pub(super) fn placed(&self) -> Option<&Placed> {
        match &self.phase {
            Phase::Placed(placed) | Phase::Leaving(placed, _) => Some(placed),
            Phase::Waiting(_) => None,
        }
    }

    pub(super) fn placed_mut(&mut self) -> Option<&mut Placed> {
        match &mut self.phase {
            Phase::Placed(placed) | Phase::Leaving(placed, _) => Some(placed),
            Phase::Waiting(_) => None,
        }
    }

    /// It has a place and no slot yet.
    pub(super) fn is_queued_on_executor(&self) -> bool {
        self.placed()
            .is_some_and(|placed| placed.in_slot == InSlot::Queued)
    }

    /// Its outcome is set and only its room is still in use.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_, AfterLeaving::Gone))
    }

    /// Tokens whose KV it must hold to generate its next token, plus that one.
    pub(super) fn tokens_ahead(&self) -> u64 {
        let generated = self.placed().map_or(0, |placed| placed.generated);
        u64::from(self.row.prompt_tokens) + u64::from(generated) + 1
    }

    /// Most tokens whose KV it may ever hold.
    pub(super) fn tokens_bound(&self) -> u64 {
        u64::from(self.row.prompt_tokens) + u64::from(self.row.output_tokens_max)
    }
}
