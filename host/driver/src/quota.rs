//! Hard limits by tenant: requests per minute, tokens per minute, requests at once.
//!
//! HTTP takes a [`QuotaHold`] before it submits a request, the driver keeps it for as long as it has the request in
//! hand, and what the request used is charged when it is dropped. No policy is asked, so none can lift a
//! limit. A client's request that is made of several, as one with several choices is, is taken whole or not at all:
//! they share a hold, which ends with the last of them.
//!
//! A minute is any 60 seconds, and not one of the clock's. A request holds the tokens of its prompt and of the longest answer
//! it may have until its end tells what it used: the charges of requests that run together do not exceed the limit.
//! There are two exceptions, for which the next minutes pay: a request that alone may use more than the limit, which is
//! taken once no other holds any and there is room for its prompt, and then holds all that is left of the minute; and one
//! that a server elsewhere tells to have used more than it held.
//!
//! # Invariants
//! 1. In no 60 seconds are more requests taken than the limit allows, nor, with those exceptions, more tokens
//!    charged (`tests::no_minute_has_more_than_the_limit`).
//! 2. Each hold is given back once, however its request ends (`Drop`).
//!
//! # Bounds
//! `WINDOW_SECS` numbers for each limit; tenants are those of the configuration.
//!
//! # Not here
//! `tokens-per-minute`, a tenant's fair share, which policies are told and which is no limit.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pointsman_core::{Micros, Stay};

use super::lives::UsedTokens;

/// Limits that no policy can lift; absent: unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// Requests that are taken in any 60 seconds.
    pub requests_per_minute: Option<u64>,
    /// Tokens of prompts and answers in any 60 seconds.
    pub tokens_per_minute_max: Option<u64>,
    /// Requests in hand at once, waiting or running.
    pub concurrent_max: Option<u64>,
}

/// A limit of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// [`TenantLimits::requests_per_minute`].
    Requests,
    /// [`TenantLimits::tokens_per_minute_max`].
    Tokens,
    /// [`TenantLimits::concurrent_max`].
    Concurrent,
}

/// The need of a client's request, or of the requests that it is made of, together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaNeed {
    /// Requests.
    pub requests: u64,
    /// The number of them that have to be in hand at once, and the number that may be.
    pub at_once: RangeInclusive<u64>,
    /// Tokens of the prompts.
    pub prompt: u64,
    /// Upper bound on generated tokens.
    pub output_max: u64,
}

/// The reason why a request of a tenant is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverLimit {
    /// There is room again later.
    Later {
        limit: LimitKind,
        /// The value of the limit.
        max: u64,
        /// The time after which there may be room, in seconds.
        retry_after: u32,
    },
    /// The prompt alone is larger than the limit on tokens, or the request is made of more than may ever be taken.
    Never {
        limit: LimitKind,
        /// Tokens of the prompt, or requests.
        needed: u64,
        /// The value of the limit.
        max: u64,
    },
}

/// The use of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitUse {
    /// The value of the limit.
    pub max: u64,
    /// The part in use.
    pub used: u64,
    /// The time after which nothing is in use if nothing more comes, in seconds.
    pub reset: u32,
}

/// The use of a tenant's limits; absent: it has no such limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsUse {
    pub requests: Option<LimitUse>,
    pub tokens: Option<LimitUse>,
    pub concurrent: Option<LimitUse>,
}

/// The limits of all tenants that have some, and their use.
#[derive(Debug, Default)]
pub struct Quotas {
    /// Locked for a few sums and never across a wait: HTTP's tasks take holds, and the driver gives them
    /// back.
    tenants: Mutex<BTreeMap<String, Quota>>,
}

/// A request's hold on the limits of its tenant. Once it and all that share it are dropped, it is given back, and what
/// the requests used is charged.
#[derive(Debug)]
pub struct QuotaHold {
    // Immutable.
    shared: Arc<SharedHold>,
    // Owned.
    used: UsedTokens,
    /// The newest time that the hold was told.
    now: Micros,
}

/// The hold of a client's request, shared by the requests that it is made of.
#[derive(Debug)]
struct SharedHold {
    // Immutable.
    quotas: Arc<Quotas>,
    tenant: String,
    /// Tokens that are held.
    reserved: u64,
    /// Places among the requests in hand that are held.
    at_once: u64,
    // Owned.
    /// Locked for a sum, when a request of it ends.
    ended: Mutex<EndedUse>,
}

/// The use by the requests of a hold that have ended.
#[derive(Clone, Copy, Debug)]
struct EndedUse {
    tokens: u64,
    /// The newest time that one of them was told.
    at: Micros,
}

/// The limits of a tenant, and their use.
#[derive(Debug, Default)]
struct Quota {
    limits: TenantLimits,
    requests: Window,
    tokens: Window,
    /// Tokens that requests in hand hold.
    reserved: u64,
    /// Requests in hand.
    in_hand: u64,
}

/// Amounts of the last minute, by the second of the host's clock in which they came.
#[derive(Debug, Default)]
struct Window {
    seconds: VecDeque<(u64, u64)>,
    sum: u64,
}

/// Seconds for which an amount counts: those of a minute, and the one that had begun when it came.
const WINDOW_SECS: u64 = 61;
/// Seconds after which a tenant may try again that waits for its own requests to end.
const RETRY_AFTER_END: u32 = 1;

// === impl TenantLimits ===

impl TenantLimits {
    fn is_none(self) -> bool {
        self == Self::default()
    }
}

// === impl LimitKind ===

impl LimitKind {
    /// The limit's key in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            LimitKind::Requests => "requests-per-minute",
            LimitKind::Tokens => "tokens-per-minute-max",
            LimitKind::Concurrent => "concurrent-max",
        }
    }

    /// The refusal of what may be taken later.
    fn later(self, max: u64, retry_after: u32) -> OverLimit {
        OverLimit::Later {
            limit: self,
            max,
            retry_after,
        }
    }
}

// === impl Quotas ===

impl Quotas {
    /// Sets the limits of all tenants; one that is missing has none. The use so far goes on counting.
    pub fn set(&self, limits: impl IntoIterator<Item = (String, TenantLimits)>) {
        let mut tenants = self.lock();
        for quota in tenants.values_mut() {
            quota.limits = TenantLimits::default();
        }
        for (name, limits) in limits {
            if !limits.is_none() || tenants.contains_key(&name) {
                tenants.entry(name).or_default().limits = limits;
            }
        }
        tenants.retain(|_, quota| !quota.limits.is_none() || quota.in_hand > 0);
    }

    /// Tells whether a request of `tenant` would be taken, as far as its size does not matter.
    ///
    /// # Errors
    /// The limit that it would exceed.
    pub fn check(&self, tenant: &str, now: Micros) -> Result<(), OverLimit> {
        match self.lock().get_mut(tenant) {
            Some(quota) => quota.check(second(now), &QuotaNeed::of_one(0, 0)),
            None => Ok(()),
        }
    }

    /// Takes a client's request of `tenant`; absent: the tenant has no limits.
    ///
    /// # Errors
    /// The limit that it would exceed. Then nothing is counted.
    pub fn take(
        self: &Arc<Self>,
        tenant: &str,
        now: Micros,
        need: &QuotaNeed,
    ) -> Result<Option<QuotaHold>, OverLimit> {
        let mut tenants = self.lock();
        let Some(quota) = tenants.get_mut(tenant) else {
            return Ok(None);
        };
        quota.check(second(now), need)?;
        let (reserved, at_once) = quota.take(second(now), need);
        let shared = SharedHold {
            quotas: Arc::clone(self),
            tenant: tenant.to_owned(),
            reserved,
            at_once,
            ended: Mutex::new(EndedUse { tokens: 0, at: now }),
        };
        Ok(Some(QuotaHold {
            shared: Arc::new(shared),
            used: UsedTokens::default(),
            now,
        }))
    }

    /// The use of the limits of `tenant`; absent: it has none.
    #[must_use]
    pub fn of(&self, tenant: &str, now: Micros) -> Option<LimitsUse> {
        let mut tenants = self.lock();
        let quota = tenants.get_mut(tenant)?;
        (!quota.limits.is_none()).then(|| quota.used(second(now)))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Quota>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn second(now: Micros) -> u64 {
    now.0 / 1_000_000
}

// === impl QuotaHold ===

impl QuotaHold {
    /// A hold that shares this one, for another request of those that it was taken for.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            used: UsedTokens::default(),
            now: self.now,
        }
    }

    /// The number of requests that may be in hand at once.
    #[must_use]
    pub fn at_once(&self) -> u64 {
        self.shared.at_once
    }

    /// Notes what the request used on an executor. A prompt that is computed again is charged once.
    pub(crate) fn stayed(&mut self, now: Micros, stay: &Stay) {
        self.now = now;
        self.used.stayed(stay);
    }
}

impl Drop for QuotaHold {
    fn drop(&mut self) {
        let used = u64::from(self.used.prompt_tokens) + u64::from(self.used.output_tokens);
        let ended = self.shared.ended.lock();
        let mut ended = ended.unwrap_or_else(PoisonError::into_inner);
        ended.tokens = ended.tokens.saturating_add(used);
        ended.at = ended.at.max(self.now);
    }
}

impl Drop for SharedHold {
    fn drop(&mut self) {
        let ended = *self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(quota) = self.quotas.lock().get_mut(&self.tenant) {
            let held = (self.reserved, self.at_once);
            quota.give_back(second(ended.at), held, ended.tokens);
        }
    }
}

// === impl Quota ===

impl Quota {
    fn check(&mut self, now: u64, need: &QuotaNeed) -> Result<(), OverLimit> {
        self.requests.pass(now);
        self.tokens.pass(now);
        self.check_at_once(*need.at_once.start())?;
        self.check_requests(now, need.requests)?;
        self.check_tokens(now, need)
    }

    fn check_at_once(&self, needed: u64) -> Result<(), OverLimit> {
        let limit = LimitKind::Concurrent;
        match self.limits.concurrent_max {
            Some(max) if needed > max.max(1) => Err(OverLimit::Never { limit, needed, max }),
            Some(max) if self.in_hand.saturating_add(needed) > max => {
                Err(limit.later(max, RETRY_AFTER_END))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_requests(&self, now: u64, needed: u64) -> Result<(), OverLimit> {
        let limit = LimitKind::Requests;
        match self.limits.requests_per_minute {
            Some(max) if needed > max.max(1) => Err(OverLimit::Never { limit, needed, max }),
            Some(max) if self.requests.sum.saturating_add(needed) > max => {
                let left = max.saturating_sub(needed);
                Err(limit.later(max, self.requests.wait_for(now, left)))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_tokens(&self, now: u64, need: &QuotaNeed) -> Result<(), OverLimit> {
        let limit = LimitKind::Tokens;
        let Some(max) = self.limits.tokens_per_minute_max else {
            return Ok(());
        };
        if need.prompt > max {
            let needed = need.prompt;
            return Err(OverLimit::Never { limit, needed, max });
        }
        let (room, may_begin) = match need.tokens() {
            tokens if tokens > max => (need.prompt, self.reserved == 0),
            tokens => (tokens, true),
        };
        let taken = self.tokens.sum.saturating_add(self.reserved);
        if may_begin && taken.saturating_add(room.max(1)) <= max {
            return Ok(());
        }
        let left = max.saturating_sub(room.max(1));
        let wait = match left.checked_sub(self.reserved) {
            Some(left) if may_begin => self.tokens.wait_for(now, left),
            Some(_) | None => RETRY_AFTER_END,
        };
        Err(limit.later(max, wait))
    }

    /// Counts a client's request in. Returns the tokens and the places among those in hand that are held for it.
    fn take(&mut self, now: u64, need: &QuotaNeed) -> (u64, u64) {
        let free = self.limits.concurrent_max;
        let free = free.map_or(u64::MAX, |max| max.saturating_sub(self.in_hand));
        let at_once = free.clamp(*need.at_once.start(), *need.at_once.end());
        self.in_hand = self.in_hand.saturating_add(at_once);
        self.requests.add(now, need.requests);
        let max = self.limits.tokens_per_minute_max;
        let left = max.map_or(0, |max| max.saturating_sub(self.tokens.sum));
        let reserved = need.tokens().min(left);
        self.reserved = self.reserved.saturating_add(reserved);
        (reserved, at_once)
    }

    fn give_back(&mut self, now: u64, (reserved, at_once): (u64, u64), used: u64) {
        self.in_hand = self.in_hand.saturating_sub(at_once);
        self.reserved = self.reserved.saturating_sub(reserved);
        self.tokens.pass(now);
        self.tokens.add(now, used);
    }

    fn used(&mut self, now: u64) -> LimitsUse {
        self.requests.pass(now);
        self.tokens.pass(now);
        let of = |max: Option<u64>, used, reset| max.map(|max| LimitUse { max, used, reset });
        let requests = &self.requests;
        let tokens = &self.tokens;
        LimitsUse {
            requests: of(
                self.limits.requests_per_minute,
                requests.sum,
                requests.wait_for(now, 0),
            ),
            tokens: of(
                self.limits.tokens_per_minute_max,
                tokens.sum.saturating_add(self.reserved),
                tokens.wait_for(now, 0),
            ),
            concurrent: of(self.limits.concurrent_max, self.in_hand, 0),
        }
    }
}

// === impl QuotaNeed ===

impl QuotaNeed {
    /// The need of one request.
    #[must_use]
    pub fn of_one(prompt: u64, output_max: u64) -> Self {
        Self {
            requests: 1,
            at_once: 1..=1,
            prompt,
            output_max,
        }
    }

    /// The most tokens that a request with this need uses.
    fn tokens(&self) -> u64 {
        self.prompt.saturating_add(self.output_max)
    }
}

// === impl Window ===

impl Window {
    /// Forgets what came too long before the second `now`.
    fn pass(&mut self, now: u64) {
        while let Some((second, amount)) = self.seconds.front().copied()
            && second.saturating_add(WINDOW_SECS) <= now
        {
            self.seconds.pop_front();
            self.sum = self.sum.saturating_sub(amount);
        }
    }

    /// Adds an amount. The clock of the one who adds may be behind that of others by a little.
    fn add(&mut self, now: u64, amount: u64) {
        if amount == 0 {
            return;
        }
        self.sum = self.sum.saturating_add(amount);
        match self.seconds.back_mut() {
            Some((second, known)) if *second >= now => *known = known.saturating_add(amount),
            _ => self.seconds.push_back((now, amount)),
        }
    }

    /// Seconds until no more than `left` is there, if nothing more comes.
    fn wait_for(&self, now: u64, left: u64) -> u32 {
        let mut sum = self.sum;
        for (second, amount) in &self.seconds {
            if sum <= left {
                break;
            }
            sum = sum.saturating_sub(*amount);
            if sum <= left {
                let wait = (second + WINDOW_SECS).saturating_sub(now);
                return u32::try_from(wait).unwrap_or(u32::MAX);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests;
