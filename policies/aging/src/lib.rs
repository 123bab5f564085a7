//! Order of the queue: class, priority, head start, affinity and shares of tenants, aged so that nothing
//! starves.
//!
//! All advantages are measured in microseconds of waiting. A request's score is the time it has
//! waited, and each advantage is worth so much more waiting; a tenant that was served more than its
//! share is behind by so much. Advantages are bounded, so a request that has waited longer than the
//! bound goes before every later one. The exceptions are a request
//! that starts a model, as one for each model that is warm nowhere goes before everything else, and one that the host
//! would have go first before long.
//!
//! # Not here
//! The executor that a request goes to, and whether one is free: the host asks about requests that
//! some executor could take.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod diversity;
mod settings;
mod warmth;

use std::collections::BTreeMap;

use pointsman_sdk::tenants::{Contest, Tenants};
use pointsman_sdk::wire::types::{AskedRequest, Change, Request, RequestClass};
use pointsman_sdk::{
    Description, Feed, Mirror, Moment, Policy, Priority, Setting, export, overtaken_first,
};

use diversity::Diversity;
pub use settings::Settings;
use settings::Weights;
use warmth::Warmth;

/// A policy that orders the queue by waiting and advantages.
#[derive(Debug)]
pub struct Aging {
    weights: Weights,
    /// Use of the tenants, which outlives the mirror: its rows do not have all of it.
    tenants: Tenants,
    // Kept between calls for their memory alone.
    warmth: Warmth,
    diversity: Diversity,
    ranking: Vec<Rank>,
    /// Waiting by which each tenant is behind, found when first asked for in a question.
    lags: BTreeMap<u32, i64>,
}

/// The place of one request; the least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    score_negated: i64,
    arrived: u64,
    id: u64,
    temperature: Temperature,
}

/// The warmth of a request's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Temperature {
    Warm,
    /// The model is warm nowhere.
    Cold,
    /// The request names no model, or warmth does not count.
    Indifferent,
}

impl Policy for Aging {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "aging".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary:
                "A model that is warm nowhere is started; then class, client priority, head start, \
                      warm models and tenants within their share first; waiting outweighs them all \
                      in the end."
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
            tenants: Tenants::default(),
            warmth: Warmth::default(),
            diversity: Diversity::default(),
            ranking: Vec::new(),
            lags: BTreeMap::new(),
        })
    }

    fn snapshot(&self) -> Vec<u8> {
        self.tenants.snapshot()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.tenants = Tenants::restore(state)?;
        Ok(())
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        if let Change::Tenant(row) = change {
            self.tenants.changed(mirror.now(), row);
        }
    }
}

impl Priority for Aging {
    const NEEDS: Feed = Feed::FIT.union(Feed::TENANTS);

    fn order(&mut self, mirror: &Mirror, at: Moment, requests: &[AskedRequest]) -> Vec<u64> {
        self.warmth.begin();
        self.diversity.begin();
        self.ranking.clear();
        self.lags.clear();
        let contest =
            (self.weights.share_lag > 0).then(|| self.tenants.contest(mirror.tenants(), at.now));
        for request in requests
            .iter()
            .filter_map(|asked| mirror.request(asked.request))
        {
            let lag = contest.map_or(0, |contest| self.lag(mirror, request.tenant, contest));
            let rank = self.rank(mirror, request, at.now, lag);
            self.ranking.push(rank);
        }
        self.ranking.sort_unstable();
        let diversity = &mut self.diversity;
        let mut starts = |rank: &&Rank| {
            rank.temperature == Temperature::Cold
                && mirror
                    .request(rank.id)
                    .is_some_and(|request| diversity.starts(mirror, request, at.now))
        };
        let (first, rest): (Vec<&Rank>, Vec<&Rank>) = self.ranking.iter().partition(&mut starts);
        let order = first.into_iter().chain(rest).map(|rank| rank.id).collect();
        overtaken_first(mirror, requests, order)
    }
}

impl Aging {
    fn rank(&mut self, mirror: &Mirror, request: &Request, now: u64, lag: i64) -> Rank {
        let temperature = match request.model {
            Some(model) if self.weights.warm > 0 => {
                if self.warmth.is_warm(mirror, model, now) {
                    Temperature::Warm
                } else {
                    Temperature::Cold
                }
            }
            Some(_) | None => Temperature::Indifferent,
        };
        let warm = match temperature {
            Temperature::Warm => self.weights.warm,
            Temperature::Cold | Temperature::Indifferent => 0,
        };
        Rank {
            score_negated: lag - warm - self.weights.score(request, now),
            arrived: request.arrived,
            id: request.id,
            temperature,
        }
    }

    /// The waiting by which the requests of a tenant beyond its share are behind.
    fn lag(&mut self, mirror: &Mirror, tenant: u32, contest: Contest) -> i64 {
        let Self {
            lags,
            tenants,
            weights,
            ..
        } = self;
        *lags.entry(tenant).or_insert_with(|| {
            let row = mirror.tenant(tenant);
            let excess = row.map_or(0, |row| tenants.excess_permille(row, contest));
            weights.share_lag * i64::from(excess) / 1000
        })
    }
}

impl Weights {
    /// The score without warmth and shares, in microseconds of waiting.
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

/// A time of three hundred years at most, so that sums of a few stay far from overflow.
fn micros(value: u64) -> i64 {
    const MAX: i64 = 10_000_000_000_000_000;
    i64::try_from(value).unwrap_or(MAX).min(MAX)
}

export!(Aging: priority);

#[cfg(test)]
mod tests;
