//! The time that an answer takes, from its placement to its last token.
//!
//! An unknown time counts as none at all: no request is held to be late for want of a measurement,
//! and an executor that never ran anything is tried, and so measured.

use std::collections::BTreeMap;

use pointsman_sdk::Mirror;
use pointsman_sdk::wire::types::{ExecutorLoad, Request};

use crate::settings::Settings;
use crate::table::Table;

/// A time between tokens that no engine needs, about half an hour. With it as the limit the time of
/// any number of tokens fits: fewer than 2^32 of less than 2^31 µs.
const NEXT_TOKEN_MAX: u64 = (1 << 31) - 1;
/// The limit for the first token.
const FIRST_TOKEN_MAX: u64 = 1 << 62;

/// The two times that make up the time of an answer, in micros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    first_token: u64,
    next_token: u64,
}

/// The best pace for each model, found once in each question. It may be put together from two
/// executors: an answer that is late by it is late on all of them.
#[derive(Debug, Default)]
pub(crate) struct Paces {
    known: BTreeMap<Option<u32>, Pace>,
}

/// An answer that starts now, against its deadline. One without a deadline is always in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timeliness {
    InTime,
    Late,
}

/// Tokens that the answer is expected to have: the client's hint, or the operator's share of the
/// bound.
pub(crate) fn output_tokens(settings: &Settings, request: &Request) -> u32 {
    let bound = request.output_tokens_max;
    let tokens = match request.output_tokens_expected {
        Some(expected) => expected.min(bound),
        None => {
            let share = u64::from(bound) * u64::from(settings.output_share) / 1000;
            u32::try_from(share).unwrap_or(bound)
        }
    };
    tokens.max(1)
}

// === impl Pace ===

impl Pace {
    pub(crate) fn of(load: &ExecutorLoad) -> Self {
        Self {
            first_token: load.ttft_micros.unwrap_or(0).min(FIRST_TOKEN_MAX),
            next_token: load.itl_micros.unwrap_or(0).min(NEXT_TOKEN_MAX),
        }
    }

    /// Microseconds for an answer of so many tokens, at least one. With no more tokens than `u32`
    /// can count, the sum fits.
    #[inline]
    pub(crate) fn micros(self, tokens: u32) -> u64 {
        self.first_token + self.next_token * u64::from(tokens.saturating_sub(1))
    }

    /// The better of both times, each by itself.
    pub(crate) fn best(self, other: Self) -> Self {
        Self {
            first_token: self.first_token.min(other.first_token),
            next_token: self.next_token.min(other.next_token),
        }
    }
}

// === impl Timeliness ===

impl Timeliness {
    /// The timeliness of an answer that takes so many microseconds.
    #[inline]
    pub(crate) fn of(request: &Request, now: u64, micros: u64) -> Self {
        match request.deadline {
            Some(deadline) if now.saturating_add(micros) > deadline => Self::Late,
            Some(_) | None => Self::InTime,
        }
    }
}

// === impl Paces ===

impl Paces {
    /// The best pace of the live executors that serve the model; unknown where there are none.
    pub(crate) fn best(&mut self, (mirror, table): (&Mirror, &Table), model: Option<u32>) -> Pace {
        *self.known.entry(model).or_insert_with(|| {
            let mut best = None;
            for row in table.iter() {
                let better = best.is_none_or(|best: Pace| best.best(row.pace) != best);
                if better && serves(mirror, row.id, model) {
                    best = Some(best.map_or(row.pace, |best| best.best(row.pace)));
                }
            }
            best.unwrap_or(Pace {
                first_token: 0,
                next_token: 0,
            })
        })
    }
}

fn serves(mirror: &Mirror, id: u32, model: Option<u32>) -> bool {
    let serves = mirror.executor(id).and_then(|at| at.info.serves.as_ref());
    match (model, serves) {
        (Some(model), Some(serves)) => serves.contains(&model),
        (None, _) | (_, None) => true,
    }
}
