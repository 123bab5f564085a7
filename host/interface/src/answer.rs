//! Answers as data: what a policy says, before the interlock looks at it.

use std::collections::BTreeMap;
use std::fmt;

use crate::ids::{ExecutorId, Micros, RequestId};
use crate::question::Question;

/// The maker of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Author {
    /// The machine's own rule: nobody else answered, or the answer was refused.
    BuiltIn,
    /// A policy, by the number its host gave to this version of it.
    Policy(u32),
}

/// An answer to a question, or the lack of one, with the faults that came first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Answer<T> {
    /// The policy that answered. [`Author::BuiltIn`] exactly where `value` is absent.
    pub author: Author,
    /// The answer; absent: no policy answered, so the built-in rule does.
    pub value: Option<T>,
    /// Policies that were asked first and failed, in that order.
    pub faults: Vec<PolicyFault>,
    /// The rule for a `value` that is absent or refused.
    pub otherwise: Otherwise,
}

/// The rule that decides where no policy gave a usable answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Otherwise {
    /// The built-in rule.
    #[default]
    BuiltIn,
    /// Arrivals are refused. Without meaning for hooks other than admission.
    Closed,
}

impl<T> Answer<T> {
    /// The lack of an answer: no policy is bound to the hook.
    #[must_use]
    pub fn unbound() -> Self {
        Self {
            author: Author::BuiltIn,
            value: None,
            faults: Vec::new(),
            otherwise: Otherwise::BuiltIn,
        }
    }

    /// An answer by policy number `policy`.
    #[must_use]
    pub fn by(policy: u32, value: T) -> Self {
        Self {
            author: Author::Policy(policy),
            value: Some(value),
            faults: Vec::new(),
            otherwise: Otherwise::BuiltIn,
        }
    }

    /// The same answer with the value that `narrow` makes of it; where that is absent, no answer.
    #[must_use]
    pub fn and_then<R>(self, narrow: impl FnOnce(T) -> Option<R>) -> Answer<R> {
        let value = self.value.and_then(narrow);
        Answer {
            author: value.as_ref().map_or(Author::BuiltIn, |_| self.author),
            value,
            faults: self.faults,
            otherwise: self.otherwise,
        }
    }
}

/// Conversions between a reply and the type of each hook's own answers.
macro_rules! typed {
    ($($(#[$doc:meta])* $method:ident, $hook:ident -> $value:ty;)*) => {
        impl Reply {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $method(self) -> Option<$value> {
                    if let Reply::$hook(value) = self {
                        Some(value)
                    } else {
                        None
                    }
                }
            )*
        }

        /// A reply of another hook counts as no answer.
        impl Answer<Reply> {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $method(self) -> Answer<$value> {
                    self.and_then(Reply::$method)
                }
            )*
        }
    };
}

typed! {
    /// The verdicts about arrivals, if this is an answer of `admission`.
    admission, Admission -> Vec<admission::Verdict>;
    /// The order of requests, if this is an answer of `priority`.
    priority, Priority -> Vec<RequestId>;
    /// The verdicts about requests, if this is an answer of `routing`.
    routing, Routing -> Vec<routing::Verdict>;
    /// The eviction, if this is an answer of `preemption`; an inner `None` evicts nobody.
    preemption, Preemption -> Option<Eviction>;
    /// The tokens per step, if this is an answer of `budget`.
    budget, Budget -> Allotments;
    /// The order of an engine's sequences, if this is the other answer of `budget`.
    arrangement, Arrangement -> Arrangement;
}

/// A policy's answer, before the interlock looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Reply {
    /// One verdict per arrival.
    Admission(Vec<admission::Verdict>),
    /// The requests, most urgent first.
    Priority(Vec<RequestId>),
    /// One verdict per request.
    Routing(Vec<routing::Verdict>),
    /// Victims; absent: nobody gives way.
    Preemption(Option<Eviction>),
    /// Tokens per step.
    Budget(Allotments),
    /// Order of an engine's sequences.
    Arrangement(Arrangement),
}

/// A row that a reply names, and on which its policy may have counted something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedRow {
    /// The row of a request, waiting or placed.
    Request(RequestId),
    /// The load of an executor.
    Load(ExecutorId),
}

// === impl Reply ===

impl Reply {
    /// Number of elements in the reply's lists: ids that the host looks up, verdicts that it checks.
    #[must_use]
    pub fn elements(&self) -> usize {
        match self {
            Reply::Admission(verdicts) => verdicts.len(),
            Reply::Priority(requests) => requests.len(),
            Reply::Routing(verdicts) => {
                let places = verdicts.iter().map(|verdict| match &verdict.choice {
                    routing::Choice::Place(executors) => executors.len(),
                    routing::Choice::Hold(_) | routing::Choice::GiveUp => 0,
                });
                verdicts.len() + places.sum::<usize>()
            }
            Reply::Preemption(eviction) => {
                let victims = eviction.as_ref().map(|eviction| eviction.victims.len());
                victims.unwrap_or(0)
            }
            Reply::Budget(allotments) => allotments.engines.len(),
            Reply::Arrangement(arrangement) => arrangement.first.len(),
        }
    }

    /// Passes to `note` the rows that the reply to `question` names. An order counts on nothing that
    /// could be refused, and an executor's row says nothing of its allotment.
    #[inline]
    pub fn named(&self, question: &Question<'_>, mut note: impl FnMut(NamedRow)) {
        match (question, self) {
            (Question::Admission { arrivals, .. }, Reply::Admission(verdicts)) => {
                for asked in arrivals.iter() {
                    note(NamedRow::Request(asked.request));
                }
                for verdict in verdicts {
                    if let admission::Choice::Displace(displaced) = verdict.choice {
                        note(NamedRow::Request(displaced.request));
                    }
                }
            }
            (Question::Routing(requests), Reply::Routing(verdicts)) => {
                for (cached, verdict) in requests.iter().zip(verdicts) {
                    if let routing::Choice::Place(executors) = &verdict.choice {
                        note(NamedRow::Request(cached.request));
                        if let Some(executor) = executors.first() {
                            note(NamedRow::Load(*executor));
                        }
                    }
                }
            }
            (Question::Preemption(_), Reply::Preemption(Some(eviction))) => {
                note(NamedRow::Load(eviction.executor));
                for victim in &eviction.victims {
                    note(NamedRow::Request(victim.request));
                }
            }
            (
                Question::Admission { .. }
                | Question::Priority(_)
                | Question::Routing(_)
                | Question::Preemption(_)
                | Question::Budget { .. }
                | Question::Arrangement { .. },
                _,
            ) => {}
        }
    }

    /// The kinds of answers in the reply, as [`Hook::answers`](crate::Hook::answers) has them.
    #[must_use]
    pub fn kinds(&self) -> Vec<&'static str> {
        match self {
            Reply::Admission(verdicts) => verdicts.iter().map(|it| it.choice.kind()).collect(),
            Reply::Routing(verdicts) => verdicts.iter().map(|it| it.choice.kind()).collect(),
            Reply::Preemption(Some(_)) => vec!["evicts"],
            Reply::Budget(_) => vec!["allots"],
            Reply::Arrangement(_) => vec!["arranges"],
            Reply::Preemption(None) | Reply::Priority(_) => Vec::new(),
        }
    }
}

/// A policy that failed instead of answering.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PolicyFault {
    /// The policy's number.
    pub policy: u32,
    /// The kind of failure.
    pub kind: FaultKind,
    /// The failure in one line, with the policy's name, and below it the place as far as known.
    pub detail: String,
}

impl PolicyFault {
    /// The failure in one line.
    #[must_use]
    pub fn headline(&self) -> &str {
        self.detail.lines().next().unwrap_or_default()
    }
}

/// The reason for which a policy did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FaultKind {
    /// The policy trapped: a panic, an out-of-bounds access, a stack overflow.
    Trap,
    /// The policy used up the fuel of the call.
    Fuel,
    /// The policy ran past the wall-clock backstop.
    Deadline,
    /// The policy asked for more memory than its limit and could not go on.
    Memory,
    /// The policy returned more than the result limit allows.
    Oversize,
    /// The policy cannot be instantiated, configured or restored any more.
    Start,
    /// The policy answered, and let a liveness bound run out all the same. Counted by policies'
    /// hosts; the machine's fact is `Fact::Strike`.
    Struck,
}

impl FaultKind {
    /// The name of the kind for operators.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            FaultKind::Trap => "trap",
            FaultKind::Fuel => "fuel",
            FaultKind::Deadline => "deadline",
            FaultKind::Memory => "memory",
            FaultKind::Oversize => "oversize",
            FaultKind::Start => "start",
            FaultKind::Struck => "struck",
        }
    }
}

/// Answers of the hook `admission`.
pub mod admission {
    use super::RequestId;

    /// A decision about an arrival.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub enum Choice {
        /// Lets the arrival into the queue.
        Admit,
        /// Lets the arrival wait outside until the queue has room.
        Park,
        /// Refuses the arrival with this Retry-After, in seconds.
        Shed(u32),
        /// Refuses a waiting request instead, and admits the arrival.
        Displace(Displacement),
    }

    impl Choice {
        pub(super) const fn kind(self) -> &'static str {
            match self {
                Choice::Admit => "admits",
                Choice::Park => "parks",
                Choice::Shed(_) => "sheds",
                Choice::Displace(_) => "displaces",
            }
        }
    }

    /// A waiting request that makes room for an arrival.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct Displacement {
        /// The request that is refused.
        pub request: RequestId,
        /// The Retry-After that its client is told, in seconds.
        pub retry_after: u32,
    }

    /// A decision about an arrival, with its reason.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct Verdict {
        /// The decision about the arrival.
        pub choice: Choice,
        /// The reason: an index into the policy's reasons.
        pub reason: u16,
    }
}

/// Answers of the hook `routing`.
pub mod routing {
    use super::{ExecutorId, Micros};

    /// A decision about a waiting request.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub enum Choice {
        /// Places the request on the first of these executors that can take it.
        Place(Vec<ExecutorId>),
        /// Leaves the request waiting; asks again at this time at the latest; absent: at no set
        /// time.
        Hold(Option<Micros>),
        /// Refuses the request now.
        GiveUp,
    }

    impl Choice {
        pub(super) const fn kind(&self) -> &'static str {
            match self {
                Choice::Place(_) => "places",
                Choice::Hold(_) => "holds",
                Choice::GiveUp => "gives up",
            }
        }
    }

    /// A decision about a waiting request, with its reason.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct Verdict {
        /// The decision about the request.
        pub choice: Choice,
        /// The reason: an index into the policy's reasons.
        pub reason: u16,
    }
}

/// The way in which a victim leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EvictHow {
    /// The victim's blocks are dropped; the request waits again and is prefilled anew.
    Recompute,
    /// The victim's blocks move to host memory.
    Swap,
}

/// A sequence that gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Victim {
    /// The request that the sequence serves.
    pub request: RequestId,
    /// The way in which it leaves.
    pub how: EvictHow,
}

/// Victims whose leaving covers a shortage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Eviction {
    /// The executor to which the needy request goes.
    pub executor: ExecutorId,
    /// The victims, all on that executor's device.
    pub victims: Vec<Victim>,
    /// The reason: an index into the policy's reasons.
    pub reason: u16,
}

/// One engine's tokens per step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Allotment {
    /// The executor whose engine this is.
    pub executor: ExecutorId,
    /// Most tokens that the engine may schedule in a step.
    pub tokens_max: u32,
}

/// The way in which an engine spends its steps until it is told otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Arrangement {
    /// Most prompt tokens in a step, apart from the one that each sequence gets; absent: as many as
    /// the step has.
    pub prefill_max: Option<u32>,
    /// The sequences whose prompts and needs of blocks come first, in this order.
    pub first: Vec<RequestId>,
}

impl Arrangement {
    /// The places of the sequences that it names: the least comes first.
    #[must_use]
    pub fn places(&self) -> BTreeMap<RequestId, usize> {
        self.first.iter().copied().zip(0..).collect()
    }
}

impl fmt::Display for Arrangement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = self.first.iter();
        first.try_for_each(|id| write!(f, "request {id}, then "))?;
        f.write_str("the most urgent")?;
        match self.prefill_max {
            Some(tokens) => write!(f, ", with {tokens} tokens of prompts a step"),
            None => Ok(()),
        }
    }
}

/// The tokens of a device, shared out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Allotments {
    /// Allotments of engines; one that is not named gets nothing.
    pub engines: Vec<Allotment>,
    /// The time at which the question comes again, if no engine changes before; absent: at none.
    pub again: Option<Micros>,
}
