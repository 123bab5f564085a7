//! Routing to the executor with the least work: requests running and queued there, then
//! placements so far.
//!
//! # Not here
//! KV memory: `memory-aware` weighs the pressure on the pools before the depth.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Health};
use pointsman_sdk::{
    Executor, Mirror, Moment, Need, Policy, Routing, Seat, Tentative, export, fit,
};

/// It has no settings; a key in its sidecar is an error.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {}

/// Where requests go. It keeps no state: all it needs is in the mirror.
#[derive(Debug)]
pub struct LeastLoaded;

/// How good a place an executor is; the smaller is the better. Of equals the one attached first
/// is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    degraded: bool,
    seat: Seat,
    /// Running, and placed but not started.
    depth: u64,
    /// Placements so far, failed ones too.
    placed: u64,
}

const REASONS: [&str; 2] = ["least loaded", "no room anywhere"];
const HOLD: Verdict = Verdict {
    choice: Choice::Hold(None),
    reason: 1,
};

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
        Ok(Self)
    }
}

impl Routing for LeastLoaded {
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let asked = requests.iter().map(|asked| asked.request);
        asked.map(|id| place(mirror, placed, at, id)).collect()
    }
}

fn place(mirror: &Mirror, placed: &mut Tentative, at: Moment, id: u64) -> Verdict {
    let Some(request) = mirror.request(id) else {
        return HOLD;
    };
    let need = Need::new(mirror, placed, request, at.now);
    let open = mirror
        .executors()
        .filter_map(|executor| Some((fit(mirror, placed, &need, &executor).ok()?, executor)));
    let least = open.min_by_key(|(seat, executor)| Rank::new(placed, executor, *seat));
    let Some((seat, executor)) = least else {
        return HOLD;
    };
    placed.place(mirror, &need, &executor, seat);
    Verdict {
        choice: Choice::Place(vec![executor.id()]),
        reason: 0,
    }
}

impl Rank {
    fn new(placed: &Tentative, executor: &Executor<'_>, seat: Seat) -> Self {
        let counts = placed.counts(executor).total();
        Self {
            degraded: executor.load.health == Health::Degraded,
            seat,
            depth: executor.depth() + counts,
            placed: executor.load.placed_total + counts,
        }
    }
}

export!(LeastLoaded: routing);
