//! The little host's books of host memory.

use pointsman_events::{BlockCopy, BlockId, HostBlockId};

/// The host blocks that nobody has.
#[derive(Debug)]
pub(super) struct FreeHostBlocks(Vec<HostBlockId>);

/// A request's KV in host memory.
#[derive(Debug, Default)]
pub(super) struct Swapped {
    blocks: Vec<HostBlockId>,
    pub(super) tokens: u32,
}

// === impl FreeHostBlocks ===

impl FreeHostBlocks {
    pub(super) fn new(blocks: u32) -> Self {
        Self((0..blocks).map(HostBlockId).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes blocks for all that a sequence of `blocks` blocks holds, if there are as many.
    pub(super) fn take(&mut self, blocks: usize) -> Option<Vec<HostBlockId>> {
        let rest = self.0.len().checked_sub(blocks)?;
        Some(self.0.split_off(rest))
    }

    /// Takes back blocks. The last ones are given out first, so that they change hands often.
    pub(super) fn give_back(&mut self, blocks: Vec<HostBlockId>) {
        self.0.extend(blocks);
    }

    pub(super) fn drop_swapped(&mut self, swapped: &mut Swapped) {
        self.give_back(std::mem::take(swapped).blocks);
    }

    /// Keeps the KV of `tokens` tokens that is in `blocks`, and takes back what holds none.
    pub(super) fn keep(
        &mut self,
        mut blocks: Vec<HostBlockId>,
        tokens: u32,
        tokens_per_block: u32,
    ) -> Swapped {
        let empty = blocks.split_off(tokens.div_ceil(tokens_per_block) as usize);
        self.give_back(empty);
        Swapped { blocks, tokens }
    }
}

// === impl Swapped ===

impl Swapped {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The copies that bring the KV back into a block table.
    pub(super) fn copies_to(&self, table: &[BlockId]) -> Vec<BlockCopy> {
        let copies = self.blocks.iter().zip(table);
        let copies = copies.map(|(host, block)| BlockCopy {
            host: *host,
            block: *block,
        });
        copies.collect()
    }
}
