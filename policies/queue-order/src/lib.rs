//! Order of the queue by one of three classic disciplines, which the operator chooses.
//!
//! Urgency (class, then client priority) is strict and comes before every discipline; the
//! discipline orders requests of one urgency by a score, the greater first. A request that was overtaken
//! nearly as often as the host allows goes before those that would overtake it.
//!
//! # Not here
//! Aging: see `aging` for an order in which what is less urgent becomes more so.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

use std::cmp::Reverse;

use pointsman_sdk::wire::types::{AskedRequest, Request};
use pointsman_sdk::{
    Description, Feed, Mirror, Moment, Policy, Priority, Setting, Urgency, export, overtaken_first,
};
use serde::Deserialize;

/// One second, in micros: the weight of a request without a head start.
const SECOND: u64 = 1_000_000;

/// Settings; see the README.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// The order of requests of one urgency.
    pub discipline: Discipline,
}

impl Settings {
    /// The settings, described.
    pub(crate) fn described() -> Vec<Setting> {
        vec![Setting::choice(
            "discipline",
            &["fcfs", "lcfs", "wspt"],
            "The order of requests of one urgency.",
        )]
    }
}

/// The order of requests of one urgency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Last come, first served.
    Lcfs,
    /// Weighted shortest processing time: the most weight per uncached prompt token.
    Wspt,
}

/// A policy that orders the queue by a classic discipline.
#[derive(Clone, Copy, Debug)]
pub struct QueueOrder {
    discipline: Discipline,
}

/// The place of one request; the least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    urgency: Reverse<Urgency>,
    score: Reverse<u128>,
    arrived: u64,
    id: u64,
}

impl Policy for QueueOrder {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "queue-order".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "First come, last come, or the most weight per uncached prompt token first; \
                      within class and client priority."
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
            discipline: settings.discipline,
        })
    }
}

impl Priority for QueueOrder {
    const NEEDS: Feed = Feed::WAITING;

    fn order(&mut self, mirror: &Mirror, _at: Moment, requests: &[AskedRequest]) -> Vec<u64> {
        let ranks = requests.iter().filter_map(|asked| {
            let request = mirror.request(asked.request)?;
            Some(self.discipline.rank(request, asked.cached_tokens))
        });
        let mut ranking: Vec<Rank> = ranks.collect();
        ranking.sort_unstable();
        let order = ranking.into_iter().map(|rank| rank.id).collect();
        overtaken_first(mirror, requests, order)
    }
}

// === impl Discipline ===

impl Discipline {
    fn rank(self, request: &Request, cached_tokens: u32) -> Rank {
        Rank {
            urgency: Reverse(Urgency::from(request)),
            score: Reverse(self.score(request, cached_tokens)),
            arrived: request.arrived,
            id: request.id,
        }
    }

    fn score(self, request: &Request, cached_tokens: u32) -> u128 {
        /// An offset beyond any time, so that the difference of two times is positive.
        const OFFSET: u128 = 1 << 64;
        let head_start = u128::from(request.head_start);
        let arrived = u128::from(request.arrived);
        match self {
            Self::Fcfs => OFFSET + head_start - arrived,
            Self::Lcfs => head_start + arrived,
            // Two different quotients by 32-bit numbers are more than 2^-64 apart, so that 64
            // binary places tell them apart, and equal ones are equal.
            Self::Wspt => {
                let weight = u128::from(SECOND.saturating_add(request.head_start));
                let uncached = request.prompt_tokens.saturating_sub(cached_tokens);
                (weight << 64) / u128::from(uncached.max(1))
            }
        }
    }
}

export!(QueueOrder: priority);

#[cfg(test)]
mod tests;
