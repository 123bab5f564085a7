//! A step laid out for the kernels: one array of numbers, in parts.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use pointsman_engine::model::backend::{Chunk, DeviceError, KvShape, Logits};
use pointsman_engine::model::config::LlamaConfig;

use crate::buffer::{address, alloc};
use crate::failed;

/// A step in this machine's memory.
#[derive(Debug, Default)]
pub(crate) struct InputBatch {
    tokens: Vec<i32>,
    pub(crate) positions: Vec<i32>,
    /// The place in `tables` at which the block table of each row's sequence begins.
    starts: Vec<i32>,
    /// Indexes of the rows whose logits are wanted.
    last: Vec<i32>,
    tables: Vec<i32>,
}

/// A step on the device.
#[derive(Debug, Default)]
pub(crate) struct DeviceInput {
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
    /// Number of rows.
    pub(crate) rows: usize,
    /// Number of rows whose logits are wanted.
    pub(crate) wanted: usize,
}

impl InputBatch {
    /// Lays out `chunks`.
    ///
    /// # Panics
    /// If a chunk breaks its contract.
    pub(crate) fn new(chunks: &[Chunk<'_>], config: &LlamaConfig, shape: KvShape) -> Self {
        let mut input = Self::default();
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
            }
        }
        input
    }

    /// The most positions that a row of these sees.
    pub(crate) fn seen_max(&self, rows: Range<usize>) -> usize {
        let last = self.positions[rows].iter().max();
        last.map_or(0, |position| position.unsigned_abs() as usize + 1)
    }
}

impl DeviceInput {
    /// Copies a step to the device.
    pub(crate) fn copy(
        &mut self,
        stream: &Arc<CudaStream>,
        input: &InputBatch,
    ) -> Result<InputAt, DeviceError> {
        let InputBatch {
            tokens,
            positions,
            starts,
            last,
            tables,
        } = input;
        let parts = [tokens, positions, starts, last, tables];
        let numbers: Vec<i32> = parts.into_iter().flatten().copied().collect();
        let room = self.numbers.as_ref().map_or(0, CudaSlice::len);
        if room < numbers.len() {
            self.numbers = None;
            self.numbers = Some(alloc(stream, numbers.len().next_power_of_two())?);
        }
        let mut at = 0;
        if let Some(memory) = &mut self.numbers {
            let mut part = memory.slice_mut(..numbers.len());
            stream.memcpy_htod(&numbers, &mut part).map_err(failed)?;
            at = address(memory, stream);
        }
        let mut part = |part: &Vec<i32>| {
            let here = at;
            at += (part.len() * size_of::<i32>()) as u64;
            here
        };
        Ok(InputAt {
            tokens: part(tokens),
            positions: part(positions),
            starts: part(starts),
            last: part(last),
            tables: part(tables),
            rows: tokens.len(),
            wanted: last.len(),
        })
    }
}

/// Converts a number of things that fit into a step.
pub(crate) fn as_i32(value: usize) -> i32 {
    i32::try_from(value).expect("a step and a model are counted in 31 bits")
}
