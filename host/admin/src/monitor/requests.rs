//! The newest requests that have ended, for the monitor: without their prompts, sessions and keys.

use pointsman_driver::finished::FinishedRequest;
use schemars::JsonSchema;
use serde::Serialize;

use crate::words::author;

/// A request that has ended.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct EndedData {
    /// The number in its answer's header `x-pointsman-request`, known to `/admin/decisions`.
    request: u64,
    /// The time of its end, on the host's clock.
    ended_micros: u64,
    tenant: String,
    /// The model that it asked for; null: any.
    model: Option<String>,
    /// `latency-critical` or `throughput`.
    class: &'static str,
    /// The executor of its last place; null: it had none.
    executor: Option<String>,
    prompt_tokens: u32,
    /// The part of the prompt that was cached.
    cached_tokens: u32,
    output_tokens: u32,
    /// The time from its arrival to its first place; null: it had none.
    wait_micros: Option<u64>,
    /// The time from its arrival to its first token; null: there was none.
    first_token_micros: Option<u64>,
    /// The time from its arrival to its end.
    duration_micros: u64,
    /// `finished`, `refused`, `cancelled`, `expired` or `failed`.
    outcome: &'static str,
    /// The reason of that; null: there is nothing to say.
    why: Option<&'static str>,
    /// The decision that placed it last or turned it away, in words; null: there was none.
    decision: Option<String>,
}

// === impl EndedData ===

impl EndedData {
    pub(super) fn new(ended: &FinishedRequest) -> Self {
        Self {
            request: ended.ticket.0,
            ended_micros: ended.at.0,
            tenant: ended.tenant.clone(),
            model: ended.model.clone(),
            class: ended.class.as_str(),
            executor: ended.executor.clone(),
            prompt_tokens: ended.prompt_tokens,
            cached_tokens: ended.cached_tokens,
            output_tokens: ended.output_tokens,
            wait_micros: ended.waited.map(|time| time.0),
            first_token_micros: ended.first_token.map(|time| time.0),
            duration_micros: ended.duration.0,
            outcome: ended.outcome,
            why: Some(ended.why).filter(|why| !why.is_empty()),
            decision: decision(ended),
        }
    }
}

/// The decision that counted, in words; absent: there was none.
fn decision(ended: &FinishedRequest) -> Option<String> {
    let by = ended.by.as_ref()?;
    let author = author(&by.policy, &by.reason);
    Some(match (&ended.executor, ended.places) {
        (None, _) => format!("turned away by {author}"),
        // What refused a request that had a place is not always what placed it.
        (Some(executor), _) if ended.outcome == "refused" => {
            format!("placed on {executor} before, decided last by {author}")
        }
        (Some(executor), 0 | 1) => format!("placed on {executor} by {author}"),
        (Some(executor), places) => {
            format!("placed {places} times, last on {executor} by {author}")
        }
    })
}
