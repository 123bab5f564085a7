//! Histograms of the fuel and time of a policy's questions.
//!
//! # Invariants
//! 1. No other module of the crate reads a clock, and no decision reads the times measured here.
//!    Policies are judged by counts alone ([`crate::Probation`]), so that a replay judges alike.
//! 2. A quantile is at most a quarter above the true value
//!    (`a_quantile_is_at_most_a_quarter_above_what_it_stands_for`).
//!
//! # Bounds
//! A [`Spread`] has at most 252 counters.

/// Number of bits after a value's first that choose the bucket.
const SUB_BITS: u32 = 2;

/// A histogram whose buckets grow with the values: four for each power of two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    buckets: Vec<u64>,
    max: u64,
}

/// A clock that was started when it was made.
#[derive(Debug)]
pub(crate) struct Stopwatch(
    #[expect(clippy::disallowed_types, reason = "shown, and fed into no decision")]
    std::time::Instant,
);

// === impl Spread ===

impl Spread {
    /// Adds `value` to its bucket.
    pub(crate) fn count(&mut self, value: u64) {
        let bucket = bucket_of(value);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.max = self.max.max(value);
    }

    /// Number of values counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The largest value counted.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// A value that at least `permille` of a thousand values do not exceed; `None` if none was
    /// counted.
    #[must_use]
    pub fn quantile(&self, permille: u32) -> Option<u64> {
        let total = self.total();
        let wanted = (u128::from(total) * u128::from(permille))
            .div_ceil(1000)
            .max(1);
        let mut seen = 0;
        let counted = self.buckets.iter().enumerate().find(|(_, count)| {
            seen += u128::from(**count);
            seen >= wanted
        });
        counted.map(|(bucket, _)| last_of(bucket).min(self.max))
    }
}

fn bucket_of(value: u64) -> usize {
    let Some(bits) = value.checked_ilog2().filter(|bits| *bits > SUB_BITS) else {
        return usize::try_from(value).unwrap_or(0);
    };
    let sub = (value >> (bits - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    let first = (u64::from(bits - SUB_BITS) + 1) << SUB_BITS;
    usize::try_from(first + sub).unwrap_or(0)
}

/// The largest value in a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = u64::try_from(bucket).unwrap_or(u64::MAX);
    if bucket < 2 << SUB_BITS {
        return bucket;
    }
    let shift = (bucket >> SUB_BITS) - 1;
    let lead = (1 << SUB_BITS) + (bucket & ((1 << SUB_BITS) - 1));
    let next = u128::from(lead + 1) << shift;
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

// === impl Stopwatch ===

impl Stopwatch {
    pub(crate) fn start() -> Self {
        #[expect(clippy::disallowed_types, reason = "shown, and fed into no decision")]
        let now = std::time::Instant::now();
        Self(now)
    }

    pub(crate) fn nanos(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_join_without_gaps_or_overlaps() {
        let last = bucket_of(u64::MAX);
        for bucket in 0..=last {
            assert_eq!(bucket_of(last_of(bucket)), bucket);
            if bucket < last {
                assert_eq!(bucket_of(last_of(bucket) + 1), bucket + 1);
            }
        }
        assert_eq!(last_of(last), u64::MAX);
        assert_eq!(last, 251);
    }

    #[test]
    fn a_quantile_is_at_most_a_quarter_above_what_it_stands_for() {
        let mut spread = Spread::default();
        assert_eq!(spread.quantile(500), None);
        let values: Vec<u64> = (1..=1000_u64).map(|n| n * n * 37).collect();
        for value in &values {
            spread.count(*value);
        }
        for permille in [1_u32, 10, 500, 900, 990, 999, 1000] {
            let exact = values[permille as usize - 1];
            let said = spread.quantile(permille).unwrap();
            assert!(exact <= said && said <= exact + exact / 4, "{permille}");
        }
        assert_eq!(spread.quantile(1000), Some(spread.max()));
        assert_eq!(spread.total(), 1000);
    }
}
