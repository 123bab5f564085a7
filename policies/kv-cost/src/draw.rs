//! A draw by softmax, in integers.
//!
//! A cost `c` among costs from `min` to `max` has the weight `exp(-(c - min) / ((max - min) T))`.
//! Weights are fixed point with 32 bits after the point, cut off rather than rounded, and within
//! 2^-26 of the true value; the draw multiplies their sum with a random fraction. At temperature 0
//! the least have weight 1 and all others 0, which is the limit.

/// Bits after the point.
const BITS: u32 = 32;
/// The weight 1.
const ONE: u64 = 1 << BITS;
/// The logarithm of *e* to base 2.
const LOG2_E: u128 = 6_196_328_018;
/// `2^-(1/2)`, `2^-(1/4)`, `2^-(1/8)` and so on: each the square root of the one before.
const ROOTS: [u64; BITS as usize] = {
    let mut roots = [0; BITS as usize];
    let (mut root, mut at) = (ONE / 2, 0);
    while at < roots.len() {
        root = (root << BITS).isqrt();
        roots[at] = root;
        at += 1;
    }
    roots
};

/// The weights of some costs; `temperature` is in thousandths.
pub(crate) fn weights(costs: &[u64], temperature: u32) -> Vec<u64> {
    let min = costs.iter().copied().min().unwrap_or(0);
    let max = costs.iter().copied().max().unwrap_or(0);
    let scale = u128::from(max - min) * u128::from(temperature);
    let weight = |&cost: &u64| match u128::from(cost - min) * 1000 * LOG2_E {
        0 => ONE,
        above => above.checked_div(scale).map_or(0, exp2_negated),
    };
    costs.iter().map(weight).collect()
}

/// The index of the weight that the number falls to, each with a chance in proportion to it. The
/// weights are not all 0.
pub(crate) fn draw(weights: &[u64], number: u64) -> usize {
    let total: u128 = weights.iter().copied().map(u128::from).sum();
    // Below `total`, as evenly as 2^64 numbers can be dealt out to so many.
    let mut left = (u128::from(number) * total) >> 64;
    for (at, &weight) in weights.iter().enumerate() {
        match left.checked_sub(u128::from(weight)) {
            Some(rest) => left = rest,
            None => return at,
        }
    }
    unreachable!("the number drawn is below the sum of the weights")
}

/// `2^-x`: a shift for the whole part of `x`, and a root for each bit of its fraction.
fn exp2_negated(x: u128) -> u64 {
    let mut power = ONE;
    for (root, bit) in ROOTS.iter().zip((0..BITS).rev()) {
        if x >> bit & 1 == 1 {
            power = (power * root) >> BITS;
        }
    }
    let whole = u32::try_from(x >> BITS).unwrap_or(u32::MAX);
    power.checked_shr(whole).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{ONE, draw, weights};

    /// Of weights in units of 2^-32.
    const TOLERANCE: u64 = 64;

    #[test]
    fn weights_are_exponentials_of_the_normalised_cost() {
        // At temperature 0.5 the costs 10, 20 and 30 are 0, 1 and 2 below in exponent.
        let expected = [ONE, 1_580_030_168, 581_260_615];
        for (weight, expected) in weights(&[10, 20, 30], 500).into_iter().zip(expected) {
            assert!(weight.abs_diff(expected) <= TOLERANCE, "{weight}");
        }
        // Only the place between the least and the greatest counts: e^-0.25, e^-1 at 1.
        let weights = weights(&[3_000, 4_000, 7_000], 1000);
        for (weight, expected) in weights.into_iter().zip([ONE, 3_344_923_893, 1_580_030_168]) {
            assert!(weight.abs_diff(expected) <= TOLERANCE, "{weight}");
        }
    }

    #[test]
    fn at_temperature_0_only_the_least_have_weight() {
        assert_eq!(weights(&[5, 4, 4, 9], 0), [0, ONE, ONE, 0]);
        assert_eq!(weights(&[7, 7], 0), [ONE, ONE]);
    }

    #[test]
    fn equal_costs_have_equal_weight_at_any_temperature() {
        assert_eq!(weights(&[7, 7, 7], 500), [ONE; 3]);
    }

    #[test]
    fn extreme_costs_and_temperatures_are_within_range() {
        assert_eq!(weights(&[0, u64::MAX], 1), [ONE, 0]);
        // e^-0.001.
        let hot = weights(&[0, u64::MAX], 1_000_000)[1];
        assert!(hot.abs_diff(4_290_674_476) <= TOLERANCE, "{hot}");
    }

    #[test]
    fn numbers_fall_to_weights_in_proportion() {
        let quarter = 1 << 62;
        // A quarter, none, and three quarters.
        let at = |number| draw(&[1, 0, 3], number);
        assert_eq!([at(0), at(quarter - 1)], [0, 0]);
        assert_eq!([at(quarter), at(u64::MAX)], [2, 2]);
    }
}
