//! The table of `pointsman simulate`: a line for each contender, its means over the seeds.

use pointsman_sim::measure::RunReport;

use super::runs::Runs;
use pointsman_notation::grouped;

/// A mean over runs, and half the width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval; absent: there is one run alone.
    pub margin: Option<f64>,
}

impl Estimate {
    /// The mean of these values, with Student's interval.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let n = float_len(values.len());
        let mean = values.iter().sum::<f64>() / n.max(1.0);
        let squares: f64 = values
            .iter()
            .map(|value| (value - mean) * (value - mean))
            .sum();
        let margin = (values.len() > 1).then(|| {
            let deviation = (squares / (n - 1.0)).sqrt();
            student(values.len() - 1) * deviation / n.sqrt()
        });
        Self { mean, margin }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of runs is small")]
fn float_len(length: usize) -> f64 {
    length as f64
}

/// The quantile 0.975 of Student's distribution with so many degrees of freedom.
fn student(freedom: usize) -> f64 {
    const QUANTILES: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    QUANTILES.get(freedom.max(1) - 1).copied().unwrap_or(1.96)
}

/// A column: its heading, and its value of a run; absent: nobody was served, so there is none.
type Column = (&'static str, Show, fn(&RunReport) -> Option<f64>);

/// The way in which a number is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Show {
    Percent,
    Millis,
    Count,
    Index,
}

const COLUMNS: [Column; 13] = [
    ("hit %", Show::Percent, |run| Some(run.hit_rate)),
    ("TTFT mean", Show::Millis, |run| Some(run.ttft_ms?.mean)),
    ("p50", Show::Millis, |run| Some(run.ttft_ms?.p50)),
    ("p95", Show::Millis, |run| Some(run.ttft_ms?.p95)),
    ("p99", Show::Millis, |run| Some(run.ttft_ms?.p99)),
    ("TPOT p95", Show::Millis, |run| Some(run.tpot_ms?.p95)),
    ("ITL p99", Show::Millis, |run| Some(run.itl_ms?.p99)),
    ("whole mean", Show::Millis, |run| Some(run.whole_ms?.mean)),
    ("wait mean", Show::Millis, |run| Some(run.wait_ms?.mean)),
    ("good %", Show::Percent, |run| Some(run.goodput)),
    ("served", Show::Count, |run| count(run.finished)),
    ("refused", Show::Count, |run| {
        count(run.refused + run.expired + run.failed)
    }),
    ("Jain", Show::Index, |run| Some(run.jain)),
];

#[expect(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn count(number: u64) -> Option<f64> {
    Some(number as f64)
}

/// The table of all contenders.
#[must_use]
pub fn table(all: &[Runs]) -> String {
    let mut text = aligned(&rows(all));
    for runs in all {
        text.push_str(&remarks(runs));
    }
    text
}

/// The table's cells, the headings first.
pub(super) fn rows(all: &[Runs]) -> Vec<Vec<String>> {
    let mut rows = vec![
        std::iter::once("policies")
            .chain(COLUMNS.iter().map(|(heading, ..)| *heading))
            .map(str::to_owned)
            .collect::<Vec<String>>(),
    ];
    for runs in all {
        let cells = COLUMNS.iter().map(|(_, show, value)| {
            let values = runs.runs.iter().filter_map(|(_, report)| value(report));
            show.text(&values.collect::<Vec<f64>>())
        });
        rows.push(std::iter::once(runs.label.clone()).chain(cells).collect());
    }
    rows
}

pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(at, (cell, width))| match at {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        let cells: Vec<String> = cells.collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Remarks on what a line of the table does not tell.
pub(super) fn remarks(runs: &Runs) -> String {
    let sum = |value: fn(&RunReport) -> u64| -> u64 {
        runs.runs.iter().map(|(_, report)| value(report)).sum()
    };
    let parts: [(u64, &str); 8] = [
        (sum(|run| run.evicted), "evicted"),
        (sum(|run| run.recomputed), "recomputed by servers"),
        (sum(|run| run.failed_over), "went on elsewhere"),
        (sum(|run| run.swaps), "models swapped"),
        (sum(|run| run.cancelled), "left by their clients"),
        (sum(|run| run.strikes), "strikes of liveness clocks"),
        (
            sum(|run| run.refused_answers),
            "answers refused by the interlock",
        ),
        (sum(|run| run.faults), "faults of policies"),
    ];
    let parts = parts.iter().filter(|(number, _)| *number > 0);
    let parts: Vec<String> = parts
        .map(|(n, what)| format!("{} {what}", grouped(*n)))
        .collect();
    if parts.is_empty() {
        return String::new();
    }
    format!("{}: {}\n", runs.label, parts.join(", "))
}

impl Show {
    /// The mean of these values; a dash, if there are none.
    fn text(self, values: &[f64]) -> String {
        if values.is_empty() {
            return "-".to_owned();
        }
        let estimate = Estimate::of(values);
        let number = |value: f64| match self {
            Show::Percent => format!("{:.1}", value * 100.0),
            Show::Millis if value.abs() < 100.0 => format!("{value:.1}"),
            Show::Millis | Show::Count => format!("{value:.0}"),
            Show::Index => format!("{value:.3}"),
        };
        match estimate.margin {
            Some(margin) => format!("{}±{}", number(estimate.mean), number(margin)),
            None => number(estimate.mean),
        }
    }
}

#[cfg(test)]
mod tests {
    use pointsman_sim::measure::TimeSpread;

    use super::*;

    #[test]
    fn an_estimate_has_students_interval() {
        // Deviation 1, so the margin is 4.303 / sqrt(3).
        let estimate = Estimate::of(&[1.0, 2.0, 3.0]);
        assert_eq!(estimate.mean, 2.0);
        let margin = estimate.margin.unwrap();
        assert!((margin - 2.484).abs() < 0.001, "{margin}");
        assert_eq!(Estimate::of(&[5.0]).margin, None);
        assert_eq!(student(1000), 1.96);
    }

    #[test]
    fn a_line_has_the_means_and_remarks_only_what_happened() {
        let report = RunReport {
            hit_rate: 0.123,
            finished: 20,
            faults: 3,
            ..RunReport::default()
        };
        let runs = |label: &str, report: RunReport| Runs {
            label: label.to_owned(),
            runs: vec![(0, report)],
        };
        let all = [runs("a", report), runs("long name", RunReport::default())];
        let table = table(&all);
        let lines: Vec<&str> = table.lines().collect();
        assert!(
            lines[0].starts_with("policies   hit %  TTFT mean"),
            "{table}"
        );
        assert!(lines[1].starts_with("a           12.3 "), "{table}");
        assert_eq!(lines[3..], ["a: 3 faults of policies"], "{table}");
    }

    #[test]
    fn where_nobody_is_served_there_are_no_times_and_such_a_seed_is_not_in_the_mean() {
        let served = RunReport {
            ttft_ms: Some(TimeSpread {
                mean: 50.0,
                ..TimeSpread::default()
            }),
            ..RunReport::default()
        };
        let cells = |reports: [&RunReport; 2]| {
            let runs = reports.map(|report| (0, report.clone())).to_vec();
            let label = "a".to_owned();
            rows(&[Runs { label, runs }])[1][1..4].to_vec()
        };
        let nobody = RunReport::default();
        assert_eq!(cells([&nobody, &nobody]), ["0.0±0.0", "-", "-"]);
        assert_eq!(cells([&nobody, &served]), ["0.0±0.0", "50.0", "0.0"]);
    }
}
