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

/// Rows of a weight matrix that are walked together: they stay in the fastest cache while tokens pass by, and
/// the next ones are fetched meanwhile.
pub(super) const PANEL: usize = 4;
/// Numbers of input that stay in a thread's own cache while panels pass by.
const BLOCK_VALUES: usize = 65_536;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Tokens of the largest tile.
const TILE_TOKENS_MAX: usize = 8;

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

/// Rows of input, one for each token, in the order in which tiles read them: tokens of one tile step by step,
/// side by side. Kept between products for its memory.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// Whole steps: the last one of a row is filled up with zeros.
    steps: Vec<[f32; LANES]>,
    cols: usize,
    tokens: usize,
}

impl Input {
    /// Takes in rows of `cols` numbers.
    #[inline(always)]
    pub(super) fn fill<S: Simd>(&mut self, x: &[f32], cols: usize) {
        debug_assert!(x.len().is_multiple_of(cols), "whole rows of input");
        (self.cols, self.tokens) = (cols, x.len() / cols);
        self.steps.clear();
        for tokens in tiles::<S>(0..self.tokens) {
            for at in (0..cols).step_by(LANES) {
                for row in x[tokens.start * cols..tokens.end * cols].chunks_exact(cols) {
                    self.steps.push(match row[at..].first_chunk() {
                        Some(step) => *step,
                        None => last_step(row),
                    });
                }
            }
        }
    }

    /// Number of rows.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    fn row_steps(&self) -> usize {
        self.cols.div_ceil(LANES)
    }

    /// The steps of a tile's tokens.
    fn of(&self, tokens: Range<usize>) -> &[[f32; LANES]] {
        let steps = self.row_steps();
        &self.steps[tokens.start * steps..tokens.end * steps]
    }
}

/// The tokens of each tile: as many as were fastest, of those that there are.
#[inline(always)]
fn tiles<S: Simd>(mut tokens: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    std::iter::from_fn(move || {
        let count = match tokens.len() {
            0 => return None,
            8.. if S::IS_WIDE => 8,
            4.. => 4,
            few => few,
        };
        let start = tokens.start;
        tokens.start += count;
        Some(start..tokens.start)
    })
}

/// The product of some rows of a weight matrix with each token's row of input.
#[derive(Clone, Copy)]
pub(super) struct Product<'a, W> {
    /// Rows of as many weights as the input has columns.
    pub(super) weight: &'a [W],
    pub(super) x: &'a Input,
}

impl<W: Weight> Product<'_, W> {
    /// Hands each token's outputs to `emit`, a few neighbours at a time: token, first row, outputs.
    #[inline(always)]
    pub(super) fn run<S: Simd>(self, simd: S, mut emit: impl FnMut(usize, usize, &[f32])) {
        let Input { cols, tokens, .. } = *self.x;
        let rows = self.weight.len() / cols;
        debug_assert_eq!(self.weight.len(), rows * cols, "whole rows of weights");
        let block = (BLOCK_VALUES / cols)
            .max(1)
            .next_multiple_of(TILE_TOKENS_MAX);
        for from in (0..tokens).step_by(block) {
            let tokens = from..(from + block).min(tokens);
            for row in (0..rows).step_by(PANEL) {
                let panel = row..(row + PANEL).min(rows);
                for tokens in tiles::<S>(tokens.clone()) {
                    self.panel(simd, panel.clone(), tokens, &mut emit);
                }
            }
        }
    }

    /// Computes a panel for the tokens of a tile, in shapes of which sums, inputs and weights fit into the
    /// registers.
    #[inline(always)]
    fn panel<S: Simd>(
        self,
        simd: S,
        rows: Range<usize>,
        tokens: Range<usize>,
        emit: &mut impl FnMut(usize, usize, &[f32]),
    ) {
        match rows.len() {
            PANEL if tokens.len() == 4 && !S::IS_WIDE => {
                self.rows::<S, 2>(simd, rows.start, tokens.clone(), emit);
                self.rows::<S, 2>(simd, rows.start + 2, tokens, emit);
            }
            PANEL => self.rows::<S, PANEL>(simd, rows.start, tokens, emit),
            _ => {
                for row in rows {
                    self.rows::<S, 1>(simd, row, tokens.clone(), emit);
                }
            }
        }
    }

    /// Computes `R` rows for the tokens of a tile.
    #[inline(always)]
    fn rows<S: Simd, const R: usize>(
        self,
        simd: S,
        row: usize,
        tokens: Range<usize>,
        emit: &mut impl FnMut(usize, usize, &[f32]),
    ) {
        match tokens.len() {
            1 => self.tile::<S, One<S>, R, 1>(simd, row, tokens, emit),
            2 => self.tile::<S, Two<S>, R, 1>(simd, row, tokens, emit),
            3 => self.tile::<S, One<S>, R, 3>(simd, row, tokens, emit),
            4 => self.tile::<S, Two<S>, R, 2>(simd, row, tokens, emit),
            _ => self.tile::<S, Two<S>, R, 4>(simd, row, tokens, emit),
        }
    }

    /// Computes `R` rows by `N` columns of tokens, summed in registers.
    #[inline(always)]
    fn tile<S: Simd, C: Column<S>, const R: usize, const N: usize>(
        self,
        simd: S,
        row: usize,
        tokens: Range<usize>,
        emit: &mut impl FnMut(usize, usize, &[f32]),
    ) {
        let cols = self.x.cols;
        let width = N * C::TOKENS;
        debug_assert_eq!(tokens.len(), width, "a tile has all its tokens");
        let weights: [&[W]; R] = array::from_fn(|r| &self.weight[(row + r) * cols..][..cols]);
        let weight_steps = weights.map(|row| &row.as_chunks().0[..cols / LANES]);
        let inputs = self.x.of(tokens.clone());
        let next_panel = PANEL * cols / LANES;
        let zero = C::splat(simd, simd.splat(0.0));
        let mut sums = [[zero; N]; R];
        for step in 0..cols / LANES {
            let input = &inputs[step * width..][..width];
            let mut x = [zero; N];
            for n in 0..N {
                x[n] = C::load(simd, &input[n * C::TOKENS..]);
            }
            for r in 0..R {
                if step.is_multiple_of(LINE / size_of::<[W; LANES]>()) {
                    let next = weight_steps[r].as_ptr().wrapping_add(next_panel + step);
                    simd.prefetch(next.cast());
                }
                let weight = C::splat(simd, W::load(simd, &weight_steps[r][step]));
                for n in 0..N {
                    sums[r][n] = C::mul_add(simd, weight, x[n], sums[r][n]);
                }
            }
        }
        if !cols.is_multiple_of(LANES) {
            let input = &inputs[cols / LANES * width..];
            for r in 0..R {
                let weight = C::splat(simd, simd.load(&last_step(weights[r])));
                for n in 0..N {
                    let x = C::load(simd, &input[n * C::TOKENS..]);
                    sums[r][n] = C::mul_add(simd, weight, x, sums[r][n]);
                }
            }
        }
        for (t, token) in tokens.enumerate() {
            let (n, of) = (t / C::TOKENS, t % C::TOKENS);
            let mut lanes = [simd.splat(0.0); PANEL];
            for r in 0..R {
                lanes[r] = sums[r][n].token(simd, of);
            }
            emit(token, row, &simd.sums(lanes)[..R]);
        }
    }
}

/// Tokens side by side in a tile, each with its lanes.
trait Column<S: Simd>: Copy {
    /// The number of tokens.
    const TOKENS: usize;

    /// Loads a step of the first tokens.
    fn load(simd: S, steps: &[[f32; LANES]]) -> Self;

    /// The same lanes for each token.
    fn splat(simd: S, lanes: S::Lanes) -> Self;

    fn mul_add(simd: S, a: Self, b: Self, c: Self) -> Self;

    /// Returns the lanes of a token.
    fn token(self, simd: S, of: usize) -> S::Lanes;
}

/// One token.
#[derive(Clone, Copy)]
struct One<S: Simd>(S::Lanes);

/// Two tokens.
#[derive(Clone, Copy)]
struct Two<S: Simd>(S::Pair);

impl<S: Simd> Column<S> for One<S> {
    const TOKENS: usize = 1;

    #[inline(always)]
    fn load(simd: S, steps: &[[f32; LANES]]) -> Self {
        Self(simd.load(&steps[0]))
    }

    #[inline(always)]
    fn splat(_: S, lanes: S::Lanes) -> Self {
        Self(lanes)
    }

    #[inline(always)]
    fn mul_add(simd: S, a: Self, b: Self, c: Self) -> Self {
        Self(simd.mul_add(a.0, b.0, c.0))
    }

    #[inline(always)]
    fn token(self, _: S, _: usize) -> S::Lanes {
        self.0
    }
}

impl<S: Simd> Column<S> for Two<S> {
    const TOKENS: usize = 2;

    #[inline(always)]
    fn load(simd: S, steps: &[[f32; LANES]]) -> Self {
        Self(simd.pair(simd.load(&steps[0]), simd.load(&steps[1])))
    }

    #[inline(always)]
    fn splat(simd: S, lanes: S::Lanes) -> Self {
        Self(simd.pair(lanes, lanes))
    }

    #[inline(always)]
    fn mul_add(simd: S, a: Self, b: Self, c: Self) -> Self {
        Self(simd.mul_add_pair(a.0, b.0, c.0))
    }

    #[inline(always)]
    fn token(self, simd: S, of: usize) -> S::Lanes {
        simd.unpair(self.0)[of]
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

/// The product of two rows, added as [`Product`] does.
#[inline(always)]
pub(super) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let (steps, others) = (a.as_chunks().0, b.as_chunks().0);
    let mut sum = simd.splat(0.0);
    for (a, b) in steps.iter().zip(others) {
        sum = simd.mul_add(simd.load(a), simd.load(b), sum);
    }
    if !a.len().is_multiple_of(LANES) {
        sum = simd.mul_add(simd.load(&last_step(a)), simd.load(&last_step(b)), sum);
    }
    let zero = simd.splat(0.0);
    let [sum, ..] = simd.sums([sum, zero, zero, zero]);
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
