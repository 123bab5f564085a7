//! Tensors where they are stored: in a file, in the binary, or nowhere, to be made.
//!
//! Nothing is read before somebody asks, and then as many rows as are asked for. A processor's model reads
//! whole tensors ([`StoredTensor::values`]), a device reads piece by piece into memory of its own
//! ([`StoredTensor::read_bf16`]).

use std::ops::Range;
use std::sync::Arc;

use super::super::dummy::MadeTensor;
use super::super::files::WeightsFile;
use super::encoding::Encoding;
use super::{Values, WeightsError};

/// Bytes that are read at once for a processor's model.
const BYTES_AT_ONCE: usize = 16 << 20;

/// A tensor where it is stored.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    /// The name in its file, for errors.
    name: String,
    rows: usize,
    /// Numbers in a row. A vector is one row, or as many as it has numbers.
    cols: usize,
    encoding: Encoding,
    place: Place,
    order: RowOrder,
    window: Window,
}

/// The part of a tensor in what is stored.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// The stored row that is its first.
    first_row: usize,
    /// The number of a stored row that is the first of its own.
    first_col: usize,
    /// Numbers in a stored row.
    cols: usize,
}

/// The place of a tensor's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// They begin at this byte of a file.
    File(Arc<WeightsFile>, u64),
    /// They are made, in bf16.
    Made(MadeTensor),
}

/// The order of a tensor's rows, as stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowOrder {
    /// One after the other.
    AsStored,
    /// Of each head the rows of its two halves alternate.
    Alternating {
        /// Number of heads.
        heads: usize,
    },
}

impl StoredTensor {
    /// A tensor of this shape, whose rows are stored one after the other.
    pub(crate) fn new(name: &str, shape: &[usize], (encoding, place): (Encoding, Place)) -> Self {
        let (rows, cols) = match shape {
            [rows, cols] => (*rows, *cols),
            _ => (1, shape.iter().product()),
        };
        Self {
            name: name.to_owned(),
            rows,
            cols,
            encoding,
            place,
            order: RowOrder::AsStored,
            window: Window {
                first_row: 0,
                first_col: 0,
                cols,
            },
        }
    }

    /// The same tensor, whose rows are stored in another order. Each number of a vector is a row then.
    pub(crate) fn in_order(self, order: RowOrder) -> Self {
        let (rows, cols) = match self.rows {
            1 => (self.cols, 1),
            rows => (rows, self.cols),
        };
        Self {
            rows,
            cols,
            order,
            window: Window {
                cols,
                ..self.window
            },
            ..self
        }
    }

    /// These of its rows: of whole heads, where halves of heads alternate.
    pub(crate) fn rows_part(&self, rows: Range<usize>) -> Self {
        let order = match self.order {
            RowOrder::AsStored => RowOrder::AsStored,
            RowOrder::Alternating { heads } => {
                let head = self.rows / heads;
                assert!(rows.start.is_multiple_of(head) && rows.end.is_multiple_of(head));
                let heads = rows.len() / head;
                RowOrder::Alternating { heads }
            }
        };
        let mut part = self.clone();
        part.order = order;
        part.rows = rows.len();
        part.window.first_row += rows.start;
        part
    }

    /// These numbers of each of its rows: whole blocks.
    pub(crate) fn cols_part(&self, cols: Range<usize>) -> Self {
        let mut part = self.clone();
        part.cols = cols.len();
        part.window.first_col += cols.start;
        part
    }

    /// These numbers of a vector.
    pub(crate) fn vector_part(&self, numbers: Range<usize>) -> Self {
        match self.rows {
            1 => self.cols_part(numbers),
            _ => self.rows_part(numbers),
        }
    }

    /// Number of its numbers.
    pub(crate) fn numbers(&self) -> usize {
        self.rows * self.cols
    }

    /// Numbers of a row that are only read together.
    pub(crate) fn block(&self) -> usize {
        self.encoding.block()
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes that all of it takes where it is stored.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.rows * self.row_bytes()) as u64
    }

    /// Bytes that a row takes where it is stored.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.encoding.bytes_of_row(self.cols)
    }

    /// The name in its file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of its file, for errors.
    pub(super) fn file(&self) -> &str {
        match &self.place {
            Place::File(file, _) => file.name(),
            Place::Made(_) => "a dummy",
        }
    }

    /// True where a processor keeps its numbers in f32.
    pub(super) fn is_widened(&self) -> bool {
        self.encoding.is_widened()
    }

    /// Reads all of it, as processors have it.
    pub(crate) fn values(&self) -> Result<Values, WeightsError> {
        let mut values = self.encoding.empty(self.rows * self.cols);
        let mut raw = Vec::new();
        let rows_at_once = (BYTES_AT_ONCE / self.row_bytes().max(1)).max(1);
        for first in (0..self.rows).step_by(rows_at_once) {
            let rows = first..self.rows.min(first + rows_at_once);
            raw.resize(rows.len() * self.row_bytes(), 0);
            self.read(rows, &mut raw)?;
            self.encoding.append(&raw, &mut values);
        }
        Ok(values)
    }

    /// Reads rows as bf16, of two bytes each, the lower one first. `scratch` is memory for what has to be
    /// converted.
    ///
    /// # Errors
    /// If they cannot be read.
    ///
    /// # Panics
    /// If there are no such rows, or `out` is not as long as they are.
    pub fn read_bf16(
        &self,
        rows: Range<usize>,
        scratch: &mut Vec<u8>,
        out: &mut [u8],
    ) -> Result<(), WeightsError> {
        self.check(&rows, out.len() / 2);
        if self.encoding.is_bf16() {
            return self.read(rows, out);
        }
        scratch.resize(rows.len() * self.row_bytes(), 0);
        self.read(rows, scratch)?;
        self.encoding.to_bf16(scratch, out);
        Ok(())
    }

    /// Checks that there are such rows, of so many numbers.
    fn check(&self, rows: &Range<usize>, numbers: usize) {
        assert!(rows.end <= self.rows, "tensor {} has such rows", self.name);
        assert_eq!(numbers, rows.len() * self.cols, "rows are read whole");
    }

    /// Reads rows as they are stored.
    pub(super) fn read(&self, rows: Range<usize>, raw: &mut [u8]) -> Result<(), WeightsError> {
        match self.order {
            RowOrder::AsStored => self.read_stored(rows.start, raw),
            RowOrder::Alternating { heads } => self.read_alternating(rows, heads, raw),
        }
    }

    /// Reads rows of heads in which the two halves alternate, so that one half is behind the other.
    fn read_alternating(
        &self,
        rows: Range<usize>,
        heads: usize,
        raw: &mut [u8],
    ) -> Result<(), WeightsError> {
        let (bytes, head) = (self.row_bytes(), self.rows / heads);
        let first = rows.start / head * head;
        let mut stored = vec![0; (rows.end.next_multiple_of(head) - first) * bytes];
        self.read_stored(first, &mut stored)?;
        for (row, out) in rows.zip(raw.chunks_exact_mut(bytes)) {
            let (half, pair) = (row % head / (head / 2), row % head % (head / 2));
            let from = (row / head * head + 2 * pair + half - first) * bytes;
            out.copy_from_slice(&stored[from..from + bytes]);
        }
        Ok(())
    }

    fn read_stored(&self, first: usize, raw: &mut [u8]) -> Result<(), WeightsError> {
        let Window {
            first_row,
            first_col,
            cols,
        } = self.window;
        let number = |row: usize| (first_row + first + row) * cols + first_col;
        if self.cols == cols {
            return self.read_run(number(0), raw);
        }
        let mut rows = raw.chunks_exact_mut(self.row_bytes()).enumerate();
        rows.try_for_each(|(row, raw)| self.read_run(number(row), raw))
    }

    /// Reads what is stored from this number on.
    fn read_run(&self, first: usize, raw: &mut [u8]) -> Result<(), WeightsError> {
        match &self.place {
            Place::File(file, start) => {
                let offset = start + self.encoding.bytes_of_row(first) as u64;
                file.read_at(offset, raw)
                    .map_err(|source| WeightsError::Unread {
                        tensor: self.name.clone(),
                        file: file.name().to_owned(),
                        source,
                    })
            }
            Place::Made(made) => {
                made.fill(first, raw);
                Ok(())
            }
        }
    }
}
