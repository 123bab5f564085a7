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

use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::Cached;
use pointsman_sdk::{Mirror, Moment, Policy, Priority, Routing, Tentative, export};

use reason::Reason;
pub use settings::{Late, Settings};

/// Which deadline comes first, and which is past help.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    settings: Settings,
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
        })
    }
}

impl Priority for Deadline {
    fn order(&mut self, mirror: &Mirror, at: Moment, requests: &[u64]) -> Vec<u64> {
        order::order(mirror, &self.settings, at.now, requests)
    }
}

impl Routing for Deadline {
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let ids = requests.iter().map(|asked| asked.request);
        ids.map(|id| place::verdict(mirror, placed, &self.settings, at.now, id))
            .collect()
    }
}

export!(Deadline: priority, routing);

#[cfg(test)]
mod tests;
