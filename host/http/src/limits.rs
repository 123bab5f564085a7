//! The hard limits of tenants, as clients meet them: errors, and OpenAI's headers.
//!
//! # Not here
//! The counting (`pointsman_driver::quota`).

use std::ops::RangeInclusive;

use hyper::HeaderMap;
use hyper::header::HeaderValue;
use pointsman_driver::message::Submission;
use pointsman_driver::quota::{LimitUse, OverLimit, QuotaHold, QuotaNeed};

use super::App;
use super::error::ApiError;

/// Headers about one limit.
struct LimitHeaders {
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
}

const REQUESTS: LimitHeaders = LimitHeaders {
    limit: "x-ratelimit-limit-requests",
    remaining: "x-ratelimit-remaining-requests",
    reset: "x-ratelimit-reset-requests",
};
const TOKENS: LimitHeaders = LimitHeaders {
    limit: "x-ratelimit-limit-tokens",
    remaining: "x-ratelimit-remaining-tokens",
    reset: "x-ratelimit-reset-tokens",
};

/// The headers, each with its meaning.
pub const HEADERS: [(&str, &str); 6] = [
    (
        REQUESTS.limit,
        "Requests that the tenant may send in any minute.",
    ),
    (REQUESTS.remaining, "Requests that are left of them now."),
    (
        REQUESTS.reset,
        "Time until all of them are left, such as `42s`.",
    ),
    (
        TOKENS.limit,
        "Tokens of prompts and answers that the tenant may use in any minute.",
    ),
    (
        TOKENS.remaining,
        "Tokens that are left of them now, without those that requests in hand may use.",
    ),
    (
        TOKENS.reset,
        "Time until all of them are left, such as `42s`.",
    ),
];

// === impl App: limits ===

impl App {
    /// Refuses a request of `tenant` that would be refused whatever its size, before work is done for it.
    ///
    /// # Errors
    /// The limit that the tenant is over.
    pub fn check_limits(&self, tenant: &str) -> Result<(), ApiError> {
        let checked = self.watched.quotas.check(tenant, self.watched.clock.now());
        checked.map_err(|over| self.over_limit(tenant, over))
    }

    /// Takes a hold on the limits of their tenant for requests that one request of a client is made of, of which so
    /// many have to and may be in hand at once; absent: the tenant has none.
    ///
    /// # Errors
    /// The limit that the tenant is over with them.
    pub fn take_quota(
        &self,
        submissions: &[Submission],
        at_once: RangeInclusive<usize>,
    ) -> Result<Option<QuotaHold>, ApiError> {
        let Some(first) = submissions.first() else {
            return Ok(None);
        };
        let jobs = || submissions.iter().map(|it| &it.job);
        let prompts = jobs().map(|job| u64::from(job.prompt_tokens()));
        let bounds = jobs().map(|job| u64::from(job.output_tokens_max) * u64::from(job.answers));
        let need = QuotaNeed {
            requests: submissions.len() as u64,
            at_once: *at_once.start() as u64..=*at_once.end() as u64,
            prompt: prompts.sum(),
            output_max: bounds.sum(),
        };
        let now = self.watched.clock.now();
        let taken = self.watched.quotas.take(&first.tenant, now, &need);
        taken.map_err(|over| self.over_limit(&first.tenant, over))
    }

    fn over_limit(&self, tenant: &str, over: OverLimit) -> ApiError {
        let (OverLimit::Later { limit, .. } | OverLimit::Never { limit, .. }) = over;
        self.metrics.over_limit(tenant, limit.as_str());
        ApiError::OverLimit(over)
    }

    /// The headers with the limits of `tenant`; none where it has none.
    pub(super) fn limit_headers(&self, tenant: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let now = self.watched.clock.now();
        let used = self.watched.quotas.of(tenant, now).unwrap_or_default();
        insert(&mut headers, &REQUESTS, used.requests);
        insert(&mut headers, &TOKENS, used.tokens);
        headers
    }
}

fn insert(headers: &mut HeaderMap, names: &LimitHeaders, used: Option<LimitUse>) {
    let Some(LimitUse { max, used, reset }) = used else {
        return;
    };
    let reset = HeaderValue::try_from(format!("{reset}s"));
    headers.insert(names.limit, HeaderValue::from(max));
    let remaining = HeaderValue::from(max.saturating_sub(used));
    headers.insert(names.remaining, remaining);
    let reset = reset.expect("digits and a letter can be a header's value");
    headers.insert(names.reset, reset);
}
