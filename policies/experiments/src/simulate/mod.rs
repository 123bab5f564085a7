//! `pointsman simulate`: what policies do to latency and fairness, in a simulation.
//!
//! The machine and the policies' components are those of production; workload, executors and
//! failures are simulated (`pointsman-sim`). The same arguments give the same output, to the byte, on
//! every machine.
//!
//! # Not here
//! The simulation itself (`pointsman-sim`).

mod args;
mod contender;
mod fleet;
mod html;
mod past;
mod runs;
mod scene;
mod spec;
mod table;
mod workload;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Context, Result};
use pointsman_component::EmbeddedPolicy;
use pointsman_files::{check_replaceable, replace_readable};
use pointsman_sim::measure::RunReport;
use pointsman_sim::{FailurePlan, RequestPlan};
use serde_json::json;

use crate::Verdict;
pub(crate) use args::time;
pub(crate) use contender::LoadedPolicy;
pub use contender::{Contender, Stable};
use html::PageText;
use past::Accuracy;
pub(crate) use past::PastRun;
pub(crate) use runs::{Bar, Interrupted, at_once};
pub use runs::{Runs, Setting, run_all};
pub use scene::SceneArgs;
pub(crate) use table::aligned;
pub use table::{Estimate, table};
pub use workload::{Changes, WorkloadSource};

/// Arguments of `pointsman simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// A journal of a server (its folder, or a file), a trace (Mooncake's or ServeGen's JSON lines, Azure's CSV, - for standard input), or a generator with its keys: poisson, bursts, flood, agents
    #[arg(value_name = "WORKLOAD")]
    workload: String,
    #[command(flatten)]
    scene: SceneArgs,
    /// Policies to compare, each with --policy and the defaults for all that it does not decide
    #[arg(long, value_name = "FILE.wasm[,KEY=VALUE]", num_args = 1..)]
    compare: Vec<String>,
    /// Runs, each with the next seed: numbers are means with their 95 % confidence intervals
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Form of the report
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Write the report as a page, too: one file, with charts over time
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The command as it was typed, which the page shows.
    #[arg(skip)]
    pub command: Vec<String>,
}

/// The form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Table,
    Json,
}

/// Simulates, and writes a report.
///
/// # Errors
/// If an argument is of no use, or a policy does not start.
pub fn simulate(
    args: &SimulateArgs,
    defaults: &[EmbeddedPolicy],
    out: &mut dyn Write,
) -> Result<Verdict> {
    // Before a run that may take minutes.
    if let Some(path) = &args.html {
        check_replaceable(path).with_context(|| format!("--html {}", path.display()))?;
    }
    let past = PastRun::find(&args.workload, args.scene.host.goodput())?;
    let past = past.as_ref();
    let setting = args.scene.setting(&args.workload, past)?;
    let contenders = args.contenders(defaults, past)?;
    let seeds: Vec<u64> = (0..u64::from(args.seeds))
        .map(|n| args.scene.seed + n)
        .collect();
    let all = run_all(&setting, &contenders, &seeds)?;
    let happened = match (past, contenders.first()) {
        (Some(past), Some(contender)) => Some(args.happened(past, &setting, contender, &all)?),
        (_, None) | (None, _) => None,
    };
    let simulated = past.zip(happened.as_ref());
    let rows: Vec<Runs> = past
        .map(PastRun::row)
        .into_iter()
        .chain(all.iter().cloned())
        .collect();
    if let Some(path) = &args.html {
        let text = args.page_text(&setting, &all, simulated);
        let page = html::page(&text, &rows);
        replace_readable(path, |file| file.write_all(page.as_bytes()))
            .with_context(|| format!("--html {}", path.display()))?;
    }
    match args.format {
        Format::Table => {
            out.write_all(heading(&setting, &all, args).as_bytes())?;
            if let Some((past, happened)) = simulated {
                let accuracy = Accuracy::of(&past.recorded, happened).table();
                write!(out, "{}\n{accuracy}\n", past.preface())?;
            }
            out.write_all(table(&rows).as_bytes())?;
        }
        Format::Json => {
            let report = as_json(&setting, &all, simulated);
            // An error of the output stays one, by which a reader that has left is known.
            serde_json::to_writer_pretty(&mut *out, &report).map_err(io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(Verdict::Good)
}

impl SimulateArgs {
    /// The text of the page.
    fn page_text(
        &self,
        setting: &Setting,
        all: &[Runs],
        simulated: Option<(&PastRun, &RunReport)>,
    ) -> PageText {
        let mut text = PageText {
            title: setting.workload.label.clone(),
            preface: within(setting, all, self),
            command: self.command.join(" "),
            tables: Vec::new(),
        };
        if let Some((past, happened)) = simulated {
            text.preface.push_str(&past.preface());
            let accuracy = Accuracy::of(&past.recorded, happened);
            text.tables.push(("What happened", accuracy.rows()));
        }
        text
    }

    /// The simulation of what happened: the run of the recorded policies, without the changes that the
    /// command line asks for.
    fn happened(
        &self,
        past: &PastRun,
        setting: &Setting,
        recorded: &Contender,
        all: &[Runs],
    ) -> Result<RunReport> {
        let run = all.first().and_then(|runs| runs.runs.first());
        if let (Some((_, report)), true) = (run, self.scene.repeats()) {
            return Ok(report.clone());
        }
        let workload = past.workload.clone();
        let setting = Setting {
            workload: WorkloadSource::recorded(&self.workload, workload, Changes::default()),
            fleet: past.fleet.clone(),
            config: past.config.clone(),
            requests: RequestPlan::default(),
            failures: FailurePlan::default(),
            goodput: setting.goodput,
        };
        setting.run(recorded, self.scene.seed, &|_| ControlFlow::Continue(()))
    }

    /// The policies of each run. Of a journal, its own come first, and are what all others are put
    /// before.
    fn contenders(
        &self,
        defaults: &[EmbeddedPolicy],
        past: Option<&PastRun>,
    ) -> Result<Vec<Contender>> {
        self.scene.check(defaults, past)?;
        let stable = Stable::new(defaults)?;
        let recorded = past.map(|past| stable.recorded(&past.policies, &past.chains));
        let recorded = recorded.transpose()?;
        let base = self.scene.base(&stable, recorded.as_ref())?;
        let is_another = recorded.is_none() || self.scene.built_in || !self.scene.policy.is_empty();
        let others = self.compare.iter().map(|text| stable.with(&base, text));
        let others: Vec<Contender> = others.collect::<Result<_>>()?;
        let base = is_another.then_some(base);
        Ok(recorded.into_iter().chain(base).chain(others).collect())
    }
}

/// The line above the table: what was simulated.
fn heading(setting: &Setting, all: &[Runs], args: &SimulateArgs) -> String {
    format!("{}: {}", setting.workload.label, within(setting, all, args))
}

/// The size of what was simulated, and the bounds of a good answer.
fn within(setting: &Setting, all: &[Runs], args: &SimulateArgs) -> String {
    let first = all.first().and_then(|runs| runs.runs.first());
    let (requests, secs) = first.map_or((0, 0.0), |(_, run)| (run.requests, run.duration_s));
    let mut text = format!(
        "{} requests in {secs:.0} s over {} executors; times in ms; good: TTFT within {} and {} between tokens\n",
        pointsman_notation::grouped(requests),
        setting.fleet.len(),
        args.scene.host.ttft,
        args.scene.host.itl,
    );
    if args.seeds > 1 && !setting.is_random() {
        text.push_str("nothing here is random: every seed gives the same run\n");
    }
    text
}

fn as_json(
    setting: &Setting,
    all: &[Runs],
    simulated: Option<(&PastRun, &RunReport)>,
) -> serde_json::Value {
    let run = |(seed, report): &(u64, RunReport)| json!({"seed": seed, "report": report});
    let contender = |runs: &Runs| {
        let each: Vec<_> = runs.runs.iter().map(run).collect();
        json!({"policies": runs.label, "runs": each})
    };
    let contenders: Vec<_> = all.iter().map(contender).collect();
    let mut all = json!({
        "workload": setting.workload.label,
        "executors": setting.fleet.len(),
        "contenders": contenders,
    });
    if let Some((past, happened)) = simulated {
        all["journal"] = past.as_json(happened);
    }
    all
}

#[cfg(test)]
mod tests;
