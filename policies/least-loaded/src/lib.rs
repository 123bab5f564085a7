//! Routing to the executor with the least work: requests running and queued there, then
//! placements so far.
//!
//! # Not here
//! KV memory: `memory-aware` weighs the pressure on the pools before the depth.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

use pointsman_sdk::{
    ByRank, Description, Executor, NoSettings, Place, Policy, Ranked, Readiness, export,
};

/// A policy that prefers executors with few requests.
#[derive(Debug)]
pub struct LeastLoaded;

/// The order of executors; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load {
    readiness: Readiness,
    /// Requests running, and placed but not started.
    depth: u64,
    /// Placements so far, failed ones too.
    placed: u64,
}

impl Ranked for LeastLoaded {
    type Rank = Load;

    fn rank(&self, place: &Place<'_>) -> Load {
        Load {
            readiness: place.readiness(),
            depth: place.depth(),
            placed: place.placed_total(),
        }
    }

    fn note(&self, executor: &Executor<'_>) -> String {
        let placed = executor.load.placed_total;
        format!("depth {}, {placed} placed", executor.depth())
    }
}

impl Policy for LeastLoaded {
    type Settings = NoSettings;

    fn describe() -> Description {
        Description {
            name: "least-loaded".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The executor with the fewest requests, then the fewest placements.".into(),
            reasons: ["least loaded", "no room anywhere"].map(Into::into).into(),
            state_version: 1,
        }
    }

    fn new(_: NoSettings) -> Result<Self, String> {
        Ok(Self)
    }
}

export!(ByRank<LeastLoaded>: routing, explanation);
