//! Leading blocks of prompts, and the keys under which blocks with the same contents are found.
//!
//! A hash stands for a text. Blocks hold the same numbers only where also the model, the adapter and
//! the tokens in a block agree ([`BlockKind`]), so these are a part of every key: a model never hits
//! another one's blocks, whatever hashes the machine is given.

use pointsman_events::rows::ExecutorKind;
use pointsman_events::{BlockHash, BlockKind, ExecutorId, ReadableBlocks};

use super::super::requests::Request;
use super::executor::Executor;

/// The key of a block's contents in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct PrefixKey {
    hash: BlockHash,
    kind: BlockKind,
    /// The only executor that can use the block: set where it is in that one's own memory, or nobody
    /// knows whose model filled it.
    only: Option<ExecutorId>,
}

/// Leading full blocks of a prompt, as one executor fills and reads them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix<'a> {
    pub(super) kind: BlockKind,
    only: Option<ExecutorId>,
    pub(super) hashes: &'a [BlockHash],
}

impl<'a> Prefix<'a> {
    /// The full blocks of a request's prompt on an executor. None are known where the hashes are of
    /// blocks of another size than the machine hands out there.
    pub(super) fn of(request: &'a Request, executor: &Executor) -> Self {
        let blocks = &request.prompt_blocks;
        let sole = || match executor.spec.serves.as_deref() {
            Some([model]) => Some(*model),
            Some(_) | None => None,
        };
        let model = request.row.model.or_else(sole);
        let is_own = model.is_none() || executor.spec.reads == ReadableBlocks::Own;
        let fits = executor.spec.kind == ExecutorKind::Remote
            || executor.spec.tokens_per_block == Some(blocks.tokens_per_block);
        Self {
            kind: BlockKind {
                model,
                adapter: request.row.adapter,
                tokens_per_block: blocks.tokens_per_block,
            },
            only: is_own.then_some(executor.id),
            hashes: if fits { &blocks.hashes } else { &[] },
        }
    }

    /// The blocks that the request may share with others: all before the one that its last prompt
    /// token is in. That token is always computed, for its logits, and so is written.
    pub(super) fn shareable(request: &'a Request, executor: &Executor) -> Self {
        let all = Self::of(request, executor);
        let tokens_per_block = all.kind.tokens_per_block.max(1);
        let whole = request.row.prompt_tokens.saturating_sub(1) / tokens_per_block;
        let shared = all.hashes.len().min(whole as usize);
        Self {
            hashes: &all.hashes[..shared],
            ..all
        }
    }

    /// The full blocks of a request's prompt in a cache that any executor can read.
    pub(super) fn in_shared_cache(request: &'a Request) -> Self {
        let blocks = &request.prompt_blocks;
        Self {
            kind: BlockKind {
                model: request.row.model,
                adapter: request.row.adapter,
                tokens_per_block: blocks.tokens_per_block,
            },
            only: None,
            hashes: &blocks.hashes,
        }
    }

    /// The blocks from number `n` on.
    pub(super) fn after(self, n: u32) -> Self {
        Self {
            hashes: self.hashes.get(n as usize..).unwrap_or_default(),
            ..self
        }
    }

    /// The keys of the blocks, in order.
    pub(super) fn keys(self) -> impl Iterator<Item = PrefixKey> + 'a {
        let Self { kind, only, hashes } = self;
        let key = move |hash: &BlockHash| PrefixKey {
            hash: *hash,
            kind,
            only,
        };
        hashes.iter().map(key)
    }

    /// True if both name the same blocks.
    pub(super) fn is_same_as(self, other: Prefix<'_>) -> bool {
        (self.kind, self.only) == (other.kind, other.only)
            && self.hashes.len() == other.hashes.len()
    }

    /// True if both have the same contents, of the same prompt, whoever can read them.
    pub(super) fn has_contents_of(self, other: Prefix<'_>) -> bool {
        self.kind == other.kind && self.hashes.len() == other.hashes.len()
    }
}

#[cfg(test)]
impl<'a> Prefix<'a> {
    /// Blocks of `model`, of four tokens.
    pub(super) fn of_model(model: u32, hashes: &'a [BlockHash]) -> Self {
        Self {
            kind: BlockKind {
                model: Some(pointsman_events::ModelId(model)),
                adapter: None,
                tokens_per_block: 4,
            },
            only: None,
            hashes,
        }
    }
}
