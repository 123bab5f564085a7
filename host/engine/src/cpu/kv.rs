//! The layout of a model's keys and values in the blocks of a step.
//!
//! A block is `[layer][keys, values][kv_head][slot][head_dim]`. What a block has room for beyond that is
//! not used: other models of its device may have wider tokens.

use std::ops::Range;

use super::memory::{KvMemory, StepBlock, StepBlocks};
use crate::backend::{KvShape, to_usize};
use pointsman_model::config::LlamaConfig;

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
    /// The place of the block among those of the step.
    pub(super) block: usize,
    pub(super) slot: usize,
}

/// The sizes of a model's part of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvLayout {
    /// Tokens in a block.
    pub(super) slots: usize,
    heads: usize,
    head_dim: usize,
}

/// The keys and values of a step.
pub(super) struct StepKv<'a> {
    layout: KvLayout,
    blocks: StepBlocks<'a>,
}

// === impl KvLayout ===

impl KvLayout {
    /// The layout of a model's tokens in blocks of `memory`.
    ///
    /// # Panics
    /// If a block has no token, or more than there is room for.
    pub(super) fn new(shape: KvShape, config: &LlamaConfig, memory: &KvMemory) -> Self {
        let slots = to_usize(shape.tokens_per_block);
        assert!(slots > 0, "a block holds at least one token");
        let needed = slots * config.kv_numbers_per_token();
        assert!(
            needed <= memory.block_size() && to_usize(shape.blocks_total) <= memory.blocks_total(),
            "{shape:?} of {needed} numbers each is more than there is memory for"
        );
        Self {
            slots,
            heads: config.kv_heads,
            head_dim: config.head_dim,
        }
    }

    fn range(self, head: HeadRef) -> Range<usize> {
        let half = match head.half {
            Half::Keys => 0,
            Half::Values => 1,
        };
        let index = (head.layer * 2 + half) * self.heads + head.head;
        let size = self.slots * self.head_dim;
        index * size..(index + 1) * size
    }
}

// === impl StepKv ===

impl<'a> StepKv<'a> {
    /// Borrows the blocks of a step from `memory`.
    pub(super) fn borrow(layout: KvLayout, memory: &'a KvMemory, blocks: &[StepBlock]) -> Self {
        Self {
            layout,
            blocks: memory.borrow(blocks),
        }
    }

    /// Tokens in a block.
    pub(super) fn slots(&self) -> usize {
        self.layout.slots
    }

    /// Returns a row of `head_dim` numbers per slot of a block of the step.
    pub(super) fn head(&self, block: usize, head: HeadRef) -> &[f32] {
        &self.blocks.at(block)[self.layout.range(head)]
    }

    /// Writes a token's numbers for every head.
    pub(super) fn write(&mut self, layer: usize, half: Half, at: KvPlace, numbers: &[f32]) {
        let KvLayout { head_dim, .. } = self.layout;
        let block = self.blocks.at_mut(at.block);
        for (head, numbers) in numbers.chunks_exact(head_dim).enumerate() {
            let place = self.layout.range(HeadRef { layer, half, head });
            let at = place.start + at.slot * head_dim;
            block[at..at + head_dim].copy_from_slice(numbers);
        }
    }
}
