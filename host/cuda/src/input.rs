//! A step laid out for the kernels: one array of numbers, in parts.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use pointsman_engine::backend::{Chunk, DeviceError, KvShape, Logits};
use pointsman_model::config::LlamaConfig;

use crate::buffer::{address, alloc, room_for};
use crate::failed;
use crate::ops::sums_rows_max;
use crate::step::StepRows;

/// Queries in a tile: rows of the matrices that a device multiplies at once.
const TILE_QUERIES: usize = 16;
/// Positions in a piece of attention, as `kernels/attention.cu` has it.
const PIECE: usize = 64;
/// Numbers by which a tile is told.
const TILE_NUMBERS: usize = 3;
/// Numbers by which a row is told: its token, its position, its table, its place in a tile, and no more than a tile.
const ROW_NUMBERS: usize = 4 + TILE_NUMBERS;
/// Tokens for which a block has room, where a server lays its blocks out; there may be more.
const BLOCK_TOKENS: usize = 16;
/// Rows to a multiple of which a step of decode is filled up.
const FILL: usize = 8;

/// A step in this machine's memory.
#[derive(Debug, Default)]
pub(crate) struct InputBatch {
    tokens: Vec<i32>,
    pub(crate) positions: Vec<i32>,
    /// The place in `tables` at which the block table of each row's sequence begins.
    starts: Vec<i32>,
    /// Indexes of the rows whose logits are computed: first those that are copied, then those that stay, then those
    /// that fill the step up; then of those whose hidden states are wanted.
    last: Vec<i32>,
    /// Number of rows of logits that are copied.
    copied: usize,
    /// Number of rows of logits that stay.
    kept: usize,
    /// Number of hidden states.
    hidden: usize,
    tables: Vec<i32>,
    /// The tiles of chunks that are one tile.
    few: Tiles,
    /// The tiles of longer chunks.
    many: Tiles,
    /// Number of pieces of attention for which there is to be room.
    pieces: usize,
}

/// Parts of chunks, whose queries to one head of keys are a matrix.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tiles {
    /// Of each tile its first row, the number of its rows, and its place among the rows of these tiles.
    numbers: Vec<i32>,
    /// The rows of the tiles.
    rows: Vec<i32>,
}

/// The addresses of tiles on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TilesAt {
    tiles: u64,
    rows: u64,
    /// Number of tiles.
    pub(crate) count: usize,
}

/// Numbers on the device, in parts.
#[derive(Debug, Default)]
pub(crate) struct DeviceNumbers {
    /// Number of times that memory was taken for them.
    pub(crate) taken: u64,
    numbers: Option<CudaSlice<i32>>,
}

/// The addresses of a step's parts, and their sizes.
#[derive(Clone, Debug)]
pub(crate) struct InputAt {
    pub(crate) tokens: u64,
    pub(crate) positions: u64,
    pub(crate) starts: u64,
    pub(crate) last: u64,
    pub(crate) tables: u64,
    pub(crate) few: TilesAt,
    pub(crate) many: TilesAt,
    /// Number of rows.
    pub(crate) rows: usize,
    /// Number of rows whose logits are computed.
    pub(crate) wanted: usize,
    /// Number of rows whose hidden states are wanted, listed after the others.
    pub(crate) hidden: usize,
}

impl InputBatch {
    /// Lays out `chunks`.
    ///
    /// # Panics
    /// If a chunk breaks its contract.
    pub(crate) fn new(chunks: &[Chunk<'_>], config: &LlamaConfig, shape: KvShape) -> Self {
        let mut input = Self::default();
        let (mut kept, mut hidden) = (Vec::new(), Vec::new());
        for chunk in chunks {
            chunk.check(config, shape);
            let start = as_i32(input.tables.len());
            let blocks = chunk.blocks.iter().map(|block| block.0.cast_signed());
            input.tables.extend(blocks);
            for (token, position) in chunk.tokens.iter().zip(chunk.start..) {
                input.tokens.push(token.cast_signed());
                input.positions.push(position.cast_signed());
                input.starts.push(start);
            }
            match chunk.logits {
                Logits::None => {}
                Logits::Last => input.last.push(as_i32(input.tokens.len() - 1)),
                Logits::Kept => kept.push(as_i32(input.tokens.len() - 1)),
                Logits::Hidden => hidden.push(as_i32(input.tokens.len() - 1)),
            }
            let (tokens, count) = (HeadParts::of(config).tokens(), chunk.tokens.len());
            let first = input.tokens.len() - count;
            match count <= tokens {
                true => input.few.push(first, count, tokens),
                false => input.many.push(first, count, tokens),
            }
        }
        input.pieces = input.few_pieces();
        input.copied = input.last.len();
        input.kept = kept.len();
        input.hidden = hidden.len();
        input.last.append(&mut kept);
        input.last.append(&mut hidden);
        input
    }

    /// Appends rows to a step of decode, which is of these chunks, so that steps of about as many sequences have one
    /// shape. They are the last token of a sequence once more, in the place after it: what they write there is the
    /// next token's to write, and nobody reads it before. Their table begins with that block, so that attention of them
    /// is short. Without a sequence that has room for it, the step stays as it is; nor is it made too long for a record.
    pub(crate) fn fill_up(&mut self, chunks: &[Chunk<'_>], config: &LlamaConfig, shape: KvShape) {
        // Each chunk of decode is a token whose logits are wanted.
        if self.copied + self.kept < self.tokens.len() {
            return;
        }
        let has_room = |chunk: &Chunk<'_>| {
            let room = chunk.blocks.len() * shape.tokens_per_block as usize;
            chunk.start as usize + 1 < room.min(config.context_tokens as usize)
        };
        let Some(row) = chunks.iter().position(has_room) else {
            return;
        };
        let (behind, slots) = (chunks[row].start + 1, shape.tokens_per_block);
        let start = self.starts[row] + (behind / slots).cast_signed();
        let tokens_of_tile = HeadParts::of(config).tokens();
        let own = self.tokens.len();
        let most = sums_rows_max(config, self.pieces).max(own);
        for more in own..filled_up(own).min(most) {
            self.tokens.push(self.tokens[row]);
            self.positions.push((behind % slots).cast_signed());
            self.starts.push(start);
            self.last.push(as_i32(more));
            self.few.push(more, 1, tokens_of_tile);
        }
        self.pieces = self.few_pieces();
    }

    /// Number of rows of logits that are copied from the device; those that stay come after them.
    pub(crate) fn copied(&self) -> usize {
        self.copied
    }

    /// The rows of logits by which tokens are chosen on the device.
    pub(crate) fn kept(&self) -> Range<usize> {
        self.copied..self.copied + self.kept
    }

    /// The tiles of chunks that are one tile.
    pub(crate) fn few(&self) -> &Tiles {
        &self.few
    }

    /// Number of pieces for which there is to be room for rows of chunks that are one tile.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces
    }

    /// A power of two, so that it is seldom another than in the step before.
    fn few_pieces(&self) -> usize {
        let rows = self.few.rows.iter();
        let positions = rows.map(|row| self.positions[row.unsigned_abs() as usize]);
        let seen = positions
            .max()
            .map_or(0, |last| last.unsigned_abs() as usize + 1);
        pieces_of(seen)
    }
}

/// Rows of a step of decode of so many sequences, once it is filled up: 1, 2, 4, 8 and the multiples of that.
pub(crate) fn filled_up(sequences: usize) -> usize {
    let power = sequences.next_power_of_two();
    power.min(sequences.next_multiple_of(FILL))
}

/// Number of pieces for which there is to be room where so many positions are seen.
pub(crate) fn pieces_of(seen: usize) -> usize {
    seen.div_ceil(PIECE).next_power_of_two()
}

/// The heads that share a head of keys, in parts that have room in a tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadParts {
    /// Number of parts.
    pub(crate) count: usize,
    /// Heads in a part; the last one may have fewer.
    pub(crate) heads: usize,
}

impl HeadParts {
    /// The parts of a model's heads.
    pub(crate) fn of(config: &LlamaConfig) -> Self {
        let group = config.group_size();
        let count = group.div_ceil(TILE_QUERIES);
        let heads = group.div_ceil(count);
        Self { count, heads }
    }

    /// Tokens of a tile.
    pub(crate) fn tokens(self) -> usize {
        TILE_QUERIES / self.heads
    }
}

impl Tiles {
    /// Appends the tiles of `count` rows from `first` on, of so many tokens each.
    fn push(&mut self, first: usize, count: usize, tokens: usize) {
        for start in (first..first + count).step_by(tokens) {
            let rows = tokens.min(first + count - start);
            self.numbers
                .extend([start, rows, self.rows.len()].map(as_i32));
            self.rows.extend((start..start + rows).map(as_i32));
        }
    }

    /// The tiles at these addresses.
    fn at(&self, tiles: u64, rows: u64) -> TilesAt {
        TilesAt {
            tiles,
            rows,
            count: self.len(),
        }
    }

    /// Number of tiles.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len() / TILE_NUMBERS
    }

    /// The place of a tile's first row among the rows of the tiles; after the last tile, their number.
    pub(crate) fn place(&self, tile: usize) -> usize {
        let place = self.numbers.get(tile * TILE_NUMBERS + 2);
        place.map_or(self.rows.len(), |place| place.unsigned_abs() as usize)
    }

    /// As many tiles from `first` on as have up to `rows` rows together, but one at least.
    pub(crate) fn part(&self, first: usize, rows: usize) -> Range<usize> {
        let fits = |end: &usize| self.place(*end) - self.place(first) <= rows;
        let ends = first + 2..=self.len();
        let end = ends.take_while(fits).last();
        first..end.unwrap_or(first + 1)
    }
}

impl TilesAt {
    /// The address of a tile.
    pub(crate) fn tile(&self, index: usize) -> u64 {
        self.tiles + (index * TILE_NUMBERS * size_of::<i32>()) as u64
    }

    /// The address of the row of the tiles at this place.
    pub(crate) fn row(&self, place: usize) -> u64 {
        self.rows + (place * size_of::<i32>()) as u64
    }
}

impl DeviceNumbers {
    /// Bytes that are taken at most for a step of so many rows.
    pub(crate) fn bytes_max(config: &LlamaConfig, rows: StepRows) -> usize {
        let table = (config.context_tokens as usize).div_ceil(BLOCK_TOKENS);
        // A sequence wants a row at most.
        let of_sequences = rows.sequences * (1 + table);
        room_for(rows.tokens * ROW_NUMBERS + of_sequences) * size_of::<i32>()
    }

    /// Copies parts to the device, and returns their addresses.
    pub(crate) fn copy<const N: usize>(
        &mut self,
        stream: &Arc<CudaStream>,
        parts: [&[i32]; N],
    ) -> Result<[u64; N], DeviceError> {
        let numbers = parts.concat();
        let room = self.numbers.as_ref().map_or(0, CudaSlice::len);
        if room < numbers.len() {
            self.numbers = None;
            self.numbers = Some(alloc(stream, room_for(numbers.len()))?);
            self.taken += 1;
        }
        let mut at = 0;
        if let Some(memory) = &mut self.numbers {
            let mut part = memory.slice_mut(..numbers.len());
            stream.memcpy_htod(&numbers, &mut part).map_err(failed)?;
            at = address(memory, stream);
        }
        Ok(parts.map(|part| {
            let here = at;
            at += size_of_val(part) as u64;
            here
        }))
    }
}

impl InputAt {
    /// Copies a step to the device.
    pub(crate) fn copy(
        numbers: &mut DeviceNumbers,
        stream: &Arc<CudaStream>,
        input: &InputBatch,
    ) -> Result<Self, DeviceError> {
        let (few, many) = (&input.few, &input.many);
        let parts = [
            &input.tokens,
            &input.positions,
            &input.starts,
            &input.last,
            &few.numbers,
            &few.rows,
            &many.numbers,
            &many.rows,
            // The last: steps of the same shape have everything else in the same places.
            &input.tables,
        ];
        let parts = parts.map(Vec::as_slice);
        let [
            tokens,
            positions,
            starts,
            last,
            few_tiles,
            few_rows,
            many_tiles,
            many_rows,
            tables,
        ] = numbers.copy(stream, parts)?;
        Ok(Self {
            tokens,
            positions,
            starts,
            last,
            tables,
            few: few.at(few_tiles, few_rows),
            many: many.at(many_tiles, many_rows),
            rows: input.tokens.len(),
            wanted: input.last.len() - input.hidden,
            hidden: input.hidden,
        })
    }
}

/// Converts a number of things that fit into a step.
pub(crate) fn as_i32(value: usize) -> i32 {
    i32::try_from(value).expect("a step and a model are counted in 31 bits")
}
