//! The ways in which numbers are stored.
//!
//! Nothing is rounded but what is quantised, on processors: bf16 stays bf16, f16 and f32 are kept as f32.
//! Devices have bf16 of all.

use half::{bf16, f16};
use rayon::prelude::*;

use super::{Values, fp8};

/// Bytes that a thread converts at once.
const BYTES_AT_ONCE: usize = 64 << 10;
/// Most numbers in a block.
const BLOCK_MAX: usize = 256;

/// Numbers that are only read together.
#[derive(Clone, Copy)]
struct Unit {
    numbers: usize,
    bytes: usize,
}

/// The way in which numbers are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Encoding {
    /// Two bytes each.
    Bf16,
    /// Two bytes each.
    F16,
    /// Four bytes each.
    F32,
    /// FP8 (e4m3) of a byte each, without their scales.
    Fp8,
    /// In blocks along a row.
    Quantised(Block),
}

/// A block of quantised numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// Numbers in a block.
    pub(crate) numbers: usize,
    /// Bytes of a block.
    pub(crate) bytes: usize,
    /// Writes the numbers of a block.
    pub(crate) read: fn(&[u8], &mut [f32]),
}

impl Encoding {
    /// The bytes of a tensor of this shape; absent: a row is not of whole blocks, or there is no such
    /// number.
    pub(crate) fn bytes_of(self, shape: &[usize]) -> Option<u64> {
        let row = shape.last()?;
        let numbers = shape
            .iter()
            .try_fold(1, |all: usize, size| all.checked_mul(*size))?;
        let unit = self.unit();
        let bytes = (numbers / unit.numbers).checked_mul(unit.bytes)?;
        row.is_multiple_of(unit.numbers).then_some(bytes as u64)
    }

    /// The bytes of a row of whole blocks.
    pub(super) fn bytes_of_row(self, cols: usize) -> usize {
        let unit = self.unit();
        cols / unit.numbers * unit.bytes
    }

    /// Numbers of a row that are only read together.
    pub(super) fn block(self) -> usize {
        self.unit().numbers
    }

    pub(super) fn is_bf16(self) -> bool {
        matches!(self, Self::Bf16)
    }

    /// True where processors keep numbers in f32.
    pub(super) fn is_widened(self) -> bool {
        match self {
            Self::F16 | Self::F32 => true,
            Self::Bf16 | Self::Fp8 | Self::Quantised(_) => false,
        }
    }

    /// No values, with room for so many of this encoding.
    pub(crate) fn empty(self, room: usize) -> Values {
        match self.is_widened() {
            true => Values::F32(Vec::with_capacity(room)),
            false => Values::Bf16(Vec::with_capacity(room)),
        }
    }

    /// Adds the numbers in whole blocks to values, as processors have them.
    pub(crate) fn append(self, raw: &[u8], values: &mut Values) {
        match values {
            Values::F32(values) => self.widen(raw, values),
            Values::Bf16(values) if self.is_bf16() => {
                let (pairs, _) = raw.as_chunks::<2>();
                values.extend(pairs.iter().map(|pair| bf16::from_le_bytes(*pair)));
            }
            Values::Bf16(values) => {
                let unit = self.unit();
                let mut bytes = vec![0; raw.len() / unit.bytes * unit.numbers * 2];
                self.to_bf16(raw, &mut bytes);
                let (pairs, _) = bytes.as_chunks::<2>();
                values.extend(pairs.iter().map(|pair| bf16::from_le_bytes(*pair)));
            }
        }
    }

    fn widen(self, raw: &[u8], values: &mut Vec<f32>) {
        let (pairs, _) = raw.as_chunks::<2>();
        let (quads, _) = raw.as_chunks::<4>();
        match self {
            Self::F16 => {
                values.extend(pairs.iter().map(|pair| f16::from_le_bytes(*pair).to_f32()));
            }
            Self::F32 => values.extend(quads.iter().map(|quad| f32::from_le_bytes(*quad))),
            Self::Bf16 => {
                values.extend(pairs.iter().map(|pair| bf16::from_le_bytes(*pair).to_f32()));
            }
            Self::Fp8 => values.extend(raw.iter().map(|code| fp8::number(*code))),
            Self::Quantised(block) => block.widen(raw, values),
        }
    }

    /// Converts whole blocks to bf16, of two bytes each, the lower one first.
    pub(super) fn to_bf16(self, raw: &[u8], out: &mut [u8]) {
        let unit = self.unit();
        let units = (BYTES_AT_ONCE / unit.bytes).max(1);
        let parts = out.par_chunks_mut(units * unit.numbers * 2);
        let parts = parts.zip(raw.par_chunks(units * unit.bytes));
        parts.for_each(|(out, raw)| match self {
            Self::Bf16 => out.copy_from_slice(raw),
            Self::F16 => narrow(raw, out, |bytes: [u8; 2]| {
                f16::from_le_bytes(bytes).to_f32()
            }),
            Self::F32 => narrow(raw, out, f32::from_le_bytes),
            Self::Fp8 => narrow(raw, out, |[code]: [u8; 1]| fp8::number(code)),
            Self::Quantised(block) => block.to_bf16(raw, out),
        });
    }

    /// The least that is read: so many numbers, of so many bytes.
    fn unit(self) -> Unit {
        let number = |bytes| Unit { numbers: 1, bytes };
        match self {
            Self::Bf16 | Self::F16 => number(2),
            Self::F32 => number(4),
            Self::Fp8 => number(1),
            Self::Quantised(Block { numbers, bytes, .. }) => Unit { numbers, bytes },
        }
    }
}

impl Block {
    fn widen(self, raw: &[u8], values: &mut Vec<f32>) {
        let first = values.len();
        values.resize(first + raw.len() / self.bytes * self.numbers, 0.0);
        let blocks = values[first..].chunks_exact_mut(self.numbers);
        for (out, block) in blocks.zip(raw.chunks_exact(self.bytes)) {
            (self.read)(block, out);
        }
    }

    fn to_bf16(self, raw: &[u8], out: &mut [u8]) {
        let mut numbers = [0.0; BLOCK_MAX];
        let numbers = &mut numbers[..self.numbers];
        let blocks = out.chunks_exact_mut(self.numbers * 2);
        for (out, block) in blocks.zip(raw.chunks_exact(self.bytes)) {
            (self.read)(block, numbers);
            for (out, number) in out.chunks_exact_mut(2).zip(&*numbers) {
                out.copy_from_slice(&bf16::from_f32(*number).to_le_bytes());
            }
        }
    }
}

/// Converts numbers of `BYTES` bytes each to bf16.
fn narrow<const BYTES: usize>(raw: &[u8], out: &mut [u8], widen: impl Fn([u8; BYTES]) -> f32) {
    let (numbers, _) = raw.as_chunks::<BYTES>();
    let (pairs, _) = out.as_chunks_mut::<2>();
    for (out, bytes) in pairs.iter_mut().zip(numbers) {
        *out = bf16::from_f32(widen(*bytes)).to_le_bytes();
    }
}
