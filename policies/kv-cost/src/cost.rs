//! The cost of a request on an executor.
//!
//! The formula is that of Dynamo's KV router, there in blocks:
//!
//! ```text
//! credit = device + 0.75 host + 0.25 disk + S (shared beyond device)
//! cost   = P max(0, pending prefill + prompt - credit) + decode + A requests
//! ```
//!
//! Here all is in thousandths of a token, which needs no division and holds where executors have
//! blocks of different sizes. The choice is the same, because it depends on ratios only.

use pointsman_sdk::wire::types::Cached;
use pointsman_sdk::{Case, Executor, Fleet};

use crate::Settings;

/// The parts of a request that count in its cost. A request of no tokens costs what is on the
/// executor already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prompt {
    tokens: u32,
    /// Savings by what is cached, in thousandths of a token.
    credit: u64,
}

/// The cost of a request on an executor, in thousandths of a token.
pub(crate) fn cost(
    settings: &Settings,
    prompt: Prompt,
    fleet: Fleet<'_>,
    executor: &Executor<'_>,
) -> u64 {
    let load = executor.load;
    let placed = fleet.placed.counts(executor);
    let prefill = load.prefill_tokens_pending + placed.prefill_tokens + u64::from(prompt.tokens);
    let uncached = prefill.saturating_mul(1000).saturating_sub(prompt.credit);
    let blocks = load.blocks_used.saturating_add(placed.blocks);
    let decode = blocks.saturating_mul(u64::from(executor.tokens_per_block().unwrap_or(0)));
    let requests = fleet.depth(executor);
    let others = decode.saturating_add(requests.saturating_mul(u64::from(settings.request_cost)));
    let prefill = u128::from(uncached) * u128::from(settings.prefill_scale) / 1000;
    u64::try_from(prefill)
        .unwrap_or(u64::MAX)
        .saturating_add(others.saturating_mul(1000))
}

/// Savings of an executor that is not listed as holding a part of the prompt, in thousandths of a
/// token.
pub(crate) fn credit_unlisted(settings: &Settings, cached: &Cached) -> u64 {
    credit(settings, cached, [cached.floor_tokens, 0, 0])
}

/// Savings where so many tokens are held on the device, in host memory and on disk.
fn credit(settings: &Settings, cached: &Cached, [device, host, disk]: [u32; 3]) -> u64 {
    let parts = [
        (device, settings.device_credit),
        (host, settings.host_credit),
        (disk, settings.disk_credit),
        // In a shared cache, beyond those on the device.
        (
            cached.shared_tokens.saturating_sub(device),
            settings.shared_credit,
        ),
    ];
    let credit = |(tokens, each)| u64::from(tokens) * u64::from(each);
    parts.into_iter().map(credit).sum()
}

// === impl Prompt ===

impl Prompt {
    /// The prompt of a request as an executor finds it.
    pub(crate) fn on(settings: &Settings, case: &Case<'_>, executor: u32) -> Self {
        let credit = match case.overlap(executor) {
            Some(held) => {
                let held = [held.device_tokens, held.host_tokens, held.disk_tokens];
                credit(settings, case.cached, held)
            }
            None => credit_unlisted(settings, case.cached),
        };
        Self {
            tokens: case.request.prompt_tokens,
            credit,
        }
    }
}
