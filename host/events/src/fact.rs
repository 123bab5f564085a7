//! Facts about the machine: the one stream that feeds journal, metrics, logs and monitor.

use pointsman_interface::rows::{Health, RequestClass};
use pointsman_interface::{
    Arrangement, Author, DeviceId, EvictHow, ExecutorId, Hook, Micros, ModelId, PolicyFault,
    Refusal, RequestId, Round, ShortageCause, TenantId,
};

/// A fact with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stamped {
    /// The time of the fact, in µs.
    pub now: Micros,
    /// The round of the fact, or the last round before.
    pub round: Round,
    /// The fact itself, without its time.
    pub fact: Fact,
}

/// The end of a request. Set once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Outcome {
    /// The request was served.
    Finished {
        /// Tokens generated over all placements of the request.
        output_tokens: u32,
    },
    /// The request was not taken.
    Refused(RefusedWhy),
    /// The client left.
    Cancelled,
    /// The request's time ran out.
    Expired(ExpiredWhy),
    /// Every try of the request failed.
    Failed(FailedWhy),
}

/// The reason why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RefusedWhy {
    /// No room is left; the client may try again later.
    NoRoom {
        /// The time after which the client may try again, in seconds.
        retry_after: u32,
    },
    /// Admission gave the request's place in the queue to another request.
    Displaced {
        /// The time after which the client may try again, in seconds.
        retry_after: u32,
    },
    /// Admission is closed: its policy does not answer, and nobody else may. The client may try
    /// again later.
    Closed {
        /// The time after which the client may try again, in seconds.
        retry_after: u32,
    },
    /// Routing found that the request cannot be served in time to be of use.
    GaveUp,
    /// Prompt and output bound fit on no attached executor that may serve the request.
    NeverFits {
        /// Blocks needed on the executor where the request comes closest to fitting.
        blocks_needed: u32,
        /// Blocks of that executor's device in all.
        blocks_total: u32,
    },
    /// No executor serves the model, or none that may serve the request.
    Unserved {
        /// The time after which the client may try again, in seconds.
        retry_after: u32,
    },
}

/// The bound on time that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ExpiredWhy {
    /// The client's deadline.
    Deadline,
    /// The host's bound on waiting for a place.
    Wait,
}

/// The reason why no further try is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FailedWhy {
    /// The failure was not one to retry.
    NotRetryable,
    /// The request had as many tries as allowed.
    AttemptsMax,
    /// Every executor that may serve the request has failed the request.
    NowhereLeft,
}

/// The reason why a request is back in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RequeuedWhy {
    /// The request was evicted.
    Evicted,
    /// The executor failed the request.
    Failed,
    /// The executor died.
    Lost,
    /// The executor had no room after all, or was not reached.
    TurnedBack,
}

impl FailedWhy {
    /// The reason in words.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            FailedWhy::NotRetryable => "the executor could not go on",
            FailedWhy::AttemptsMax => "every attempt failed",
            FailedWhy::NowhereLeft => "every executor has failed it",
        }
    }
}

impl RequeuedWhy {
    /// The reason in words.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            RequeuedWhy::Evicted => "evicted",
            RequeuedWhy::Failed => "its executor failed it",
            RequeuedWhy::Lost => "its executor died",
            RequeuedWhy::TurnedBack => "its executor had no room after all, or was not reached",
        }
    }
}

/// A bound on a policy that can run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Clock {
    /// A request that could have been placed waited too long.
    Unplaced,
    /// A request was overtaken too often where it could have gone on.
    Overtaken,
    /// A running request got no token for too many steps.
    Tokenless,
    /// A running request lacked a block for too long.
    Stalled,
}

impl Clock {
    /// The name of the bound for operators.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Clock::Unplaced => "unplaced",
            Clock::Overtaken => "overtaken",
            Clock::Tokenless => "tokenless",
            Clock::Stalled => "stalled",
        }
    }
}

/// A liveness bound that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Strike {
    /// The time at which the bound ran out, in µs.
    pub at: Micros,
    /// The decision that let the bound run out.
    pub hook: Hook,
    /// The bound that ran out.
    pub clock: Clock,
    /// The request that waited; absent: the sequences of a device, not one alone.
    pub request: Option<RequestId>,
}

/// The place of a request on an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PlacedIn {
    /// A slot: the request starts at once.
    Slot,
    /// The device queue of the request's class.
    Queue,
}

/// An event inside the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Fact {
    /// A device was attached.
    DeviceAttached(DeviceId),
    /// An executor was attached.
    ExecutorAttached(ExecutorId, DeviceId),
    /// An executor's health changed: as its owner tells it, by its faults or its silence, or since it is taken away.
    HealthChanged(ExecutorId, Health),
    /// An executor died.
    ExecutorLost(ExecutorId),
    /// An executor was removed.
    ExecutorDetached(ExecutorId),
    /// A request arrived.
    Arrived {
        /// The request that arrived.
        request: RequestId,
        /// The tenant who pays for the request.
        tenant: TenantId,
        /// The model that the request asks for; absent: any.
        model: Option<ModelId>,
        /// The class of the request.
        class: RequestClass,
        /// The executor that is expected to serve the request, as it did the rest of its session;
        /// absent: none is.
        preferred: Option<ExecutorId>,
    },
    /// A request was let into the queue.
    Admitted(RequestId, Decided),
    /// A request waits outside the queue.
    Parked(RequestId, Decided),
    /// A parked request came into the queue, which has room now.
    Unparked(RequestId),
    /// A request will not be served, by decision; the outcome follows.
    TurnedAway(RequestId, Decided),
    /// A request is left without a place, by decision; the time, if any, ends the hold at the
    /// latest.
    Held(RequestId, Option<Micros>, Decided),
    /// A request has a place on an executor.
    Placed {
        /// The request that has the place.
        request: RequestId,
        /// The executor of the place.
        executor: ExecutorId,
        /// The place on that executor: a slot or the queue.
        into: PlacedIn,
        /// The author of the decision and the reason.
        by: Decided,
    },
    /// An engine took a request up.
    Started(RequestId, ExecutorId),
    /// A request has to leave its executor.
    Evicted {
        /// The request that leaves.
        victim: RequestId,
        /// The executor that the victim leaves.
        executor: ExecutorId,
        /// The request that needs the room.
        needy: RequestId,
        /// The way in which the victim leaves.
        how: EvictHow,
        /// Blocks that come free when the victim leaves: those that it shares with nobody, but for
        /// others that leave already.
        blocks: u32,
        /// The author of the decision and the reason.
        by: Decided,
    },
    /// An evicted or cancelled request has left its executor, and its blocks are given back.
    Left(RequestId, ExecutorId),
    /// A request waits for a place again.
    Requeued(RequestId, RequeuedWhy),
    /// Room on that executor is kept for a request.
    Reserved(RequestId, ExecutorId),
    /// That room is no longer kept: the request ended, the time for it ran out, or the executor
    /// takes nothing new any more.
    ReservationDropped(RequestId, ExecutorId),
    /// A request lacks room, and a policy was asked for victims.
    Short(RequestId, ShortageCause),
    /// An engine was given a bound of tokens per step.
    Allotted {
        /// The executor that has the bound.
        executor: ExecutorId,
        /// Most tokens in a step.
        tokens_max: u32,
        /// The author of the decision.
        author: Author,
    },
    /// An engine was told to spend its steps in another way.
    Arranged {
        /// The executor whose engine this is.
        executor: ExecutorId,
        /// The way.
        arrangement: Arrangement,
        /// The author of the decision.
        author: Author,
    },
    /// An answer, or part of one, was refused.
    Refused(Author, Hook, Refusal),
    /// A policy failed; the next one in line answered.
    Fault(Hook, PolicyFault),
    /// A policy let a bound run out, and the built-in rule stepped in.
    Strike(Clock, Hook, RequestId),
    /// A request ended.
    Ended(RequestId, Outcome),
    /// A device queue of an executor has become filled to 80 % of its bound: no ill health.
    Saturated(ExecutorId),
    /// The device queues of an executor are filled to less than 80 % again.
    Relieved(ExecutorId),
    /// A request's time on an executor is over, well or not.
    StayEnded(Stay),
}

/// The time of a sequence on one executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stay {
    /// The request of the sequence.
    pub request: RequestId,
    /// The executor that had it.
    pub executor: ExecutorId,
    /// The tenant who pays for the request.
    pub tenant: TenantId,
    /// The model that the request asks for; absent: any.
    pub model: Option<ModelId>,
    /// The time at which the engine took it up; absent: it never did.
    pub started: Option<Micros>,
    /// Prompt tokens whose KV was there in the end.
    pub prompt_tokens: u32,
    /// The part of them that was there in the beginning.
    pub cached_tokens: u32,
    /// Tokens generated there.
    pub output_tokens: u32,
}

/// The author and the reason of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Decided {
    /// The maker of the decision.
    pub author: Author,
    /// Index into that policy's reasons; meaningless for the built-in rule.
    pub reason: u16,
}

impl Decided {
    /// A decision by the machine's own rule.
    pub const BUILT_IN: Decided = Decided {
        author: Author::BuiltIn,
        reason: 0,
    };
}
