//! Refusals: the reasons why the interlock does not do an action that a policy wants.
//!
//! A refusal is an operating event, not an error: it becomes a fact, counts against its author,
//! and never reaches a client.

use crate::ids::{ExecutorId, RequestId};
use crate::rows::Health;

/// One refused action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[error("{cause}{}", about(*request, *executor))]
pub struct Refusal {
    /// The request that the action was about; absent: the whole answer.
    pub request: Option<RequestId>,
    /// The executor that the action named; absent: none.
    pub executor: Option<ExecutorId>,
    /// The cause of the refusal.
    #[source]
    pub cause: RefusalCause,
}

/// The request and the executor that a refusal is about, as the end of a sentence.
fn about(request: Option<RequestId>, executor: Option<ExecutorId>) -> String {
    match (request, executor) {
        (Some(request), Some(executor)) => format!(" (request {request}, executor {executor})"),
        (Some(request), None) => format!(" (request {request})"),
        (None, Some(executor)) => format!(" (executor {executor})"),
        (None, None) => String::new(),
    }
}

/// The cause for which an action is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum RefusalCause {
    /// An answer has a different number of verdicts than there were questions.
    #[error("{got} verdicts for {expected} questions")]
    WrongCount {
        /// Number of verdicts that the question asked for.
        expected: u32,
        /// Number of verdicts that the answer gave.
        got: u32,
    },
    /// No such request, or it has ended.
    #[error("no such request")]
    UnknownRequest,
    /// No such executor, or it was removed.
    #[error("no such executor")]
    UnknownExecutor,
    /// The request is named twice in one answer.
    #[error("named twice in one answer")]
    NamedTwice,
    /// The request was not among those asked about.
    #[error("not among those asked about")]
    NotAsked,
    /// A placement that names no executor.
    #[error("names no executor")]
    NamesNone,
    /// The queue is at its bound; or it is past it with requests that came back, and one of those would be
    /// displaced.
    #[error("queue is full")]
    QueueFull,
    /// The parking list is at its bound.
    #[error("parking list is full")]
    ParkingFull,
    /// The request may not wait, so it cannot be parked.
    #[error("request may not wait")]
    MayNotWait,
    /// Only a queued request can be displaced.
    #[error("request is not queued")]
    NotQueued,
    /// The executor is draining or down.
    #[error("executor is {}", .0.as_str())]
    Unavailable(Health),
    /// The executor does not serve the request's model.
    #[error("model is not served there")]
    NotServed,
    /// The request does not allow that executor.
    #[error("executor is not allowed for the request")]
    NotAllowed,
    /// The executor has failed this request before.
    #[error("executor has failed this request")]
    FailedBefore,
    /// Prompt and output bound together are more than the device could ever hold.
    #[error("may need {needed} blocks, the device has {total}")]
    NeverFits {
        /// Blocks that the request may need in all.
        needed: u32,
        /// Blocks of the device in all.
        total: u32,
    },
    /// The executor has neither a free slot nor room in its queue.
    #[error("no slot free")]
    NoSlot,
    /// The executor runs as many distinct models as it may.
    #[error("models-max of the executor is reached")]
    ModelsMax,
    /// The host runs as many requests of the model as it may.
    #[error("running-max of the model is reached")]
    RunningMax,
    /// The device does not have that many free blocks.
    #[error("{needed} blocks needed, {available} available")]
    NoBlocks {
        /// Blocks that are needed now.
        needed: u32,
        /// Blocks that are available now.
        available: u32,
    },
    /// The victim is not placed.
    #[error("victim is not placed")]
    NotPlaced,
    /// The victim is already leaving.
    #[error("victim is already leaving")]
    AlreadyLeaving,
    /// The victim's executor cannot put it back.
    #[error("victim is not preemptible")]
    NotPreemptible,
    /// The victim's executor cannot move its blocks to host memory.
    #[error("victim is not swappable")]
    NotSwappable,
    /// The device's host memory has no room for what the victims hold.
    #[error("{needed} blocks of host memory needed, {available} free")]
    HostFull {
        /// Blocks that the victims which are to be swapped hold, up to this one.
        needed: u32,
        /// Blocks of host memory that are kept for nobody.
        available: u32,
    },
    /// A request cannot give way to itself.
    #[error("the needy request cannot be its own victim")]
    IsNeedy,
    /// The victim is more urgent than the needy one.
    #[error("victim is more urgent than the needy request")]
    MoreUrgent,
    /// The needy one was itself evicted for this victim.
    #[error("needy request was itself evicted for this victim")]
    EvictedForVictim,
    /// The victim was evicted before and has made less than a block of progress since.
    #[error("victim has made no progress since it was last evicted")]
    NoProgress,
    /// The victim holds nothing on the device where the room is needed.
    #[error("victim is on another device")]
    WrongDevice,
    /// A running sequence can only grow where it runs.
    #[error("the needy sequence runs on another executor")]
    WrongExecutor,
    /// The victims' leaving would not cover the shortage.
    #[error("shortage is not covered")]
    NotCovered,
    /// The allotments sum to more than the device's total.
    #[error("allotments sum to {sum}, the device has {total}")]
    OverTotal {
        /// The sum of the allotments, in tokens per step.
        sum: u64,
        /// The device's tokens per step.
        total: u32,
    },
    /// A placement names more executors than there are.
    #[error("names {named} executors, {attached} are attached")]
    TooMany {
        /// Executors that the placement names.
        named: u32,
        /// Executors that are attached.
        attached: u32,
    },
}

impl RefusalCause {
    /// The refusal of an action that concerns `request`.
    #[must_use]
    pub fn of(self, request: RequestId) -> Refusal {
        Refusal {
            request: Some(request),
            executor: None,
            cause: self,
        }
    }

    /// The refusal of an action that would bring `request` to `executor`.
    #[must_use]
    pub fn at(self, request: RequestId, executor: ExecutorId) -> Refusal {
        Refusal {
            request: Some(request),
            executor: Some(executor),
            cause: self,
        }
    }

    /// The refusal of a whole answer.
    #[must_use]
    pub fn whole(self) -> Refusal {
        Refusal {
            request: None,
            executor: None,
            cause: self,
        }
    }
}
