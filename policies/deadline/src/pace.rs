//! How long an answer takes, from its placement to its last token.
//!
//! What is not known counts as no time at all: nothing is held to be late for want of a
//! measurement, and an executor that never ran anything is tried, and so measured.

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::{ExecutorLoad, Request};
use pointsman_sdk::{Executor, Mirror};

use crate::settings::Settings;

/// The two times that make up the time of an answer, in micros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    first_token: u64,
    next_token: u64,
}

/// The best pace there is for each model, found once in each question. It may be that of two
/// executors: whatever is late by it is late on all of them.
#[derive(Debug, Default)]
pub(crate) struct Paces {
    known: BTreeMap<Option<u32>, Pace>,
}

/// Whether an answer that starts now makes its deadline. What has none always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    InTime,
    Late,
}

/// Tokens that the answer will have: as the client hints, or as the operator makes of its bound.
pub(crate) fn output_tokens(settings: &Settings, request: &Request) -> u64 {
    let bound = u64::from(request.output_tokens_max);
    let tokens = match request.output_tokens_expected {
        Some(expected) => u64::from(expected).min(bound),
        None => bound * u64::from(settings.output_share) / 1000,
    };
    tokens.max(1)
}

// === impl Pace ===

impl Pace {
    pub(crate) fn of(load: &ExecutorLoad) -> Self {
        Self {
            first_token: load.ttft_micros.unwrap_or(0),
            next_token: load.itl_micros.unwrap_or(0),
        }
    }

    /// Time for an answer of so many tokens, at least one.
    pub(crate) fn micros(self, tokens: u64) -> u64 {
        let rest = self.next_token.saturating_mul(tokens.saturating_sub(1));
        self.first_token.saturating_add(rest)
    }

    fn best(self, other: Self) -> Self {
        Self {
            first_token: self.first_token.min(other.first_token),
            next_token: self.next_token.min(other.next_token),
        }
    }
}

// === impl Standing ===

impl Standing {
    /// Of an answer that takes so long.
    pub(crate) fn of(request: &Request, now: u64, micros: u64) -> Self {
        match request.deadline {
            Some(deadline) if now.saturating_add(micros) > deadline => Self::Late,
            Some(_) | None => Self::InTime,
        }
    }
}

// === impl Paces ===

impl Paces {
    /// That of the live executors that serve the model; where there is none nothing is known.
    pub(crate) fn best(&mut self, mirror: &Mirror, model: Option<u32>) -> Pace {
        *self.known.entry(model).or_insert_with(|| {
            let live = mirror.executors().filter(Executor::is_live);
            let serving = live.filter(|executor| match (model, &executor.info.serves) {
                (Some(model), Some(serves)) => serves.contains(&model),
                (None, _) | (_, None) => true,
            });
            let paces = serving.map(|executor| Pace::of(executor.load));
            paces.reduce(Pace::best).unwrap_or(Pace {
                first_token: 0,
                next_token: 0,
            })
        })
    }
}
