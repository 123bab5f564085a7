//! What a request costs on an executor.
//!
//! The formula is that of Dynamo's KV router, there in blocks:
//!
//! ```text
//! credit = device + 0.75 host + 0.25 disk + S (shared beyond device)
//! cost   = P max(0, pending prefill + prompt - credit) + decode + A requests
//! ```
//!
//! Here everything is in thousandths of a token, which needs no division and holds where executors
//! have blocks of different sizes: the choice is the same, since it depends on ratios only.

use std::collections::BTreeMap;

use pointsman_sdk::wire::types::{Cached, Overlap};
use pointsman_sdk::{Executor, Need, Tentative};

use crate::Settings;

/// What the placements of this batch add, by executor. Void at the next `observe`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Added {
    by_executor: BTreeMap<u32, Tokens>,
}

/// Tokens of placements.
#[derive(Clone, Copy, Debug, Default)]
struct Tokens {
    /// To be prefilled.
    prefill: u64,
    /// In blocks taken.
    decode: u64,
}

/// A request by what counts in its cost. Without any, that of what is there already remains.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) prompt_tokens: u32,
    /// What is cached of it saves, in thousandths of a token.
    pub(crate) credit: u64,
}

/// What the request costs there, in thousandths of a token.
pub(crate) fn cost(
    settings: &Settings,
    asked: Asked,
    executor: &Executor<'_>,
    (placed, added): (&Tentative, &Added),
) -> u64 {
    let load = executor.load;
    let added = added.of(executor);
    let prefill = load.prefill_tokens_pending + added.prefill + u64::from(asked.prompt_tokens);
    let uncached = prefill.saturating_mul(1000).saturating_sub(asked.credit);
    let decode = tokens_in(load.blocks_used, executor).saturating_add(added.decode);
    let requests = executor.depth() + placed.counts(executor).total();
    let others = decode.saturating_add(requests.saturating_mul(u64::from(settings.request_cost)));
    let prefill = u128::from(uncached) * u128::from(settings.prefill_scale) / 1000;
    u64::try_from(prefill)
        .unwrap_or(u64::MAX)
        .saturating_add(others.saturating_mul(1000))
}

/// What an executor is listed as holding of the prompt.
pub(crate) fn overlap(cached: &Cached, executor: u32) -> Option<&Overlap> {
    let mut listed = cached.overlaps.iter().flatten();
    listed.find(|row| row.executor == executor)
}

/// What is saved where so much is held, in thousandths of a token.
pub(crate) fn credit(settings: &Settings, held: Option<&Overlap>, cached: &Cached) -> u64 {
    let device = held.map_or(cached.floor_tokens, |row| row.device_tokens);
    let parts = [
        (device, settings.device_credit),
        (held.map_or(0, |row| row.host_tokens), settings.host_credit),
        (held.map_or(0, |row| row.disk_tokens), settings.disk_credit),
        // In a shared cache, beyond those on the device.
        (
            cached.shared_tokens.saturating_sub(device),
            settings.shared_credit,
        ),
    ];
    let credit = |(tokens, each)| u64::from(tokens) * u64::from(each);
    parts.into_iter().map(credit).sum()
}

/// Tokens that so many blocks of an executor hold; none where it reports no paged KV.
fn tokens_in(blocks: u64, executor: &Executor<'_>) -> u64 {
    let tokens_per_block = executor.info.tokens_per_block.unwrap_or(0);
    blocks.saturating_mul(u64::from(tokens_per_block))
}

// === impl Added ===

impl Added {
    pub(crate) fn clear(&mut self) {
        self.by_executor.clear();
    }

    /// Counts a placement, as the host's own counts will have it.
    pub(crate) fn place(&mut self, need: &Need<'_>, cached: &Cached, executor: &Executor<'_>) {
        let prompt = need.request.prompt_tokens;
        let held = overlap(cached, executor.id());
        let device = held.map_or(cached.floor_tokens, |row| row.device_tokens);
        let tokens = self.by_executor.entry(executor.id()).or_default();
        tokens.prefill += u64::from(prompt.saturating_sub(device));
        tokens.decode += tokens_in(need.blocks_on(executor).unwrap_or(0), executor);
    }

    fn of(&self, executor: &Executor<'_>) -> Tokens {
        let tokens = self.by_executor.get(&executor.id());
        tokens.copied().unwrap_or_default()
    }
}
