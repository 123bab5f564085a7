//! The runs of `pointsman simulate`: each contender with each seed, on all cores.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use pointsman_core::Config;
use pointsman_sim::fleet::FleetPlan;
use pointsman_sim::measure::{Goodput, RunReport};
use pointsman_sim::{FailurePlan, Plan, RequestPlan, Simulation};

use super::contender::Contender;
use super::workload::WorkloadSource;

/// The setting that all runs share.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The requests.
    pub workload: WorkloadSource,
    /// The executors.
    pub fleet: FleetPlan,
    /// The bounds of the machine.
    pub config: Config,
    /// Bounds and hints that clients give with their requests.
    pub requests: RequestPlan,
    /// The failures; each run has its own seed.
    pub failures: FailurePlan,
    /// The bounds that a good answer keeps.
    pub goodput: Goodput,
}

/// The runs of one contender.
#[derive(Clone, Debug)]
pub struct Runs {
    /// The name of the contender.
    pub label: String,
    /// The seed and the report of each run.
    pub runs: Vec<(u64, RunReport)>,
}

impl Setting {
    /// True if another seed gives another run.
    #[must_use]
    pub fn is_random(&self) -> bool {
        self.workload.is_random() || self.failures.is_random()
    }

    /// Makes one run. `progress` is told the share that is over, and may end it.
    ///
    /// # Errors
    /// If it cannot begin, or was ended.
    pub fn run(
        &self,
        contender: &Contender,
        seed: u64,
        progress: &dyn Fn(f64) -> ControlFlow<()>,
    ) -> Result<RunReport> {
        let plan = Plan {
            config: self.config.clone(),
            fleet: self.fleet.clone(),
            workload: self.workload.make(seed)?,
            requests: self.requests,
            failures: FailurePlan {
                seed,
                ..self.failures.clone()
            },
            goodput: self.goodput,
            checks: pointsman_sim::Checks::Never,
        };
        let host = contender.host(self.config.bounds())?;
        let mut simulation = Simulation::new(plan, host)?;
        let mut told = 0;
        while let Some(progressed) = simulation.advance() {
            if progressed.ended >= told + TELL_EVERY {
                told = progressed.ended;
                let total = progressed.total.unwrap_or(u64::MAX);
                ensure!(
                    progress(share(progressed.ended, total)).is_continue(),
                    Interrupted
                );
            }
        }
        ensure!(progress(1.0).is_continue(), Interrupted);
        Ok(simulation.finish().0)
    }
}

/// The end of a run that was ended before it was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Requests that end between two words on the progress.
const TELL_EVERY: u64 = 50;

#[expect(clippy::cast_precision_loss, reason = "a share is for people to see")]
fn share(part: u64, total: u64) -> f64 {
    part as f64 / total.max(1) as f64
}

/// Makes all runs, as many at once as there are cores.
///
/// # Errors
/// The first error of any run.
pub fn run_all(setting: &Setting, contenders: &[Contender], seeds: &[u64]) -> Result<Vec<Runs>> {
    let all = contenders
        .iter()
        .flat_map(|it| seeds.iter().map(move |seed| (it, *seed)));
    let all: Vec<(&Contender, u64)> = all.collect();
    let bar = Bar::new(all.len(), "runs");
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let reports = at_once(&all, cores, |idx, (contender, seed)| {
        setting.run(contender, *seed, &|share| {
            bar.set(idx, share);
            ControlFlow::Continue(())
        })
    });
    bar.clear();
    let mut reports = reports.into_iter();
    let runs = contenders.iter().map(|contender| {
        let runs = seeds.iter().zip(reports.by_ref());
        let runs = runs.map(|(seed, report)| Ok((*seed, report?)));
        Ok(Runs {
            label: contender.label.clone(),
            runs: runs.collect::<Result<_>>()?,
        })
    });
    runs.collect()
}

/// Does all jobs, as many at once as there are `threads`. The results are in the order of the jobs.
pub(crate) fn at_once<J: Sync, T: Send>(
    jobs: &[J],
    threads: usize,
    run: impl Fn(usize, &J) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<T>>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let idx = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(idx) else { break };
                    put(&done, idx, run(idx, job));
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_default();
    done.into_iter().flatten().collect()
}

fn put<T>(list: &Mutex<Vec<Option<T>>>, idx: usize, value: T) {
    // A thread that panicked ends the scope with its panic.
    if let Ok(mut list) = list.lock() {
        if list.len() <= idx {
            list.resize_with(idx + 1, || None);
        }
        list[idx] = Some(value);
    }
}

/// A bar on a terminal that fills as runs go on. On anything else nothing is shown.
#[derive(Debug)]
pub(crate) struct Bar {
    /// The share of each part that is done, and the text that is shown; absent: no terminal.
    state: Option<Mutex<(Vec<f64>, String)>>,
    /// The name of the parts.
    what: &'static str,
}

impl Bar {
    pub(crate) fn new(parts: usize, what: &'static str) -> Self {
        let is_shown = std::io::stderr().is_terminal();
        let state = (vec![0.0; parts], String::new());
        Self {
            state: is_shown.then(|| Mutex::new(state)),
            what,
        }
    }

    pub(crate) fn set(&self, part: usize, share: f64) {
        let Some(Ok(mut state)) = self.state.as_ref().map(Mutex::lock) else {
            return;
        };
        if let Some(done) = state.0.get_mut(part) {
            *done = share;
        }
        let text = bar(&state.0, self.what);
        if text != state.1 {
            write_over(&text);
            state.1 = text;
        }
    }

    /// Notes that so many parts are over, the first ones.
    pub(crate) fn fill(&self, mut parts: f64) {
        let count = self.state.as_ref().and_then(|state| state.lock().ok());
        let count = count.map_or(0, |state| state.0.len());
        for part in 0..count {
            self.set(part, parts.clamp(0.0, 1.0));
            parts -= 1.0;
        }
    }

    pub(crate) fn clear(&self) {
        if self.state.is_some() {
            write_over("");
        }
    }
}

fn write_over(text: &str) {
    let mut terminal = std::io::stderr().lock();
    // Nobody is told that a bar cannot be shown.
    drop(write!(terminal, "\r{text}\x1b[K").and_then(|()| terminal.flush()));
}

/// The bar's text: forty places, percent, and the parts that are over.
fn bar(shares: &[f64], what: &str) -> String {
    const PLACES: u32 = 40;
    let done: f64 = shares.iter().sum();
    #[expect(clippy::cast_precision_loss, reason = "a share is for people to see")]
    let share = done / shares.len().max(1) as f64;
    let filled = (0..PLACES).map(|place| f64::from(place) < share * f64::from(PLACES));
    let places: String = filled
        .map(|is_filled| if is_filled { '#' } else { '.' })
        .collect();
    let over = shares.iter().filter(|share| **share >= 1.0).count();
    format!(
        "[{places}] {:3.0} %, {over} of {} {what}",
        share * 100.0,
        shares.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_with_the_share_of_all_runs() {
        assert!(
            bar(&[0.0, 0.0], "runs")
                .starts_with("[........................................]   0 %")
        );
        let half = bar(&[1.0, 0.0], "runs");
        assert!(
            half.starts_with("[####################....................]  50 %"),
            "{half}"
        );
        assert!(half.ends_with("1 of 2 runs"), "{half}");
    }
}
