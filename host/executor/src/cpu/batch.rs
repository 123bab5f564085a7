//! A step laid out for the kernels: its tokens in one row after the other.

use pointsman_core::BlockId;

use super::CpuModel;
use super::kv::{KvShape, Place, to_usize};
use crate::model::backend::{Chunk, Logits};
use crate::model::config::LlamaConfig;

/// One token of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) token: usize,
    pub(super) position: usize,
    /// Its sequence's block table.
    pub(super) blocks: &'a [BlockId],
}

impl Row<'_> {
    /// Where its key and value are kept, in a pool of blocks of so many slots.
    pub(super) fn place(&self, slots: usize) -> Place {
        Place {
            block: self.blocks[self.position / slots],
            slot: self.position % slots,
        }
    }
}

#[derive(Debug)]
pub(super) struct Batch<'a> {
    pub(super) rows: Vec<Row<'a>>,
    /// The rows whose logits are wanted.
    pub(super) last: Vec<usize>,
    /// For each row the cosines of its angles, then the sines; `head_dim` numbers.
    pub(super) angles: Vec<f32>,
}

impl<'a> Batch<'a> {
    /// # Panics
    /// If a chunk breaks the contract of [`Chunk`]: whoever makes chunks is wrong, and the pool
    /// may be in disorder.
    pub(super) fn new(chunks: &[Chunk<'a>], model: &CpuModel, shape: KvShape) -> Self {
        let mut batch = Self {
            rows: Vec::new(),
            last: Vec::new(),
            angles: Vec::new(),
        };
        for chunk in chunks {
            check(chunk, &model.config, shape);
            for (token, position) in chunk.tokens.iter().zip(chunk.start..) {
                batch.rows.push(Row {
                    token: to_usize(*token),
                    position: to_usize(position),
                    blocks: chunk.blocks,
                });
            }
            match chunk.logits {
                Logits::None => {}
                Logits::Last => batch.last.push(batch.rows.len() - 1),
            }
        }
        batch.set_angles(&model.frequencies);
        batch
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
