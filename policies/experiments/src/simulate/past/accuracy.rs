//! The distance of a simulation from what it simulates.

use pointsman_sim::measure::{RunReport, TimeSpread};
use serde::Serialize;

/// A number of the run as it was, the simulation's, and how far the one is from the other; absent: nobody was served,
/// so there is none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(in crate::simulate) struct Difference {
    pub(super) recorded: Option<f64>,
    pub(super) simulated: Option<f64>,
    /// The part of the recorded number by which the simulated one is larger; absent also where that is 0.
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
    fn of(recorded: Option<f64>, simulated: Option<f64>) -> Self {
        let both = recorded.filter(|was| *was > 0.0).zip(simulated);
        Self {
            recorded,
            simulated,
            share: both.map(|(was, is)| is / was - 1.0),
        }
    }
}

impl Accuracy {
    /// The distance of these two.
    pub(in crate::simulate) fn of(recorded: &RunReport, simulated: &RunReport) -> Self {
        let spread = |times: fn(&RunReport) -> Option<TimeSpread>| {
            let (was, is) = (times(recorded), times(simulated));
            let of =
                |number: fn(TimeSpread) -> f64| Difference::of(was.map(number), is.map(number));
            [of(|it| it.mean), of(|it| it.p50), of(|it| it.p95)]
        };
        #[expect(clippy::cast_precision_loss, reason = "counts are below 2^53")]
        let count = |run: &RunReport| Some(run.finished as f64);
        Self {
            ttft_ms: spread(|run| run.ttft_ms),
            wait_ms: spread(|run| run.wait_ms),
            whole_ms: spread(|run| run.whole_ms),
            hit_rate: Difference::of(Some(recorded.hit_rate), Some(simulated.hit_rate)),
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
            let show = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), show);
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
            None if self.simulated == self.recorded => "none".to_owned(),
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
            ttft_ms: Some(TimeSpread {
                mean: ttft,
                ..TimeSpread::default()
            }),
            wait_ms: Some(TimeSpread {
                mean: wait,
                ..TimeSpread::default()
            }),
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
        assert_eq!(row(7), ["whole", "mean", "-", "-", "none"]);
    }
}
