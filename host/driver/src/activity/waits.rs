//! Waiting times, of which quantiles are wanted.

/// The most waits of a minute that are kept.
const KEPT_MAX: usize = 256;

/// The waits of a minute: all of them while they are few, then every second one, every fourth, and so on.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    count: u64,
    sum: u64,
    /// The newest of so many waits is kept.
    stride: u64,
    kept: Vec<u64>,
}

/// A summary of waits, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSummary {
    /// The number of waits.
    pub count: u64,
    pub mean_micros: u64,
    /// The tenth percentile, by nearest rank.
    pub p10_micros: u64,
    /// The ninetieth percentile, by nearest rank.
    pub p90_micros: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            count: 0,
            sum: 0,
            stride: 1,
            kept: Vec::new(),
        }
    }
}

impl Waits {
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

    /// The summary of several minutes; absent: nothing waited. Mean and count are exact; the percentiles
    /// are where every wait was kept, and otherwise those of an even sample.
    pub(super) fn summary<'a>(minutes: impl Iterator<Item = &'a Waits>) -> Option<WaitSummary> {
        let (mut count, mut sum, mut weighed) = (0, 0_u64, Vec::new());
        for minute in minutes {
            count += minute.count;
            sum = sum.saturating_add(minute.sum);
            weighed.extend(minute.kept.iter().map(|wait| (*wait, minute.stride)));
        }
        weighed.sort_unstable();
        Some(WaitSummary {
            count,
            mean_micros: sum.checked_div(count)?,
            p10_micros: nearest_rank(&weighed, 10)?,
            p90_micros: nearest_rank(&weighed, 90)?,
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
        let mut minutes = [Waits::default(), Waits::default()];
        for wait in 1..=10 {
            minutes[wait % 2].add(10 * wait as u64);
        }
        let summary = Waits::summary(minutes.iter()).unwrap();
        let expected = WaitSummary {
            count: 10,
            mean_micros: 55,
            p10_micros: 10,
            p90_micros: 90,
        };
        assert_eq!(summary, expected);
        assert_eq!(Waits::summary([Waits::default()].iter()), None);
    }

    #[test]
    fn many_waits_take_little_room_and_each_minute_counts_by_its_number() {
        let (mut busy, mut calm) = (Waits::default(), Waits::default());
        for wait in 0..100_000 {
            busy.add(wait);
        }
        (0..100).for_each(|_| calm.add(1_000_000));
        assert!(busy.kept.len() <= KEPT_MAX);
        let summary = Waits::summary([&busy, &calm].into_iter()).unwrap();
        assert_eq!(summary.count, 100_100);
        assert!(summary.p10_micros.abs_diff(10_000) < 1_000, "{summary:?}");
        assert!(summary.p90_micros.abs_diff(90_000) < 1_000, "{summary:?}");
    }
}
