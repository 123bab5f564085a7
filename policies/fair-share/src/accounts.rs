//! The virtual counters: the tokens that each tenant was served, and its lift.
//!
//! The host counts the tokens served. The difference is kept here: a tenant's counter is the tokens
//! it was served for its weight, plus its lift.
//!
//! # Invariants
//! 1. A tenant whose first request comes to wait has at least the counter of the least served one
//!    that waits already, or of the last one that waited (`tests::a_tenant_that_*`).
//! 2. A counter never jumps otherwise: not by another weight (`tests::another_weight_*`), nor by
//!    other costs after a reload (`tests::other_costs_*`).

use std::collections::BTreeMap;

use pointsman_sdk::Mirror;
use pointsman_sdk::wire::types::Tenant;

use crate::settings::{Costs, Settings};

/// The accounts of all tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accounts {
    pub(crate) tenants: BTreeMap<u32, Account>,
    /// The tenant whose last request left the queue last.
    pub(crate) last: Option<u32>,
}

/// The account of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    /// Amount added to the tokens served, in parts of a token.
    pub(crate) lift: i128,
    /// The tenant's weight when its row last came.
    pub(crate) weight: u32,
    /// The costs of tokens when its row last came.
    pub(crate) costs: Costs,
    /// True if a request of the tenant waited at the last `observe`.
    pub(crate) waits: bool,
}

// === impl Accounts ===

impl Accounts {
    /// A tenant's counter; 0 for one without rows.
    pub(crate) fn counter(&self, mirror: &Mirror, settings: &Settings, tenant: u32) -> i128 {
        match (self.tenants.get(&tenant), mirror.tenant(tenant)) {
            (Some(account), Some(row)) => settings.costs().served(row) + account.lift,
            (None, _) | (_, None) => 0,
        }
    }

    /// Takes over the new rows of `told`, which are in the mirror already. Tenants that stop
    /// waiting go before those that begin, so the order of rows does not matter.
    pub(crate) fn update(&mut self, mirror: &Mirror, settings: &Settings, told: &[u32]) {
        let mut left = None;
        let mut came = Vec::new();
        for row in told.iter().filter_map(|&id| mirror.tenant(id)) {
            let account = self.tenants.entry(row.id);
            let account = account.or_insert_with(|| Account::opened(settings, row));
            account.reprice(settings, row);
            match (account.waits, row.waiting > 0) {
                (true, false) => {
                    account.waits = false;
                    let counter = settings.costs().served(row) + account.lift;
                    left = left.max(Some((counter, row.id)));
                }
                (false, true) => came.push(row.id),
                (true, true) | (false, false) => {}
            }
        }
        // Of several tenants that left at once, the one served most gives the least credit.
        self.last = left.map(|(_, id)| id).or(self.last);
        if !came.is_empty() {
            self.lift(mirror, settings, &came);
        }
    }

    fn lift(&mut self, mirror: &Mirror, settings: &Settings, came: &[u32]) {
        let waiting = self.tenants.iter().filter(|(_, account)| account.waits);
        let level = waiting
            .map(|(&id, _)| self.counter(mirror, settings, id))
            .min()
            .or_else(|| Some(self.counter(mirror, settings, self.last?)));
        for &id in came {
            let short = level.map_or(0, |level| level - self.counter(mirror, settings, id));
            if let Some(account) = self.tenants.get_mut(&id) {
                account.lift += short.max(0);
                account.waits = true;
            }
        }
    }
}

// === impl Account ===

impl Account {
    /// An account that starts from 0, whatever was served before this policy came.
    fn opened(settings: &Settings, row: &Tenant) -> Self {
        let costs = settings.costs();
        Self {
            lift: -costs.served(row),
            weight: row.weight,
            costs,
            waits: false,
        }
    }

    /// Counts tokens by another weight and other costs from now on; those already served stay as
    /// counted.
    fn reprice(&mut self, settings: &Settings, row: &Tenant) {
        let costs = settings.costs();
        if self.weight != row.weight || self.costs != costs {
            let before = Tenant {
                weight: self.weight,
                ..*row
            };
            self.lift += self.costs.served(&before) - costs.served(row);
            self.weight = row.weight;
            self.costs = costs;
        }
    }
}
