//! Earliest deadline first, by the latest start that still makes it.
//!
//! An executor's measured times say how long an answer takes there. What has to start first goes
//! first; what can end in time nowhere any more gives way to all that can, and routing gives it
//! up rather than spend a slot on an answer that is worthless when it comes.
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
use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::{Cached, Change, Request};
use pointsman_sdk::{
    Case, Explanation, Mirror, Moment, Pick, Policy, Priority, Router, Tentative, export,
};

use reason::Reason;
pub use settings::{Late, Settings};
use table::Table;

/// Which deadline comes first, and which is past help.
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
            feed: Feed::WAITING,
            reasons: Reason::texts(),
            state_version: 1,
        }
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            settings: settings.validated()?,
            table: Table::default(),
        })
    }

    fn cleared(&mut self) {
        self.table.clear();
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.table.changed(mirror, change);
    }

    fn observed(&mut self, mirror: &Mirror) {
        self.table.observed();
        self.refresh(mirror, &Tentative::default());
    }
}

impl Priority for Deadline {
    fn order(&mut self, mirror: &Mirror, at: Moment, requests: &[u64]) -> Vec<u64> {
        order::order((mirror, &self.table), &self.settings, at.now, requests)
    }
}

impl Router for Deadline {
    const NO_ROOM: u16 = Reason::NoRoom as u16;
    const UNKNOWN: u16 = Reason::Unknown as u16;

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        self.refresh(case.mirror, case.placed);
        place::choose(case, &self.table, &self.settings)
    }

    fn took(&mut self, _: &Case<'_>, pick: &Pick) {
        self.table.placed(pick.executor);
    }
}

impl Explanation for Deadline {
    fn explain(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Vec<Candidate> {
        place::explain(mirror, at.now, (request, cached), &self.settings)
    }
}

impl Deadline {
    fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        self.table.refresh(mirror, placed);
    }
}

export!(Deadline: priority, routing, explanation);

#[cfg(test)]
mod tests;
