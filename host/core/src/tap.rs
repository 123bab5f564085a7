//! Questions and answers as data, and [`Tap`]: standing between the machine and its policies.
//!
//! [`Policies`] has a method per hook, each with its own types. Whoever only wants to watch, time,
//! record or repeat what is asked writes one method, [`Sink::ask`], and nothing for the rest. What
//! else happens to a machine is for its runtime to say: [`Recorder`].

use std::fmt;

use crate::fact::Stamped;
use crate::ids::{DeviceId, Micros, RequestId, Round};
use crate::input::Input;
use crate::policies::{
    Allotment, Answer, Author, Eviction, Hook, Policies, Shortage, Strike, admission, routing,
};
use crate::refusal::Refusal;
use crate::rows::{Cached, Moment};
use crate::view::View;

/// A question with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question<'a> {
    /// One verdict per arrival; `room` more may wait.
    Admission {
        /// Whose.
        arrivals: &'a [RequestId],
        /// How many.
        room: u32,
    },
    /// These requests, most urgent first.
    Priority(&'a [RequestId]),
    /// One verdict per request.
    Routing(&'a [Cached]),
    /// Who gives way.
    Preemption(&'a Shortage),
    /// Tokens per step for the engines of a device.
    Budget {
        /// Which.
        device: DeviceId,
        /// How many there are to give.
        tokens_total: u32,
    },
}

impl Question<'_> {
    /// Which decision it asks for.
    #[must_use]
    pub fn hook(&self) -> Hook {
        match self {
            Question::Admission { .. } => Hook::Admission,
            Question::Priority(_) => Hook::Priority,
            Question::Routing(_) => Hook::Routing,
            Question::Preemption(_) => Hook::Preemption,
            Question::Budget { .. } => Hook::Budget,
        }
    }

    /// The requests it is about, in the order in which an answer speaks of them.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestId> {
        match self {
            Question::Admission { arrivals, .. } => arrivals.to_vec(),
            Question::Priority(requests) => requests.to_vec(),
            Question::Routing(requests) => requests.iter().map(|cached| cached.request).collect(),
            Question::Preemption(shortage) => vec![shortage.needy],
            Question::Budget { .. } => Vec::new(),
        }
    }
}

/// A question as it is asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The machine at that time.
    pub view: View<'a>,
    /// When.
    pub at: Moment,
    /// What.
    pub question: Question<'a>,
}

impl Asked<'_> {
    /// Asks `policies`.
    pub fn put_to(&self, policies: &mut (impl Policies + ?Sized)) -> Answer<Reply> {
        let Self { view, at, question } = self;
        match *question {
            Question::Admission { arrivals, room } => {
                policies.admit(view, *at, arrivals, room).map(Reply::from)
            }
            Question::Priority(requests) => policies.order(view, *at, requests).map(Reply::from),
            Question::Routing(requests) => policies.route(view, *at, requests).map(Reply::from),
            Question::Preemption(shortage) => policies.evict(view, *at, shortage).map(Reply::from),
            Question::Budget {
                device,
                tokens_total,
            } => policies
                .allot(view, *at, device, tokens_total)
                .map(Reply::from),
        }
    }
}

/// What a policy answered, before the interlock looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Reply {
    /// One verdict per arrival.
    Admission(Vec<admission::Verdict>),
    /// The order.
    Priority(Vec<RequestId>),
    /// One verdict per request.
    Routing(Vec<routing::Verdict>),
    /// Who gives way; absent: nobody.
    Preemption(Option<Eviction>),
    /// Tokens per step.
    Budget(Vec<Allotment>),
}

impl From<Vec<admission::Verdict>> for Reply {
    fn from(verdicts: Vec<admission::Verdict>) -> Self {
        Reply::Admission(verdicts)
    }
}

impl From<Vec<RequestId>> for Reply {
    fn from(order: Vec<RequestId>) -> Self {
        Reply::Priority(order)
    }
}

impl From<Vec<routing::Verdict>> for Reply {
    fn from(verdicts: Vec<routing::Verdict>) -> Self {
        Reply::Routing(verdicts)
    }
}

impl From<Option<Eviction>> for Reply {
    fn from(eviction: Option<Eviction>) -> Self {
        Reply::Preemption(eviction)
    }
}

impl From<Vec<Allotment>> for Reply {
    fn from(allotments: Vec<Allotment>) -> Self {
        Reply::Budget(allotments)
    }
}

/// Stands between the machine and `inner`: every question goes to `sink`, which asks on.
#[derive(Clone, Debug, Default)]
pub struct Tap<P, S> {
    /// Who answers.
    pub inner: P,
    /// Who sees.
    pub sink: S,
}

/// Sees every question, and what `inner` answers.
pub trait Sink<P> {
    /// Asks `inner`, before and after which it may do what it is there for. The answer is one to
    /// this question: of another hook it counts as none.
    fn ask(&mut self, inner: &mut P, asked: &Asked<'_>) -> Answer<Reply>;

    /// What [`Policies::run`] says: `inner`'s word.
    fn run(&self, inner: &P, view: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize
    where
        P: Policies,
    {
        inner.run(view, hook, requests)
    }
}

/// Keeps a record of what a runtime does to its machine, and of what comes of it. With a [`Sink`]
/// for the questions it has all there is to do a run again.
pub trait Recorder: fmt::Debug {
    /// The machine is given `input`.
    fn input(&mut self, now: Micros, input: &Input);

    /// The machine is told to decide, after its round `round`.
    fn round(&mut self, now: Micros, round: Round);

    /// Something happened in it.
    fn fact(&mut self, stamped: &Stamped);
}

impl<P, S: Sink<P>> Tap<P, S> {
    fn ask<T>(
        &mut self,
        (view, at): (&View<'_>, Moment),
        question: Question<'_>,
        as_asked: impl FnOnce(Reply) -> Option<T>,
    ) -> Answer<T> {
        let asked = Asked {
            view: *view,
            at,
            question,
        };
        let Answer {
            author,
            value,
            faults,
            otherwise,
        } = self.sink.ask(&mut self.inner, &asked);
        let value = value.and_then(as_asked);
        Answer {
            author: value.as_ref().map_or(Author::BuiltIn, |_| author),
            value,
            faults,
            otherwise,
        }
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "an answer of any other hook is none"
)]
impl<P: Policies, S: Sink<P>> Policies for Tap<P, S> {
    fn admit(
        &mut self,
        view: &View<'_>,
        at: Moment,
        arrivals: &[RequestId],
        room: u32,
    ) -> Answer<Vec<admission::Verdict>> {
        let question = Question::Admission { arrivals, room };
        self.ask((view, at), question, |reply| match reply {
            Reply::Admission(verdicts) => Some(verdicts),
            _ => None,
        })
    }

    fn order(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[RequestId],
    ) -> Answer<Vec<RequestId>> {
        self.ask(
            (view, at),
            Question::Priority(requests),
            |reply| match reply {
                Reply::Priority(order) => Some(order),
                _ => None,
            },
        )
    }

    fn route(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[Cached],
    ) -> Answer<Vec<routing::Verdict>> {
        self.ask(
            (view, at),
            Question::Routing(requests),
            |reply| match reply {
                Reply::Routing(verdicts) => Some(verdicts),
                _ => None,
            },
        )
    }

    fn evict(
        &mut self,
        view: &View<'_>,
        at: Moment,
        shortage: &Shortage,
    ) -> Answer<Option<Eviction>> {
        self.ask(
            (view, at),
            Question::Preemption(shortage),
            |reply| match reply {
                Reply::Preemption(eviction) => Some(eviction),
                _ => None,
            },
        )
    }

    fn allot(
        &mut self,
        view: &View<'_>,
        at: Moment,
        device: DeviceId,
        tokens_total: u32,
    ) -> Answer<Vec<Allotment>> {
        let question = Question::Budget {
            device,
            tokens_total,
        };
        self.ask((view, at), question, |reply| match reply {
            Reply::Budget(allotments) => Some(allotments),
            _ => None,
        })
    }

    fn run(&self, view: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        self.sink.run(&self.inner, view, hook, requests)
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        self.inner.refused(author, hook, refusal);
    }

    fn struck(&mut self, view: &View<'_>, strike: &Strike) {
        self.inner.struck(view, strike);
    }
}
