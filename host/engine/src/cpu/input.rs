//! A step laid out for the kernels: its tokens in one row after the other.

use pointsman_core::BlockId;

use super::kv::KvPlace;
use crate::model::backend::{Chunk, KvShape, Logits, to_usize};
use crate::model::host::HostModel;

/// A token of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) token: usize,
    pub(super) position: usize,
    /// The block table of the token's sequence.
    pub(super) blocks: &'a [BlockId],
}

impl Row<'_> {
    /// Returns the place of the token's key and value, in a pool of blocks of so many slots.
    pub(super) fn place(&self, slots: usize) -> KvPlace {
        KvPlace {
            block: self.blocks[self.position / slots],
            slot: self.position % slots,
        }
    }
}

#[derive(Debug)]
pub(super) struct InputBatch<'a> {
    pub(super) rows: Vec<Row<'a>>,
    /// Indexes of the rows whose logits are wanted.
    pub(super) last: Vec<usize>,
    /// Cosines of the angles of each row, then the sines; `head_dim` numbers.
    pub(super) angles: Vec<f32>,
}

impl<'a> InputBatch<'a> {
    /// Lays out `chunks`.
    ///
    /// # Panics
    /// If a chunk breaks the contract of [`Chunk`]: the maker of the chunks is wrong, and the pool
    /// may be in disorder.
    pub(super) fn new(chunks: &[Chunk<'a>], model: &HostModel, shape: KvShape) -> Self {
        let mut input = Self {
            rows: Vec::new(),
            last: Vec::new(),
            angles: Vec::new(),
        };
        for chunk in chunks {
            chunk.check(model.config(), shape);
            for (token, position) in chunk.tokens.iter().zip(chunk.start..) {
                model.rotation().push(position, &mut input.angles);
                input.rows.push(Row {
                    token: to_usize(*token),
                    position: to_usize(position),
                    blocks: chunk.blocks,
                });
            }
            match chunk.logits {
                Logits::None => {}
                Logits::Last => input.last.push(input.rows.len() - 1),
            }
        }
        input
    }
}
