//! The questions the machine asks, and the seam behind which policies answer them.
//!
//! [`Policies`] is implemented by `pointsman-policy` over WebAssembly components and natively
//! by tests. An implementation brings the policy's mirror up to date from the [`View`] before
//! it passes a question on; [`crate::Feed`] does that bookkeeping for both.
//!
//! # Not here
//! Whether an answer may take effect: that is the interlock's, in [`crate::Machine::decide`].

use crate::fact::Clock;
use crate::ids::{DeviceId, ExecutorId, Micros, RequestId};
use crate::refusal::Refusal;
use crate::rows::{Cached, Moment};
use crate::view::View;

/// A decision a policy can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Hook {
    /// Whether requests may wait at all.
    Admission,
    /// In which order waiting requests are tried.
    Priority,
    /// Where a request runs.
    Routing,
    /// Which placed sequences give way.
    Preemption,
    /// How many tokens each engine of a device may schedule in a step.
    Budget,
}

impl Hook {
    /// Every hook, in the order in which a round asks them.
    pub const ALL: [Hook; 5] = [
        Hook::Admission,
        Hook::Priority,
        Hook::Routing,
        Hook::Preemption,
        Hook::Budget,
    ];

    /// The hook's interface name in the WIT.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Hook::Admission => "admission",
            Hook::Priority => "priority",
            Hook::Routing => "routing",
            Hook::Preemption => "preemption",
            Hook::Budget => "budget",
        }
    }
}

/// Who made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Author {
    /// The machine's own rule: nobody else answered, or the answer was refused.
    BuiltIn,
    /// A policy, by the number its host gave to this version of it.
    Policy(u32),
}

/// What came back from a question.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Answer<T> {
    /// Who answered. [`Author::BuiltIn`] exactly where `value` is absent.
    pub author: Author,
    /// Absent: no policy answered, so the built-in rule does.
    pub value: Option<T>,
    /// Policies that were asked before this answer came and failed, in that order.
    pub faults: Vec<PolicyFault>,
    /// Who decides where `value` is absent, or of no use.
    pub otherwise: Otherwise,
}

/// Who decides where no policy gave a usable answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Otherwise {
    /// The built-in rule.
    #[default]
    BuiltIn,
    /// Nobody: the arrivals are refused. Of the other hooks' answers this says nothing.
    Closed,
}

impl<T> Answer<T> {
    /// No policy is bound to the hook.
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

    /// The same with another value.
    #[must_use]
    pub fn map<R>(self, change: impl FnOnce(T) -> R) -> Answer<R> {
        Answer {
            author: self.author,
            value: self.value.map(change),
            faults: self.faults,
            otherwise: self.otherwise,
        }
    }
}

/// A policy that failed instead of answering.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PolicyFault {
    /// The policy's number.
    pub policy: u32,
    /// What kind of failure.
    pub kind: FaultKind,
    /// For the operator: message and backtrace as far as known.
    pub detail: String,
}

/// Why a policy did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum FaultKind {
    /// It trapped: a panic, an out-of-bounds access, a stack overflow.
    Trap,
    /// It used up the fuel of the call.
    Fuel,
    /// It ran past the wall-clock backstop.
    Deadline,
    /// It asked for more memory than its limit and could not go on.
    Memory,
    /// It returned more than the result limit allows.
    Oversize,
    /// It cannot be instantiated, configured or restored any more.
    Start,
    /// It answered, and let a liveness bound run out all the same. Counted by policies' hosts;
    /// the machine's fact is [`crate::Fact::Strike`].
    Struck,
}

/// Answers of the hook `admission`.
pub mod admission {
    use super::RequestId;

    /// What becomes of an arrival.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub enum Choice {
        /// Into the queue.
        Admit,
        /// Outside the queue until it has room.
        Park,
        /// Refuse it with this Retry-After, in seconds.
        Shed(u32),
        /// Refuse that waiting request instead, and admit this one.
        Displace(RequestId),
    }

    /// One answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct Verdict {
        /// What.
        pub choice: Choice,
        /// Why: index into the policy's reasons.
        pub reason: u16,
    }
}

/// Answers of the hook `routing`.
pub mod routing {
    use super::{ExecutorId, Micros};

    /// Where a request goes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub enum Choice {
        /// On the first of these that is in order.
        Place(Vec<ExecutorId>),
        /// Nowhere yet; asked again at this time at the latest.
        Hold(Option<Micros>),
        /// Refuse it now.
        GiveUp,
    }

    /// One answer.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct Verdict {
        /// What.
        pub choice: Choice,
        /// Why: index into the policy's reasons.
        pub reason: u16,
    }
}

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ShortageCause {
    /// A slot.
    Slots,
    /// KV blocks.
    Blocks,
    /// A model's place, by `models-max`.
    Models,
}

/// A request that cannot go on for want of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Shortage {
    /// What is missing.
    pub cause: ShortageCause,
    /// Who needs it: a waiting request, or a running one that cannot grow.
    pub needy: RequestId,
    /// Where; absent: on any one executor that could take it.
    pub executor: Option<ExecutorId>,
    /// How many more blocks it needs, those its device has free and cached included; 0 where
    /// its executor has no blocks.
    pub blocks: u32,
}

/// How a victim leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EvictHow {
    /// Its blocks are dropped; it waits again and is prefilled anew.
    Recompute,
    /// Its blocks move to host memory.
    Swap,
}

/// One that gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Victim {
    /// Who.
    pub request: RequestId,
    /// How.
    pub how: EvictHow,
}

/// Victims whose leaving covers a shortage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Eviction {
    /// Where the needy one goes.
    pub executor: ExecutorId,
    /// All on that executor's device.
    pub victims: Vec<Victim>,
    /// Why: index into the policy's reasons.
    pub reason: u16,
}

/// One engine's tokens per step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Allotment {
    /// Which engine.
    pub executor: ExecutorId,
    /// Tokens it may schedule in a step.
    pub tokens_max: u32,
}

/// A liveness bound that ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Strike {
    /// When.
    pub at: Micros,
    /// At which of a policy's decisions.
    pub hook: Hook,
    /// Which bound.
    pub clock: Clock,
    /// Who waited for it; absent: the sequences of a device, not one alone.
    pub request: Option<RequestId>,
}

/// Whoever answers the machine's questions.
///
/// Each method may change nothing but the implementor's own state. The view is of the machine
/// at the time of the question, changes made earlier in the same round included.
pub trait Policies {
    /// One verdict per arrival, in order; `room` more may wait.
    fn admit(
        &mut self,
        view: &View<'_>,
        at: Moment,
        arrivals: &[RequestId],
        room: u32,
    ) -> Answer<Vec<admission::Verdict>>;

    /// These requests, most urgent first.
    fn order(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[RequestId],
    ) -> Answer<Vec<RequestId>>;

    /// One verdict per request, in order.
    fn route(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[Cached],
    ) -> Answer<Vec<routing::Verdict>>;

    /// Who gives way; an answer of `None`: nobody.
    fn evict(
        &mut self,
        view: &View<'_>,
        at: Moment,
        shortage: &Shortage,
    ) -> Answer<Option<Eviction>>;

    /// Tokens per step for the engines of a device.
    fn allot(
        &mut self,
        view: &View<'_>,
        at: Moment,
        device: DeviceId,
        tokens_total: u32,
    ) -> Answer<Vec<Allotment>>;

    /// Of these requests, how many from the first on one policy answers together. The machine
    /// asks `hook` about those, and about the rest once that answer has been applied: a policy that
    /// answers for a part of the requests knows by then what became of those before them. Only
    /// [`Hook::Admission`] and [`Hook::Routing`] are asked in such runs.
    fn run(&self, view: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        let _ = (view, hook);
        requests.len()
    }

    /// The interlock refused an answer of `author`.
    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        let _ = (author, hook, refusal);
    }

    /// Under whoever answers for the request a liveness bound ran out, and the built-in rule
    /// steps in.
    fn struck(&mut self, view: &View<'_>, strike: &Strike) {
        let _ = (view, strike);
    }
}

/// Whoever is lent answers as who lent it.
impl<P: Policies + ?Sized> Policies for &mut P {
    fn admit(
        &mut self,
        view: &View<'_>,
        at: Moment,
        arrivals: &[RequestId],
        room: u32,
    ) -> Answer<Vec<admission::Verdict>> {
        (**self).admit(view, at, arrivals, room)
    }

    fn order(&mut self, view: &View<'_>, at: Moment, ids: &[RequestId]) -> Answer<Vec<RequestId>> {
        (**self).order(view, at, ids)
    }

    fn route(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[Cached],
    ) -> Answer<Vec<routing::Verdict>> {
        (**self).route(view, at, requests)
    }

    fn evict(
        &mut self,
        view: &View<'_>,
        at: Moment,
        shortage: &Shortage,
    ) -> Answer<Option<Eviction>> {
        (**self).evict(view, at, shortage)
    }

    fn allot(
        &mut self,
        view: &View<'_>,
        at: Moment,
        device: DeviceId,
        tokens_total: u32,
    ) -> Answer<Vec<Allotment>> {
        (**self).allot(view, at, device, tokens_total)
    }

    fn run(&self, view: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        (**self).run(view, hook, requests)
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        (**self).refused(author, hook, refusal);
    }

    fn struck(&mut self, view: &View<'_>, strike: &Strike) {
        (**self).struck(view, strike);
    }
}

/// Answers nothing: every decision is the built-in rule's.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPolicies;

impl Policies for NoPolicies {
    fn admit(
        &mut self,
        _: &View<'_>,
        _: Moment,
        _: &[RequestId],
        _: u32,
    ) -> Answer<Vec<admission::Verdict>> {
        Answer::unbound()
    }

    fn order(&mut self, _: &View<'_>, _: Moment, _: &[RequestId]) -> Answer<Vec<RequestId>> {
        Answer::unbound()
    }

    fn route(&mut self, _: &View<'_>, _: Moment, _: &[Cached]) -> Answer<Vec<routing::Verdict>> {
        Answer::unbound()
    }

    fn evict(&mut self, _: &View<'_>, _: Moment, _: &Shortage) -> Answer<Option<Eviction>> {
        Answer::unbound()
    }

    fn allot(&mut self, _: &View<'_>, _: Moment, _: DeviceId, _: u32) -> Answer<Vec<Allotment>> {
        Answer::unbound()
    }
}
