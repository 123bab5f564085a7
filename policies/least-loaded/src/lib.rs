//! Routing to the executor with the least work: requests running and queued there, then
//! placements so far.
//!
//! # Not here
//! KV memory: `memory-aware` weighs the pressure on the pools before the depth.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::{Cached, Change, Request};
use pointsman_sdk::{
    Case, Executor, Explanation, Mirror, Moment, Pick, Policy, Ranking, Router, Seat, Standing,
    Tentative, explain, export, open_seat,
};

/// It has no settings; a key in its sidecar is an error.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {}

/// Where requests go. It keeps no state but an order of what is in the mirror.
#[derive(Debug)]
pub struct LeastLoaded {
    ranking: Ranking<Rank>,
}

/// How good a place an executor is; the smaller is the better. Of equals the one attached first
/// is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    standing: Standing,
    /// Running, and placed but not started.
    depth: u64,
    /// Placements so far, failed ones too.
    placed: u64,
}

const REASONS: [&str; 2] = ["least loaded", "no room anywhere"];

impl Policy for LeastLoaded {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "least-loaded".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The executor with the fewest requests, then the fewest placements.".into(),
            feed: Feed::WAITING,
            reasons: REASONS.map(str::to_owned).to_vec(),
            state_version: 1,
        }
    }

    fn new(_: Settings) -> Result<Self, String> {
        Ok(Self {
            ranking: Ranking::default(),
        })
    }

    fn cleared(&mut self) {
        self.ranking.clear();
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.ranking.changed(mirror, change);
    }

    fn observed(&mut self, mirror: &Mirror) {
        self.ranking.observed();
        self.refresh(mirror, &Tentative::default());
    }
}

impl Router for LeastLoaded {
    const NO_ROOM: u16 = 1;

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        self.refresh(case.mirror, case.placed);
        let best_first = self.ranking.best_first(case.need.request, None);
        let least = case.first_of(best_first, 0);
        least.ok_or(Self::hold(Self::NO_ROOM))
    }

    fn took(&mut self, _: &Case<'_>, pick: &Pick) {
        self.ranking.placed(pick.executor);
    }
}

impl Explanation for LeastLoaded {
    fn explain(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Vec<Candidate> {
        let rank = |case: &Case<'_>, at: &Executor<'_>, seat| Ok(Rank::new(case.placed, at, seat));
        let note = |_: &Case<'_>, executor: &Executor<'_>| {
            let placed = executor.load.placed_total;
            format!("depth {}, {placed} placed", executor.depth())
        };
        explain::alone(mirror, at.now, (request, cached), rank, note)
    }
}

impl LeastLoaded {
    fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        self.ranking.refresh(mirror, placed, |executor| {
            Some(Rank::new(placed, executor, open_seat(placed, executor)?))
        });
    }
}

impl Rank {
    fn new(placed: &Tentative, executor: &Executor<'_>, seat: Seat) -> Self {
        let counts = placed.counts(executor).total();
        Self {
            standing: Standing::new(executor, seat),
            depth: executor.depth() + counts,
            placed: executor.load.placed_total + counts,
        }
    }
}

export!(LeastLoaded: routing, explanation);
