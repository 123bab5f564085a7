//! Weights in FP8: codes of a byte (e4m3), and scales with which their numbers are multiplied.
//!
//! Scales are in `NAME_scale`, as compressed-tensors has it, or in `NAME_scale_inv`, as DeepSeek's and Qwen's files
//! have it; numbers are multiplied with both. There is one scale for a tensor, one for each of its rows, or one for each
//! 128 by 128 numbers. Scales of inputs count for nothing: inputs stay in bf16.
//!
//! # Invariants
//! 1. Every code is the number of the format, and none that is not a number is passed on (`tests`, and
//!    `tests/fp8.rs` of `pointsman-cuda`).

use std::ops::Range;

use super::{StoredTensor, WeightsError};

/// Rows, and numbers in a row, of a block that has a scale of its own.
pub const BLOCK: usize = 128;
/// The bits of a code that are not its sign: those of no number, in all of them.
const NOT_A_NUMBER: u8 = 0x7f;

/// Tensors of one matrix, whose rows are one after the other.
#[derive(Clone, Debug)]
pub struct StackedFp8 {
    /// Numbers in a row.
    pub cols: usize,
    /// The tensors, in order; at least one.
    pub tensors: Vec<Fp8Tensor>,
}

/// A tensor with its scales.
#[derive(Clone, Debug)]
pub struct Fp8Tensor {
    codes: StoredTensor,
    scales: Scales,
}

/// The scales of a matrix: one holds for so many rows, and so many numbers of each.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    /// Rows for which a scale holds.
    pub rows_each: usize,
    /// Numbers of a row for which a scale holds.
    pub cols_each: usize,
    /// The scales, row by row of their own.
    pub numbers: Vec<f32>,
}

/// The number of a code.
#[must_use]
pub fn number(code: u8) -> f32 {
    let bits = u32::from(code & !NOT_A_NUMBER) << 24 | u32::from(code & NOT_A_NUMBER) << 20;
    match code & NOT_A_NUMBER {
        NOT_A_NUMBER => f32::NAN,
        // The exponent of f32 is 120 more.
        _ => f32::from_bits(bits) * 2_f32.powi(120),
    }
}

impl StackedFp8 {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tensors.iter().map(Fp8Tensor::rows).sum()
    }

    /// The scales of all of it: for blocks where all its tensors have them, and for rows of each number where the
    /// tensors do not begin with a block.
    #[must_use]
    pub fn scales(&self) -> Scales {
        let by_block = |tensor: &Fp8Tensor| tensor.scales.cols_each < self.cols;
        let cols_each = match self.tensors.iter().any(by_block) {
            true => BLOCK,
            false => self.cols,
        };
        let mut begins = self.tensors.iter().scan(0, |end, tensor| {
            let begin = *end;
            *end += tensor.rows();
            Some((begin, tensor))
        });
        let whole = begins.all(|(begin, tensor)| {
            begin.is_multiple_of(BLOCK) && tensor.scales.rows_each.is_multiple_of(BLOCK)
        });
        let rows_each = if whole { BLOCK } else { 1 };
        let mut numbers = Vec::new();
        for tensor in &self.tensors {
            for row in (0..tensor.rows()).step_by(rows_each) {
                let cols = (0..self.cols).step_by(cols_each);
                numbers.extend(cols.map(|col| tensor.scales.at(self.cols, row, col)));
            }
        }
        Scales {
            rows_each,
            cols_each,
            numbers,
        }
    }

    pub(crate) fn on_processors(&self) -> WeightsError {
        let first = self.tensors.first().map_or("", Fp8Tensor::name);
        WeightsError::Fp8OnProcessors {
            tensor: first.to_owned(),
        }
    }
}

impl Fp8Tensor {
    /// A tensor of codes, with the numbers of its scales, which have this name and shape.
    pub(super) fn new(
        codes: StoredTensor,
        (rows, cols): (usize, usize),
        scales: &StoredTensor,
        shape: &[usize],
    ) -> Result<Self, WeightsError> {
        let (file, tensor) = (scales.file().to_owned(), scales.name().to_owned());
        let blocks = [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)];
        let (rows_each, cols_each) = match shape {
            [] | [1] | [1, 1] => (rows.next_multiple_of(BLOCK), cols),
            [count] | [count, 1] if *count == rows => (1, cols),
            shape if *shape == blocks => (BLOCK, BLOCK),
            _ => {
                return Err(WeightsError::ScaleShape {
                    file,
                    tensor,
                    found: shape.to_vec(),
                    of: [rows, cols],
                });
            }
        };
        let numbers = scales.values()?.into_f32();
        if !numbers
            .iter()
            .all(|scale| *scale > 0.0 && scale.is_finite())
        {
            return Err(WeightsError::ScaleValue { file, tensor });
        }
        let scales = Scales {
            rows_each,
            cols_each,
            numbers,
        };
        Ok(Self { codes, scales })
    }

    /// The tensor's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.codes.name()
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.codes.rows()
    }

    /// Numbers of a row that have a scale together; absent: all of the row.
    pub(crate) fn scaled_cols(&self, cols: usize) -> Option<usize> {
        (self.scales.cols_each < cols).then_some(self.scales.cols_each)
    }

    /// These of its rows, of so many numbers each.
    pub(crate) fn rows_part(&self, rows: Range<usize>, cols: usize) -> Self {
        Self {
            scales: self
                .scales
                .part((self.rows(), cols), (rows.clone(), 0..cols)),
            codes: self.codes.rows_part(rows),
        }
    }

    /// These numbers of its rows, of `cols` numbers each: those of whole blocks.
    pub(crate) fn cols_part(&self, part: Range<usize>, cols: usize) -> Self {
        let rows = self.rows();
        Self {
            scales: self.scales.part((rows, cols), (0..rows, part.clone())),
            codes: self.codes.cols_part(part),
        }
    }

    /// Bytes of its codes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.codes.bytes()
    }

    /// Reads the codes of rows.
    ///
    /// # Errors
    /// If they cannot be read, or one is not a number.
    pub fn read_codes(&self, rows: Range<usize>, out: &mut [u8]) -> Result<(), WeightsError> {
        self.codes.read(rows, out)?;
        // Without a branch for each, so that vectors of them are compared.
        let is_wrong = |code: &u8| code & NOT_A_NUMBER == NOT_A_NUMBER;
        let any = |part: &[u8]| part.iter().fold(false, |any, code| any | is_wrong(code));
        if out.chunks(4096).any(any) {
            return Err(WeightsError::NotANumber {
                file: self.codes.file().to_owned(),
                tensor: self.name().to_owned(),
            });
        }
        Ok(())
    }
}

impl Scales {
    /// The scale of a number in a matrix of rows of `cols` numbers.
    #[must_use]
    pub fn at(&self, cols: usize, row: usize, col: usize) -> f32 {
        let across = cols.div_ceil(self.cols_each);
        self.numbers[row / self.rows_each * across + col / self.cols_each]
    }

    /// The scales of a part of a matrix of so many rows and columns: of each row, where the part does not begin with a
    /// block of rows.
    fn part(
        &self,
        (all_rows, all_cols): (usize, usize),
        (rows, cols): (Range<usize>, Range<usize>),
    ) -> Self {
        let rows_each = match self.rows_each {
            each if each >= all_rows => rows.len().next_multiple_of(BLOCK),
            each if rows.start.is_multiple_of(each) => each,
            _ => 1,
        };
        let cols_each = match self.cols_each {
            each if each >= all_cols => cols.len(),
            each => each,
        };
        let across = || cols.clone().step_by(cols_each);
        let down = rows.step_by(rows_each);
        let numbers = down.flat_map(|row| across().map(move |col| self.at(all_cols, row, col)));
        Self {
            rows_each,
            cols_each,
            numbers: numbers.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_number_of_the_format() {
        for code in 0..=u8::MAX {
            let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
            let size = match (exponent, code & 7) {
                (15, 7) => f32::NAN,
                (0, _) => fraction * 2_f32.powi(-6),
                _ => (1.0 + fraction) * 2_f32.powi(exponent - 7),
            };
            let expected = if code >> 7 == 1 { -size } else { size };
            let found = number(code);
            let both_none = found.is_nan() && expected.is_nan();
            assert!(both_none || found.to_bits() == expected.to_bits(), "{code}");
        }
        assert_eq!((number(0x7e), number(0x01)), (448.0, 2_f32.powi(-9)));
    }
}
