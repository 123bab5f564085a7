//! `policy scenario`: a decision of production, out of a journal, as a scenario file.
//!
//! The machine of the journal is brought to the round. `told` writes down what policies were told
//! then, `decided` what was decided. The recorded policies are put through the file at once: where they
//! decide otherwise in it, something counted that a scenario cannot have, and the file says so.

mod decided;
mod lacks;
mod names;
mod setting;
mod told;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pointsman_component::PolicyEngine;
use pointsman_core::{Machine, Micros, Round, Stamped};
use pointsman_journal::{JournalReader, PolicyRecord, Roster};
use pointsman_replay::{Retelling, Rounds, recorded_source};
use pointsman_testkit::{Flavour, Kit, Registry, RunError, Scenario};

use super::{Done, code};
use decided::Decided;
use told::Told;

/// Arguments of `policy scenario`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The journal: its folder, or one of its files
    #[arg(value_name = "JOURNAL")]
    journal: PathBuf,
    /// The round, as `pointsman journal show --entries` has it at each fact; of several runs that of the
    /// last one which has it
    #[arg(value_name = "ROUND")]
    round: u64,
    /// File for the scenario [default: it is printed]
    #[arg(long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
}

/// The search for a round.
struct Search {
    wanted: Round,
    /// The state before the round, once it may be the next one.
    before: Option<Before>,
    found: Option<Found>,
    /// The last round before the wanted one in which something was decided, and the first one after.
    nearest: [Option<Round>; 2],
    last: Option<Round>,
    /// True if the journal ends within the round after the last.
    is_cut_off: bool,
}

/// A machine before a round.
struct Before {
    told: Told,
    policies: Vec<PolicyRecord>,
}

/// The round that was looked for.
struct Found {
    before: Before,
    decided: Decided,
}

pub(super) fn run(args: &Args) -> Result<Done> {
    let found = find(&args.journal, Round(args.round))?;
    if let Some(output) = &args.output {
        anyhow::ensure!(
            !output.exists(),
            "{} is there already: name another with --output",
            output.display()
        );
    }
    let text = found.text(args);
    let Some(output) = &args.output else {
        return Ok(Done {
            verdict: text.verdict,
            text: text.text,
        });
    };
    let shown = output.display();
    fs::write(output, &text.text).with_context(|| format!("{shown} not written"))?;
    let told = text.comments.join("\n");
    Ok(Done {
        text: format!("{told}\nagain: pointsman policy test POLICY.wasm {shown}\n"),
        verdict: text.verdict,
    })
}

/// Reads a journal for the round, in the last run that has it.
fn find(journal: &Path, wanted: Round) -> Result<Found> {
    let mut search = Search {
        wanted,
        before: None,
        found: None,
        nearest: [None, None],
        last: None,
        is_cut_off: false,
    };
    let mut retelling = Retelling::new();
    let mut reader = JournalReader::open(journal)?;
    let mut damage = Vec::new();
    for located in reader.by_ref() {
        match located {
            Ok(located) => {
                let begins_run = retelling.passed_over().begins_run(&located);
                retelling.take(located, &mut search)?;
                if begins_run {
                    search.next_run();
                }
            }
            Err(error) => {
                damage.push(format!("damaged: {error}"));
                retelling.interrupted();
            }
        }
    }
    search.is_cut_off = retelling.finish(&mut search)?;
    if let Some(found) = search.found.take() {
        return Ok(found);
    }
    damage.extend(retelling.passed_over().notes());
    let torn = reader.torn_tails().iter();
    damage.extend(torn.map(|torn| format!("cut off: {} at {}", torn.file.display(), torn.offset)));
    bail!("{}: {}", journal.display(), search.missing(&damage))
}

// === impl Search ===

impl Search {
    /// Looks for the round in the next run: each counts its own, and the last one is meant.
    fn next_run(&mut self) {
        self.before = None;
        self.nearest = [None, None];
        self.last = None;
    }

    /// The reason why the round was not found, and the nearest ones that can be had.
    fn missing(&self, damage: &[String]) -> String {
        let wanted = self.wanted;
        let why = match self.last {
            None => {
                "no round can be told: there is no keyframe in it, or nothing after one".to_owned()
            }
            Some(last) if self.is_cut_off && last.0 + 1 == wanted.0 => {
                format!("it is cut off after round {last}, so round {wanted} is not whole")
            }
            Some(last) if last < wanted => {
                format!("there is no round {wanted}: it ends with {last}")
            }
            Some(_) if self.before.is_some() => {
                format!("nothing was decided in round {wanted} that a scenario could expect")
            }
            Some(_) => format!("there is no round {wanted} in it"),
        };
        let nearest = self.nearest.iter().flatten();
        let nearest: Vec<String> = nearest.map(ToString::to_string).collect();
        let nearest = match nearest.is_empty() {
            true => "no round with a decision is near".to_owned(),
            false => format!("the nearest with a decision: {}", nearest.join(" and ")),
        };
        let damage = damage.iter().map(|line| format!("\n{line}"));
        format!("{why}; {nearest}{}", damage.collect::<String>())
    }
}

impl Rounds for Search {
    fn before(&mut self, now: Micros, machine: &Machine, roster: &Roster) {
        if machine.round().0 + 1 != self.wanted.0 {
            return;
        }
        self.before = Some(Before {
            told: Told::of(now, machine, roster),
            policies: in_force(roster).cloned().collect(),
        });
    }

    fn after(&mut self, machine: &Machine, facts: &[Stamped]) {
        let round = machine.round();
        self.last = Some(round);
        let decided = Decided::of(machine, round, facts);
        if decided.is_empty() {
            return;
        }
        if round == self.wanted
            && let Some(before) = self.before.take()
        {
            self.found = Some(Found { before, decided });
        } else {
            let [before, after] = &mut self.nearest;
            if round > self.wanted {
                after.get_or_insert(round);
            } else {
                *before = Some(round);
            }
        }
    }
}

/// The policies that are asked first for a hook.
fn in_force(roster: &Roster) -> impl Iterator<Item = &PolicyRecord> {
    let is_first = |record: &&PolicyRecord| {
        let mut chains = roster.chains.iter();
        chains.any(|chain| chain.policies.first() == Some(&record.number))
    };
    roster.policies.iter().filter(is_first)
}

/// A scenario as it is written, and what it says of itself.
struct Text {
    text: String,
    comments: Vec<String>,
    verdict: super::Verdict,
}

// === impl Found ===

impl Found {
    fn text(&self, args: &Args) -> Text {
        let journal = args.journal.file_name().unwrap_or_default();
        let journal = journal.to_string_lossy();
        let title = format!("round {} of {journal}", args.round);
        let told = &self.before.told;
        let body = format!(
            "{}{}",
            told.text(&title),
            self.decided.text(told, &self.before.policies)
        );
        let (check, verdict) = match self.recorded(&body) {
            Ok(()) => (
                vec!["The policies of the journal decide so in it.".to_owned()],
                super::Verdict::Good,
            ),
            Err(lines) => (lines, super::Verdict::NotGood),
        };
        let mut comments = check;
        if !told.lacks().is_empty() {
            comments.push("What they were told and this file cannot say:".to_owned());
            let lacks = told.lacks().iter();
            comments.extend(lacks.map(|lack| format!("- {lack}")));
        }
        let head = comments.iter().map(|line| format!("# {line}\n"));
        Text {
            text: head.chain([body]).collect(),
            comments,
            verdict,
        }
    }

    /// Puts the recorded policies through the scenario. The error says in lines why they do not pass.
    fn recorded(&self, text: &str) -> Result<(), Vec<String>> {
        let unknown = |why: String| {
            vec![format!(
                "It could not be tried with the policies of the journal: {why}"
            )]
        };
        let registry = self
            .registry()
            .map_err(|error| unknown(format!("{error:#}")))?;
        let scenario = Scenario::parse(Path::new("this file"), text);
        let scenario = scenario.map_err(|error| unknown(error.to_string()))?;
        match Kit::new(registry).run_scenario(&scenario, Flavour::Component) {
            Ok(_) => Ok(()),
            Err(RunError::Unmet(unmet)) => {
                let head = "The policies of the journal decide otherwise in it, for what it lacks:";
                let misses = unmet.misses.iter().map(|miss| format!("- {miss}"));
                Err([head.to_owned()].into_iter().chain(misses).collect())
            }
            Err(error) => Err(unknown(error.to_string())),
        }
    }

    fn registry(&self) -> Result<Registry> {
        let components = code::kept().recorded(PolicyEngine::new()?);
        let mut registry = Registry::new();
        for record in &self.before.policies {
            let source = recorded_source(&components, record, |limits| limits)?;
            registry = registry.with_source(&record.name, move |_| source.clone());
        }
        Ok(registry)
    }
}
