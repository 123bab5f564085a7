//! The savings by a cached prefix, and the costs of an executor: in permille of KV blocks.
//!
//! ```text
//! credit = device credit x device + 0.75 host + 0.25 disk
//!        + shared credit x what a shared cache holds beyond the device
//!          of a session: the device credit is at most the session credit
//! load   = prefill scale x weight x pending prefill + decode blocks + active cost x requests placed there
//! cost   = load, with the prompt less the credit prefilled too, and a part of that (the stall cost)
//!          once more for each request placed there, which gets no token meanwhile
//! ```
//!
//! # Not here
//! The requests that the cost counts for: only among executors of one grade, see `search::lead`.

use pointsman_sdk::wire::types::Overlap;
use pointsman_sdk::{Case, Executor, Fleet};

use crate::settings::Settings;
use crate::waits::Waits;

/// The part of one prompt that an executor is spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Credit {
    pub(crate) permille: u64,
    /// Tokens that need no prefill: those of each tier by its weight, where that is below 1.
    pub(crate) tokens: u64,
}

/// The load of an executor, whatever the request; in permille of blocks.
pub(crate) fn load(
    settings: &Settings,
    waits: &Waits,
    fleet: Fleet<'_>,
    executor: &Executor<'_>,
) -> u64 {
    let prefill = pending(settings, waits, fleet, executor);
    loaded(settings, fleet, executor, prefill)
}

/// The cost of a request on an executor, in permille of blocks.
pub(crate) fn cost(
    settings: &Settings,
    waits: &Waits,
    case: &Case<'_>,
    executor: &Executor<'_>,
    held: u64,
) -> u64 {
    let credit = Credit::of(settings, case, executor).permille;
    let prompt = in_blocks(settings, executor, u64::from(case.request.prompt_tokens));
    let held = waits.awaited(executor, in_blocks(settings, executor, held));
    let pending = pending(settings, waits, case.fleet, executor).saturating_add(held);
    let prefill = pending.saturating_add(prompt).saturating_sub(credit);
    let stalled = case.fleet.depth(executor) * u64::from(settings.stall_cost);
    let stall = prompt.saturating_sub(credit).saturating_mul(stalled) / 1000;
    let prefill = prefill.saturating_add(stall);
    loaded(settings, case.fleet, executor, prefill)
}

/// The load of an executor with so much to be prefilled.
fn loaded(settings: &Settings, fleet: Fleet<'_>, executor: &Executor<'_>, prefill: u64) -> u64 {
    let placed = fleet.placed.counts(executor);
    let blocks = executor.load.blocks_used.saturating_add(placed.blocks);
    let active = fleet.depth(executor);
    (times(prefill, settings.prefill_scale) / 1000)
        .saturating_add(times(blocks, 1000))
        .saturating_add(times(active, settings.active_cost))
}

/// An amount times a weight, which is below 2^20. An amount counts for no more than 2^43, so that no product overflows:
/// the multiplication that tells of an overflow is a call in WebAssembly, and takes as long as all else here.
#[inline]
pub(crate) fn times(amount: u64, weight: u32) -> u64 {
    amount.min(1 << 43) * u64::from(weight)
}

/// The part of the prompts pending on an executor that a prompt placed there waits for.
fn pending(settings: &Settings, waits: &Waits, fleet: Fleet<'_>, executor: &Executor<'_>) -> u64 {
    let blocks = in_blocks(settings, executor, pending_tokens(fleet, executor));
    waits.awaited(executor, blocks)
}

/// Tokens of the prompts placed on an executor that are still to be prefilled.
pub(crate) fn pending_tokens(fleet: Fleet<'_>, executor: &Executor<'_>) -> u64 {
    let placed = fleet.placed.counts(executor).prefill_tokens;
    executor.load.prefill_tokens_pending.saturating_add(placed)
}

/// Tokens in an executor's blocks.
fn in_blocks(settings: &Settings, executor: &Executor<'_>, tokens: u64) -> u64 {
    times(tokens, 1000) / tokens_per_block(settings, executor)
}

fn tokens_per_block(settings: &Settings, executor: &Executor<'_>) -> u64 {
    let reported = executor.tokens_per_block();
    u64::from(reported.unwrap_or(settings.tokens_per_block))
}

/// Tokens of the prompt that placing the request on an executor leaves to be prefilled.
pub(crate) fn prefill_tokens(settings: &Settings, case: &Case<'_>, executor: &Executor<'_>) -> u64 {
    let spared = Credit::of(settings, case, executor).tokens;
    u64::from(case.request.prompt_tokens).saturating_sub(spared)
}

// === impl Credit ===

impl Credit {
    /// The credit of an executor for what it is listed as holding, or else for the floor.
    pub(crate) fn of(settings: &Settings, case: &Case<'_>, executor: &Executor<'_>) -> Self {
        Self::new(settings, case, executor, case.overlap(executor.id()))
    }

    /// The credit of an executor that holds so much.
    pub(crate) fn new(
        settings: &Settings,
        case: &Case<'_>,
        executor: &Executor<'_>,
        held: Option<&Overlap>,
    ) -> Self {
        let (device, host, disk) = match held {
            Some(held) => (held.device_tokens, held.host_tokens, held.disk_tokens),
            None => (case.cached.floor_tokens, 0, 0),
        };
        let shared = case.cached.shared_tokens.saturating_sub(device);
        // Its next turns go where it is, so that a block saves one prefill at most. Its load stays for as
        // long as it does.
        let on_device = match case.request.session {
            Some(_) => settings.device_credit.min(settings.session_credit),
            None => settings.device_credit,
        };
        // Tokens are below 2^32 and weights below 2^20: the sums fit.
        let worth = |tokens, each| u64::from(tokens) * u64::from(each);
        let beside = |weight: fn(u32) -> u32| -> u64 {
            worth(host, weight(settings.host_credit))
                + worth(disk, weight(settings.disk_credit))
                + worth(shared, weight(settings.shared_credit))
        };
        let spared =
            worth(device, settings.device_credit.min(1000)) + beside(|each| each.min(1000));
        Self {
            permille: (worth(device, on_device) + beside(|each| each))
                / tokens_per_block(settings, executor),
            tokens: (spared + 500) / 1000,
        }
    }
}
