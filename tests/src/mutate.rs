//! Damage to bytes, from a seed: the stable tests of parsers use it in place of a fuzzer.

use std::ops::Range;

use fastrand::Rng;

/// Bytes that matter to parsers: in the numbers of WebAssembly and the journal, in JSON and in
/// TOML.
const TURNS: &[u8] = b"\x00\x01\x7f\x80\xff\"'\\{}[]=,.:#\n-9e";

/// Longest piece that is moved, copied or made up, in bytes.
const PIECE_MAX: usize = 64;

/// Damages `sample` in one to four places, also with pieces of `other`. Some results are made up as
/// a whole.
#[must_use]
pub fn damaged(rng: &mut Rng, sample: &[u8], other: &[u8]) -> Vec<u8> {
    if sample.is_empty() || rng.u32(0..50) == 0 {
        let length = rng.usize(0..256);
        return (0..length).map(|_| rng.u8(..)).collect();
    }
    loop {
        let mut bytes = sample.to_vec();
        for _ in 0..rng.u32(1..5) {
            damage(rng, &mut bytes, other);
        }
        if bytes != sample {
            return bytes;
        }
    }
}

/// Changes a bit in one or two bytes of `sample` that are not text, if there are such. Lengths,
/// offsets and names stay right, so that the damage gets past a parser of sections.
#[must_use]
pub fn altered(rng: &mut Rng, sample: &[u8]) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    let places =
        (0..sample.len()).filter(|at| sample.get(*at).is_some_and(|byte| !byte.is_ascii_graphic()));
    let places: Vec<usize> = places.collect();
    for _ in 0..rng.u32(1..3) {
        let at = rng.choice(&places).copied().unwrap_or_default();
        let flip = 1 << rng.u32(0..8);
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= flip;
        }
    }
    bytes
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = rng.usize(0..=bytes.len());
    let piece = piece(rng, bytes.len());
    match rng.u32(0..20) {
        0 => bytes.truncate(at),
        1 | 2 => drop(bytes.drain(piece)),
        3 | 4 => {
            let copied = bytes.get(piece).unwrap_or_default().to_vec();
            bytes.splice(at..at, copied);
        }
        5 | 6 => {
            let from = self::piece(rng, other.len());
            let foreign = other.get(from).unwrap_or_default().to_vec();
            bytes.splice(piece, foreign);
        }
        7 => bytes
            .iter_mut()
            .take(piece.end)
            .skip(piece.start)
            .for_each(|byte| *byte = rng.u8(..)),
        8 | 9 => bytes.insert(at, TURNS[rng.usize(0..TURNS.len())]),
        kind => {
            let turn = TURNS[rng.usize(0..TURNS.len())];
            let (flip, any) = (1 << rng.u32(0..8), rng.u8(..));
            if let Some(byte) = bytes.get_mut(at) {
                *byte = match kind {
                    10..=13 => *byte ^ flip,
                    14..=16 => turn,
                    _ => any,
                };
            }
        }
    }
}

/// A random piece of `length` bytes.
fn piece(rng: &mut Rng, length: usize) -> Range<usize> {
    let start = rng.usize(0..=length);
    start..(start + rng.usize(0..=PIECE_MAX)).min(length)
}
