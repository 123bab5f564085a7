//! The formulas of operations, computed in f64, and how far roundings may take what a device computes.

use half::bf16;

/// The largest part of a number that is lost where it is rounded to the 8 bits of bf16, a 256th, and a little more for
/// all that was computed in f32 before.
const ROUNDED: f64 = 1.0 / 250.0;
/// The same for a number in f32 that a few operations have led to.
const F32_ROUNDED: f64 = 1e-6;

/// A number that is expected.
pub(crate) struct Expected {
    number: f64,
    /// The largest difference from it.
    bound: f64,
}

/// A sum of products.
pub(crate) struct Sum {
    sum: f64,
    /// The sum of the squares of its terms.
    squares: f64,
}

impl Expected {
    /// A number that is rounded to bf16, from one that may differ by so much already.
    fn rounded(number: f64, lost: f64) -> Self {
        let bound = number.abs() * ROUNDED + lost;
        Self { number, bound }
    }
}

/// Checks numbers of rows of which `what` is told.
#[track_caller]
pub(crate) fn near(found: &[f32], expected: Vec<Expected>, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let Expected { number, bound } = expected;
        let difference = (f64::from(*found) - number).abs();
        assert!(
            difference <= bound,
            "{what}: {found} at {place}, where {number} is expected: {difference} of {bound}"
        );
    }
}

/// A row divided by its root mean square, times weights.
pub(crate) fn norm(row: &[f32], weights: &[f32], eps: f32) -> Vec<Expected> {
    let squares: f64 = row.iter().map(|number| f64::from(*number).powi(2)).sum();
    let scale = 1.0 / (squares / row.len() as f64 + f64::from(eps)).sqrt();
    let numbers = row.iter().zip(weights);
    let numbers = numbers.map(|(number, weight)| f64::from(*number) * scale * f64::from(*weight));
    numbers
        .map(|number| Expected::rounded(number, 0.0))
        .collect()
}

/// A head turned by the angles of its position: their cosines, then their sines.
pub(crate) fn turned(head: &[f32], angles: &[f32]) -> Vec<Expected> {
    let half = head.len() / 2;
    let at = |numbers: &[f32], place: usize| f64::from(numbers[place]);
    let turned = (0..head.len()).map(|place| {
        let pair = place % half;
        let (cosine, sine) = (at(angles, pair), at(angles, half + pair));
        let (first, second) = (at(head, pair), at(head, half + pair));
        let [one, other] = match place < half {
            true => [first * cosine, -second * sine],
            false => [second * cosine, first * sine],
        };
        // Two that are nearly opposite leave what they were rounded by.
        let lost = (one.abs() + other.abs()) * F32_ROUNDED;
        Expected::rounded(one + other, lost)
    });
    turned.collect()
}

/// The attention of a query to keys, as far as it sees them, and their values.
pub(crate) fn attention<'a>(
    query: &[f32],
    keys: impl Iterator<Item = &'a [f32]>,
    values: impl Iterator<Item = &'a [f32]>,
) -> Vec<Expected> {
    let scale = 1.0 / (query.len() as f64).sqrt();
    let scores: Vec<f64> = keys.map(|key| dot(query, key) * scale).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut total, mut sums) = (0.0, vec![(0.0, 0.0); query.len()]);
    for (score, values) in scores.iter().zip(values) {
        let weight = (score - largest).exp();
        total += weight;
        for ((sum, size), value) in sums.iter_mut().zip(values) {
            *sum += weight * f64::from(*value);
            *size += weight * f64::from(value.abs());
        }
    }
    // Weights are rounded to bf16 before values are multiplied by them.
    let outputs = sums
        .into_iter()
        .map(|(sum, size)| (sum / total, size / total));
    let outputs = outputs.map(|(number, size)| Expected::rounded(number, size * ROUNDED));
    outputs.collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let terms = a.iter().zip(b).map(|(a, b)| f64::from(a * b));
    terms.sum()
}

/// The SiLU of gates times numbers.
pub(crate) fn silu_mul(gates: &[f32], ups: &[f32]) -> Vec<Expected> {
    let outputs = gates.iter().zip(ups).map(|(gate, up)| {
        let gate = f64::from(*gate);
        Expected::rounded(gate / (1.0 + (-gate).exp()) * f64::from(*up), 0.0)
    });
    outputs.collect()
}

/// The product of a row with a row of weights.
pub(crate) fn product(x: &[f32], weights: &[bf16]) -> Sum {
    let mut product = Sum {
        sum: 0.0,
        squares: 0.0,
    };
    for (x, weight) in x.iter().zip(weights) {
        let term = f64::from(x * weight.to_f32());
        product.sum += term;
        product.squares += term * term;
    }
    product
}

impl Sum {
    /// The size that sums of such terms have, if their signs are as random.
    fn size(&self) -> f64 {
        self.squares.sqrt()
    }

    /// The sum in bf16. cuBLAS may cut it into parts, and may round those to bf16 as well, which are about as large as it
    /// usually is.
    pub(crate) fn in_bf16(&self) -> Expected {
        Expected::rounded(self.sum, self.size() / 64.0)
    }

    /// The sum in f32, of thousands of numbers, each of which is rounded at the size that sums have so far.
    pub(crate) fn in_f32(&self) -> Expected {
        Expected {
            number: self.sum,
            bound: self.size() / 1000.0,
        }
    }
}
