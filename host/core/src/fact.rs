//! What happened inside the machine: the one stream that journal, metrics, logs and monitor
//! are made from.

use crate::answer::{Author, EvictHow, PolicyFault};
use crate::hook::Hook;
use crate::ids::{DeviceId, ExecutorId, Micros, ModelId, RequestId, Round, TenantId};
use crate::question::ShortageCause;
use crate::refusal::Refusal;
use crate::rows::Health;

/// A fact with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stamped {
    /// When.
    pub now: Micros,
    /// The round in which it happened, or the last one before it.
    pub round: Round,
    /// What.
    pub fact: Fact,
}

/// How a request ended. Set once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Outcome {
    /// It was served.
    Finished {
        /// Tokens generated over all its placements.
        output_tokens: u32,
    },
    /// It was not taken.
    Refused(RefusedWhy),
    /// Its client left.
    Cancelled,
    /// Its time ran out.
    Expired(ExpiredWhy),
    /// Every try failed.
    Failed(FailedWhy),
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RefusedWhy {
    /// No room; try again in so many seconds.
    NoRoom {
        /// Seconds.
        retry_after: u32,
    },
    /// Admission gave its place in the queue to another.
    Displaced {
        /// Seconds.
        retry_after: u32,
    },
    /// Admission is closed: its policy does not answer, and nobody else may. Try again in so many
    /// seconds.
    Closed {
        /// Seconds.
        retry_after: u32,
    },
    /// Routing found that it cannot be served in time to be of use.
    GaveUp,
    /// Prompt and output bound fit on no attached executor that may serve it.
    NeverFits {
        /// Blocks it would need where it comes closest to fitting.
        blocks_needed: u32,
        /// Blocks there are there.
        blocks_total: u32,
    },
}

/// Which time ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ExpiredWhy {
    /// The client's deadline.
    Deadline,
    /// The host's bound on waiting for a place.
    Wait,
}

/// Why no further try is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FailedWhy {
    /// The failure was not one to retry.
    NotRetryable,
    /// The executor died after the client had seen part of the answer.
    Lost,
    /// As many tries as allowed.
    AttemptsMax,
    /// Every executor that may serve it has failed it.
    NowhereLeft,
}

/// Why a request is back in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RequeuedWhy {
    /// It was evicted.
    Evicted,
    /// Its executor failed it.
    Failed,
    /// Its executor died.
    Lost,
}

/// Which bound on a policy ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Clock {
    /// It could have been placed all that time.
    Unplaced,
    /// It was overtaken too often where it could have run.
    Overtaken,
    /// It runs and got no token for too many steps.
    Tokenless,
    /// It runs and lacked a block for too long.
    Stalled,
}

/// Where a request was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PlacedIn {
    /// Into a slot; it starts at once.
    Slot,
    /// Into the device queue of its class.
    Queue,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Fact {
    /// A device was attached.
    DeviceAttached(DeviceId),
    /// An executor was attached.
    ExecutorAttached(ExecutorId, DeviceId),
    /// An executor's health changed.
    HealthChanged(ExecutorId, Health),
    /// An executor died.
    ExecutorLost(ExecutorId),
    /// An executor was removed.
    ExecutorDetached(ExecutorId),
    /// A request arrived.
    Arrived {
        /// Which.
        request: RequestId,
        /// Whose.
        tenant: TenantId,
        /// For which model.
        model: Option<ModelId>,
    },
    /// It was let into the queue.
    Admitted(RequestId, Decided),
    /// It waits outside the queue.
    Parked(RequestId, Decided),
    /// The queue has room, and it is in it now.
    Unparked(RequestId),
    /// It will not be served, by decision; its outcome follows.
    TurnedAway(RequestId, Decided),
    /// It has no place yet, by decision.
    Held(RequestId, Option<Micros>, Decided),
    /// It has a place.
    Placed {
        /// Which.
        request: RequestId,
        /// Where.
        executor: ExecutorId,
        /// In a slot or the queue there.
        into: PlacedIn,
        /// By whom and why.
        by: Decided,
    },
    /// Its engine took it up.
    Started(RequestId, ExecutorId),
    /// It has to leave.
    Evicted {
        /// Who leaves.
        victim: RequestId,
        /// Where it was.
        executor: ExecutorId,
        /// For whom.
        needy: RequestId,
        /// How.
        how: EvictHow,
        /// By whom and why.
        by: Decided,
    },
    /// It has left, and gave back its blocks.
    Left(RequestId, ExecutorId),
    /// It waits for a place again.
    Requeued(RequestId, RequeuedWhy),
    /// Room on that executor is kept for that request.
    Reserved(RequestId, ExecutorId),
    /// That room is no longer kept: cancelled, expired, or its executor is gone.
    ReservationDropped(RequestId, ExecutorId),
    /// Somebody lacks room, and a policy was asked who gives way.
    Short(RequestId, ShortageCause),
    /// An engine's tokens per step.
    Allotted {
        /// Which engine.
        executor: ExecutorId,
        /// Tokens.
        tokens_max: u32,
        /// By whom.
        author: Author,
    },
    /// An answer, or part of one, was refused.
    Refused(Author, Hook, Refusal),
    /// A policy failed; the one behind it answered.
    Fault(Hook, PolicyFault),
    /// A policy let a bound run out, and the built-in rule stepped in.
    Strike(Clock, Hook, RequestId),
    /// It ended.
    Ended(RequestId, Outcome),
}

/// Who decided, and for which of its reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Decided {
    /// Who.
    pub author: Author,
    /// Index into that policy's reasons; meaningless for the built-in rule.
    pub reason: u16,
}

impl Decided {
    /// By the machine's own rule.
    pub const BUILT_IN: Decided = Decided {
        author: Author::BuiltIn,
        reason: 0,
    };
}
