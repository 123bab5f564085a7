//! `pointsman policy tune`: settings of a policy that do better in simulations, by an objective, and
//! whether a part of the workloads that was not searched confirms it.
//!
//! | module | |
//! |---|---|
//! | `objective` | the grammar of `--objective` |
//! | `scenes` | the workloads, and the parts that are held out |
//! | `space` | the settings that are searched |
//! | `search` | which are tried, and which is best |
//! | `trials` | simulations on all cores, kept in a file |
//! | `sidecar` | the file that a server reads, with the evidence |
//!
//! # Not here
//! Workloads, fleets and runs (`simulate`); the simulation itself (`pointsman-sim`).

mod objective;
mod scenes;
mod search;
mod sidecar;
mod space;
mod trials;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow};
use pointsman_component::{Digest, EmbeddedPolicy};
use pointsman_notation::NamedLimits as _;
use pointsman_sim::measure::RunReport;
use serde_json::{Map, Value, json};

use crate::Done;
use crate::file::PolicyFileArg;
use crate::simulate::{Bar, Interrupted, LoadedPolicy, SceneArgs, Stable, aligned};
use crate::stop::Stop;
use objective::Objective;
use scenes::{Named, Scene, Scenes, fewest};
use search::{Found, SearchPlan, Standing, search};
use space::Space;
use trials::{Kept, Numbers, RUNS_BEFORE, Runner, standing, whole_runs};

/// Arguments of `policy tune`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    file: PolicyFileArg,
    /// A workload, as of `pointsman simulate`; may be given several times
    #[arg(long, value_name = "WORKLOAD", required = true)]
    workload: Vec<String>,
    /// A workload that is not searched and has to confirm what is found; without one, a part of each workload is
    #[arg(long, value_name = "WORKLOAD")]
    held_out: Vec<String>,
    /// The number to make better, and bounds that others keep: "p95 ttft; goodput >= 95%"
    #[arg(long, value_name = "OBJECTIVE")]
    objective: String,
    /// A setting to search; may be given several times. Without it, all that have a range
    #[arg(long, value_name = "KEY")]
    only: Vec<String>,
    /// Settings to try; one that sees a part of the workloads counts as that part
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(4..=100_000))]
    budget: u32,
    /// Seeds of each workload that is random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// Simulations at once; without it, as many as there are cores. The result does not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// A file in which trials are kept: the same command goes on from there
    #[arg(long, value_name = "FILE")]
    trials: Option<PathBuf>,
    /// The file of settings to write; without it, the one beside the policy
    #[arg(long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
    /// Write the settings even if what was held out does not confirm them
    #[arg(long)]
    unconfirmed: bool,
    #[command(flatten)]
    scene: SceneArgs,
    /// The command as it was typed, which the file of settings tells.
    #[arg(skip)]
    pub command: Vec<String>,
}

/// Searches better settings, and writes them beside the policy if what was held out confirms them.
///
/// # Errors
/// If an argument is of no use, the policy does not start, or a file cannot be written. Settings that were found are
/// told all the same.
pub fn run(args: &Args, defaults: &[EmbeddedPolicy]) -> Result<Done> {
    let objective = Objective::parse(&args.objective);
    let objective = objective.map_err(|why| anyhow!("--objective: {why}"))?;
    let output = args.output();
    for (flag, path) in [
        ("--output", Some(&output)),
        ("--trials", args.trials.as_ref()),
    ] {
        if let Some(path) = path {
            // Before hours are spent on what it is to have.
            pointsman_files::check_replaceable(path)
                .with_context(|| format!("{flag} {} cannot be written", path.display()))?;
        }
    }
    let stable = Stable::new(defaults)?;
    let policy = stable.load(&args.file.file)?;
    let space = Space::new(&policy.described()?, &args.only, &policy.settings)?;
    sidecar::check(&output, &space.table(&space.start()))?;
    let scenes = Scenes::find(args.named(), &args.scene, (&stable, defaults))?;
    let tuning = Tuning {
        args,
        objective,
        policy,
        space,
        scenes,
        stop: Stop::on_ctrl_c()?,
    };
    tuning.run(&output)
}

impl Args {
    fn output(&self) -> PathBuf {
        let beside = || self.file.file.with_extension("toml");
        self.output.clone().unwrap_or_else(beside)
    }

    fn named(&self) -> Named<'_> {
        Named {
            searched: &self.workload,
            held_out: &self.held_out,
            seeds: self.seeds,
        }
    }

    fn threads(&self) -> usize {
        let cores = || thread::available_parallelism().ok();
        self.threads.or_else(cores).map_or(1, NonZeroUsize::get)
    }

    /// The command, but for what has no say in its result.
    fn command(&self) -> String {
        let mut words = self.command.iter();
        let mut kept: Vec<String> = Vec::new();
        while let Some(word) = words.next() {
            if word == "--threads" {
                words.next();
            } else if !word.starts_with("--threads=") {
                let is_plain = !word.is_empty() && !word.contains(|it: char| " ;'\"".contains(it));
                kept.push(if is_plain {
                    word.clone()
                } else {
                    format!("{word:?}")
                });
            }
        }
        kept.join(" ")
    }
}

/// A search, and all that it is about.
struct Tuning<'a> {
    args: &'a Args,
    objective: Objective,
    policy: LoadedPolicy,
    space: Space,
    scenes: Scenes,
    stop: Stop,
}

/// The runs of one part of the workloads, before and after.
struct Part<'a> {
    title: &'static str,
    scenes: &'a [Scene],
    before: Vec<RunReport>,
    after: Vec<RunReport>,
}

impl Tuning<'_> {
    fn run(&self, output: &Path) -> Result<Done> {
        let start = self.space.table(&self.space.start());
        let head = self.args.trials.as_ref().map(|_| self.head());
        let head = head.transpose()?.unwrap_or_default();
        let first = self.whole(&self.scenes.searched, &[&start])?;
        let before = first.into_iter().next().unwrap_or_default();
        let found = self.search(head, &start, &before)?;
        let after = self.space.table(&found.best);
        if found.is_stopped && self.args.trials.is_some() {
            return Ok(Done::not_good(self.stopped(&found)));
        }
        self.stop.forget();
        let parts = self.parts(&start, &after, before)?;
        let evidence = self.evidence(&found, &parts);
        if found.best == self.space.start() {
            return Ok(Done::good(format!(
                "{evidence}nothing better was found: no file is written\n"
            )));
        }
        let doubts = self.doubts(&parts);
        if !doubts.is_empty() && !self.args.unconfirmed {
            return Ok(Done::not_good(format!(
                "{evidence}{doubts}no file is written: --unconfirmed writes it all the same\n"
            )));
        }
        let evidence = format!("{evidence}{doubts}");
        let settings = sidecar::Tuned {
            before: &start,
            after: &after,
        };
        let shown = output.display();
        Ok(match sidecar::write(output, &evidence, &settings) {
            Ok(()) => Done::good(format!("{evidence}written: {shown}\n")),
            // Hours may have gone into the evidence.
            Err(error) => Done::not_good(format!("{evidence}no file is written: {error:#}\n")),
        })
    }

    fn whole(
        &self,
        scenes: &[Scene],
        tables: &[&Map<String, Value>],
    ) -> Result<Vec<Vec<RunReport>>> {
        let how = (self.args.threads(), &self.stop);
        let runs = whole_runs(scenes, &self.policy, tables, how);
        runs.map_err(|error| match error.is::<Interrupted>() {
            true => error.context("stopped"),
            false => error,
        })
    }

    fn search(
        &self,
        mut head: Map<String, Value>,
        start: &Map<String, Value>,
        before: &[RunReport],
    ) -> Result<Found> {
        let digest = Digest::of(&serde_json::to_vec(before)?);
        head.insert(RUNS_BEFORE.to_owned(), digest.to_string().into());
        let mut kept = Kept::open(self.args.trials.as_deref(), &head)?;
        kept.begin(start, self.numbers(before))?;
        let mut runner = Runner {
            space: &self.space,
            objective: &self.objective,
            policy: &self.policy,
            scenes: &self.scenes.searched,
            requests: before.iter().map(|report| report.requests).collect(),
            threads: self.args.threads(),
            stop: &self.stop,
            kept,
            bar: Bar::new(usize::try_from(self.args.budget)?, "trials"),
            done: 0.0,
        };
        let plan = SearchPlan {
            budget: self.args.budget,
            seed: self.args.scene.seed,
            requests: fewest(before),
        };
        let found = search(&self.space, plan, &mut runner);
        runner.bar.clear();
        found
    }

    /// The search that a file of trials belongs to: all that its trials depend on, but for what its arguments name, as
    /// the content of a trace. [`RUNS_BEFORE`] tells of that.
    fn head(&self) -> Result<Map<String, Value>> {
        let keys: Vec<&str> = self.space.dims().iter().map(|it| it.key.as_str()).collect();
        let own = json!({
            "policy": self.policy.component.digest().to_string(),
            "workloads": self.args.workload,
            "held-out": self.args.held_out,
            "objective": self.args.objective,
            "settings": keys,
            "before": self.policy.settings,
            "seed": self.args.scene.seed,
            "seeds": self.args.seeds,
        });
        let mut head = self.args.scene.flags()?;
        head.extend(own.as_object().cloned().unwrap_or_default());
        let limits = self.policy.limits.rows();
        head.extend(limits.map(|(name, value)| (format!("limits.{name}"), value.into())));
        Ok(head)
    }

    fn numbers(&self, reports: &[RunReport]) -> Vec<Numbers> {
        let of = |report: &RunReport| self.objective.numbers(report);
        reports.iter().map(of).collect()
    }

    /// The searched and the held-out part, before and after.
    fn parts(
        &self,
        start: &Map<String, Value>,
        after: &Map<String, Value>,
        before: Vec<RunReport>,
    ) -> Result<[Part<'_>; 2]> {
        let searched = self.whole(&self.scenes.searched, &[after])?;
        let mut held_out = self
            .whole(&self.scenes.held_out, &[start, after])?
            .into_iter();
        let searched = searched.into_iter().next().unwrap_or_default();
        Ok([
            Part {
                title: "searched",
                scenes: &self.scenes.searched,
                before,
                after: searched,
            },
            Part {
                title: "held out",
                scenes: &self.scenes.held_out,
                before: held_out.next().unwrap_or_default(),
                after: held_out.next().unwrap_or_default(),
            },
        ])
    }

    /// The standings of a part, before and after.
    fn standings(&self, part: &Part<'_>) -> [Standing; 2] {
        let (before, after) = (self.numbers(&part.before), self.numbers(&part.after));
        [&before, &after].map(|it| standing(&self.objective, it, &before))
    }

    /// Reasons not to believe in what was found.
    fn doubts(&self, parts: &[Part<'_>; 2]) -> String {
        let mut doubts = String::new();
        for part in parts {
            let [before, after] = self.standings(part);
            if after.missing > before.missing {
                let why = "lacks numbers that it had before";
                doubts.push_str(&format!("NOT CONFIRMED: {} {why}\n", part.title));
            } else if after.broken > 0.0 {
                doubts.push_str(&format!("NOT CONFIRMED: {} breaks a bound\n", part.title));
            } else if !after.is_better(&before) {
                doubts.push_str(&format!("NOT CONFIRMED: {} gains nothing\n", part.title));
            }
        }
        doubts
    }

    fn stopped(&self, found: &Found) -> String {
        format!(
            "stopped. The best so far:\n{}the same command goes on from there\n",
            self.changes(found)
        )
    }

    /// The settings that were changed, a line each.
    fn changes(&self, found: &Found) -> String {
        let start = self.space.start();
        let each = self.space.dims().iter().zip(start.iter().zip(&found.best));
        let changed = each.filter(|(_, (before, after))| before != after);
        let line = |(dim, (before, after)): (&space::Dim, (&Option<u64>, &Option<u64>))| {
            let (before, after) = (dim.shown(*before), dim.shown(*after));
            format!("{}: {before} before, {after} now\n", dim.key)
        };
        changed.map(line).collect()
    }

    /// The evidence for what was found, which the file of settings has too.
    fn evidence(&self, found: &Found, parts: &[Part<'_>; 2]) -> String {
        let Args {
            budget, objective, ..
        } = self.args;
        let name = &self.policy.name;
        let digest = self.policy.component.digest();
        let ended = if found.is_stopped {
            ", stopped early"
        } else {
            ""
        };
        let mut text = format!(
            "{name}, tuned: {objective}\npolicy sha256 {digest}\nseed {}, budget {budget}{ended}\n",
            self.args.scene.seed
        );
        let command = self.args.command();
        if !command.is_empty() {
            text.push_str(&format!("command: {command}\n"));
        }
        text.push_str(&self.changes(found));
        text.push_str(&aligned(&self.rows(parts)));
        for note in &self.scenes.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }

    /// The table of what the objective looks at.
    fn rows(&self, parts: &[Part<'_>; 2]) -> Vec<Vec<String>> {
        let quantities = self.objective.quantities();
        let mut head = vec!["part".to_owned(), String::new()];
        head.extend(quantities.iter().map(|it| it.name()));
        let mut rows = vec![head];
        for part in parts {
            let each = part.scenes.iter().zip(part.before.iter().zip(&part.after));
            for (scene, (before, after)) in each {
                for (when, report) in [("before", before), ("after", after)] {
                    let mut row = vec![format!("{}: {}", part.title, scene.label), when.to_owned()];
                    row.extend(quantities.iter().map(|it| it.shown(it.value(report))));
                    rows.push(row);
                }
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests;
