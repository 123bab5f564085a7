//! The savings by a cached prefix, and the cost of a request on an executor: in permille of KV
//! blocks.
//!
//! ```text
//! credit = device + 0.75 host + 0.25 disk + shared weight x what a shared cache holds beyond the device
//! cost   = prefill scale x max(0, (pending prefill + prompt) / block - credit)
//!        + decode blocks + active cost x requests placed there
//! ```
//!
//! # Not here
//! The requests that the cost counts for: only among executors of one grade, see `search::lead`.

use pointsman_sdk::wire::types::Overlap;
use pointsman_sdk::{Case, Executor};

use crate::settings::Settings;

/// The part of one prompt that an executor is spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Credit {
    pub(crate) permille: u64,
    tokens_per_block: u64,
}

/// The cost of a request on an executor, in permille of blocks.
pub(crate) fn cost(settings: &Settings, case: &Case<'_>, executor: &Executor<'_>) -> u64 {
    let (load, placed) = (executor.load, case.fleet.placed.counts(executor));
    let credit = Credit::of(settings, case, executor);
    let tokens = load
        .prefill_tokens_pending
        .saturating_add(placed.prefill_tokens)
        .saturating_add(u64::from(case.request.prompt_tokens));
    let prefill = tokens.saturating_mul(1000) / credit.tokens_per_block;
    let prefill = prefill.saturating_sub(credit.permille);
    let blocks = load.blocks_used.saturating_add(placed.blocks);
    let active = case.fleet.depth(executor);
    (prefill.saturating_mul(u64::from(settings.prefill_scale)) / 1000)
        .saturating_add(blocks.saturating_mul(1000))
        .saturating_add(active.saturating_mul(u64::from(settings.active_cost)))
}

/// Tokens of the prompt that placing the request on an executor leaves to be prefilled.
pub(crate) fn prefill_tokens(settings: &Settings, case: &Case<'_>, executor: &Executor<'_>) -> u64 {
    let spared = Credit::of(settings, case, executor).tokens();
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
        let tiers = [
            (device, settings.device_credit),
            (host, settings.host_credit),
            (disk, settings.disk_credit),
            (shared, settings.shared_credit),
        ];
        // Tokens are below 2^32 and weights below 2^20: the sum fits.
        let weighted = |(tokens, weight)| u64::from(tokens) * u64::from(weight);
        let weighted: u64 = tiers.into_iter().map(weighted).sum();
        let tokens_per_block = executor.tokens_per_block();
        let tokens_per_block = u64::from(tokens_per_block.unwrap_or(settings.tokens_per_block));
        Self {
            permille: weighted / tokens_per_block,
            tokens_per_block,
        }
    }

    /// The credit in tokens, half up.
    pub(crate) fn tokens(self) -> u64 {
        self.permille
            .saturating_mul(self.tokens_per_block)
            .saturating_add(500)
            / 1000
    }
}
