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

use pointsman_sdk::wire::types::{Cached, Request};
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

/// Tokens of a prompt that an executor holds, by where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    device: u32,
    host: u32,
    disk: u32,
    /// In a shared cache, beyond those on the device.
    shared: u32,
}

/// What the request costs there, in thousandths of a token.
pub(crate) fn cost(
    settings: &Settings,
    asked: &Asked<'_>,
    executor: &Executor<'_>,
    (placed, added): (&Tentative, &Added),
) -> u64 {
    let load = executor.load;
    let added = added.of(executor);
    let prefill =
        load.prefill_tokens_pending + added.prefill + u64::from(asked.request.prompt_tokens);
    let uncached = prefill
        .saturating_mul(1000)
        .saturating_sub(Held::on(executor, asked.cached).credit(settings));
    let decode = tokens_in(load.blocks_used, executor).saturating_add(added.decode);
    let requests = executor.depth() + placed.counts(executor).total();
    let others = decode.saturating_add(requests.saturating_mul(u64::from(settings.request_cost)));
    let prefill = u128::from(uncached) * u128::from(settings.prefill_scale) / 1000;
    u64::try_from(prefill)
        .unwrap_or(u64::MAX)
        .saturating_add(others.saturating_mul(1000))
}

/// A request and what is cached of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) request: &'a Request,
    pub(crate) cached: &'a Cached,
}

/// Tokens that so many blocks of an executor hold; none where it reports no paged KV.
fn tokens_in(blocks: u64, executor: &Executor<'_>) -> u64 {
    let tokens_per_block = executor.info.tokens_per_block.unwrap_or(0);
    blocks.saturating_mul(u64::from(tokens_per_block))
}

// === impl Held ===

impl Held {
    fn on(executor: &Executor<'_>, cached: &Cached) -> Self {
        let listed = cached.overlaps.iter().flatten();
        let overlap = listed.clone().find(|row| row.executor == executor.id());
        let device = overlap.map_or(cached.floor_tokens, |row| row.device_tokens);
        Self {
            device,
            host: overlap.map_or(0, |row| row.host_tokens),
            disk: overlap.map_or(0, |row| row.disk_tokens),
            shared: cached.shared_tokens.saturating_sub(device),
        }
    }

    /// What it saves, in thousandths of a token.
    fn credit(self, settings: &Settings) -> u64 {
        let parts = [
            (self.device, settings.device_credit),
            (self.host, settings.host_credit),
            (self.disk, settings.disk_credit),
            (self.shared, settings.shared_credit),
        ];
        let credit = |(tokens, each)| u64::from(tokens) * u64::from(each);
        parts.into_iter().map(credit).sum()
    }
}

// === impl Added ===

impl Added {
    pub(crate) fn clear(&mut self) {
        self.by_executor.clear();
    }

    /// Counts a placement, as the host's own counts will have it.
    pub(crate) fn place(&mut self, need: &Need<'_>, cached: &Cached, executor: &Executor<'_>) {
        let prompt = need.request.prompt_tokens;
        let tokens = self.by_executor.entry(executor.id()).or_default();
        tokens.prefill += u64::from(prompt.saturating_sub(Held::on(executor, cached).device));
        tokens.decode += tokens_in(need.blocks_on(executor).unwrap_or(0), executor);
    }

    fn of(&self, executor: &Executor<'_>) -> Tokens {
        let tokens = self.by_executor.get(&executor.id());
        tokens.copied().unwrap_or_default()
    }
}
