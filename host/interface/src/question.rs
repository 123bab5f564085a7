//! Questions as data: the decisions that the machine asks its policies for.

use std::borrow::Cow;

use crate::hook::Hook;
use crate::ids::{DeviceId, ExecutorId, RequestId};
use crate::rows::{AskedRequest, Cached};

/// A question with its arguments, borrowed from the machine or owned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Question<'a> {
    /// Asks for one verdict per arrival.
    Admission {
        /// The arrivals, oldest first.
        arrivals: Cow<'a, [AskedRequest]>,
        /// Requests for which the queue has room.
        room: u32,
    },
    /// Asks for these requests, most urgent first.
    Priority(Cow<'a, [AskedRequest]>),
    /// Asks for one verdict per request.
    Routing(Cow<'a, [Cached]>),
    /// Asks for victims that cover a shortage.
    Preemption(Shortage),
    /// Asks for tokens per step for the engines of a device.
    Budget {
        /// The device whose engines share the tokens.
        device: DeviceId,
        /// Tokens per step that the engines of the device may share.
        tokens_total: u32,
        /// Tokens that each engine of the device computed since the last time, in attach order.
        used: Cow<'a, [TokensUsed]>,
    },
    /// Asks how an engine is to spend its steps.
    Arrangement {
        /// The executor whose engine this is.
        executor: ExecutorId,
        /// The sequences that run there, in order of arrival.
        sequences: Cow<'a, [RequestId]>,
    },
}

impl Question<'_> {
    /// The decision that the question asks for.
    #[must_use]
    pub fn hook(&self) -> Hook {
        match self {
            Question::Admission { .. } => Hook::Admission,
            Question::Priority(_) => Hook::Priority,
            Question::Routing(_) => Hook::Routing,
            Question::Preemption(_) => Hook::Preemption,
            Question::Budget { .. } | Question::Arrangement { .. } => Hook::Budget,
        }
    }

    /// The requests that the question is about, in the order in which an answer speaks of them.
    pub fn requests(&self) -> impl Iterator<Item = RequestId> {
        let none: (&[AskedRequest], &[Cached], &[RequestId]) = (&[], &[], &[]);
        let (asked, cached, others) = match self {
            Question::Admission {
                arrivals: asked, ..
            }
            | Question::Priority(asked) => (&**asked, none.1, none.2),
            Question::Routing(cached) => (none.0, &**cached, none.2),
            Question::Preemption(shortage) => {
                (none.0, none.1, std::slice::from_ref(&shortage.needy))
            }
            Question::Arrangement { sequences, .. } => (none.0, none.1, &**sequences),
            Question::Budget { .. } => none,
        };
        let asked = asked.iter().map(|asked| asked.request);
        let cached = cached.iter().map(|cached| cached.request);
        asked.chain(cached).chain(others.iter().copied())
    }

    /// Rows that the question passes to a policy, on which the fuel of the call depends. 1 where
    /// the question is about no list.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Question::Admission { arrivals, .. } => arrivals.len(),
            Question::Priority(requests) => requests.len(),
            Question::Routing(requests) => requests.len(),
            Question::Budget { used, .. } => used.len().max(1),
            Question::Arrangement { sequences, .. } => sequences.len(),
            Question::Preemption(_) => 1,
        }
    }

    /// The same question with nothing borrowed.
    #[must_use]
    pub fn into_owned(self) -> Question<'static> {
        match self {
            Question::Admission { arrivals, room } => Question::Admission {
                arrivals: Cow::Owned(arrivals.into_owned()),
                room,
            },
            Question::Priority(requests) => Question::Priority(Cow::Owned(requests.into_owned())),
            Question::Routing(requests) => Question::Routing(Cow::Owned(requests.into_owned())),
            Question::Preemption(shortage) => Question::Preemption(shortage),
            Question::Budget {
                device,
                tokens_total,
                used,
            } => Question::Budget {
                device,
                tokens_total,
                used: Cow::Owned(used.into_owned()),
            },
            Question::Arrangement {
                executor,
                sequences,
            } => Question::Arrangement {
                executor,
                sequences: Cow::Owned(sequences.into_owned()),
            },
        }
    }
}

/// The tokens that one engine computed since the last allotment of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TokensUsed {
    /// The executor whose engine this is.
    pub executor: ExecutorId,
    /// Uncached prompt tokens and generated tokens.
    pub tokens: u64,
}

/// Something of which there is too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ShortageCause {
    /// A slot of an executor.
    Slots,
    /// KV blocks of a device.
    Blocks,
    /// A model's place, by `models-max`.
    Models,
}

impl ShortageCause {
    /// The missing thing in words.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            ShortageCause::Slots => "a slot",
            ShortageCause::Blocks => "blocks",
            ShortageCause::Models => "a place for its model",
        }
    }
}

/// A request that cannot go on for want of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Shortage {
    /// The missing thing.
    pub cause: ShortageCause,
    /// The request that needs the room: a waiting one, or a running one that cannot grow.
    pub needy: RequestId,
    /// The executor where the room is missing; absent: any one executor that could take the
    /// request.
    pub executor: Option<ExecutorId>,
    /// Blocks that are still missing, where free and cached ones of the device count as missing
    /// too; 0 where the executor has no blocks.
    pub blocks: u32,
}
