//! The default policies beside Dynamo's router, on the trace that both were run on.
//!
//! Dynamo's figures come from a table in CSV, a line for each of its offline replays.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use pointsman_sim::numbers::float;

use crate::simulated::report;

/// The trace of the table, and the router in it.
const TRACE: &str = "conversation";
const ROUTER: &str = "kv_router";

/// A fleet, and the pace of arrivals.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Setting {
    executors: u32,
    /// The factor by which arrivals are sped up, as the table has it.
    speed_up: String,
    /// Blocks of each executor.
    kv_blocks: u32,
}

/// Figures of a run, or the best ones of several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    /// Cached tokens of prompts, in percent.
    hit: f64,
    ttft_mean_ms: f64,
    ttft_p95_ms: f64,
    /// Good answers, in percent of all requests.
    good: f64,
}

/// Simulates the default policies on the trace at `workload` in each setting of the table, and returns a line for each, of a table in Markdown:
/// our figures, each with the best that a row of the other router has, and whether it is met. At the end are the requests that were refused
/// here.
///
/// # Errors
/// If the table is not one of Dynamo's replays; and as the simulation has them.
pub fn beside(table: &str, workload: &str) -> Result<Vec<String>> {
    let line = |(setting, best): (&Setting, &Figures)| setting.line(*best, workload);
    best(table)?.iter().map(line).collect()
}

/// The best figures of the router in each setting of a table, each on its own.
fn best(table: &str) -> Result<BTreeMap<Setting, Figures>> {
    let mut lines = table.lines();
    let columns: Vec<&str> = lines.next().context("no table")?.split(',').collect();
    let mut best = BTreeMap::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        ensure!(cells.len() == columns.len(), "not of the table: {line}");
        let row: BTreeMap<&str, &str> = columns.iter().copied().zip(cells).collect();
        let cell = |name: &str| row.get(name).copied().context(name.to_owned());
        if [cell("trace")?, cell("router")?] != [TRACE, ROUTER] {
            continue;
        }
        let number = |name: &str| cell(name)?.parse::<f64>().context(name.to_owned());
        let setting = Setting {
            executors: cell("workers")?.parse()?,
            speed_up: cell("arrival_speedup")?.to_owned(),
            kv_blocks: cell("kv_blocks")?.parse()?,
        };
        let figures = Figures {
            hit: number("hit")? * 100.0,
            ttft_mean_ms: number("ttft_mean")?,
            ttft_p95_ms: number("ttft_p95")?,
            good: number("goodput_n")? / number("n")? * 100.0,
        };
        let so_far = best.entry(setting).or_insert(figures);
        *so_far = so_far.better(figures);
    }
    Ok(best)
}

impl Figures {
    /// The better of two, for each figure on its own.
    fn better(self, other: Self) -> Self {
        Self {
            hit: self.hit.max(other.hit),
            ttft_mean_ms: self.ttft_mean_ms.min(other.ttft_mean_ms),
            ttft_p95_ms: self.ttft_p95_ms.min(other.ttft_p95_ms),
            good: self.good.max(other.good),
        }
    }
}

impl Setting {
    fn line(&self, best: Figures, workload: &str) -> Result<String> {
        let Self {
            executors,
            speed_up,
            kv_blocks,
        } = self;
        let report = report(&format!(
            "{workload} --profile polynomial --executors {executors} --speed-up {speed_up} --kv-blocks {kv_blocks}"
        ))?;
        let number = |key: &str| report[key].as_f64().context("no number");
        let count = |key: &str| report[key].as_u64().context("no count");
        let ttft = |key: &str| report["ttft_ms"][key].as_f64().context("no TTFT");
        let ours = Figures {
            hit: number("hit_rate")? * 100.0,
            ttft_mean_ms: ttft("mean")?,
            ttft_p95_ms: ttft("p95")?,
            good: float(count("good")?) / float(count("requests")?) * 100.0,
        };
        let most = |ours: f64, best: f64| if ours >= best { "met" } else { "missed" };
        let least = |ours: f64, best: f64| most(best, ours);
        Ok(format!(
            "| {executors}, ×{speed_up}, {kv_blocks} | {:.1}, {:.1}: {} | {:.0}, {:.0}: {} | {:.0}, {:.0}: {} | {:.2}, {:.2}: {} | {} |",
            ours.hit,
            best.hit,
            most(ours.hit, best.hit),
            ours.ttft_mean_ms,
            best.ttft_mean_ms,
            least(ours.ttft_mean_ms, best.ttft_mean_ms),
            ours.ttft_p95_ms,
            best.ttft_p95_ms,
            least(ours.ttft_p95_ms, best.ttft_p95_ms),
            ours.good,
            best.good,
            most(ours.good, best.good),
            count("refused")?,
        ))
    }
}
