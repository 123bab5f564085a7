//! Tokens that each tenant has used: its tokens per minute, and its share of the tokens served.
//!
//! Both are counted from the totals that the host tells, so nothing is counted twice or lost:
//! tokens served while this policy was not asked are in the next total. A bucket is in units of a
//! token over a minute of microseconds, so the flow in between is exact.
//!
//! # Invariants
//! 1. A fresh instance with the last snapshot and the present totals stands where the old one
//!    did (`tests::a_restored_ledger_stands_where_the_old_one_did`).
//! 2. A tenant alone is never beyond its share (`tests::shares_are_by_weight`).
//!
//! # Not here
//! The treatment of a tenant beyond its share, which is a policy's.

mod snapshot;

use std::collections::BTreeMap;

use crate::LastMinute;
use crate::wire::types::Tenant;

const MINUTE: u64 = 60_000_000;

/// Use of the tenants, by id.
///
/// A policy keeps it beside its mirror, whose rows have totals only, and saves it as a part of its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenants {
    accounts: BTreeMap<u32, Account>,
}

/// Use of one tenant, as of its last row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    /// Tokens served since the host started.
    total: u64,
    /// Time of that row, in microseconds.
    seen: u64,
    /// Amount taken from the bucket and not flowed back, in tokens × microseconds of a minute.
    spent: u128,
    /// Tokens served of late.
    served: LastMinute,
}

/// Recent use of the tenants that compete for the same room, and their weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contest {
    now: u64,
    used: u128,
    weight: u128,
}

// === impl Tenants ===

impl Tenants {
    /// Takes over a tenant's row.
    pub fn changed(&mut self, now: u64, row: &Tenant) {
        let total = row
            .prompt_tokens_total
            .saturating_add(row.output_tokens_total);
        // An account with more than that is of an earlier life of the host.
        let known = self.accounts.get(&row.id);
        let known = known.filter(|known| known.total <= total && known.seen <= now);
        let account = known.copied().unwrap_or_default();
        let account = account.told(now, row.tokens_per_minute, total);
        self.accounts.insert(row.id, account);
    }

    /// Seconds until a tenant is within its tokens per minute; absent where it is.
    #[must_use]
    pub fn overdrawn_secs(&self, tenant: &Tenant, now: u64) -> Option<u32> {
        let rate = tenant.tokens_per_minute?;
        let beyond = self.account(tenant, now).spent.checked_sub(full(rate))?;
        // Tokens × micros of a minute, by tokens per minute: micros.
        let micros = beyond / u128::from(rate.max(1)) + 1;
        Some(u32::try_from(micros.div_ceil(1_000_000)).unwrap_or(u32::MAX))
    }

    /// The use to share out among the tenants that have work in hand.
    pub fn contest<'a>(&self, tenants: impl Iterator<Item = &'a Tenant>, now: u64) -> Contest {
        self.among(tenants.filter(|tenant| is_at_work(tenant)), now)
    }

    /// The same among all tenants of the last minute: those that were served tokens in it too, since they may
    /// be back at any time.
    pub fn contest_of_minute<'a>(
        &self,
        tenants: impl Iterator<Item = &'a Tenant>,
        now: u64,
    ) -> Contest {
        let is_recent = |tenant: &&Tenant| is_at_work(tenant) || self.used(tenant, now) > 0;
        self.among(tenants.filter(is_recent), now)
    }

    fn among<'a>(&self, tenants: impl Iterator<Item = &'a Tenant>, now: u64) -> Contest {
        let nobody = Contest {
            now,
            ..Contest::default()
        };
        tenants.fold(nobody, |contest, tenant| Contest {
            used: contest.used + self.used(tenant, now),
            weight: contest.weight + weight(tenant),
            ..contest
        })
    }

    /// The excess of a tenant's use over `permille` of its share, if there is one. It is per
    /// weight, so that tenants compare.
    #[must_use]
    pub fn beyond_share(&self, tenant: &Tenant, contest: Contest, permille: u32) -> Option<u128> {
        // used / weight > contest.used / contest.weight × permille / 1000, without fractions.
        let used = self.used(tenant, contest.now);
        let per_weight = used.saturating_mul(contest.weight).saturating_mul(1000) / weight(tenant);
        let allowed = contest.used.saturating_mul(u128::from(permille));
        (per_weight > allowed).then(|| per_weight - allowed)
    }

    /// Permille of the way from its share to all tokens that a tenant's use is beyond its share. 0: it is
    /// within it, or nobody else is in the contest. With all the tokens of the contest it is 1000.
    #[must_use]
    pub fn excess_permille(&self, tenant: &Tenant, contest: Contest) -> u32 {
        let weight = weight(tenant);
        let due = contest.used.saturating_mul(weight);
        let used = self.used(tenant, contest.now);
        let beyond = used.saturating_mul(contest.weight).saturating_sub(due);
        // used / contest.used - weight / contest.weight, of 1 - weight / contest.weight.
        let others = contest.weight.saturating_sub(weight);
        let whole = contest.used.saturating_mul(others);
        let permille = beyond.saturating_mul(1000).checked_div(whole);
        permille.map_or(0, |permille| u32::try_from(permille.min(1000)).unwrap_or(0))
    }

    /// Tokens served within the last minute to all tenants together.
    #[must_use]
    pub fn served_within_minute(&self, now: u64) -> u64 {
        let served = self.accounts.values().map(|account| account.served.at(now));
        served.fold(0, u64::saturating_add)
    }

    /// Tokens served within the last minute, times a minute.
    fn used(&self, tenant: &Tenant, now: u64) -> u128 {
        self.account(tenant, now).served.exactly_at(now)
    }

    fn account(&self, tenant: &Tenant, now: u64) -> Account {
        let account = self.accounts.get(&tenant.id).copied();
        account
            .unwrap_or_default()
            .at(now, tenant.tokens_per_minute)
    }
}

// === impl Contest ===

impl Contest {
    /// Returns whether nobody was served anything of late, so that all are within their shares.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.used == 0
    }

    /// Returns whether a tenant that holds `places` of `total` has fewer than its weight is due.
    #[must_use]
    pub fn leaves_room(&self, tenant: &Tenant, places: usize, total: usize) -> bool {
        (places as u128).saturating_mul(self.weight) < weight(tenant).saturating_mul(total as u128)
    }
}

fn is_at_work(tenant: &Tenant) -> bool {
    tenant.running > 0 || tenant.waiting > 0
}

fn weight(tenant: &Tenant) -> u128 {
    u128::from(tenant.weight.max(1))
}

// === impl Account ===

impl Account {
    /// The account with the total of `now`. Tokens served since the last total count as served
    /// evenly in between; those of an account without a past, since the host started.
    fn told(self, now: u64, rate: Option<u64>, total: u64) -> Self {
        let tokens = total.saturating_sub(self.total);
        let since = u128::from(now.saturating_sub(self.seen).max(MINUTE));
        let within_minute = u64::try_from(full(tokens) / since).unwrap_or(tokens);
        let spent = self.spent + full(tokens);
        let mut account = Self { spent, ..self }.at(now, rate);
        account.served.add(now, within_minute);
        Self { total, ..account }
    }

    /// The account as time has passed by `now`. Two minutes' tokens can be spent, though only one
    /// minute's are there: a tenant that used tokens no other wanted is in order a minute later.
    fn at(self, now: u64, rate: Option<u64>) -> Self {
        let rate = rate.unwrap_or(0);
        let flowed = u128::from(rate) * u128::from(now.saturating_sub(self.seen));
        Self {
            total: self.total,
            seen: now.max(self.seen),
            spent: self.spent.saturating_sub(flowed).min(2 * full(rate)),
            served: self.served.moved(now),
        }
    }
}

/// The content of a bucket of so many tokens per minute.
fn full(tokens: u64) -> u128 {
    u128::from(tokens) * u128::from(MINUTE)
}

#[cfg(test)]
mod tests;
