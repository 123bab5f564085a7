//! Leading blocks of prompts, and the keys under which blocks with the same contents are found.
//!
//! A hash stands for a text. Blocks hold the same numbers only where also the model, the adapter and
//! the tokens in a block agree ([`BlockKind`]), so these are a part of every key: a model never hits
//! another one's blocks, whatever hashes the machine is given.

use pointsman_events::{BlockHash, BlockKind, ExecutorId};

/// The key of a block's contents in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct PrefixKey {
    hash: BlockHash,
    kind: BlockKind,
    /// The only executor that can use the block: set where it is in that one's own memory, or nobody
    /// knows whose model filled it.
    only: Option<ExecutorId>,
}

/// Leading full blocks of a prompt, as one executor fills and reads them.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a> {
    pub(crate) kind: BlockKind,
    only: Option<ExecutorId>,
    pub(crate) hashes: &'a [BlockHash],
}

impl<'a> Prefix<'a> {
    /// Blocks of this kind with these contents. With `only`, no other executor can use them.
    #[inline]
    #[must_use]
    pub fn new(kind: BlockKind, only: Option<ExecutorId>, hashes: &'a [BlockHash]) -> Self {
        Self { kind, only, hashes }
    }

    /// Tokens in a block.
    #[inline]
    #[must_use]
    pub fn tokens_per_block(self) -> u32 {
        self.kind.tokens_per_block
    }

    /// The first `n` blocks, or all where there are fewer.
    #[inline]
    #[must_use]
    pub fn first(self, n: u32) -> Self {
        let n = self.hashes.len().min(n as usize);
        Self {
            hashes: &self.hashes[..n],
            ..self
        }
    }

    /// The blocks from number `n` on.
    pub(crate) fn after(self, n: u32) -> Self {
        Self {
            hashes: self.hashes.get(n as usize..).unwrap_or_default(),
            ..self
        }
    }

    /// The keys of the blocks, in order.
    pub(crate) fn keys(self) -> impl Iterator<Item = PrefixKey> + 'a {
        let Self { kind, only, hashes } = self;
        let key = move |hash: &BlockHash| PrefixKey {
            hash: *hash,
            kind,
            only,
        };
        hashes.iter().map(key)
    }

    /// Tells whether both name the same blocks.
    #[inline]
    #[must_use]
    pub fn is_same_as(self, other: Prefix<'_>) -> bool {
        (self.kind, self.only) == (other.kind, other.only)
            && self.hashes.len() == other.hashes.len()
    }

    /// True if both have the same contents, of the same prompt, whoever can read them.
    pub(crate) fn has_contents_of(self, other: Prefix<'_>) -> bool {
        self.kind == other.kind && self.hashes.len() == other.hashes.len()
    }
}

#[cfg(test)]
impl<'a> Prefix<'a> {
    /// Blocks of `model`, of four tokens.
    pub(crate) fn of_model(model: u32, hashes: &'a [BlockHash]) -> Self {
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
