//! Order of the queue: class, priority, head start and affinity, aged so that nothing starves.
//!
//! Everything is measured in microseconds of waiting: a request's score is how long it has
//! waited, and whatever puts it ahead is worth so much more waiting. Since that is bounded, a
//! request that has waited longer than the bound goes before every later one.
//!
//! # Not here
//! Which executor it goes to, and whether one is free: this order covers what the host asks for.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod settings;
mod warmth;

use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::types::{Request, RequestClass};
use pointsman_sdk::{Mirror, Moment, Policy, Priority, export};

pub use settings::Settings;
use settings::Weights;
use warmth::Warmth;

/// The order of the queue.
#[derive(Debug)]
pub struct Aging {
    weights: Weights,
    // Kept between calls for their memory alone.
    warmth: Warmth,
    ranking: Vec<Rank>,
}

/// The place of one request; the smaller comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    score_negated: i64,
    arrived: u64,
    id: u64,
}

impl Policy for Aging {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "aging".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "Class, client priority, head start and warm models first; waiting outweighs \
                      them all in the end."
                .into(),
            feed: Feed::WAITING,
            reasons: Vec::new(),
            state_version: 1,
        }
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            weights: settings.weights()?,
            warmth: Warmth::default(),
            ranking: Vec::new(),
        })
    }
}

impl Priority for Aging {
    fn order(&mut self, mirror: &Mirror, at: Moment, requests: &[u64]) -> Vec<u64> {
        let Self {
            weights,
            warmth,
            ranking,
        } = self;
        warmth.begin();
        ranking.clear();
        ranking.extend(requests.iter().filter_map(|&id| {
            let request = mirror.request(id)?;
            let warm = weights.warm > 0
                && request
                    .model
                    .is_some_and(|model| warmth.is_warm(mirror, model, at.now));
            Some(Rank {
                score_negated: -(weights.score(request, at.now)
                    + if warm { weights.warm } else { 0 }),
                arrived: request.arrived,
                id,
            })
        }));
        ranking.sort_unstable();
        ranking.iter().map(|rank| rank.id).collect()
    }
}

impl Weights {
    /// Everything but warmth, in microseconds of waiting.
    fn score(&self, request: &Request, now: u64) -> i64 {
        let waited = micros(now.saturating_sub(request.arrived));
        let head_start = micros(request.head_start).min(self.head_start_max);
        let priority = i64::from(request.priority).clamp(-self.priority_max, self.priority_max);
        let class = match request.class {
            RequestClass::LatencyCritical => self.class_lead,
            RequestClass::Throughput => 0,
        };
        waited + head_start + class + priority * self.priority_step
    }
}

/// Three hundred years at most, so that sums of a few stay far from overflow.
fn micros(value: u64) -> i64 {
    const MAX: i64 = 10_000_000_000_000_000;
    i64::try_from(value).unwrap_or(MAX).min(MAX)
}

export!(Aging: priority);

#[cfg(test)]
mod tests;
