//! Slots that are kept free of tenants beyond their share, so that a request of any other tenant finds one.
//!
//! A tenant is beyond its share if it was served a quarter more than its weight's part of the tokens of the
//! last minute. That is found once for a question, and only where the answer matters.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;

use pointsman_sdk::snapshot::take_u64;
use pointsman_sdk::tenants::{Contest, Tenants};
use pointsman_sdk::wire::types::Tenant;
use pointsman_sdk::{Case, Mirror};

/// Permille of its share that a tenant may use.
const TOLERATED_PERMILLE: u32 = 1250;

/// Use of the tenants, and those beyond their share in the question that is being answered.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    tenants: Tenants,
    contest: OnceCell<Contest>,
    beyond: RefCell<BTreeMap<u32, bool>>,
}

// === impl Shares ===

impl Shares {
    /// Takes over a tenant's row.
    pub(crate) fn changed(&mut self, now: u64, row: &Tenant) {
        self.tenants.changed(now, row);
    }

    /// Forgets the last question.
    pub(crate) fn begin(&mut self) {
        self.contest.take();
        self.beyond.get_mut().clear();
    }

    /// Returns whether the tenant of a request is beyond its share.
    pub(crate) fn are_exceeded(&self, case: &Case<'_>) -> bool {
        let tenant = case.request.tenant;
        let find = || self.exceeds(case.fleet.mirror, tenant, case.now);
        *self.beyond.borrow_mut().entry(tenant).or_insert_with(find)
    }

    fn exceeds(&self, mirror: &Mirror, tenant: u32, now: u64) -> bool {
        let tenants = &self.tenants;
        let contest = || tenants.contest_of_minute(mirror.tenants(), now);
        let contest = *self.contest.get_or_init(contest);
        mirror.tenant(tenant).is_some_and(|row| {
            let beyond = tenants.beyond_share(row, contest, TOLERATED_PERMILLE);
            beyond.is_some()
        })
    }

    /// The use of the tenants as bytes, with their number before them.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        let tenants = self.tenants.snapshot();
        let mut bytes = (tenants.len() as u64).to_le_bytes().to_vec();
        bytes.extend(tenants);
        bytes
    }

    /// Takes the bytes that [`Self::snapshot`] made off the front.
    ///
    /// # Errors
    ///
    /// A sentence, where they end before their number is reached.
    pub(crate) fn restore(state: &mut &[u8]) -> Result<Self, String> {
        let all = state.len();
        let length = take_u64(state);
        let length = length.and_then(|length| usize::try_from(length).ok());
        let (tenants, rest) = length
            .and_then(|length| state.split_at_checked(length))
            .ok_or_else(|| format!("a snapshot of {all} bytes ends within the tenants' use"))?;
        *state = rest;
        Ok(Self {
            tenants: Tenants::restore(tenants)?,
            ..Self::default()
        })
    }
}
