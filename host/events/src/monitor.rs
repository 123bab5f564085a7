//! The machine as monitors and operators are shown it, in records that it fills.

use std::collections::BTreeMap;
use std::sync::Arc;

use pointsman_interface::rows::{self, Cached, Health, SequenceState};
use pointsman_interface::{
    Arrangement, DeviceId, ExecutorId, Incarnation, Micros, RefusalCause, RequestId,
};

use crate::fact::PlacedIn;

/// An executor as monitors and tests see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExecutorSnapshot {
    /// The id of the executor.
    pub id: ExecutorId,
    /// The name of the executor.
    pub name: String,
    /// The device that its blocks are on.
    pub device: DeviceId,
    /// The executor's readiness to serve.
    pub health: Health,
    /// The executor's present life.
    pub incarnation: Incarnation,
    /// Slots in use, leaving and reserved ones included.
    pub slots_used: u32,
    /// Slots of the executor in all.
    pub slots_total: u32,
    /// Tokens per step that it was last allotted.
    pub tokens_max: Option<u32>,
    /// Tokens of its steps since its device's last allotment; since it was attached, where its
    /// device's tokens are not allotted.
    pub tokens_used: u64,
    /// The way in which its engine spends them.
    pub arrangement: Arrangement,
    /// The requests that are placed there.
    pub sequences: Vec<(RequestId, SequenceState)>,
}

/// The queue as monitors and tests see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueSnapshot {
    /// Queued requests, in order of arrival.
    pub queued: Vec<RequestId>,
    /// Parked requests, in order of arrival.
    pub parked: Vec<RequestId>,
    /// Requests for which room is being made, each with its executor.
    pub reserved: Vec<(RequestId, ExecutorId)>,
}

/// A request that has not arrived, as it would stand if it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The request as a policy would see it, queued. Its id is that of the next one to arrive.
    pub request: Arc<rows::Request>,
    /// The part of its prompt that is cached.
    pub cached: Cached,
    /// The attached executors, in attach order.
    pub executors: Vec<ProbedExecutor>,
}

/// An executor as the request of a [`Probe`] finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbedExecutor {
    /// The executor.
    pub id: ExecutorId,
    /// The interlock's verdict now.
    pub verdict: Result<PlacedIn, RefusalCause>,
    /// The executor's load if the request were placed there.
    pub load: PotentialLoad,
}

/// The load of an executor if a request were placed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PotentialLoad {
    /// Blocks that its sequences would hold. One that the request would share with them counts once.
    pub blocks_used: u64,
    /// Prompt tokens that it would have yet to compute, without those that are cached.
    pub prefill_tokens_pending: u64,
}

/// The way of one request along the executors of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// The executors that could not take it, as the answer names them, up to the one that could.
    pub passed: Vec<ExecutorId>,
    /// The executor on which it would be placed; absent: none of those named can take it.
    pub to: Option<ExecutorId>,
}

/// The reason for which a request without a place waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Admission has not been asked about the request yet.
    Arrived,
    /// The request waits for room in the queue.
    Parked,
    /// Others give way to the request on that executor.
    Reserved(ExecutorId),
    /// A policy holds the request on purpose, until then at the latest.
    Held(Micros),
    /// Some executor could take the request: the policies have given others, or nobody, the place.
    Turn,
    /// No executor can take the request now. For each obstacle the number of executors where it is the
    /// one that counts.
    Blocked(BTreeMap<Obstacle, u32>),
}

/// The obstacle to a placement on one executor, the easiest to overcome first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// There are too few free blocks.
    NoBlocks,
    /// As many requests of the model run as may.
    RunningMax,
    /// As many distinct models are there as may be.
    ModelsMax,
    /// No slot is free, and the executor's queue has no room.
    NoSlot,
    /// The executor takes nothing new.
    Unavailable,
    /// The request could need more blocks than there are.
    NeverFits,
    /// The executor has failed the request before.
    FailedBefore,
    /// The request may not go there.
    NotAllowed,
    /// The model is not served there.
    NotServed,
}

impl Obstacle {
    /// The obstacle behind a refusal of a placement.
    #[must_use]
    pub fn of(cause: RefusalCause) -> Option<Self> {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "no other refusal is one of a placement"
        )]
        Some(match cause {
            RefusalCause::NoBlocks { .. } => Obstacle::NoBlocks,
            RefusalCause::RunningMax => Obstacle::RunningMax,
            RefusalCause::ModelsMax => Obstacle::ModelsMax,
            RefusalCause::NoSlot => Obstacle::NoSlot,
            RefusalCause::Unavailable(_) => Obstacle::Unavailable,
            RefusalCause::NeverFits { .. } => Obstacle::NeverFits,
            RefusalCause::FailedBefore => Obstacle::FailedBefore,
            RefusalCause::NotAllowed => Obstacle::NotAllowed,
            RefusalCause::NotServed => Obstacle::NotServed,
            _ => return None,
        })
    }
}
