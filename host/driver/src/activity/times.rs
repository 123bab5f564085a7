//! Times of which quantiles are wanted: waits for a place, and times to the first token.

/// The most times of a minute that are kept.
const KEPT_MAX: usize = 256;

/// The times of a minute: all of them while they are few, then every second one, every fourth, and so on.
#[derive(Clone, Debug)]
pub(super) struct Times {
    count: u64,
    sum: u64,
    /// The newest of so many times is kept.
    stride: u64,
    kept: Vec<u64>,
}

/// A summary of times, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSummary {
    /// The number of times.
    pub count: u64,
    pub mean_micros: u64,
    /// The tenth percentile, by nearest rank, as the following are.
    pub p10_micros: u64,
    pub p50_micros: u64,
    pub p90_micros: u64,
    pub p95_micros: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            count: 0,
            sum: 0,
            stride: 1,
            kept: Vec::new(),
        }
    }
}

impl Times {
    pub(super) fn add(&mut self, micros: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(micros);
        if !self.count.is_multiple_of(self.stride) {
            return;
        }
        self.kept.push(micros);
        if self.kept.len() > KEPT_MAX {
            let mut nth = 0;
            self.kept.retain(|_| {
                nth += 1;
                nth % 2 == 0
            });
            self.stride *= 2;
        }
    }

    /// The summary of several minutes; absent: there was no time. Mean and count are exact; the
    /// percentiles are where every time was kept, and otherwise those of an even sample.
    pub(super) fn summary<'a>(minutes: impl Iterator<Item = &'a Times>) -> Option<TimeSummary> {
        let (mut count, mut sum, mut weighed) = (0, 0_u64, Vec::new());
        for minute in minutes {
            count += minute.count;
            sum = sum.saturating_add(minute.sum);
            weighed.extend(minute.kept.iter().map(|time| (*time, minute.stride)));
        }
        weighed.sort_unstable();
        Some(TimeSummary {
            count,
            mean_micros: sum.checked_div(count)?,
            p10_micros: nearest_rank(&weighed, 10)?,
            p50_micros: nearest_rank(&weighed, 50)?,
            p90_micros: nearest_rank(&weighed, 90)?,
            p95_micros: nearest_rank(&weighed, 95)?,
        })
    }
}

/// The least value that at least so many hundredths of the weight do not exceed. The values are in
/// order.
fn nearest_rank(weighed: &[(u64, u64)], percent: u64) -> Option<u64> {
    let whole: u64 = weighed.iter().map(|(_, weight)| weight).sum();
    let rank = (whole * percent).div_ceil(100);
    let mut below = 0;
    let found = weighed.iter().find(|(_, weight)| {
        below += weight;
        below >= rank
    });
    found.map(|(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank_over_several_minutes() {
        let mut minutes = [Times::default(), Times::default()];
        for wait in 1..=10 {
            minutes[wait % 2].add(10 * wait as u64);
        }
        let summary = Times::summary(minutes.iter()).unwrap();
        let expected = TimeSummary {
            count: 10,
            mean_micros: 55,
            p10_micros: 10,
            p50_micros: 50,
            p90_micros: 90,
            p95_micros: 100,
        };
        assert_eq!(summary, expected);
        assert_eq!(Times::summary([Times::default()].iter()), None);
    }

    #[test]
    fn many_times_take_little_room_and_each_minute_counts_by_its_number() {
        let (mut busy, mut calm) = (Times::default(), Times::default());
        for wait in 0..100_000 {
            busy.add(wait);
        }
        (0..100).for_each(|_| calm.add(1_000_000));
        assert!(busy.kept.len() <= KEPT_MAX);
        let summary = Times::summary([&busy, &calm].into_iter()).unwrap();
        assert_eq!(summary.count, 100_100);
        assert!(summary.p10_micros.abs_diff(10_000) < 1_000, "{summary:?}");
        assert!(summary.p90_micros.abs_diff(90_000) < 1_000, "{summary:?}");
    }
}
