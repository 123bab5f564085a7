//! Trials: settings, simulated in each run of the searched part, on all cores. What was tried is
//! kept in a file, and is not tried again.
//!
//! # Invariants
//! 1. The file is the same to the byte whether a search was interrupted or not, and on however many
//!    cores it ran (`policy_cli::tune`): a trial is written when all before it are.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};
use pointsman_sim::measure::RunReport;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::objective::{Aim, Micro, Objective, float};
use super::scenes::Scene;
use super::search::{self, Share, Standing, WHOLE};
use super::space::{Point, Space};
use crate::simulate::{Bar, Contender, Interrupted, LoadedPolicy, at_once};
use crate::stop::Stop;

/// The most bytes of a file of trials.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The key of a file's head for the runs with the settings before: their digest.
pub(super) const RUNS_BEFORE: &str = "runs-before";

/// The numbers of one run: those that the objective looks at, in its order; absent: there is none.
pub(super) type Numbers = Vec<Option<Micro>>;

/// A trial, as a line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Trial {
    /// The trial saw one over this of each workload.
    share: u64,
    settings: Map<String, Value>,
    /// The numbers of each run; absent: the policy refuses the settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    numbers: Option<Vec<Numbers>>,
}

/// Trials that were made, and their file.
#[derive(Debug)]
pub(super) struct Kept {
    path: Option<PathBuf>,
    lines: Vec<String>,
    trials: BTreeMap<(u64, String), Option<Vec<Numbers>>>,
}

/// A maker of trials.
pub(super) struct Runner<'a> {
    pub(super) space: &'a Space,
    pub(super) objective: &'a Objective,
    pub(super) policy: &'a LoadedPolicy,
    pub(super) scenes: &'a [Scene],
    /// Requests of each run.
    pub(super) requests: Vec<u64>,
    pub(super) threads: usize,
    pub(super) stop: &'a Stop,
    pub(super) kept: Kept,
    pub(super) bar: Bar,
    /// Trials that are over; of one that saw a part, that part.
    pub(super) done: f64,
}

// === impl Kept ===

impl Kept {
    /// Opens the file of a search with this head, or begins one.
    ///
    /// # Errors
    /// If it is the file of another search, or none.
    pub(super) fn open(path: Option<&Path>, head: &Map<String, Value>) -> Result<Self> {
        let mut kept = Self {
            path: path.map(Path::to_owned),
            lines: vec![Value::Object(head.clone()).to_string()],
            trials: BTreeMap::new(),
        };
        if let Some(path) = path
            && path.exists()
        {
            let text = pointsman_files::read_text(path, FILE_BYTES_MAX);
            let text = text.with_context(|| format!("--trials {}", path.display()))?;
            kept.read(&text, head)
                .with_context(|| format!("--trials {}", path.display()))?;
        }
        Ok(kept)
    }

    /// Keeps the trial of the settings before, whose numbers were just found.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn begin(
        &mut self,
        settings: &Map<String, Value>,
        numbers: Vec<Numbers>,
    ) -> Result<()> {
        self.add(&Trial {
            share: WHOLE.0,
            settings: settings.clone(),
            numbers: Some(numbers),
        });
        self.write()
    }

    fn read(&mut self, text: &str, head: &Map<String, Value>) -> Result<()> {
        let mut lines = text.lines();
        let first: Map<String, Value> = serde_json::from_str(lines.next().unwrap_or_default())
            .context("it is no file of trials: remove it, or name another")?;
        for key in head.keys().chain(first.keys()) {
            let [was, value] = [&first, head].map(|it| it.get(key).unwrap_or(&Value::Null));
            // Last: with other arguments there are other runs.
            ensure!(
                key == RUNS_BEFORE || was == value,
                "it has the trials of another search, whose {key} is {was} and not {value}: remove \
                 it, or name another file"
            );
        }
        ensure!(
            first.get(RUNS_BEFORE) == head.get(RUNS_BEFORE),
            "it has other numbers for the settings before: a workload, the executors, another policy or \
             this program has changed. Remove it, or name another file"
        );
        for (idx, line) in lines.enumerate() {
            let trial: Trial = serde_json::from_str(line)
                .with_context(|| format!("line {}: no trial", idx + 2))?;
            self.add(&trial);
        }
        Ok(())
    }

    fn add(&mut self, trial: &Trial) {
        let line = serde_json::to_string(trial).unwrap_or_default();
        let key = (
            trial.share,
            Value::Object(trial.settings.clone()).to_string(),
        );
        if self.trials.insert(key, trial.numbers.clone()).is_none() {
            self.lines.push(line);
        }
    }

    fn find(&self, share: u64, settings: &Map<String, Value>) -> Option<&Option<Vec<Numbers>>> {
        let key = (share, Value::Object(settings.clone()).to_string());
        self.trials.get(&key)
    }

    fn write(&self) -> Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let text = format!("{}\n", self.lines.join("\n"));
        pointsman_files::replace(path, |file| file.write_all(text.as_bytes()))
            .with_context(|| format!("--trials {}", path.display()))
    }
}

// === impl Runner ===

/// The settings of a trial that has to be made, and the policies with them; absent: the policy
/// refuses them.
struct Due {
    settings: Map<String, Value>,
    seated: Option<Vec<Contender>>,
}

/// Trials that are being made.
struct Pending<'k> {
    kept: &'k mut Kept,
    /// The reports of each trial's runs.
    reports: Vec<Vec<Option<Numbers>>>,
    /// Trials that are over and written.
    written: usize,
    failed: Option<anyhow::Error>,
}

impl search::Trials for Runner<'_> {
    fn run(&mut self, share: Share, points: &[Point]) -> Result<ControlFlow<(), Vec<Standing>>> {
        let mut wanted = vec![self.space.table(&self.space.start())];
        wanted.extend(points.iter().map(|point| self.space.table(point)));
        let mut seen = BTreeSet::new();
        let mut due = wanted.clone();
        due.retain(|table| {
            let is_new = seen.insert(Value::Object(table.clone()).to_string());
            is_new && self.kept.find(share.0, table).is_none()
        });
        let due: Vec<Due> = due.into_iter().map(|it| self.due(it)).collect();
        if self.make(share, &due)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        for _ in points {
            self.done += 1.0 / share.of();
        }
        self.bar.fill(self.done);
        let numbers = |table| self.kept.find(share.0, table).and_then(Option::as_ref);
        let before = numbers(&wanted[0]).context("the policy refuses the settings it has")?;
        let standings = wanted[1..].iter().map(|table| {
            numbers(table).map_or(Standing::REFUSED, |it| standing(self.objective, it, before))
        });
        Ok(ControlFlow::Continue(standings.collect()))
    }
}

impl Runner<'_> {
    fn due(&self, settings: Map<String, Value>) -> Due {
        let seated = self.policy.source(&settings).ok().map(|source| {
            let scenes = self.scenes.iter();
            scenes.map(|scene| scene.base.with(&source)).collect()
        });
        Due { settings, seated }
    }

    /// Makes trials, and writes each when those before it are over.
    fn make(&mut self, share: Share, due: &[Due]) -> Result<ControlFlow<()>> {
        let runs = self.scenes.len();
        let jobs: Vec<(usize, usize)> = (0..due.len())
            .filter(|trial| due[*trial].seated.is_some())
            .flat_map(|trial| (0..runs).map(move |run| (trial, run)))
            .collect();
        let pending = Mutex::new(Pending {
            kept: &mut self.kept,
            reports: vec![vec![None; runs]; due.len()],
            written: 0,
            failed: None,
        });
        let objective = self.objective;
        let (scenes, requests, stop) = (self.scenes, &self.requests, self.stop);
        at_once(&jobs, self.threads, |_, (trial, run)| {
            let Some(contender) = due[*trial].seated.as_ref().and_then(|all| all.get(*run)) else {
                return;
            };
            let report = simulated(&scenes[*run], contender, (share.0, requests[*run]), stop);
            let numbers = report.map(|report| objective.numbers(&report));
            if let Ok(mut pending) = pending.lock() {
                pending.note((*trial, *run), numbers, (share, due));
            }
        });
        let mut pending = pending
            .into_inner()
            .unwrap_or_else(|held| held.into_inner());
        pending.settle(share, due);
        match pending.failed {
            None => Ok(ControlFlow::Continue(())),
            Some(error) if error.is::<Interrupted>() => Ok(ControlFlow::Break(())),
            Some(error) => Err(error),
        }
    }
}

/// Makes a run, unless it is told to stop.
fn simulated(
    scene: &Scene,
    contender: &Contender,
    (share, requests): (u64, u64),
    stop: &Stop,
) -> Result<RunReport> {
    if stop.is_asked() {
        bail!(Interrupted);
    }
    let setting = scene.first(share, requests);
    setting.run(contender, scene.seed, &|_| stop.flow())
}

impl Pending<'_> {
    fn note(
        &mut self,
        (trial, run): (usize, usize),
        numbers: Result<Numbers>,
        (share, due): (Share, &[Due]),
    ) {
        match numbers {
            Ok(numbers) => self.reports[trial][run] = Some(numbers),
            Err(error) => {
                // What went wrong counts more than that somebody asked to stop.
                let is_first = self.failed.as_ref().is_none_or(|it| it.is::<Interrupted>());
                if is_first {
                    self.failed = Some(error);
                }
            }
        }
        self.settle(share, due);
    }

    /// Keeps the trials that are over, up to the first that is not.
    fn settle(&mut self, share: Share, due: &[Due]) {
        let before = self.written;
        while let Some(trial) = due.get(self.written) {
            let numbers: Option<Vec<Numbers>> =
                self.reports[self.written].iter().cloned().collect();
            if trial.seated.is_some() && numbers.is_none() {
                break;
            }
            self.kept.add(&Trial {
                share: share.0,
                settings: trial.settings.clone(),
                numbers: numbers.filter(|_| trial.seated.is_some()),
            });
            self.written += 1;
        }
        if self.written > before
            && let Err(error) = self.kept.write()
        {
            self.failed = Some(error);
        }
    }
}

/// The standing of settings by the numbers of each run, and those before.
pub(super) fn standing(objective: &Objective, after: &[Numbers], before: &[Numbers]) -> Standing {
    let quantities = objective.quantities();
    let mut standing = Standing::default();
    for (after, before) in after.iter().zip(before) {
        standing.missing += after.iter().filter(|number| number.is_none()).count();
        if let Some(after) = after[0] {
            let grain = objective.goal.grain();
            let (change, scale) = match before[0] {
                Some(before) => (after - before, float(before).abs() + grain),
                // It weighs no more than the change of another run.
                None => (after, float(after).abs() + 100.0 * grain),
            };
            standing.goal += match objective.aim {
                Aim::Least => float(change) / scale,
                Aim::Most => -float(change) / scale,
            };
        }
        for bound in &objective.bounds {
            let place = quantities.iter().position(|it| *it == bound.quantity);
            let Some(value) = after[place.unwrap_or(0)] else {
                continue;
            };
            let over = match bound.side {
                Aim::Least => value - bound.value,
                Aim::Most => bound.value - value,
            };
            let scale = float(bound.value).abs() + bound.quantity.grain();
            standing.broken += float(over.max(0)) / scale;
        }
    }
    standing
}

/// The whole runs of settings, outside any search.
pub(super) fn whole_runs(
    scenes: &[Scene],
    policy: &LoadedPolicy,
    tables: &[&Map<String, Value>],
    (threads, stop): (usize, &Stop),
) -> Result<Vec<Vec<RunReport>>> {
    let mut jobs = Vec::new();
    for table in tables {
        let source = policy.source(table)?;
        jobs.extend(scenes.iter().map(|scene| (scene, scene.base.with(&source))));
    }
    let reports = at_once(&jobs, threads, |_, (scene, contender)| {
        simulated(scene, contender, (WHOLE.0, 0), stop)
    });
    let mut reports = reports.into_iter();
    let each = tables
        .iter()
        .map(|_| reports.by_ref().take(scenes.len()).collect());
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objective(text: &str) -> Objective {
        Objective::parse(text).unwrap()
    }

    fn there<const N: usize>(numbers: [Micro; N]) -> Numbers {
        numbers.map(Some).to_vec()
    }

    #[test]
    fn a_broken_bound_weighs_more_than_any_gain() {
        let objective = objective("p95 ttft; goodput >= 95%");
        let stands = |one: [Micro; 2], other: [Micro; 2]| {
            let before = [[1_000_000, 960_000], [100_000, 960_000]];
            standing(&objective, &[one, other].map(there), &before.map(there))
        };
        let same = stands([1_000_000, 960_000], [100_000, 960_000]);
        assert_eq!((same.broken, same.goal), (0.0, 0.0));
        let faster = stands([900_000, 950_000], [100_000, 950_000]);
        assert!(faster.is_better(&same));
        let broken = stands([1, 940_000], [1, 990_000]);
        assert!(same.is_better(&broken) && broken.broken > 0.0);
        // A tenth of each workload counts alike, however long its times are.
        let other = stands([1_000_000, 960_000], [90_000, 960_000]);
        assert!(
            (other.goal - faster.goal).abs() < 0.01,
            "{other:?} {faster:?}"
        );
        assert!(broken.is_better(&Standing::REFUSED));
    }

    #[test]
    fn settings_that_serve_nobody_are_worse_than_any_that_serve_somebody() {
        let objective = objective("p95 ttft; goodput >= 95%");
        let before = [[1_000_000, 960_000], [100_000, 960_000]].map(there);
        let stands = |after: [&Numbers; 2]| standing(&objective, &after.map(Clone::clone), &before);
        let (slow, nobody) = (there([9_000_000, 100_000]), vec![None, Some(0)]);
        let [served, partly, given_up] =
            [[&slow, &slow], [&slow, &nobody], [&nobody, &nobody]].map(stands);
        assert!(served.is_better(&partly) && partly.is_better(&given_up));
        assert!(given_up.is_better(&Standing::REFUSED));
        // The settings before may be such, too.
        let none = [nobody.clone(), nobody];
        let same = standing(&objective, &none, &none);
        let [slow, fast] = [slow, there([3_000_000, 100_000])]
            .map(|it| standing(&objective, &[it.clone(), it], &none));
        assert!(slow.is_better(&same) && fast.is_better(&slow));
    }

    #[test]
    fn what_is_kept_is_of_one_search() {
        let head = |seed: u32| Map::from_iter([("seed".to_owned(), Value::from(seed))]);
        let with_runs = |seed, runs: &str| {
            let mut with = head(seed);
            with.insert(RUNS_BEFORE.to_owned(), runs.into());
            with
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trials");
        let trial = Trial {
            share: 3,
            settings: Map::from_iter([("cost".to_owned(), Value::from(5))]),
            numbers: Some(vec![vec![Some(1), None], vec![Some(3), Some(4)]]),
        };
        let mut kept = Kept::open(Some(&path), &head(1)).unwrap();
        kept.add(&trial);
        kept.add(&trial);
        kept.write().unwrap();
        let again = Kept::open(Some(&path), &head(1)).unwrap();
        assert_eq!(again.lines, kept.lines);
        assert_eq!(again.lines.len(), 2);
        assert_eq!(again.find(3, &trial.settings), Some(&trial.numbers));
        assert_eq!(again.find(1, &trial.settings), None);
        for (other, why) in [
            (with_runs(2, "a"), "whose seed is 1 and not 2: remove it"),
            (with_runs(1, "a"), "other numbers for the settings before"),
        ] {
            let said = format!("{:#}", Kept::open(Some(&path), &other).unwrap_err());
            assert!(said.contains(why), "{said}");
        }
        std::fs::write(&path, "hello").unwrap();
        let none = format!("{:#}", Kept::open(Some(&path), &head(1)).unwrap_err());
        assert!(none.contains("it is no file of trials"), "{none}");
    }
}
