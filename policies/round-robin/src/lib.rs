//! Routing in turn: each request goes to the next executor that can take it.
//!
//! Each model has turns of its own: models served in different places do not move each other's on.
//!
//! # Not here
//! The work that an executor has: `least-loaded` looks at that.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

use pointsman_sdk::wire::types::Request;
use pointsman_sdk::{
    ByRank, Description, NoSettings, Place, Policy, Ranked, Readiness, Turns, export,
};

/// A policy in which executors take turns.
#[derive(Debug)]
pub struct RoundRobin {
    turns: Turns,
}

impl Ranked for RoundRobin {
    type Rank = Readiness;

    fn rank(&self, place: &Place<'_>) -> Readiness {
        place.readiness()
    }

    fn turns(&mut self, _: &Request) -> Option<&mut Turns> {
        Some(&mut self.turns)
    }
}

impl Policy for RoundRobin {
    type Settings = NoSettings;

    fn describe() -> Description {
        Description {
            name: "round-robin".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The next executor in turn that can take the request, per model.".into(),
            reasons: ["its turn", "no room anywhere"].map(Into::into).into(),
            state_version: 1,
        }
    }

    fn new(_: NoSettings) -> Result<Self, String> {
        Ok(Self {
            turns: Turns::default(),
        })
    }

    fn snapshot(&self) -> Vec<u8> {
        self.turns.snapshot()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.turns = Turns::restore(state)?;
        Ok(())
    }
}

export!(ByRank<RoundRobin>: routing, explanation);
