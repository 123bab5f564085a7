//! A journal as a workload: what happened is simulated first, so that an operator knows the error to
//! reckon with, and then what other policies would have done.

mod accuracy;
mod read;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use pointsman_journal::{Chain, PolicyRecord};
use pointsman_sim::fleet::FleetPlan;
use pointsman_sim::history::{Lacks, Speed, SpeedFrom};
use pointsman_sim::latency::LinearCost;
use pointsman_sim::measure::{Goodput, RunReport};
use pointsman_sim::workload::Listed;
use serde_json::json;

use super::runs::Runs;
pub(super) use accuracy::Accuracy;
use pointsman_notation::grouped;
use read::ReadJournal;

/// Executors whose speed is shown, at most.
const SPEEDS_SHOWN: usize = 8;

/// The mean error of a fitted speed above which it is remarked upon.
const ERROR_MAX: f64 = 0.2;

/// A run of a journal, and what a simulation of it needs.
#[derive(Debug)]
pub(crate) struct PastRun {
    pub(super) workload: Listed,
    pub(super) fleet: FleetPlan,
    pub(super) config: pointsman_core::Config,
    /// The run as it was.
    pub(super) recorded: RunReport,
    pub(crate) policies: Vec<PolicyRecord>,
    pub(crate) chains: Vec<Chain>,
    speeds: Vec<Speed>,
    /// Remarks on what the simulation does not repeat.
    pub(crate) notes: Vec<String>,
}

impl PastRun {
    /// Finds a journal by what is there: a folder, or a file that begins like one. Absent: it is
    /// something else.
    ///
    /// # Errors
    /// If the journal cannot be read or lacks what a simulation needs.
    pub(crate) fn find(text: &str, goodput: Goodput) -> Result<Option<Self>> {
        let path = Path::new(text);
        if !is_journal(path) {
            return Ok(None);
        }
        let journal = ReadJournal::open(path)?;
        let mut notes = notes_of(&journal);
        let (policies, chains) = journal.run.policies();
        let history = journal.run.history.context("it has no keyframe")?;
        let told = history.told(goodput).with_context(|| text.to_owned())?;
        notes.extend(remarks(&told.lacks));
        let unsteady = told.speeds.iter().filter(|it| it.fit.error > ERROR_MAX);
        notes.extend(list(&[(
            unsteady.count() as u64,
            "executors were not as steady as a simulated one is: take the differences below seriously",
        )]));
        Ok(Some(Self {
            workload: told.workload,
            fleet: told.fleet,
            config: told.config,
            recorded: told.report,
            policies,
            chains,
            speeds: told.speeds,
            notes,
        }))
    }

    /// The run as it was, as a line of the table.
    pub(super) fn row(&self) -> Runs {
        let mut recorded = self.recorded.clone();
        // A journal does not say how many blocks are in use.
        recorded.course.kv_used.clear();
        Runs {
            label: "recorded".to_owned(),
            runs: vec![(0, recorded)],
        }
    }

    /// The speeds and the remarks, a line each.
    pub(super) fn preface(&self) -> String {
        let mut text = String::new();
        for speed in self.speeds.iter().take(SPEEDS_SHOWN) {
            text.push_str(&speed_line(speed));
        }
        let more = self.speeds.len().saturating_sub(SPEEDS_SHOWN);
        if more > 0 {
            text.push_str(&format!("and {more} more executors\n"));
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }

    /// The run and its simulation, for programs.
    pub(super) fn as_json(&self, simulated: &RunReport) -> serde_json::Value {
        let speed = |speed: &Speed| {
            let cost = &speed.fit.cost;
            json!({
                "executor": speed.executor,
                "step_ms": cost.step_ms,
                "prefill_token_ms": cost.prefill_token_ms,
                "prefill_pair_ms": cost.prefill_pair_ms,
                "decode_ms": cost.decode_ms,
                "decode_context_ms": cost.decode_context_ms,
                "steps": speed.fit.steps,
                "error": speed.fit.error,
                "own_steps": speed.from == SpeedFrom::Own,
            })
        };
        json!({
            "recorded": self.recorded,
            "simulated": simulated,
            "differences": Accuracy::of(&self.recorded, simulated),
            "speeds": self.speeds.iter().map(speed).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

/// Tells whether a journal is at a path.
fn is_journal(path: &Path) -> bool {
    if path.is_dir() {
        return true;
    }
    let mut head = [0; 8];
    let mut read = || File::open(path)?.read_exact(&mut head);
    // What is read of a pipe is not there a second time.
    path.is_file() && read().is_ok() && pointsman_journal::is_journal(&head)
}

fn speed_line(speed: &Speed) -> String {
    let Speed {
        executor,
        fit,
        from,
    } = speed;
    let from = match from {
        SpeedFrom::Own => "steps",
        SpeedFrom::All => "steps of all executors",
    };
    format!(
        "{executor}: {}; fitted to {} {from}, off by {:.1} % on average\n",
        cost_words(&fit.cost),
        grouped(fit.steps),
        fit.error * 100.0
    )
}

/// The parts of a cost that are there, in µs.
fn cost_words(cost: &LinearCost) -> String {
    let parts = [
        (cost.step_ms, "step"),
        (cost.prefill_token_ms, "prompt token"),
        (cost.prefill_pair_ms, "prompt token and token before it"),
        (cost.decode_ms, "generated token"),
        (
            cost.decode_context_ms,
            "generated token and token before it",
        ),
    ];
    let parts = parts.iter().filter(|(ms, _)| *ms > 0.0);
    let words: Vec<String> = parts
        .map(|(ms, what)| format!("{} a {what}", micros(ms * 1000.0)))
        .collect();
    words.join(", ")
}

fn micros(micros: f64) -> String {
    match micros {
        micros if micros < 1.0 => format!("{:.2} ns", micros * 1000.0),
        micros if micros < 1000.0 => format!("{micros:.1} µs"),
        micros => format!("{:.2} ms", micros / 1000.0),
    }
}

/// Remarks on the journal.
fn notes_of(journal: &ReadJournal) -> Vec<String> {
    let otherwise = journal.run.decided_otherwise();
    let mut notes = journal.passed_over.notes();
    let parts = [
        (
            journal.others,
            "other runs are in the journal: this is the one with the most requests",
        ),
        (
            journal.foreign as u64,
            "files of the journal have a format that this version does not read: they are passed over",
        ),
        (
            journal.damaged,
            "places of the journal are damaged or missing: what happened there is left out",
        ),
        (
            journal.cut_off as u64,
            "files of the journal end within an entry, as those of a server that was stopped or still writes do",
        ),
        (
            otherwise,
            "requests came while other policies decided: all are simulated with those of most",
        ),
    ];
    notes.extend(list(&parts));
    notes
}

/// Remarks on the run.
fn remarks(lacks: &Lacks) -> Vec<String> {
    let guessed = format!(
        "requests never got a token, so their answers are taken to be {} tokens long, the median",
        lacks.guessed_tokens
    );
    let parts = [
        (
            lacks.under_way,
            "requests were under way when the journal began: they are left out",
        ),
        (
            lacks.unended,
            "requests had not ended when the journal did: they end with the tokens they had",
        ),
        (lacks.unknown_lengths, guessed.as_str()),
        (
            lacks.gaps,
            "times entries are missing: requests that arrived then are left out",
        ),
        (
            lacks.losses,
            "executors were lost: the simulation loses none but by --failures",
        ),
        (
            lacks.joined,
            "executors came after the first request: the simulation has them from the beginning",
        ),
        (
            lacks.detached,
            "executors left: in the simulation they serve to the end",
        ),
        (
            lacks.drained,
            "times an executor was drained: in the simulation it takes requests all the same",
        ),
        (
            lacks.untold_blocks,
            "executors never told their KV blocks: they are given 16,384",
        ),
        (
            lacks.sharing,
            "executors shared a device's KV blocks: each is given an equal part",
        ),
        (
            lacks.swapping,
            "executors hold a bounded number of models: the time to load one is not in a journal, and taken to be 0",
        ),
        (
            lacks.returns,
            "requests preferred an executor, and named no session or one of before the journal: in the simulation they prefer none",
        ),
        (
            lacks.too_long,
            "times an executor found a request too long: the simulation sends it to the others from the beginning",
        ),
        (
            lacks.broken_off,
            "times an answer broke off, and not every executor could go on with it: in the simulation none breaks off",
        ),
    ];
    list(&parts)
}

/// The parts that there are, each as a sentence.
fn list(parts: &[(u64, &str)]) -> Vec<String> {
    let parts = parts.iter().filter(|(number, _)| *number > 0);
    parts
        .map(|(number, what)| format!("{} {what}", grouped(*number)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_that_did_not_serve_all_the_time_are_remarked_upon() {
        let lacks = Lacks {
            joined: 2,
            detached: 1,
            drained: 3,
            ..Lacks::default()
        };
        let said = remarks(&lacks);
        assert_eq!(said.len(), 3, "{said:?}");
        for (line, begins) in said.iter().zip([
            "2 executors came after the first request",
            "1 executors left",
            "3 times an executor was drained",
        ]) {
            assert!(line.starts_with(begins), "{line}");
        }
    }
}
