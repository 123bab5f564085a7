//! The distance of a simulation from what it simulates.

use pointsman_sim::measure::{RunReport, TimeSpread};
use serde::Serialize;

/// A number of the run as it was, the simulation's, and how far the one is from the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(in crate::simulate) struct Difference {
    pub(super) recorded: f64,
    pub(super) simulated: f64,
    /// The part of the recorded number by which the simulated one is larger; absent where that is 0.
    pub(super) share: Option<f64>,
}

/// The distance of a simulation from a run: mean, p50 and p95 of each time in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(in crate::simulate) struct Accuracy {
    ttft_ms: [Difference; 3],
    wait_ms: [Difference; 3],
    whole_ms: [Difference; 3],
    hit_rate: Difference,
    finished: Difference,
}

impl Difference {
    fn of(recorded: f64, simulated: f64) -> Self {
        Self {
            recorded,
            simulated,
            share: (recorded > 0.0).then(|| simulated / recorded - 1.0),
        }
    }
}

impl Accuracy {
    /// The distance of these two.
    pub(in crate::simulate) fn of(recorded: &RunReport, simulated: &RunReport) -> Self {
        let spread = |time: fn(&RunReport) -> &TimeSpread| {
            let (was, is) = (time(recorded), time(simulated));
            [(was.mean, is.mean), (was.p50, is.p50), (was.p95, is.p95)]
                .map(|(was, is)| Difference::of(was, is))
        };
        #[expect(clippy::cast_precision_loss, reason = "counts are below 2^53")]
        let count = |run: &RunReport| run.finished as f64;
        Self {
            ttft_ms: spread(|run| &run.ttft_ms),
            wait_ms: spread(|run| &run.wait_ms),
            whole_ms: spread(|run| &run.whole_ms),
            hit_rate: Difference::of(recorded.hit_rate, simulated.hit_rate),
            finished: Difference::of(count(recorded), count(simulated)),
        }
    }

    /// The table of the differences.
    pub(in crate::simulate) fn table(&self) -> String {
        super::super::table::aligned(&self.rows())
    }

    /// The table's cells, the headings first.
    pub(in crate::simulate) fn rows(&self) -> Vec<Vec<String>> {
        let mut rows =
            vec![["what happened", "recorded", "simulated", "difference"].map(str::to_owned)];
        let mut add = |what: String, of: &Difference, show: fn(f64) -> String| {
            rows.push([what, show(of.recorded), show(of.simulated), of.percent()]);
        };
        for (name, three) in [
            ("TTFT", &self.ttft_ms),
            ("wait", &self.wait_ms),
            ("whole", &self.whole_ms),
        ] {
            for (which, of) in ["mean", "p50", "p95"].iter().zip(three) {
                add(format!("{name} {which}"), of, millis);
            }
        }
        add("hit %".to_owned(), &self.hit_rate, |share| {
            format!("{:.1}", share * 100.0)
        });
        add("served".to_owned(), &self.finished, |n| format!("{n:.0}"));
        rows.into_iter().map(Vec::from).collect()
    }
}

impl Difference {
    fn percent(&self) -> String {
        match self.share {
            Some(share) => format!("{:+.1} %", share * 100.0),
            None if self.simulated == 0.0 => "none".to_owned(),
            None => "-".to_owned(),
        }
    }
}

fn millis(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_a_part_of_what_was() {
        let run = |ttft: f64, wait: f64| RunReport {
            ttft_ms: TimeSpread {
                mean: ttft,
                ..TimeSpread::default()
            },
            wait_ms: TimeSpread {
                mean: wait,
                ..TimeSpread::default()
            },
            ..RunReport::default()
        };
        let table = Accuracy::of(&run(200.0, 0.0), &run(190.0, 1.5)).table();
        let row = |at: usize| -> Vec<&str> {
            let line = table.lines().nth(at).unwrap_or_default();
            line.split_whitespace().collect()
        };
        assert_eq!(row(1), ["TTFT", "mean", "200", "190", "-5.0", "%"]);
        assert_eq!(row(2), ["TTFT", "p50", "0.00", "0.00", "none"]);
        assert_eq!(row(4), ["wait", "mean", "0.00", "1.50", "-"]);
    }
}
