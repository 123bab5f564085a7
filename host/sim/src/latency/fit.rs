//! Speeds fitted to measured work: a [`LinearCost`] from the times that an executor took.
//!
//! The cost is the one of least squares, in which a time counts by the reciprocal of what the cost says
//! of it, as the variance of a sum of alike steps grows with its length. (By its own reciprocal, a time
//! that is short by chance would count for more.) No part of it is negative: of all sums of parts without
//! a negative one, found by trying them all (Lawson and Hanson, "Solving Least Squares Problems", 1974,
//! chapter 23, is the same problem), the one of the fewest parts whose error is near the least. Times that are far off
//! count less in it, by Huber's weights ("Robust Estimation of a Location Parameter", 1964; 1.345 deviations,
//! the deviation from the median of all).
//! In the end all parts are scaled so that the times add up: an executor that is held up now and then
//! is as busy as it was.
//!
//! # Determinism
//! Sums, products and quotients in a fixed order: the same times give the same cost everywhere.

use pointsman_core::Micros;

use super::{LinearCost, StepWork};
use crate::numbers::{float, millis};

/// Work that an executor did in a time in which it was never idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedWork {
    /// The time.
    pub took: Micros,
    /// Steps in it.
    pub steps: u64,
    /// The work of all of them.
    pub work: StepWork,
}

/// A speed that was fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearFit {
    /// The speed.
    pub cost: LinearCost,
    /// Times that it was fitted to.
    pub samples: usize,
    /// Steps in those times.
    pub steps: u64,
    /// The mean difference of a time from what the speed says, as a part of the mean time.
    pub error: f64,
}

/// Parts of a cost.
const PARTS: usize = 5;
/// Times in which Huber's weights are found anew.
const ROUNDS: usize = 20;
/// The number of deviations up to which a time counts in full.
const HUBER: f64 = 1.345;
/// The least that is expected of a time, as a part of the mean: a cost that explains one by nothing is
/// wrong, and must not make it count above all.
const EXPECTED_MIN: f64 = 0.01;
/// The time of the clock's grain in ms: no error is less.
const GRAIN_MS: f64 = 0.001;

type Row = [f64; PARTS];

/// A time in ms with its parts and its weight.
#[derive(Clone, Copy, Debug)]
struct Sample {
    parts: Row,
    took: f64,
    /// The time that is expected of the work; at first the mean.
    expected: f64,
    weight: f64,
}

impl LinearFit {
    /// The speed that explains these times best; absent: they are too few, or say nothing.
    #[must_use]
    pub fn of(times: &[TimedWork]) -> Option<Self> {
        let mut samples: Vec<Sample> = times.iter().filter_map(Sample::of).collect();
        for _ in 0..ROUNDS {
            let (_, _, parts) = least(&sums(&samples))?;
            reweigh(&mut samples, &parts);
        }
        // Parts are left out last, when times that are far off no longer hide what a part explains.
        let mut parts = fewest(&samples)?;
        let took: f64 = samples.iter().map(|it| it.took).sum();
        let off: f64 = samples.iter().map(|it| it.off(&parts)).sum();
        let said = took - off;
        if said > 0.0 {
            parts = parts.map(|part| part * took / said);
        }
        let off: f64 = samples.iter().map(|it| it.off(&parts).abs()).sum();
        let took: f64 = samples.iter().map(|it| it.took).sum();
        let [
            step_ms,
            prefill_token_ms,
            prefill_pair_ms,
            decode_ms,
            decode_context_ms,
        ] = parts;
        Some(Self {
            cost: LinearCost {
                step_ms,
                prefill_token_ms,
                prefill_pair_ms,
                decode_ms,
                decode_context_ms,
            },
            samples: samples.len(),
            steps: times.iter().map(|it| it.steps).sum(),
            error: off / took,
        })
    }
}

impl Sample {
    fn of(timed: &TimedWork) -> Option<Self> {
        (timed.took > Micros(0)).then(|| {
            let work = &timed.work;
            let parts = [
                timed.steps,
                work.prefill_tokens,
                work.prefill_context,
                work.decodes,
                work.decode_context,
            ];
            let took = millis(timed.took);
            Self {
                parts: parts.map(float),
                took,
                expected: 1.0,
                weight: 1.0,
            }
        })
    }

    /// The time less what the parts of a cost say.
    fn off(&self, cost: &Row) -> f64 {
        let said: f64 = self.parts.iter().zip(cost).map(|(n, each)| n * each).sum();
        self.took - said
    }

    /// The difference in units in which all times have the same deviation.
    fn scaled_off(&self, cost: &Row) -> f64 {
        self.off(cost).abs() / self.expected.sqrt()
    }
}

/// Gives times the weight of what is expected of them, and less where they are far off.
fn reweigh(samples: &mut [Sample], cost: &Row) {
    let took: f64 = samples.iter().map(|it| it.took).sum();
    let least = EXPECTED_MIN * took / float(samples.len() as u64);
    for sample in samples.iter_mut() {
        sample.expected = (sample.took - sample.off(cost)).max(least);
    }
    let mut offs: Vec<f64> = samples.iter().map(|it| it.scaled_off(cost)).collect();
    offs.sort_by(f64::total_cmp);
    let median = offs.get(offs.len() / 2).copied().unwrap_or(0.0);
    // 1.4826 medians of absolute differences are a deviation where the differences are normal.
    let deviation = 1.4826 * median;
    for sample in samples {
        let bound = HUBER * deviation.max(GRAIN_MS / sample.expected.sqrt());
        let off = sample.scaled_off(cost);
        let share = if off > bound { bound / off } else { 1.0 };
        sample.weight = share / sample.expected;
    }
}

/// A sum of parts without a negative one: how many they are, its error, and the parts.
type Sum = (u32, f64, Row);

/// The least squares of each choice of parts, but for those with a negative one.
fn sums(samples: &[Sample]) -> Vec<Sum> {
    let subsets = (1_u32..1 << PARTS).filter_map(|subset| {
        let cost = solve(samples, subset)?;
        let errors = samples
            .iter()
            .map(|it| it.weight * it.off(&cost) * it.off(&cost));
        Some((subset.count_ones(), errors.sum(), cost))
    });
    subsets.collect()
}

/// The sum of the least error.
fn least(sums: &[Sum]) -> Option<Sum> {
    sums.iter()
        .copied()
        .min_by(|one, other| one.1.total_cmp(&other.1))
}

/// The sum of the fewest parts whose error is within a hundredth of the least.
fn fewest(samples: &[Sample]) -> Option<Row> {
    let sums = sums(samples);
    let (_, error, _) = least(&sums)?;
    let weights: f64 = samples.iter().map(|it| it.weight).sum();
    let bound = error * 1.01 + weights * GRAIN_MS * GRAIN_MS;
    let near = sums.into_iter().filter(|it| it.1 <= bound);
    let fewest = near.min_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    fewest.map(|(_, _, cost)| cost)
}

/// The least squares of the parts in `subset` (a bit each); absent: they cannot be told apart, or one
/// is negative.
fn solve(samples: &[Sample], subset: u32) -> Option<Row> {
    let chosen: Vec<usize> = (0..PARTS).filter(|at| subset >> at & 1 == 1).collect();
    let n = chosen.len();
    if samples.len() < n {
        return None;
    }
    // Each part in units in which its squares add up to one.
    let mut units = [0.0; PARTS];
    for at in &chosen {
        let squares = samples
            .iter()
            .map(|it| it.weight * it.parts[*at] * it.parts[*at]);
        units[*at] = squares.sum::<f64>().sqrt();
        if units[*at] <= 0.0 {
            return None;
        }
    }
    let mut rows = vec![vec![0.0; n + 1]; n];
    for sample in samples {
        for (row, one) in rows.iter_mut().zip(&chosen) {
            let left = sample.weight * sample.parts[*one] / units[*one];
            for (cell, other) in row.iter_mut().zip(&chosen) {
                *cell += left * sample.parts[*other] / units[*other];
            }
            row[n] += left * sample.took;
        }
    }
    let solved = eliminate(rows)?;
    let mut cost = [0.0; PARTS];
    for (at, value) in chosen.iter().zip(solved) {
        cost[*at] = value / units[*at];
    }
    cost.iter().all(|part| *part >= 0.0).then_some(cost)
}

/// Solves equations, each a row with its right side last, by elimination; absent: they depend on each
/// other.
fn eliminate(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    const LEAST_PIVOT: f64 = 1e-9;
    let n = rows.len();
    for at in 0..n {
        let pivot =
            (at..n).max_by(|one, other| rows[*one][at].abs().total_cmp(&rows[*other][at].abs()))?;
        rows.swap(at, pivot);
        if rows[at][at].abs() < LEAST_PIVOT {
            return None;
        }
        let (above, below) = rows.split_at_mut(at + 1);
        let with = &above[at];
        for row in below {
            let factor = row[at] / with[at];
            for (cell, other) in row.iter_mut().zip(with).skip(at) {
                *cell -= factor * other;
            }
        }
    }
    let mut solved = vec![0.0; n];
    for at in (0..n).rev() {
        let known: f64 = (at + 1..n)
            .map(|other| rows[at][other] * solved[other])
            .sum();
        solved[at] = (rows[at][n] - known) / rows[at][at];
    }
    Some(solved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draws::mix;
    use crate::latency::LatencyProfile;

    /// Steps of all kinds of work, at the speed of `cost`.
    fn steps(cost: LinearCost) -> Vec<TimedWork> {
        let step = |n: u64| {
            let draw = |salt: u64, below: u64| mix(n * 7 + salt) % below;
            let prefill_tokens = if draw(1, 3) == 0 { draw(2, 512) } else { 0 };
            let decodes = draw(3, 16) + 1;
            let work = StepWork {
                prefill_tokens,
                prefill_context: prefill_tokens * draw(4, 1000),
                decodes,
                decode_context: decodes * (100 + draw(5, 1000)),
            };
            let took = LatencyProfile::Linear(cost).step(&work, 1 << 20);
            TimedWork {
                took,
                steps: 1,
                work,
            }
        };
        (0..400).map(step).collect()
    }

    fn assert_near(fitted: &LinearCost, made: &LinearCost) {
        let pairs = [
            (fitted.step_ms, made.step_ms),
            (fitted.prefill_token_ms, made.prefill_token_ms),
            (fitted.decode_ms, made.decode_ms),
        ];
        for (fitted, made) in pairs {
            assert!((fitted - made).abs() <= made * 0.02, "{fitted} and {made}");
        }
    }

    const MADE: LinearCost = LinearCost {
        step_ms: 2.0,
        prefill_token_ms: 0.08,
        prefill_pair_ms: 0.000_02,
        decode_ms: 0.3,
        decode_context_ms: 0.000_4,
    };

    #[test]
    fn a_fit_finds_the_speed_that_made_the_times() {
        let fit = LinearFit::of(&steps(MADE)).unwrap();
        assert_near(&fit.cost, &MADE);
        assert!((fit.cost.prefill_pair_ms - 0.000_02).abs() < 0.000_001);
        assert!((fit.cost.decode_context_ms - 0.000_4).abs() < 0.000_01);
        assert!(fit.error < 0.001, "{fit:?}");
        assert_eq!((fit.samples, fit.steps), (400, 400));
    }

    #[test]
    fn a_part_that_was_not_there_is_left_out() {
        let made = LinearCost {
            prefill_pair_ms: 0.0,
            decode_context_ms: 0.0,
            ..MADE
        };
        let fit = LinearFit::of(&steps(made)).unwrap();
        assert_near(&fit.cost, &made);
        assert_eq!(
            (fit.cost.prefill_pair_ms, fit.cost.decode_context_ms),
            (0.0, 0.0)
        );
    }

    #[test]
    fn times_that_are_far_off_count_for_little() {
        let mut times = steps(MADE);
        for timed in times.iter_mut().step_by(20) {
            timed.took = Micros(timed.took.0 * 8);
        }
        let fit = LinearFit::of(&times).unwrap();
        let near = |fitted: f64, made: f64| assert!((fitted - made).abs() < made * 0.15, "{fit:?}");
        let ratio = |cost: &LinearCost| cost.prefill_token_ms / cost.step_ms;
        near(ratio(&fit.cost), ratio(&MADE));
        // But the time that they took was taken.
        let of = |timed: &TimedWork| fit.cost.step_ms(&timed.work);
        let said: f64 = times.iter().map(of).sum();
        near(said, times.iter().map(|timed| millis(timed.took)).sum());
    }

    #[test]
    fn nothing_is_fitted_to_nothing() {
        assert_eq!(LinearFit::of(&[]), None);
        assert_eq!(LinearFit::of(&[TimedWork::default()]), None);
    }
}
