//! The arithmetic: plain functions over slices, compiled once per [`Simd`].
//!
//! Every output has one order of additions, given by its own inputs alone: a product runs over
//! its columns in order, eight lanes side by side, whatever tile computes it; sums over positions
//! run from the first position on. Callers may therefore cut rows, tokens and positions into
//! pieces as they like. Everything is inlined into a [`Simd::enter`].
//!
//! # Invariants
//! 1. Neither the tile nor its neighbours change a product (`kernels::tests`).

use std::array;
use std::ops::Range;

use half::bf16;

use super::simd::{LANES, Simd, widen};

/// Rows of a weight matrix that are walked together: a tile's part of them stays in the fastest
/// cache while tokens pass by.
pub(super) const PANEL: usize = 4;
/// Numbers of input that stay in the fastest cache while panels pass by.
const BLOCK_VALUES: usize = 4096;

/// A type of weights in memory.
pub(super) trait Weight: Copy + Sync {
    fn load<S: Simd>(simd: S, values: &[Self; LANES]) -> S::Lanes;

    /// Converts one weight, as `load` does.
    fn widen(self) -> f32;
}

impl Weight for bf16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, values: &[Self; LANES]) -> S::Lanes {
        simd.load_bf16(values)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        widen(self)
    }
}

impl Weight for f32 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, values: &[Self; LANES]) -> S::Lanes {
        simd.load(values)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

/// The product of some rows of a weight matrix with each token's row of input.
#[derive(Clone, Copy)]
pub(super) struct Product<'a, W> {
    /// Rows of `cols` weights.
    pub(super) weight: &'a [W],
    /// Rows of `cols` numbers.
    pub(super) x: &'a [f32],
    pub(super) cols: usize,
}

impl<W: Weight> Product<'_, W> {
    /// Hands each token's outputs to `emit`, a few neighbours at a time: token, first row, outputs.
    #[inline(always)]
    pub(super) fn run<S: Simd>(self, simd: S, mut emit: impl FnMut(usize, usize, &[f32])) {
        let rows = self.weight.len() / self.cols;
        let tokens = self.x.len() / self.cols;
        debug_assert_eq!(self.weight.len(), rows * self.cols, "whole rows of weights");
        debug_assert_eq!(self.x.len(), tokens * self.cols, "whole rows of input");
        let block = (BLOCK_VALUES / self.cols).max(1).next_multiple_of(4);
        for from in (0..tokens).step_by(block) {
            let tokens = from..(from + block).min(tokens);
            for row in (0..rows).step_by(PANEL) {
                let panel = row..(row + PANEL).min(rows);
                self.panel(simd, panel, tokens.clone(), &mut emit);
            }
        }
    }

    /// Computes a panel in the tiles that were fastest: with four tokens, two rows fit into the
    /// registers.
    #[inline(always)]
    fn panel<S: Simd>(
        self,
        simd: S,
        rows: Range<usize>,
        mut tokens: Range<usize>,
        emit: &mut impl FnMut(usize, usize, &[f32]),
    ) {
        if rows.len() < PANEL {
            for token in tokens {
                for row in rows.clone() {
                    self.tile::<S, 1, 1>(simd, row, token, emit);
                }
            }
            return;
        }
        let row = rows.start;
        while !tokens.is_empty() {
            let token = tokens.start;
            match tokens.len() {
                1 => self.tile::<S, 4, 1>(simd, row, token, emit),
                2 => self.tile::<S, 4, 2>(simd, row, token, emit),
                3 => self.tile::<S, 4, 3>(simd, row, token, emit),
                _ => {
                    self.tile::<S, 2, 4>(simd, row, token, emit);
                    self.tile::<S, 2, 4>(simd, row + 2, token, emit);
                }
            }
            tokens.start += tokens.len().min(4);
        }
    }

    /// Computes `R` rows by `T` tokens, summed in registers.
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const T: usize>(
        self,
        simd: S,
        row: usize,
        token: usize,
        emit: &mut impl FnMut(usize, usize, &[f32]),
    ) {
        let cols = self.cols;
        let weights: [&[W]; R] = array::from_fn(|r| &self.weight[(row + r) * cols..][..cols]);
        let inputs: [&[f32]; T] = array::from_fn(|t| &self.x[(token + t) * cols..][..cols]);
        let weight_steps = weights.map(|row| &row.as_chunks().0[..cols / LANES]);
        let input_steps = inputs.map(|row| &row.as_chunks().0[..cols / LANES]);
        let mut sums = [[simd.splat(0.0); T]; R];
        for step in 0..cols / LANES {
            let x: [S::Lanes; T] = array::from_fn(|t| simd.load(&input_steps[t][step]));
            for r in 0..R {
                let weight = W::load(simd, &weight_steps[r][step]);
                for t in 0..T {
                    sums[r][t] = simd.mul_add(weight, x[t], sums[r][t]);
                }
            }
        }
        if !cols.is_multiple_of(LANES) {
            let x = inputs.map(|row| simd.load(&last_step(row)));
            for r in 0..R {
                let weight = simd.load(&last_step(weights[r]));
                for t in 0..T {
                    sums[r][t] = simd.mul_add(weight, x[t], sums[r][t]);
                }
            }
        }
        for t in 0..T {
            let sum = |r: usize| if r < R { sums[r][t] } else { simd.splat(0.0) };
            let sums = simd.sums([sum(0), sum(1), sum(2), sum(3)]);
            emit(token + t, row, &sums[..R]);
        }
    }
}

/// Returns the rest of a row after whole steps, filled up with zeros.
#[inline(always)]
fn last_step<W: Weight>(row: &[W]) -> [f32; LANES] {
    let (_, rest) = row.as_chunks::<LANES>();
    let mut step = [0.0; LANES];
    for (to, value) in step.iter_mut().zip(rest) {
        *to = value.widen();
    }
    step
}

#[inline(always)]
pub(super) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let product = Product {
        weight: a,
        x: b,
        cols: a.len(),
    };
    let mut sum = 0.0;
    product.run(simd, |_, _, values| sum = values[0]);
    sum
}

/// Divides `x` by its root mean square and multiplies it by `weight`.
#[inline(always)]
pub(super) fn rmsnorm<S: Simd>(simd: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = dot(simd, x, x) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// Turns each pair of a head's dimensions, `i` and `i + head_dim / 2`, by its angle.
#[inline(always)]
pub(super) fn rope(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    let angles = cos.iter().zip(sin);
    for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[inline(always)]
pub(super) fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-gate)) * up;
    }
}

/// Turns scores, times `scale`, into weights that are in proportion to their exponentials.
/// Returns the sum of the weights.
#[inline(always)]
pub(super) fn softmax_weights(scores: &mut [f32], scale: f32) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let max = fold(scores, f32::NEG_INFINITY, larger);
    for score in scores.iter_mut() {
        *score = exp((*score - max) * scale);
    }
    fold(scores, 0.0, |a, b| a + b)
}

/// Folds every eighth value, then the eight results.
#[inline(always)]
fn fold(values: &[f32], first: f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [first; LANES];
    let (steps, rest) = values.as_chunks::<LANES>();
    for step in steps {
        for lane in 0..LANES {
            lanes[lane] = join(step[lane], lanes[lane]);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = join(*value, *lane);
    }
    lanes.into_iter().fold(first, join)
}

/// Adds rows of values to `out`, each times its weight.
#[inline(always)]
pub(super) fn add_weighted<S: Simd>(simd: S, weights: &[f32], values: &[f32], out: &mut [f32]) {
    let head_dim = out.len();
    debug_assert_eq!(values.len(), weights.len() * head_dim, "a row per weight");
    let rows = weights.iter().zip(values.chunks_exact(head_dim));
    let (steps, rest) = out.as_chunks_mut::<LANES>();
    let (fours, ones) = steps.as_chunks_mut::<4>();
    let mut at = 0;
    for four in fours {
        add_columns(simd, rows.clone(), at, four);
        at += 4 * LANES;
    }
    for one in ones {
        add_columns(simd, rows.clone(), at, array::from_mut(one));
        at += LANES;
    }
    for (out, column) in rest.iter_mut().zip(at..) {
        for (weight, row) in rows.clone() {
            *out = weight.mul_add(row[column], *out);
        }
    }
}

/// Does the work of [`add_weighted`] for the columns from `at` on.
#[inline(always)]
fn add_columns<'a, S: Simd, const STEPS: usize>(
    simd: S,
    rows: impl Iterator<Item = (&'a f32, &'a [f32])>,
    at: usize,
    out: &mut [[f32; LANES]; STEPS],
) {
    let mut sums: [S::Lanes; STEPS] = array::from_fn(|step| simd.load(&out[step]));
    for (weight, row) in rows {
        let weight = simd.splat(*weight);
        let (values, _) = row[at..at + STEPS * LANES].as_chunks();
        for step in 0..STEPS {
            sums[step] = simd.mul_add(weight, simd.load(&values[step]), sums[step]);
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        simd.store(sum, out);
    }
}

/// Returns e to the power of `x`, to within two units in the last place where that is a normal
/// number; beyond, the nearest normal number. The platform's own function is not used, so that all
/// machines agree.
#[inline(always)]
fn exp(x: f32) -> f32 {
    use std::f32::consts::{LN_2, LOG2_E};
    /// The part of the logarithm that [`LN_2`] lacks.
    const LN_2_REST: f32 = -1.904_654_3e-9;
    /// A number, 1.5 * 2^23, whose addition rounds to an integer in the lowest bits.
    const ROUNDING: f32 = 12_582_912.0;
    /// Taylor's series; the next term is below 2^-27.
    const SERIES: [f32; 7] = [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let x = x.clamp(-87.0, 88.0);
    let rounded = x.mul_add(LOG2_E, ROUNDING);
    let power = rounded - ROUNDING;
    let rest = power.mul_add(-LN_2_REST, power.mul_add(-LN_2, x));
    let mut sum = 1.0 / 5040.0;
    for term in SERIES {
        sum = rest.mul_add(sum, term);
    }
    f32::from_bits(sum.to_bits().wrapping_add(rounded.to_bits() << 23))
}

#[cfg(test)]
mod tests;
