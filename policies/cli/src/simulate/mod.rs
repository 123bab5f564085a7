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
mod spec;
mod table;
mod workload;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use pointsman_core::Config;
use pointsman_lifecycle::EmbeddedPolicy;
use pointsman_sim::fleet::FleetPlan;
use pointsman_sim::measure::RunReport;
use pointsman_sim::workload::{Roll, Workload as _};
use pointsman_sim::{FailurePlan, RequestPlan};
use serde_json::json;

use crate::Verdict;
use args::{HostArgs, Lengths, RequestArgs, failures, micros};
pub use contender::{Contender, Stable};
use html::PageText;
use past::{Accuracy, PastRun};
pub use runs::{Runs, Setting, run_all};
pub use table::{Estimate, table};
pub use workload::{Changes, WorkloadSource};

/// Arguments of `pointsman simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimulateArgs {
    /// A journal of a server (its folder, or a file), a trace (Mooncake's or ServeGen's JSON lines, Azure's CSV, - for standard input), or a generator with its keys: poisson, bursts, flood, agents
    #[arg(value_name = "WORKLOAD")]
    workload: String,
    #[command(flatten)]
    requests: RequestArgs,
    /// Executors that are alike: 4 where nothing is said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    executors: Option<u32>,
    /// Executors of a file, with a table [[executors]] for each kind
    #[arg(long, value_name = "FILE.toml", conflicts_with = "executors")]
    fleet: Option<PathBuf>,
    #[command(flatten)]
    executor: fleet::Keys,
    /// A policy in the place of the defaults for the decisions it makes, with settings after commas; may be given several times
    #[arg(long, value_name = "FILE.wasm[,KEY=VALUE]")]
    policy: Vec<String>,
    /// Policies to compare, each with --policy and the defaults for all that it does not decide
    #[arg(long, value_name = "FILE.wasm[,KEY=VALUE]", num_args = 1..)]
    compare: Vec<String>,
    /// Let the built-in rule decide what no given policy does, instead of the default policies
    #[arg(long)]
    built_in: bool,
    /// Failures: losses=10min,lasting=30s, slow=5min,slow-lasting=30s,slow-factor=3, failing=0.01, leaving=0.05,leaves-after=20s
    #[arg(long, value_name = "KEY=VALUE,...")]
    failures: Option<String>,
    /// The first seed of all that is random
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Runs, each with the next seed: numbers are means with their 95 % confidence intervals
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    #[command(flatten)]
    host: HostArgs,
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
    let past = PastRun::find(&args.workload, args.host.goodput())?;
    let past = past.as_ref();
    let setting = args.setting(past)?;
    let contenders = args.contenders(defaults, past)?;
    let seeds: Vec<u64> = (0..u64::from(args.seeds)).map(|n| args.seed + n).collect();
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
        std::fs::write(path, page).with_context(|| format!("--html {}", path.display()))?;
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
            serde_json::to_writer_pretty(&mut *out, &as_json(&setting, &all, simulated))?;
            writeln!(out)?;
        }
    }
    Ok(Verdict::Good)
}

impl SimulateArgs {
    fn setting(&self, past: Option<&PastRun>) -> Result<Setting> {
        ensure!(
            self.requests.speed_up > 0.0,
            "--speed-up must be above 0, not {}",
            self.requests.speed_up
        );
        let changes = Changes {
            speed_up: self.requests.speed_up,
            spread: self.requests.spread,
            requests_max: self.requests.requests,
            patience: self.requests.patience.map(micros),
        };
        let workload = match past {
            Some(past) => WorkloadSource::recorded(&self.workload, past.workload.clone(), changes),
            None => WorkloadSource::find(&self.workload, changes)?,
        };
        let fleet = match past {
            Some(past) => self.recorded_fleet(past)?,
            None => self.fleet(workload.make(self.seed)?.roll())?,
        };
        let config = past.map_or_else(Config::default, |past| past.config.clone());
        Ok(Setting {
            workload,
            config: self.host.config(config, &fleet)?,
            fleet,
            requests: self.requests.plan(),
            failures: failures(self.failures.as_deref())?,
            goodput: self.host.goodput(),
        })
    }

    fn fleet(&self, roll: &Roll) -> Result<FleetPlan> {
        match &self.fleet {
            Some(path) => fleet::read(path, roll),
            None => self.executor.fleet(self.executors.unwrap_or(4), roll),
        }
    }

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

    /// The executors of a journal, as fast as they were.
    fn recorded_fleet(&self, past: &PastRun) -> Result<FleetPlan> {
        let is_told = self.fleet.is_some() || self.executors.is_some();
        ensure!(
            !is_told && self.executor == fleet::Keys::default(),
            "the executors of a journal are those that it has: leave out --executors, --fleet, \
             --profile and all else about executors"
        );
        Ok(past.fleet.clone())
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
        if let (Some((_, report)), true) = (run, self.repeats()) {
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
        setting.run(recorded, self.seed, &|_| {})
    }

    /// True if nothing is asked for but what happened.
    fn repeats(&self) -> bool {
        let requests = &self.requests;
        let is_as_it_was = requests.speed_up == 1.0
            && !requests.spread
            && requests.requests.is_none()
            && requests.patience.is_none()
            && requests.lengths == Lengths::Unknown;
        let host = &self.host;
        is_as_it_was
            && self.failures.is_none()
            && host.queue_max.is_none()
            && host.wait_max.is_none()
    }

    /// The policies of each run. Of a journal, its own come first, and are what all others are put
    /// before.
    fn contenders(
        &self,
        defaults: &[EmbeddedPolicy],
        past: Option<&PastRun>,
    ) -> Result<Vec<Contender>> {
        ensure!(
            self.built_in || past.is_some() || !defaults.is_empty(),
            "this binary was built without the default policies: run `cargo xtask serve`, or use \
             --built-in"
        );
        let stable = Stable::new(defaults)?;
        let recorded = past.map(|past| stable.recorded(&past.policies, &past.chains));
        let recorded = recorded.transpose()?;
        let mut base = match &recorded {
            _ if self.built_in => Stable::built_in(),
            Some(recorded) => recorded.clone(),
            None => stable.defaults(),
        };
        for text in &self.policy {
            base = stable.with(&base, text)?;
        }
        let is_another = recorded.is_none() || self.built_in || !self.policy.is_empty();
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
        crate::table::grouped(requests),
        setting.fleet.len(),
        args.host.ttft,
        args.host.itl,
    );
    let is_random = setting.workload.is_random() || setting.failures != FailurePlan::default();
    if args.seeds > 1 && !is_random {
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
