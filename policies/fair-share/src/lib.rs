//! Order of the queue: tenants share the tokens served by their weights.
//!
//! Each tenant has a virtual token counter, as in "Fairness in Serving Large Language Models"
//! (VTC). The tenant that has been served least goes first, and one that comes back gets no credit
//! for the time it was away. Only the order is decided, so no slot stays empty for fairness.
//!
//! # Not here
//! Limits (`tokens-per-minute`): a tenant without rivals gets all the room.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod accounts;
mod queue;
mod settings;
mod snapshot;

use pointsman_sdk::wire::types::{AskedRequest, Change};
use pointsman_sdk::{
    Description, Feed, Mirror, Moment, Policy, Priority, Setting, export, overtaken_first,
};

use accounts::Accounts;
pub use settings::Settings;

/// A policy that puts the tenant served least first.
#[derive(Debug)]
pub struct FairShare {
    settings: Settings,
    accounts: Accounts,
    /// Tenants whose rows came in this `observe`.
    told: Vec<u32>,
}

impl Policy for FairShare {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "fair-share".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The tenant first that was served the fewest tokens for its weight; waiting \
                      counts, too."
                .into(),
            reasons: Vec::new(),
            state_version: 2,
        }
    }

    fn settings() -> Vec<Setting> {
        Settings::described()
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            settings: settings.validated()?,
            accounts: Accounts::default(),
            told: Vec::new(),
        })
    }

    fn changed(&mut self, _mirror: &Mirror, change: &Change) {
        if let Change::Tenant(row) = change {
            self.told.push(row.id);
        }
    }

    fn observed(&mut self, mirror: &Mirror) {
        self.told.sort_unstable();
        self.told.dedup();
        self.accounts.update(mirror, &self.settings, &self.told);
        self.told.clear();
    }

    fn snapshot(&self) -> Vec<u8> {
        snapshot::write(&self.accounts)
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.accounts = snapshot::read(state)?;
        Ok(())
    }
}

impl Priority for FairShare {
    const NEEDS: Feed = Feed::WAITING.union(Feed::TENANTS);

    /// It learns who waits, and who waited last.
    const ORDERS_ONE: bool = true;

    fn order(&mut self, mirror: &Mirror, _at: Moment, requests: &[AskedRequest]) -> Vec<u64> {
        let order = queue::order(mirror, &self.settings, &self.accounts, requests);
        overtaken_first(mirror, requests, order)
    }
}

export!(FairShare: priority);

#[cfg(test)]
mod tests;
