//! A step laid out for the kernels: its tokens in one row after the other, and the blocks they use.

use std::ops::Range;

use super::kv::KvPlace;
use super::memory::{Access, StepBlock};
use crate::backend::{Chunk, KvShape, Logits, to_usize};
use pointsman_model::host::HostModel;

/// A token of a step.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) token: usize,
    pub(super) position: usize,
    /// The place of its sequence's block table in the step's tables.
    table: Range<usize>,
}

#[derive(Debug, Default)]
pub(super) struct InputBatch {
    pub(super) rows: Vec<Row>,
    /// Indexes of the rows whose logits are wanted.
    pub(super) last: Vec<usize>,
    /// Indexes of the rows whose hidden states are wanted.
    pub(super) hidden: Vec<usize>,
    /// Cosines of the angles of each row, then the sines; `head_dim` numbers.
    pub(super) angles: Vec<f32>,
    /// The blocks of the step, each once.
    pub(super) blocks: Vec<StepBlock>,
    /// The block tables of the sequences, one after the other: each block as its place in `blocks`.
    tables: Vec<usize>,
}

/// The places of blocks among those of a step, by their ids. Kept between steps, since a pool is large.
#[derive(Debug)]
pub(super) struct Places(Vec<Option<usize>>);

impl Places {
    pub(super) fn new(shape: KvShape) -> Self {
        Self(vec![None; to_usize(shape.blocks_total)])
    }
}

impl InputBatch {
    /// Lays out `chunks`.
    ///
    /// # Panics
    /// If a chunk breaks the contract of [`Chunk`]: the maker of the chunks is wrong, and the pool
    /// may be in disorder.
    pub(super) fn new(
        chunks: &[Chunk<'_>],
        model: &HostModel,
        shape: KvShape,
        places: &mut Places,
    ) -> Self {
        for chunk in chunks {
            chunk.check(model.config(), shape);
        }
        let mut input = Self::default();
        for chunk in chunks {
            let table = input.add_table(chunk, shape, places);
            for (token, position) in chunk.tokens.iter().zip(chunk.start..) {
                model.rotation().push(position, &mut input.angles);
                input.rows.push(Row {
                    token: to_usize(*token),
                    position: to_usize(position),
                    table: table.clone(),
                });
            }
            match chunk.logits {
                // The processors have no chooser of their own.
                Logits::None | Logits::Kept => {}
                Logits::Last => input.last.push(input.rows.len() - 1),
                Logits::Hidden => input.hidden.push(input.rows.len() - 1),
            }
        }
        for block in &input.blocks {
            places.0[to_usize(block.id.0)] = None;
        }
        input
    }

    /// Adds the blocks that a chunk uses, and returns the place of its table.
    fn add_table(
        &mut self,
        chunk: &Chunk<'_>,
        shape: KvShape,
        places: &mut Places,
    ) -> Range<usize> {
        let slots = to_usize(shape.tokens_per_block);
        let end = to_usize(chunk.start) + chunk.tokens.len();
        let written = to_usize(chunk.start) / slots..end.div_ceil(slots);
        let begin = self.tables.len();
        for (idx, id) in chunk.blocks[..written.end].iter().enumerate() {
            let place = *places.0[to_usize(id.0)].get_or_insert_with(|| {
                self.blocks.push(StepBlock {
                    id: *id,
                    access: Access::Read,
                });
                self.blocks.len() - 1
            });
            if written.contains(&idx) {
                self.blocks[place].access = Access::Write;
            }
            self.tables.push(place);
        }
        begin..self.tables.len()
    }

    /// The block table of a row's sequence, as far as the step uses it.
    pub(super) fn table(&self, row: &Row) -> &[usize] {
        &self.tables[row.table.clone()]
    }

    /// The place of a row's key and value, in blocks of so many slots.
    pub(super) fn place(&self, row: &Row, slots: usize) -> KvPlace {
        KvPlace {
            block: self.table(row)[row.position / slots],
            slot: row.position % slots,
        }
    }
}
