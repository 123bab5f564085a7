//! The types of tensors in a GGUF file: their names, their blocks, and the numbers of a block.
//!
//! Quantised numbers come in blocks along a row, with scales for each block; the layouts are those of
//! ggml. F32 and F16 are kept as f32 and BF16 as it is, so nothing of them is rounded. The others become
//! bf16, whose rounding is small beside what quantising has taken: 2 bytes for each number, about twice
//! what Q8_0 has in the file and three and a half times what Q4_K has.
//!
//! # Invariants
//! 1. The numbers are those of ggml's own Python library (`tests/gguf`).

use std::fmt;

use half::f16;

use super::super::weights::encoding::{Block, Encoding};

/// Numbers in a block of the types with a K.
const K: usize = 256;

/// The number by which ggml knows a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorType(pub(super) u32);

/// The names of types, by ggml's numbers.
const NAMES: [(u32, &str); 31] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (8, "Q8_0"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (30, "BF16"),
    (34, "TQ1_0"),
    (39, "MXFP4"),
];

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "number {}", self.0),
        }
    }
}

impl TensorType {
    /// The way in which numbers of the type are stored; absent: it is not built.
    pub(super) fn encoding(self) -> Option<Encoding> {
        let block = |numbers, bytes, read| {
            Some(Encoding::Quantised(Block {
                numbers,
                bytes,
                read,
            }))
        };
        match self.0 {
            0 => Some(Encoding::F32),
            1 => Some(Encoding::F16),
            2 => block(32, 18, q4_0),
            6 => block(32, 22, q5_0),
            8 => block(32, 34, q8_0),
            12 => block(K, 144, q4_k),
            13 => block(K, 176, q5_k),
            14 => block(K, 210, q6_k),
            30 => Some(Encoding::Bf16),
            _ => None,
        }
    }
}

// === The blocks ===

/// The scale that `bytes` begin with.
fn scale(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = scale(block);
    for (out, byte) in out.iter_mut().zip(&block[2..]) {
        *out = scale * f32::from(byte.cast_signed());
    }
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let scale = scale(block);
    let (low, high) = out.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[2..]) {
        *low = scale * (f32::from(byte & 15) - 8.0);
        *high = scale * (f32::from(byte >> 4) - 8.0);
    }
}

fn q5_0(block: &[u8], out: &mut [f32]) {
    let scale = scale(block);
    let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    let fifth = |place: usize| if fifth >> place & 1 == 1 { 16.0 } else { 0.0 };
    let (low, high) = out.split_at_mut(16);
    for (place, byte) in block[6..].iter().enumerate() {
        low[place] = scale * (f32::from(byte & 15) + fifth(place) - 16.0);
        high[place] = scale * (f32::from(byte >> 4) + fifth(place + 16) - 16.0);
    }
}

/// The scales and offsets of the eight parts of a block, of six bits each.
fn scales_and_offsets(bytes: &[u8]) -> [(f32, f32); 8] {
    std::array::from_fn(|part| {
        let (scale, offset) = if part < 4 {
            (bytes[part] & 63, bytes[part + 4] & 63)
        } else {
            let both = bytes[part + 4];
            (
                both & 15 | bytes[part - 4] >> 6 << 4,
                both >> 4 | bytes[part] >> 6 << 4,
            )
        };
        (f32::from(scale), f32::from(offset))
    })
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    k_with_offsets(block, &block[16..], |_, _| 0.0, out);
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let fifths = &block[16..48];
    let fifth = |part: usize, place: usize| match fifths[place] >> part & 1 {
        0 => 0.0,
        _ => 16.0,
    };
    k_with_offsets(block, &block[48..], fifth, out);
}

/// Parts of 32 numbers: of two that follow each other, the first is in the lower halves of 32 bytes.
fn k_with_offsets(
    block: &[u8],
    halves: &[u8],
    fifth: impl Fn(usize, usize) -> f32,
    out: &mut [f32],
) {
    let (scale_all, offset_all) = (scale(block), scale(&block[2..]));
    let scales = scales_and_offsets(&block[4..16]);
    for (part, (out, (scale, offset))) in out.chunks_exact_mut(32).zip(scales).enumerate() {
        let (scale, offset) = (scale_all * scale, offset_all * offset);
        let halves = &halves[part / 2 * 32..];
        for (place, (out, byte)) in out.iter_mut().zip(halves).enumerate() {
            let half = byte >> (part % 2 * 4) & 15;
            *out = scale * (f32::from(half) + fifth(part, place)) - offset;
        }
    }
}

/// Two halves of 128 numbers: lower four bits, upper two bits, and a scale for 16 numbers.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let scale_all = scale(&block[208..]);
    let (lower, upper, scales) = (&block[..128], &block[128..192], &block[192..208]);
    for (place, out) in out.iter_mut().enumerate() {
        let (half, within) = (place / 128, place % 128);
        let low = lower[half * 64 + within % 64] >> (within / 64 * 4) & 15;
        let high = upper[half * 32 + within % 32] >> (within / 32 * 2) & 3;
        let scale = scale_all * f32::from(scales[place / 16].cast_signed());
        *out = scale * (f32::from(low | high << 4) - 32.0);
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use serde::Deserialize;

    use super::*;
    use crate::weights::Values;

    #[derive(Deserialize)]
    struct Case {
        r#type: String,
        number: u32,
        /// In hexadecimal digits.
        bytes: String,
        values: Vec<f32>,
    }

    #[test]
    fn blocks_are_read_as_ggml_reads_them() {
        let json = include_str!("../../tests/gguf/types.json");
        let cases: Vec<Case> = serde_json::from_str(json).unwrap();
        assert_eq!(cases.len(), 6);
        for case in cases {
            let kind = TensorType(case.number);
            assert_eq!(kind.to_string(), case.r#type);
            let digits = case.bytes.as_bytes().chunks(2);
            let bytes = digits
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
            let encoding = kind.encoding().unwrap();
            let bytes: Vec<u8> = bytes.collect();
            assert_eq!(
                encoding.bytes_of(&[case.values.len()]),
                Some(bytes.len() as u64)
            );
            let mut values = encoding.empty(0);
            encoding.append(&bytes, &mut values);
            let Values::Bf16(found) = values else {
                panic!("quantised numbers become bf16");
            };
            let expected: Vec<bf16> = case.values.into_iter().map(bf16::from_f32).collect();
            assert_eq!(found, expected, "{kind}");
        }
    }
}
