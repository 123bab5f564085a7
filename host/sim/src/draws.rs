//! Draws from distributions, by seed, the same on every machine.
//!
//! Logarithms and powers come from `libm`, which computes them in plain arithmetic: those of the
//! standard library are the platform's, and differ in the last bit.

use fastrand::Rng;

/// A source of draws. The same seed gives the same draws.
#[derive(Clone, Debug)]
pub struct Draws {
    rng: Rng,
}

/// The largest integer below which every integer is a number of 53 bits.
const EXACT: u64 = 1 << 53;

impl Draws {
    /// Makes a source from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
        }
    }

    /// A source of its own for the part of a run with this number, so that parts do not move each
    /// other's draws on.
    #[must_use]
    pub fn part(seed: u64, part: u64) -> Self {
        Self::new(mix(mix(seed) ^ part))
    }

    /// A number in the open interval from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "the number has 53 bits at most")]
    pub fn unit(&mut self) -> f64 {
        let number = self.rng.u64(0..EXACT - 1) + 1;
        number as f64 / EXACT as f64
    }

    /// An integer below `n`, which is at least 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.rng.u64(0..n.max(1))
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A draw from the exponential distribution with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -libm::log(self.unit()) * mean
    }

    /// A draw from the Weibull distribution.
    pub fn weibull(&mut self, shape: f64, scale: f64) -> f64 {
        scale * libm::pow(-libm::log(self.unit()), 1.0 / shape)
    }

    /// A draw from the standard normal distribution, by Marsaglia's polar method.
    pub fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * libm::sqrt(-2.0 * libm::log(square) / square);
            }
        }
    }

    /// A draw from the gamma distribution, by the method of Marsaglia and Tsang (2000).
    pub fn gamma(&mut self, shape: f64, scale: f64) -> f64 {
        if shape < 1.0 {
            let boost = libm::pow(self.unit(), 1.0 / shape);
            return self.gamma(shape + 1.0, scale) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let x = self.normal();
            let v = 1.0 + c * x;
            if v <= 0.0 {
                continue;
            }
            let v = v * v * v;
            if libm::log(self.unit()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v * scale;
            }
        }
    }

    /// A draw from the lognormal distribution with this mean and median; the median itself where
    /// the mean is not above it.
    pub fn lognormal(&mut self, mean: f64, median: f64) -> f64 {
        let spread = 2.0 * libm::log((mean / median).max(1.0));
        median * libm::exp(libm::sqrt(spread) * self.normal())
    }

    /// Puts a list in another order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        self.rng.shuffle(list);
    }
}

/// Shares of `n` things by Zipf's law, as running sums up to 1: the share of the thing in place
/// `k` is as `1 / k^exponent`.
#[must_use]
pub fn zipf(n: u32, exponent: f64) -> Vec<f64> {
    let weights = (1..=n.max(1)).map(|place| libm::pow(f64::from(place), -exponent));
    running_shares(weights)
}

/// Weights as running sums up to 1.
pub(crate) fn running_shares(weights: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut total = 0.0;
    let mut sums: Vec<f64> = Vec::new();
    for weight in weights {
        total += weight;
        sums.push(total);
    }
    for sum in &mut sums {
        *sum /= total;
    }
    sums
}

/// The place in running shares that a number from 0 to 1 falls to.
pub(crate) fn place_of(shares: &[f64], unit: f64) -> usize {
    let place = shares.partition_point(|sum| *sum < unit);
    place.min(shares.len().saturating_sub(1))
}

/// A number whose bits all depend on all bits of `x` (the finaliser of SplitMix64).
#[must_use]
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(mut draw: impl FnMut(&mut Draws) -> f64) -> f64 {
        let mut draws = Draws::new(7);
        let n = 200_000;
        (0..n).map(|_| draw(&mut draws)).sum::<f64>() / f64::from(n)
    }

    fn check(found: f64, expected: f64) {
        let error = (found - expected).abs() / expected;
        assert!(error < 0.02, "{found} instead of {expected}");
    }

    #[test]
    fn each_distribution_has_its_mean() {
        check(mean(Draws::unit), 0.5);
        check(mean(|draws| draws.exponential(3.0)), 3.0);
        check(mean(|draws| draws.gamma(2.5, 4.0)), 10.0);
        check(mean(|draws| draws.gamma(0.4, 2.0)), 0.8);
        check(mean(|draws| draws.lognormal(6000.0, 4000.0)), 6000.0);
        // The mean is scale x gamma(1 + 1 / shape); gamma(1.5) is half the root of pi.
        check(mean(|draws| draws.weibull(2.0, 1.0)), 0.886_227);
        check(mean(|draws| f64::from(u32::from(draws.chance(0.3)))), 0.3);
    }

    #[test]
    fn the_same_seed_gives_the_same_draws_and_parts_differ() {
        let drawn = |mut draws: Draws| [draws.unit(), draws.gamma(0.7, 1.0), draws.normal()];
        assert_eq!(drawn(Draws::new(3)), drawn(Draws::new(3)));
        assert_ne!(drawn(Draws::part(3, 0)), drawn(Draws::part(3, 1)));
    }

    #[test]
    fn shares_by_zipf_fall_with_the_place_and_sum_up_to_one() {
        let shares = zipf(4, 1.0);
        // 12, 6, 4 and 3 of 25.
        for (share, expected) in shares.iter().zip([0.48, 0.72, 0.88, 1.0]) {
            assert!((share - expected).abs() < 1e-12, "{shares:?}");
        }
        let places = [0.0, 0.48, 0.49, 0.99, 1.0].map(|unit| place_of(&shares, unit));
        assert_eq!(places, [0, 0, 1, 3, 3]);
    }
}
