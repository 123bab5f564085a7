//! Courses over time, for charts: a bounded number of equal parts of the run.
//!
//! # Invariants
//! 1. Each part up to the last sample has one, whether or not anything happened in it
//!    (`a_state_that_lasts_is_in_every_part_however_long_it_does`).

use pointsman_core::Micros;
use serde::Serialize;

use crate::numbers::{float, millis, secs};

/// Parts of a run, at most. When there are more, each two become one.
const PARTS_MAX: usize = 512;
/// The length of a part at the beginning of a run.
const PART: Micros = Micros(1_000_000);

/// Sums over one part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    arrived: u64,
    first_tokens: u64,
    ttft_sum: u64,
    ttft_max: u64,
    gaps: u64,
    gap_sum: u64,
    gap_max: u64,
    /// Samples, for the means of the following.
    samples: u64,
    queued: u64,
    running: u64,
    kv_permille: u64,
    /// The largest share that one tenant had of the tokens, in permille.
    largest_share: u64,
    jain_permille: u64,
}

/// The state of the host at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Requests without a place.
    pub queued: u64,
    /// Requests with a place.
    pub running: u64,
    /// KV blocks that sequences hold, in permille of all.
    pub kv_permille: u64,
    /// The greatest share that one tenant has of the tokens served so far, in permille.
    pub largest_share: u64,
    /// Jain's index of the tokens that tenants were served so far, by their weights, in permille.
    pub jain_permille: u64,
}

/// The course of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    part: Micros,
    parts: Vec<Part>,
    /// The beginning of the first part without a sample.
    next_sample: Micros,
}

/// One chart's worth of numbers: a value for each part of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Course {
    /// The length of a part in seconds.
    pub part_s: f64,
    /// Requests that arrived in a second.
    pub arrived_per_s: Vec<f64>,
    /// Mean time to the first token in ms.
    pub ttft_ms: Vec<f64>,
    /// Longest time to a first token in ms.
    pub ttft_max_ms: Vec<f64>,
    /// Mean time between two tokens in ms.
    pub itl_ms: Vec<f64>,
    /// Requests without a place.
    pub queued: Vec<f64>,
    /// Requests with a place.
    pub running: Vec<f64>,
    /// KV blocks in use, as a share of all.
    pub kv_used: Vec<f64>,
    /// The greatest share that one tenant has of the tokens served so far.
    pub largest_share: Vec<f64>,
    /// Jain's index of the tokens that tenants were served so far, by their weights.
    pub jain: Vec<f64>,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            part: PART,
            parts: Vec::new(),
            next_sample: Micros(0),
        }
    }
}

impl Series {
    /// The time of the next sample: the beginning of a part.
    #[must_use]
    pub fn next_sample(&self) -> Micros {
        self.next_sample
    }

    /// Notes an arrival.
    pub fn arrived(&mut self, at: Micros) {
        self.part_at(at).arrived += 1;
    }

    /// Notes a first token.
    pub fn first_token(&mut self, at: Micros, ttft: Micros) {
        let part = self.part_at(at);
        part.first_tokens += 1;
        part.ttft_sum = part.ttft_sum.saturating_add(ttft.0);
        part.ttft_max = part.ttft_max.max(ttft.0);
    }

    /// Notes the times between tokens that came at one time.
    pub fn gaps(&mut self, at: Micros, gaps: &[Micros]) {
        if gaps.is_empty() {
            return;
        }
        let part = self.part_at(at);
        for gap in gaps {
            part.gaps += 1;
            part.gap_sum = part.gap_sum.saturating_add(gap.0);
            part.gap_max = part.gap_max.max(gap.0);
        }
    }

    /// Notes a state of the host that lasts until a time, for each part that begins before it.
    pub fn sample_until(&mut self, until: Micros, sample: Sample) {
        // Parts become longer as they become more, so these are some thousand at most.
        while self.next_sample < until {
            self.sample(self.next_sample, sample);
        }
    }

    /// Notes the state of the host at one time.
    pub fn sample(&mut self, at: Micros, sample: Sample) {
        let part = self.part_at(at);
        part.samples += 1;
        part.queued += sample.queued;
        part.running += sample.running;
        part.kv_permille += sample.kv_permille;
        part.largest_share += sample.largest_share;
        part.jain_permille += sample.jain_permille;
        self.next_sample = Micros(at.0 - at.0 % self.part.0).after(self.part);
    }

    fn part_at(&mut self, at: Micros) -> &mut Part {
        loop {
            let idx = usize::try_from(at.0 / self.part.0).unwrap_or(usize::MAX);
            if idx < PARTS_MAX {
                if idx >= self.parts.len() {
                    self.parts.resize(idx + 1, Part::default());
                }
                return &mut self.parts[idx];
            }
            self.halve();
        }
    }

    /// Makes one part of each two.
    fn halve(&mut self) {
        self.part = self.part.after(self.part);
        let pairs = self.parts.chunks(2);
        let merged = pairs.map(|pair| match pair {
            [one, other] => one.with(other),
            _ => pair.first().copied().unwrap_or_default(),
        });
        self.parts = merged.collect();
    }

    /// The numbers for charts.
    #[must_use]
    pub fn course(&self) -> Course {
        let each = |value: &dyn Fn(&Part) -> f64| self.parts.iter().map(value).collect();
        let part_s = secs(self.part);
        let mean = |sum: u64, n: u64| float(sum) / float(n.max(1));
        Course {
            part_s,
            arrived_per_s: each(&|part| float(part.arrived) / part_s),
            ttft_ms: each(&|part| mean(part.ttft_sum, part.first_tokens) / 1000.0),
            ttft_max_ms: each(&|part| millis(Micros(part.ttft_max))),
            itl_ms: each(&|part| mean(part.gap_sum, part.gaps) / 1000.0),
            queued: each(&|part| mean(part.queued, part.samples)),
            running: each(&|part| mean(part.running, part.samples)),
            kv_used: each(&|part| mean(part.kv_permille, part.samples) / 1000.0),
            largest_share: each(&|part| mean(part.largest_share, part.samples) / 1000.0),
            jain: each(&|part| mean(part.jain_permille, part.samples) / 1000.0),
        }
    }
}

impl Part {
    fn with(&self, other: &Part) -> Part {
        Part {
            arrived: self.arrived + other.arrived,
            first_tokens: self.first_tokens + other.first_tokens,
            ttft_sum: self.ttft_sum.saturating_add(other.ttft_sum),
            ttft_max: self.ttft_max.max(other.ttft_max),
            gaps: self.gaps + other.gaps,
            gap_sum: self.gap_sum.saturating_add(other.gap_sum),
            gap_max: self.gap_max.max(other.gap_max),
            samples: self.samples + other.samples,
            queued: self.queued + other.queued,
            running: self.running + other.running,
            kv_permille: self.kv_permille + other.kv_permille,
            largest_share: self.largest_share + other.largest_share,
            jain_permille: self.jain_permille + other.jain_permille,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_as_many_parts_and_the_same_sums() {
        let mut series = Series::default();
        for second in 0..2000 {
            let at = Micros(second * 1_000_000);
            series.arrived(at);
            series.first_token(at, Micros(second));
            let sample = Sample {
                queued: 4,
                ..Sample::default()
            };
            series.sample(at, sample);
        }
        let course = series.course();
        assert_eq!((course.part_s, course.queued.len()), (4.0, 500));
        let arrived: f64 = course.arrived_per_s.iter().sum();
        assert_eq!(arrived * course.part_s, 2000.0);
        assert!(course.queued.iter().all(|queued| *queued == 4.0));
        assert_eq!(course.ttft_max_ms[499], 1.999);
    }

    #[test]
    fn a_state_that_lasts_is_in_every_part_however_long_it_does() {
        let mut series = Series::default();
        let busy = Sample {
            running: 3,
            kv_permille: 500,
            ..Sample::default()
        };
        series.arrived(Micros(1_200_000));
        series.sample_until(Micros(4_500_000), busy);
        let course = series.course();
        assert_eq!(course.running, [3.0; 5]);
        assert_eq!(course.kv_used, [0.5; 5]);
        assert_eq!(series.next_sample(), Micros(5_000_000));
        let year = Micros(365 * 24 * 3600 * 1_000_000);
        series.sample_until(year, busy);
        let course = series.course();
        assert!((PARTS_MAX / 2..=PARTS_MAX).contains(&course.running.len()));
        assert!(course.running.iter().all(|running| *running == 3.0));
        assert!(series.next_sample() >= year);
    }

    #[test]
    fn what_did_not_happen_is_zero() {
        let mut series = Series::default();
        series.gaps(Micros(5), &[]);
        assert_eq!(series.course().itl_ms, Vec::<f64>::new());
        series.gaps(Micros(1_500_000), &[Micros(1000), Micros(3000)]);
        assert_eq!(series.course().itl_ms, [0.0, 2.0]);
    }

    #[test]
    fn the_longest_times_have_a_sum() {
        let (mut series, most) = (Series::default(), Micros(u64::MAX));
        for second in 0..2 {
            let at = Micros(second * 1_000_000);
            series.first_token(at, most);
            series.first_token(at, most);
            series.gaps(at, &[most; 2]);
        }
        series.halve();
        assert_eq!(series.course().ttft_max_ms, [millis(most)]);
    }
}
