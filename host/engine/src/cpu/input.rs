//! A step laid out for the kernels: its tokens in one row after the other.

use pointsman_core::BlockId;

use super::CpuModel;
use super::kv::{KvPlace, KvShape, to_usize};
use crate::model::backend::{Chunk, Logits};
use crate::model::config::LlamaConfig;

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
    pub(super) fn new(chunks: &[Chunk<'a>], model: &CpuModel, shape: KvShape) -> Self {
        let mut input = Self {
            rows: Vec::new(),
            last: Vec::new(),
            angles: Vec::new(),
        };
        for chunk in chunks {
            check(chunk, &model.config, shape);
            for (token, position) in chunk.tokens.iter().zip(chunk.start..) {
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
        input.set_angles(&model.frequencies);
        input
    }

    fn set_angles(&mut self, frequencies: &[f32]) {
        for row in &self.rows {
            let angles = frequencies
                .iter()
                .map(|frequency| row.position as f32 * frequency);
            self.angles.extend(angles.clone().map(f32::cos));
            self.angles.extend(angles.map(f32::sin));
        }
    }
}

fn check(chunk: &Chunk<'_>, config: &LlamaConfig, shape: KvShape) {
    let tokens = u32::try_from(chunk.tokens.len()).unwrap_or(u32::MAX);
    let end = chunk.start.saturating_add(tokens);
    assert!(tokens > 0, "a chunk has tokens");
    assert!(
        end <= config.context_tokens,
        "position {end} is beyond the context of {} tokens",
        config.context_tokens
    );
    let needed = to_usize(end.div_ceil(shape.tokens_per_block));
    assert!(
        chunk.blocks.len() >= needed,
        "{end} tokens need {needed} blocks, and the block table has {}",
        chunk.blocks.len()
    );
    let vocab_size = config.vocab_size;
    for token in chunk.tokens {
        assert!(
            to_usize(*token) < vocab_size,
            "token {token} is not in the vocabulary of {vocab_size}"
        );
    }
    for block in chunk.blocks {
        assert!(
            block.0 < shape.blocks_total,
            "block {block} is not in the pool of {}",
            shape.blocks_total
        );
    }
}
