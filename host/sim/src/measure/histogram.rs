//! Distributions of times that are too many to keep: counts by size.

use pointsman_core::Micros;

use crate::numbers::{float, narrow};

/// Bits of a time that are told apart: sizes are exact within one part of 256.
const BITS: u32 = 8;

/// Counts of times by size. Quantiles are within 0.4 % of the exact ones, means are exact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u64,
    max: u64,
}

impl Histogram {
    /// Adds a time.
    pub fn add(&mut self, time: Micros) {
        let idx = bucket(time.0) as usize;
        if idx >= self.counts.len() {
            self.counts.resize(idx + 1, 0);
        }
        self.counts[idx] += 1;
        self.total += 1;
        self.sum = self.sum.saturating_add(time.0);
        self.max = self.max.max(time.0);
    }

    /// Adds all times of another.
    pub fn merge(&mut self, other: &Histogram) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// The number of times.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The mean in µs; 0 of none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        float(self.sum) / float(self.total.max(1))
    }

    /// The time that so many permille do not exceed: the upper end of its size.
    #[must_use]
    pub fn quantile(&self, permille: u32) -> Micros {
        let rank = (self.total * u64::from(permille)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (idx, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Micros(upper(narrow(idx as u64)).min(self.max));
            }
        }
        Micros(self.max)
    }
}

/// The size of a time: itself while it has few bits, and then its leading bits and their place.
fn bucket(time: u64) -> u32 {
    let bits = 64 - time.leading_zeros();
    let shift = bits.saturating_sub(BITS + 1);
    let leading = narrow(time >> shift);
    (shift << BITS) + leading
}

/// The longest time of a size.
fn upper(bucket: u32) -> u64 {
    let shift = (bucket >> BITS).saturating_sub(1);
    let leading = u64::from(bucket - (shift << BITS));
    ((leading + 1) << shift).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_times_within_one_part_of_256() {
        let mut before = 0;
        for time in (0..70_000).chain((1..60).map(|bit| 1 << bit)) {
            let size = bucket(time);
            assert!(size >= before || time < 70_000, "sizes ascend with times");
            before = size;
            let most = upper(size);
            assert!(
                most >= time && most - time <= time / 256,
                "{time} in {size} up to {most}"
            );
            assert_eq!(bucket(most), size);
            assert_eq!(bucket(most + 1), size + 1);
        }
    }

    #[test]
    fn quantiles_are_those_of_the_times() {
        let mut histogram = Histogram::default();
        let mut other = Histogram::default();
        for time in 1..=500 {
            histogram.add(Micros(time));
            other.add(Micros(time + 500));
        }
        histogram.merge(&other);
        assert_eq!((histogram.total(), histogram.mean()), (1000, 500.5));
        let quantiles = [500, 990, 1000].map(|permille| histogram.quantile(permille).0);
        assert_eq!(quantiles, [500, 991, 1000]);
        assert_eq!(Histogram::default().quantile(500), Micros(0));
        (0..2000).for_each(|_| histogram.add(Micros(u64::MAX)));
        histogram.merge(&histogram.clone());
        assert_eq!(histogram.quantile(500), Micros(u64::MAX));
    }
}
