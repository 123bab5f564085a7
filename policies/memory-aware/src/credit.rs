//! What a cached prefix saves, and what a request costs on an executor: in permille of KV blocks.
//!
//! ```text
//! credit = device + 0.75 host + 0.25 disk + shared weight x what a shared cache holds beyond the device
//! cost   = prefill scale x max(0, (pending prefill + prompt) / block - credit)
//!        + decode blocks + active cost x requests placed there
//! ```
//!
//! # Not here
//! Where the cost counts: only among executors that are alike otherwise, see `choose`.

use pointsman_sdk::wire::types::Cached;
use pointsman_sdk::{Executor, Need};

/// Of an executor that does not say how many tokens a block holds.
const TOKENS_PER_BLOCK_ASSUMED: u64 = 16;

/// What each thing is worth, in permille.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weights {
    pub(crate) device: u64,
    pub(crate) host: u64,
    pub(crate) disk: u64,
    pub(crate) shared: u64,
    pub(crate) prefill: u64,
    pub(crate) active: u64,
}

/// What an executor is spared of one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Credit {
    pub(crate) permille: u64,
    tokens_per_block: u64,
}

/// A placement of this batch, which the host has not told of yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Booking {
    pub(crate) executor: u32,
    prefill_tokens: u64,
    blocks: u64,
}

// === impl Weights ===

impl Weights {
    /// What an executor holds of the prompt: as listed, or the floor.
    pub(crate) fn credit(&self, asked: &Cached, executor: &Executor<'_>) -> Credit {
        let listed = asked.overlaps.iter().flatten();
        let overlap = listed
            .clone()
            .find(|overlap| overlap.executor == executor.id());
        let (device, host, disk) = match overlap {
            Some(held) => (held.device_tokens, held.host_tokens, held.disk_tokens),
            None => (asked.floor_tokens, 0, 0),
        };
        let shared = asked.shared_tokens.saturating_sub(device);
        let tiers = [
            (device, self.device),
            (host, self.host),
            (disk, self.disk),
            (shared, self.shared),
        ];
        // Tokens are below 2^32 and weights below 2^20: the sum fits.
        let weighted: u64 = tiers.iter().map(|(n, weight)| u64::from(*n) * weight).sum();
        let tokens_per_block = tokens_per_block(executor);
        Credit {
            permille: weighted / tokens_per_block,
            tokens_per_block,
        }
    }

    /// Whether an executor holds more of the prompt than those that are not listed.
    pub(crate) fn favours(&self, asked: &Cached, executor: &Executor<'_>) -> bool {
        let unlisted = Cached {
            overlaps: None,
            ..*asked
        };
        let is_listed = |id| {
            let mut listed = asked.overlaps.iter().flatten();
            listed.any(|overlap| overlap.executor == id)
        };
        is_listed(executor.id()) && self.credit(asked, executor) > self.credit(&unlisted, executor)
    }

    /// What a request costs there, in permille of blocks.
    pub(crate) fn cost(
        &self,
        need: &Need<'_>,
        asked: &Cached,
        executor: &Executor<'_>,
        booked: &[Booking],
    ) -> u64 {
        let here = || {
            let id = executor.id();
            booked.iter().filter(move |booking| booking.executor == id)
        };
        let load = executor.load;
        let credit = self.credit(asked, executor);
        let pending = here().fold(load.prefill_tokens_pending, |sum, booking| {
            sum.saturating_add(booking.prefill_tokens)
        });
        let tokens = pending.saturating_add(u64::from(need.request.prompt_tokens));
        let prefill =
            (tokens.saturating_mul(1000) / credit.tokens_per_block).saturating_sub(credit.permille);
        let blocks = here().fold(load.blocks_used, |sum, booking| {
            sum.saturating_add(booking.blocks)
        });
        let active = here().fold(executor.depth(), |sum, _| sum.saturating_add(1));
        (prefill.saturating_mul(self.prefill) / 1000)
            .saturating_add(blocks.saturating_mul(1000))
            .saturating_add(active.saturating_mul(self.active))
    }

    /// What placing the request there adds to the load.
    pub(crate) fn booking(
        &self,
        need: &Need<'_>,
        asked: &Cached,
        executor: &Executor<'_>,
    ) -> Booking {
        let spared = self.credit(asked, executor).tokens();
        Booking {
            executor: executor.id(),
            prefill_tokens: u64::from(need.request.prompt_tokens).saturating_sub(spared),
            blocks: need.blocks_on(executor).unwrap_or(0),
        }
    }
}

// === impl Credit ===

impl Credit {
    /// In tokens, half up.
    pub(crate) fn tokens(self) -> u64 {
        self.permille
            .saturating_mul(self.tokens_per_block)
            .saturating_add(500)
            / 1000
    }
}

fn tokens_per_block(executor: &Executor<'_>) -> u64 {
    let told = executor.info.tokens_per_block.filter(|&tokens| tokens > 0);
    told.map_or(TOKENS_PER_BLOCK_ASSUMED, u64::from)
}
