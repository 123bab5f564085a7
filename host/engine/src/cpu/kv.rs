//! The KV pool: one allocation, in blocks that the host hands out.
//!
//! A block is contiguous, `[layer][keys, values][kv_head][slot][head_dim]`, so that copying one
//! is one copy. Memory comes from the system when a block is first written.

use std::ops::Range;

use pointsman_core::BlockId;

use crate::model::backend::{KvShape, to_usize};
use crate::model::config::LlamaConfig;

/// Half of a layer's part of a block: keys or values.
#[derive(Clone, Copy, Debug)]
pub(super) enum Half {
    Keys,
    Values,
}

/// The place of a head's keys or values within each block.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadRef {
    pub(super) layer: usize,
    pub(super) half: Half,
    pub(super) head: usize,
}

/// The place of a token's keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvPlace {
    pub(super) block: BlockId,
    pub(super) slot: usize,
}

#[derive(Debug)]
pub(super) struct KvPool {
    shape: KvShape,
    slots: usize,
    heads: usize,
    head_dim: usize,
    /// Numbers in a block.
    block_size: usize,
    numbers: Vec<f32>,
}

impl KvPool {
    pub(super) fn new(shape: KvShape, config: &LlamaConfig) -> Self {
        assert!(
            shape.tokens_per_block > 0,
            "a block holds at least one token"
        );
        let slots = to_usize(shape.tokens_per_block);
        let block_size = slots * config.kv_numbers_per_token();
        let size = to_usize(shape.blocks_total).checked_mul(block_size);
        Self {
            shape,
            slots,
            heads: config.kv_heads,
            head_dim: config.head_dim,
            block_size,
            numbers: vec![0.0; size.expect("a pool is no larger than what can be addressed")],
        }
    }

    pub(super) fn shape(&self) -> KvShape {
        self.shape
    }

    /// Tokens in a block.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// Returns a row of `head_dim` numbers per slot.
    pub(super) fn head(&self, block: BlockId, head: HeadRef) -> &[f32] {
        &self.numbers[self.place(block, head)]
    }

    /// Writes a token's numbers for every head.
    pub(super) fn write(&mut self, layer: usize, half: Half, at: KvPlace, numbers: &[f32]) {
        for (head, numbers) in numbers.chunks_exact(self.head_dim).enumerate() {
            let place = self.place(at.block, HeadRef { layer, half, head });
            let at = place.start + at.slot * self.head_dim;
            self.numbers[at..at + self.head_dim].copy_from_slice(numbers);
        }
    }

    pub(super) fn fill(&mut self, block: BlockId, number: f32) {
        let at = to_usize(block.0) * self.block_size;
        self.numbers[at..at + self.block_size].fill(number);
    }

    fn place(&self, block: BlockId, head: HeadRef) -> Range<usize> {
        let half = match head.half {
            Half::Keys => 0,
            Half::Values => 1,
        };
        let index = (head.layer * 2 + half) * self.heads + head.head;
        let size = self.slots * self.head_dim;
        let at = to_usize(block.0) * self.block_size + index * size;
        at..at + size
    }
}
