//! Blocks of a prompt that sequences hold already: a request whose prompt begins alike shares them, and takes none
//! for that part.
//!
//! Rows tell how many blocks of a prompt a device has, and how many blocks of whatever prompts nobody holds there, the
//! cached ones, but not which. What a device has of a prompt beyond all of its cached blocks is held for certain. A cached
//! block of the prompt is no gain, since it counts among the available ones.
//!
//! # Not here
//! The prefill that a cached prefix saves, which policies weigh.

use crate::case::tokens_at_start;
use crate::executor::Executor;
use crate::fleet::Fleet;
use crate::mirror::Mirror;
use crate::wire::types::{Cached, ExecutorKind, Request};

/// An executor on whose device sequences hold so many blocks of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) executor: u32,
    pub(crate) blocks: u64,
}

/// Blocks that a placement does not take on an executor whose device has so many tokens of the prompt: those that
/// sequences hold for certain, and at a server elsewhere all that it has, as the host reckons.
pub(crate) fn blocks_spared(
    mirror: &Mirror,
    request: &Request,
    executor: &Executor<'_>,
    cached_tokens: u64,
) -> u64 {
    let Some(tokens_per_block) = executor.tokens_per_block() else {
        return 0;
    };
    // The last token of a prompt is computed in any case, and goes into a block of the request's own.
    let shareable = u64::from(request.prompt_tokens.saturating_sub(1));
    let cached = cached_tokens.min(shareable) / u64::from(tokens_per_block);
    if cached == 0 || executor.info.kind == ExecutorKind::Remote {
        return cached;
    }
    let device = mirror.device(executor.info.device);
    let held_by_nobody = device.map_or(0, |device| u64::from(device.blocks_cached));
    cached.saturating_sub(held_by_nobody)
}

/// The executors that have room for the request only together with the blocks of its prompt that are held there, of
/// those that are listed as holding a part of it.
pub(crate) fn roomy_holders(mirror: &Mirror, request: &Request, cached: &Cached) -> Vec<Held> {
    let tokens = tokens_at_start(request);
    let listed = cached.overlaps.iter().flatten();
    let holders = listed.filter_map(|row| {
        let executor = mirror.executor(row.executor)?;
        let room = Fleet::from(mirror).tokens_free(&executor)?;
        if room >= tokens {
            return None;
        }
        let blocks = blocks_spared(mirror, request, &executor, row.device_tokens.into());
        let shared = blocks * u64::from(executor.tokens_per_block()?);
        (room + shared >= tokens).then_some(Held {
            executor: row.executor,
            blocks,
        })
    });
    holders.collect()
}
