//! Earliest deadline first, by the latest start that still makes it.
//!
//! An executor's measured times say how long an answer takes there. A request that has to start
//! first goes first. One that can end in time nowhere any more gives way to all others, and routing
//! gives it up rather than spend a slot on an answer that is worthless when it comes.
//!
//! # Not here
//! KV pressure, warm models and sessions: an operator who wants those binds this policy to the
//! order alone. And the deadline itself: when it has passed, the host ends the request.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod order;
mod pace;
mod place;
mod reason;
mod settings;
mod table;

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::AskedRequest;
use pointsman_sdk::{
    Case, Description, ExecutorIndex, Explanation, Feed, Mirror, Moment, Pick, Policy, Priority,
    Router, Setting, export, overtaken_first,
};

use reason::Reason;
pub use settings::{Late, Settings};
use table::Table;

/// A policy that puts the earliest deadline first, and gives up requests past help.
#[derive(Debug)]
pub struct Deadline {
    settings: Settings,
    /// The live executors.
    table: Table,
}

impl Policy for Deadline {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "deadline".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary:
                "What has to start first to make its deadline goes first; what cannot make it \
                      is given up."
                    .into(),
            reasons: Reason::texts(),
            state_version: 1,
        }
    }

    fn settings() -> Vec<Setting> {
        Settings::described()
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            settings,
            table: Table::default(),
        })
    }

    fn index(&mut self) -> Option<&mut dyn ExecutorIndex> {
        Some(&mut self.table)
    }
}

impl Priority for Deadline {
    const NEEDS: Feed = Feed::FLEET.union(Feed::WAITING);

    fn order(&mut self, mirror: &Mirror, at: Moment, requests: &[AskedRequest]) -> Vec<u64> {
        let order = order::order((mirror, &self.table), &self.settings, at.now, requests);
        overtaken_first(mirror, requests, order)
    }
}

impl Router for Deadline {
    const UNKNOWN: u16 = Reason::Unknown.index();

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        place::choose(case, &self.table, &self.settings)
    }
}

impl Explanation for Deadline {
    const NEEDS: Feed = Feed::FIT.union(Feed::NAMES);

    fn explain(&mut self, case: &Case<'_>) -> Vec<Candidate> {
        place::explain(case, &self.settings)
    }
}

export!(Deadline: priority, routing, explanation);

#[cfg(test)]
mod tests;
