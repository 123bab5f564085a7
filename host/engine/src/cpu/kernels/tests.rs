//! Kernels against their definitions, and against themselves with other instructions.

use super::*;
use crate::cpu::simd::Portable;

#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::{Avx2, Avx512};

/// A kernel whose results must not depend on the instructions.
trait Kernel {
    fn run<S: Simd>(&self, simd: S) -> Vec<f32>;
}

/// Returns the portable results, and asserts that the machine's instructions give the same.
fn agreed(kernel: &impl Kernel) -> Vec<f32> {
    let expected = kernel.run(Portable);
    #[cfg(target_arch = "x86_64")]
    {
        let found = with(Avx2::detect(), "AVX2", kernel);
        let wide = with(Avx512::detect(), "AVX-512", kernel);
        for found in [found, wide].into_iter().flatten() {
            assert_eq!(bits(&found), bits(&expected));
        }
    }
    expected
}

/// Returns the results with some instructions, where the machine has them.
#[cfg(target_arch = "x86_64")]
fn with<S: Simd>(simd: Option<S>, name: &str, kernel: &impl Kernel) -> Option<Vec<f32>> {
    if simd.is_none() {
        println!("skipped: no {name} on this machine");
    }
    simd.map(|simd| simd.enter(|| kernel.run(simd)))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn numbers(rng: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    let mut number = || (rng.f32() - 0.5) * 4.0;
    (0..count).map(|_| number()).collect()
}

struct Multiply<W> {
    weight: Vec<W>,
    x: Vec<f32>,
    cols: usize,
}

impl<W: Weight> Kernel for Multiply<W> {
    fn run<S: Simd>(&self, simd: S) -> Vec<f32> {
        let rows = self.weight.len() / self.cols;
        let mut out = vec![f32::NAN; rows * self.x.len() / self.cols];
        let mut input = Input::default();
        input.fill::<S>(&self.x, self.cols);
        let product = Product {
            weight: &self.weight,
            x: &input,
        };
        product.run(simd, |token, row, values: &[f32]| {
            out[token * rows + row..][..values.len()].copy_from_slice(values);
        });
        out
    }
}

/// Computes a product in f64, from the definition.
fn naive<W: Weight>(multiply: &Multiply<W>) -> Vec<f64> {
    let tokens = multiply.x.chunks(multiply.cols);
    let outs = tokens.flat_map(|x| {
        let rows = multiply.weight.chunks(multiply.cols);
        rows.map(move |row| {
            let terms = row.iter().zip(x);
            let terms = terms.map(|(weight, x)| f64::from(weight.widen()) * f64::from(*x));
            terms.sum::<f64>()
        })
    });
    outs.collect()
}

fn check_product<W: Weight>(weight: Vec<W>, x: Vec<f32>, cols: usize) {
    let whole = Multiply { weight, x, cols };
    let outs = agreed(&whole);
    for (found, expected) in outs.iter().zip(naive(&whole)) {
        assert!(
            (f64::from(*found) - expected).abs() < 1e-4,
            "{found} {expected}"
        );
    }
    let mut alone = Vec::new();
    for x in whole.x.chunks(cols) {
        for row in whole.weight.chunks(cols) {
            let one = Multiply {
                weight: row.to_vec(),
                x: x.to_vec(),
                cols,
            };
            alone.extend(one.run(Portable));
        }
    }
    assert_eq!(bits(&outs), bits(&alone));
}

#[test]
fn a_product_is_the_same_in_every_tile_and_with_all_instructions() {
    let mut rng = fastrand::Rng::with_seed(1);
    for cols in [1, 2, 7, 8, 9, 16, 31, 100] {
        for rows in [1, 3, 4, 5, 10] {
            for tokens in [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 20] {
                let weight = numbers(&mut rng, rows * cols);
                let x = numbers(&mut rng, tokens * cols);
                let halves = weight
                    .iter()
                    .map(|weight| bf16::from_f32(*weight))
                    .collect();
                check_product::<bf16>(halves, x.clone(), cols);
                check_product::<f32>(weight, x, cols);
            }
        }
    }
}

#[test]
fn a_product_of_more_tokens_than_a_block_holds_is_whole() {
    let mut rng = fastrand::Rng::with_seed(2);
    let (rows, cols) = (9, BLOCK_VALUES / 32);
    let weight = numbers(&mut rng, rows * cols);
    let x = numbers(&mut rng, 45 * cols);
    check_product::<f32>(weight, x, cols);
}

/// Runs every other kernel, on rows of one length.
struct Rows {
    a: Vec<f32>,
    b: Vec<f32>,
    weights: Vec<f32>,
}

impl Kernel for Rows {
    fn run<S: Simd>(&self, simd: S) -> Vec<f32> {
        let size = self.a.len();
        let mut normed = vec![f32::NAN; size];
        rmsnorm(simd, &self.a, &self.b, 1e-5, &mut normed);
        let mut gated = vec![f32::NAN; size];
        silu_mul(&self.a, &self.b, &mut gated);
        let mut scores = self.a.clone();
        let sum = softmax_weights(&mut scores, 0.7);
        let values: Vec<f32> = self.weights.iter().flat_map(|_| self.b.clone()).collect();
        let mut weighted = self.a.clone();
        add_weighted(simd, &self.weights, &values, &mut weighted);
        let mut turned = self.a.clone();
        let half = size / 2;
        rope(
            &mut turned[..2 * half],
            &self.b[..half],
            &self.b[half..2 * half],
        );
        let parts = [normed, gated, scores, vec![sum], weighted, turned];
        parts.concat()
    }
}

#[test]
fn rows_of_every_length_are_the_same_with_all_instructions() {
    let mut rng = fastrand::Rng::with_seed(3);
    for size in (1..=70).chain([127, 128, 200]) {
        let rows = Rows {
            a: numbers(&mut rng, size),
            b: numbers(&mut rng, size),
            weights: numbers(&mut rng, 1 + size % 5),
        };
        let found = agreed(&rows);
        assert!(found.iter().all(|value| value.is_finite()), "{size}");
    }
}

#[test]
fn values_are_added_row_after_row() {
    let (weights, values) = ([0.5, 2.0], [1.0, 2.0, 3.0, 10.0, 20.0, 30.0]);
    let mut out = [100.0, 200.0, 300.0];
    add_weighted(Portable, &weights, &values, &mut out);
    assert_eq!(out, [120.5, 241.0, 361.5]);
    let wide: Vec<f32> = values.iter().flat_map(|value| [*value; 13]).collect();
    let mut out: Vec<f32> = [100.0, 200.0, 300.0]
        .into_iter()
        .flat_map(|value| [value; 13])
        .collect();
    add_weighted(Portable, &weights, &wide, &mut out);
    let expected: Vec<f32> = [120.5, 241.0, 361.5]
        .into_iter()
        .flat_map(|value| [value; 13])
        .collect();
    assert_eq!(out, expected);
}

#[test]
fn lanes_are_summed_in_pairs() {
    let big = 16_777_216.0;
    let lanes = [big, 1.0, 1.0, 1.0, -big, 1.0, 1.0, 1.0];
    let other = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    // (big + 2) + (3 - big): the one beside the positive number is lost. From left to right
    // three would be, and 3 left.
    assert_eq!(
        Portable.sums([lanes, other, other, lanes]),
        [5.0, 36.0, 36.0, 5.0]
    );
}

#[test]
fn exp_is_within_two_units_of_the_last_place() {
    let mut rng = fastrand::Rng::with_seed(4);
    for _ in 0..100_000 {
        let x = (rng.f32() - 0.5) * 174.0;
        let expected = f64::from(x).exp();
        let error = (f64::from(exp(x)) - expected).abs() / expected;
        assert!(error < 2.0 * f64::from(f32::EPSILON), "{x}: {error}");
    }
    assert_eq!(exp(0.0), 1.0);
}

#[test]
fn exp_stays_in_range_and_lets_nan_through() {
    assert_eq!(exp(f32::NEG_INFINITY), exp(-87.0));
    assert_eq!(exp(f32::INFINITY), exp(88.0));
    assert!(exp(-87.0) >= f32::MIN_POSITIVE && exp(88.0) < f32::MAX);
    assert!(exp(f32::NAN).is_nan());
}

#[test]
fn a_nan_among_the_scores_shows() {
    for place in [0, 5, 8, 19] {
        let mut scores = vec![1.0; 20];
        scores[place] = f32::NAN;
        assert!(softmax_weights(&mut scores, 1.0).is_nan(), "{place}");
    }
}
