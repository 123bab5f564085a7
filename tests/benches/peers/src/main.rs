//! `cargo xtask bench peers`: the latency of one routing decision, here and in other routers, over the same fleet.
//!
//! With `--quick`: few decisions, and no fleet above 64. With `--write`: the page of results is written.

mod dynamo;
mod fleet;
mod kapsl;
mod ours;
mod page;
mod smg;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pointsman_testkit::component::Components;

use ours::{Ours, Part};

/// A router that is timed.
pub(crate) trait Contender {
    /// The name, for the table.
    fn name(&self) -> &str;

    /// Changes the state of one worker, routes a request, and ends it. Returns the time of the part that counts, and
    /// the worker.
    fn route(&mut self, request: u64) -> Result<(Duration, u64)>;
}

/// The figures of one contender over one fleet, in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) name: String,
    /// The median of the rounds' medians.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Decisions for a worker that holds the shared blocks of the prompt, in percent.
    pub(crate) hits: u64,
}

const WORKERS: [u64; 5] = [8, 64, 512, 4096, 10_000];
const ROUNDS: usize = 7;

fn contenders(components: &mut Components, workers: u64) -> Result<Vec<Box<dyn Contender>>> {
    let mut all: Vec<Box<dyn Contender>> = Vec::new();
    for policy in ["kv-cost", "memory-aware"] {
        let component = ours::component(components, policy)?;
        let native = ours::native(policy)?;
        let parts = [
            ("component", Part::Policy, component.clone()),
            ("native", Part::Policy, native),
            ("component, whole round", Part::Round, component),
        ];
        for (what, part, source) in parts {
            let name = format!("pointsman {policy}, {what}");
            all.push(Box::new(Ours::new(name, part, source, workers)?));
        }
    }
    all.push(Box::new(dynamo::Selector::new(workers)));
    all.push(Box::new(dynamo::Scheduler::new(workers)?));
    all.push(Box::new(kapsl::Pool::new(workers)?));
    all.push(Box::new(smg::Tree::new(workers)));
    Ok(all)
}

/// Times all contenders over a fleet, one round of each after the other.
fn measure(components: &mut Components, workers: u64, decisions: u64) -> Result<Vec<Figures>> {
    let mut all = contenders(components, workers)?;
    let mut times = vec![Vec::new(); all.len()];
    let mut hits = vec![0; all.len()];
    let mut request = 0;
    for round in 0..=ROUNDS {
        for (at, contender) in all.iter_mut().enumerate() {
            let mut took = Vec::new();
            for n in request..request + decisions {
                let (time, worker) = contender
                    .route(n)
                    .with_context(|| contender.name().to_owned())?;
                ensure!(worker < workers, "there is no worker {worker}");
                took.push(time);
                let is_hit = fleet::holders(n % fleet::GROUPS, workers).any(|it| it == worker);
                hits[at] += u64::from(is_hit && round > 0);
            }
            // The first round warms up.
            if round > 0 {
                took.sort_unstable();
                times[at].push(took);
            }
        }
        request += decisions;
    }
    let figures = all.iter().zip(times).zip(hits);
    let figures = figures.map(|((contender, rounds), hits)| Figures {
        name: contender.name().to_owned(),
        p50: median(rounds.iter().map(|round| quantile(round, 500)).collect()),
        p99: median(rounds.iter().map(|round| quantile(round, 990)).collect()),
        hits: hits * 100 / (decisions * ROUNDS as u64),
    });
    Ok(figures.collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The value that `permille` per thousand of the sorted times do not exceed, in microseconds.
fn quantile(sorted: &[Duration], permille: usize) -> f64 {
    let rank = (sorted.len() * permille).div_ceil(1000).max(1);
    sorted[rank - 1].as_secs_f64() * 1e6
}

fn main() -> Result<()> {
    let has = |flag: &str| std::env::args().any(|arg| arg == flag);
    let mut components = Components::default();
    let mut table = Vec::new();
    for workers in WORKERS {
        let decisions = if has("--quick") { 20 } else { 400 };
        if has("--quick") && workers > 64 {
            continue;
        }
        let figures = measure(&mut components, workers, decisions)?;
        for it in &figures {
            println!(
                "{workers:>6}  {:<55} {:>9.2} {:>9.2}  {:>3} %",
                it.name, it.p50, it.p99, it.hits
            );
        }
        table.push((workers, figures));
    }
    if has("--write") {
        page::write(&table)?;
    }
    Ok(())
}
