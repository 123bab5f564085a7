//! The part of a prompt that is cached, as policies are told it.
//!
//! # Bounds
//! As many holders are named as the configuration's `overlaps-max`.

use std::collections::BTreeSet;

use pointsman_events::ExecutorId;
use pointsman_events::rows::{Cached, Overlap};
use pointsman_kv::{Hits, keep_best};

use super::super::requests::Request;
use super::Ledger;
use super::executor::Executor;
use super::prefix::prefix_in_shared_cache;

// === impl Ledger ===

impl Ledger {
    /// The part of a request's prompt that is cached, for a request that need not have arrived.
    /// Names as many executors as `overlaps_max`.
    pub(crate) fn cached(&self, request: &Request, overlaps_max: u32) -> Cached {
        let mut cached = Cached {
            request: request.id(),
            overlaps: Vec::new(),
            floor_tokens: 0,
            shared_tokens: 0,
        };
        if self.may_be_cached(request) {
            cached.shared_tokens = self.shared_tokens(request);
            (cached.overlaps, cached.floor_tokens) = self.overlaps(request, overlaps_max);
        }
        cached
    }

    /// False if nothing of a request's prompt can be cached anywhere.
    pub(crate) fn may_be_cached(&self, request: &Request) -> bool {
        !request.prompt_blocks.hashes.is_empty() || self.has_swapped(request.id())
    }

    /// Most tokens of a request's prompt that one executor which serves it holds, all tiers
    /// together, or that the shared cache holds.
    pub(crate) fn longest_prefix(&self, request: &Request) -> u32 {
        let mut longest = self.shared_tokens(request);
        self.for_each_holder(request, |executor, hits| {
            longest = longest.max(tokens_held(&self.overlap(request, executor, hits)));
        });
        longest
    }

    /// The leading tokens of a request's prompt that the shared cache holds.
    fn shared_tokens(&self, request: &Request) -> u32 {
        let blocks = self
            .index
            .hits_in_shared_cache(prefix_in_shared_cache(request));
        let tokens = blocks.saturating_mul(request.prompt_blocks.tokens_per_block);
        tokens.min(request.row.prompt_tokens)
    }

    /// The best holders of each tier, and the tokens that each other executor holds on its device at
    /// least.
    fn overlaps(&self, request: &Request, overlaps_max: u32) -> (Vec<Overlap>, u32) {
        let mut overlaps = Vec::new();
        self.for_each_holder(request, |executor, hits| {
            let overlap = self.overlap(request, executor, hits);
            if tokens_held(&overlap) > 0 {
                overlaps.push(overlap);
            }
        });
        if overlaps.len() <= overlaps_max as usize {
            keep_best(&mut overlaps, overlaps_max as usize);
            return (overlaps, 0);
        }
        let holders: BTreeSet<ExecutorId> = overlaps.iter().map(|it| it.executor).collect();
        let unlisted = keep_best(&mut overlaps, overlaps_max as usize);
        let serving = self.executors.iter();
        let mut serving = serving.filter(|executor| executor.serves(request.row.model));
        let all_hold = serving.all(|executor| holders.contains(&executor.id));
        (overlaps, unlisted.filter(|_| all_hold).unwrap_or(0))
    }

    /// The tokens of a request's prompt that `executor` holds, of which its device holds `hits`. What the
    /// request itself has left in host memory counts as held there.
    fn overlap(&self, request: &Request, executor: &Executor, hits: Hits) -> Overlap {
        let prompt = request.row.prompt_tokens;
        let per_block = request.prompt_blocks.tokens_per_block;
        let tokens = |blocks: u32| blocks.saturating_mul(per_block);
        let device = tokens(hits.device).min(prompt);
        let swapped = self.swapped_tokens(request.id(), executor.id);
        let host = tokens(hits.host).max(swapped.saturating_sub(device));
        let host = host.min(prompt - device);
        Overlap {
            executor: executor.id,
            device_tokens: device,
            host_tokens: host,
            disk_tokens: tokens(hits.disk).min(prompt - device - host),
        }
    }
}

/// The tokens of an overlap, all tiers together: no more than its prompt has.
fn tokens_held(overlap: &Overlap) -> u32 {
    overlap.device_tokens + overlap.host_tokens + overlap.disk_tokens
}
