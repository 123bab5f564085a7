//! Order of the queue: the shortest answer first, aged so that nothing starves.
//!
//! Length is counted as time: the longer its answer, the later a request counts as having come.
//! The delay is bounded, so a request that has waited longer than the bound goes before every later
//! one. It does not change while a request waits.
//!
//! # Not here
//! The length of an answer: the client states it, and the policy learns nothing.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod settings;

use pointsman_sdk::wire::types::{AskedRequest, Request};
use pointsman_sdk::{Description, Feed, Mirror, Moment, Policy, Priority, Setting, export};

pub use settings::Settings;
use settings::Weights;

/// A policy that puts the shortest answer first.
#[derive(Clone, Copy, Debug)]
pub struct ShortestFirst {
    weights: Weights,
}

/// The place of one request; the least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    due: u64,
    arrived: u64,
    id: u64,
}

impl Policy for ShortestFirst {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "shortest-first".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The shortest expected answer first; waiting outweighs any length in the end."
                .into(),
            reasons: Vec::new(),
            state_version: 1,
        }
    }

    fn settings() -> Vec<Setting> {
        Settings::described()
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            weights: settings.weights(),
        })
    }
}

impl Priority for ShortestFirst {
    const NEEDS: Feed = Feed::WAITING;

    fn order(&mut self, mirror: &Mirror, _at: Moment, requests: &[AskedRequest]) -> Vec<u64> {
        let known = requests
            .iter()
            .filter_map(|asked| mirror.request(asked.request));
        let mut ranking: Vec<Rank> = known.map(|request| self.weights.rank(request)).collect();
        ranking.sort_unstable();
        ranking.into_iter().map(|rank| rank.id).collect()
    }
}

impl Weights {
    fn rank(&self, request: &Request) -> Rank {
        // A head start that was not granted delays, rather than one that was going before time
        // began.
        let ungranted = self.head_start_max - request.head_start.min(self.head_start_max);
        let length = u64::from(output_tokens(request).min(self.tokens_max)) * self.wait_per_token;
        Rank {
            due: request.arrived.saturating_add(ungranted + length),
            arrived: request.arrived,
            id: request.id,
        }
    }
}

/// Tokens that the client expects; without a hint, those that it allows.
fn output_tokens(request: &Request) -> u32 {
    let bound = request.output_tokens_max;
    request.output_tokens_expected.unwrap_or(bound).min(bound)
}

export!(ShortestFirst: priority);

#[cfg(test)]
mod tests;
