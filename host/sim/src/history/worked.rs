//! The work of one executor, as its reports tell it.

use pointsman_core::{Micros, Progress, RequestId};

use super::steps::Steps;
use super::streams::Streams;
use crate::latency::TimedWork;

/// The prompt of a request, as far as it is known in the end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prompt {
    pub(super) tokens: u32,
    /// The part of them that was there before.
    pub(super) cached: u32,
}

/// The prompts of all requests.
pub(super) type Prompts<'a> = dyn Fn(RequestId) -> Prompt + 'a;

/// The watch over one executor.
#[derive(Debug)]
pub(super) enum Worked {
    /// An engine in the host.
    Engine(Steps),
    /// A server elsewhere.
    Server(Streams),
}

impl Worked {
    /// An order went out to take up a sequence.
    pub(super) fn ordered(&mut self, now: Micros) {
        if let Self::Engine(steps) = self {
            steps.ordered(now);
        }
    }

    /// A sequence was taken up, with so many tokens of its answer from elsewhere.
    pub(super) fn started(&mut self, now: Micros, request: RequestId, carried: u32) {
        match self {
            Self::Engine(steps) => steps.started(now, request, carried),
            Self::Server(streams) => streams.started(now, request, carried),
        }
    }

    pub(super) fn stepped(&mut self, now: Micros, progress: &[Progress]) {
        match self {
            Self::Engine(steps) => steps.stepped(now, progress),
            Self::Server(streams) => streams.stepped(now, progress),
        }
    }

    pub(super) fn left(&mut self, request: RequestId) {
        match self {
            Self::Engine(steps) => steps.left(request),
            Self::Server(streams) => streams.left(request),
        }
    }

    pub(super) fn interrupted(&mut self) {
        match self {
            Self::Engine(steps) => steps.interrupted(),
            Self::Server(streams) => streams.interrupted(),
        }
    }

    /// The times that its speed can be fitted to.
    pub(super) fn times(&self, prompts: &Prompts<'_>) -> Vec<TimedWork> {
        match self {
            Self::Engine(steps) => steps.times(prompts),
            Self::Server(streams) => streams.times(prompts),
        }
    }

    /// The time in which there was work, the prompt tokens that were computed, and the tokens that were
    /// generated.
    pub(super) fn done(&self, prompts: &Prompts<'_>) -> (Micros, u64, u64) {
        match self {
            Self::Engine(steps) => steps.done(prompts),
            Self::Server(streams) => streams.done(prompts),
        }
    }
}
