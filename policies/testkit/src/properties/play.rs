//! Runs of drawn events, and of the least of them that break a property.
//!
//! A run is a scenario that is written while it goes on: the next event is drawn when the one before
//! it has happened. So what breaks a property is there as a scenario, from which events are taken
//! out one after the other as long as the property stays broken.
//!
//! # Invariants
//! 1. The least events break the property again
//!    (`the_scenario_that_is_left_of_a_run_shows_the_same`).

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use pointsman_notation::chain;

use super::draw::Draw;
use super::event::{Event, Table, consistent};
use super::{Plan, Property, Subject};
use crate::native::panic_message;
use crate::report::Problem;
use crate::run::{self, EVERY_ANSWER, Exercised, RunError, ScenarioRun};
use crate::scenario::{PolicyBinding, Scenario, action_steps};

/// Number of runs made to find events that are not needed.
const TRIES_MAX: u32 = 400;

/// The name by which the scenario of a run is called before it has a file.
const NAME: &str = "found.toml";

/// Findings of one run.
#[derive(Debug, Default)]
pub(super) struct Played {
    /// Broken properties, each with its first breach and the number of events by then.
    pub(super) broken: BTreeMap<Property, (String, usize)>,
    /// The events that could happen.
    pub(super) events: Vec<Event>,
    pub(super) exercised: Exercised,
}

/// A reason why a run does not say anything about a policy.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlayError {
    #[error("{text}", text = chain(.0))]
    Run(RunError),
    #[error("the host broke an invariant: {0}")]
    HostBroke(String),
}

/// Runs of one policy on one fleet.
#[derive(Clone)]
pub(super) struct Stage<'a> {
    subject: &'a Subject,
    /// The policy's name.
    name: &'a str,
    /// The tables of the scenario before its steps, without policies.
    tables: Vec<Table>,
    seed: u64,
}

// === impl Stage ===

impl<'a> Stage<'a> {
    /// Makes one drawn run, and returns what it shows with its stage.
    pub(super) fn drawn(
        (subject, name): (&'a Subject, &'a str),
        plan: &Plan,
        seed: u64,
    ) -> Result<(Self, Played), PlayError> {
        let (mut draw, tables) = Draw::new(seed);
        let stage = Self {
            subject,
            name,
            tables,
            seed,
        };
        let mut drawn = 0;
        let mut last: Option<std::vec::IntoIter<Event>> = None;
        let all = Property::IN_RUNS.into_iter().collect();
        let played = stage.play((&all, (plan.restart_every, seed)), &mut |run| {
            if let Some(event) = draw.begin() {
                return Some(event);
            }
            if drawn < plan.events {
                drawn += 1;
                return Some(draw.next(run, plan.rush));
            }
            last.get_or_insert_with(|| Draw::end(run).into_iter())
                .next()
        })?;
        Ok((stage, played))
    }

    /// Plays events until `next` has none.
    fn play(
        &self,
        (wanted, sampling): (&BTreeSet<Property>, (u32, u64)),
        next: &mut dyn FnMut(&ScenarioRun) -> Option<Event>,
    ) -> Result<Played, PlayError> {
        let text = self.text("a run", wanted, &[]);
        let scenario = Scenario::parse(Path::new(NAME), &text);
        let scenario = scenario.map_err(|error| PlayError::Run(error.into()))?;
        let played = catch_unwind(AssertUnwindSafe(|| {
            let mut sources = |binding: &PolicyBinding| Ok(self.source(&scenario, binding));
            let mut run = run::begin(&scenario, &mut sources, sampling).map_err(PlayError::Run)?;
            let mut played = Played::default();
            while let Some(event) = next(&run) {
                let steps = action_steps(event.text());
                let steps = steps.map_err(|error| PlayError::Run(error.into()))?;
                if !steps.iter().all(|step| run.does(step)) {
                    continue;
                }
                played.events.push(event);
                for breach in run.judge() {
                    let by_then = played.events.len();
                    let first = (breach.summary, by_then);
                    played.broken.entry(breach.property).or_insert(first);
                }
            }
            played.exercised = run.exercised();
            Ok(played)
        }));
        played.unwrap_or_else(|payload| Err(PlayError::HostBroke(panic_message(payload.as_ref()))))
    }

    fn source(&self, scenario: &Scenario, _: &PolicyBinding) -> pointsman_policy::PolicySource {
        let source = self.subject.source().clone();
        source.named(self.name).within(scenario.config.bounds())
    }

    /// The scenario of these events.
    fn text(&self, title: &str, wanted: &BTreeSet<Property>, events: &[Event]) -> String {
        let wanted: Vec<String> = wanted
            .iter()
            .map(|it| format!("\"{}\"", it.name()))
            .collect();
        let settings = toml::Value::try_from(self.subject.settings());
        let settings = settings.expect("settings came from TOML");
        let table = |key: &str, value| {
            toml::Value::Table(toml::Table::from_iter([(key.to_owned(), value)]))
        };
        let policies = table("policy", table(self.name, table("settings", settings)));
        let policies = toml::to_string(&policies).expect("tables are TOML");
        let tables: String = self.tables.iter().map(Table::text).collect();
        let events: String = events.iter().map(Event::text).collect();
        format!(
            "title = \"{title}\"\nproperties = [{}]\n\n{policies}{tables}{events}\n[end]\nrefused = \"any\"\n\
             refusals = \"any\"\nstrikes = \"any\"\nfaults = \"any\"\n",
            wanted.join(", "),
        )
    }

    // === The least run ===

    /// The problem that breaks `property`, with the least scenario that shows it. `summary` is that of
    /// the whole run, of which `events` were played by then.
    pub(super) fn problem(&self, property: Property, summary: &str, events: &[Event]) -> Problem {
        let seed = self.seed;
        let Some((least, mut sentence)) = self.least(property, events) else {
            return Problem {
                detail: "it needs the whole run: no scenario of less shows it".to_owned(),
                ..Problem::new(format!("seed {seed}: {summary}"))
            };
        };
        let mut stage = self.clone();
        if let Some((lean, said)) = self.without_idle_tables(property, &least) {
            (stage, sentence) = (lean, said);
        }
        let title = format!("it {}", property.sentence());
        let text = stage.text(&title, &BTreeSet::from([property]), &least);
        Problem {
            detail: self.shown(&text),
            scenario: Some(text),
            ..Problem::new(format!("seed {seed}: {sentence}"))
        }
    }

    /// The stage without the tables that these events do not name, if they break the property without
    /// them, too; and how.
    fn without_idle_tables(&self, property: Property, events: &[Event]) -> Option<(Self, String)> {
        let kept = |keeps_machine: bool| {
            let tables = self.tables.iter();
            let tables = tables
                .filter(|table| !table.is_idle(events) || (table.is_machine() && keeps_machine));
            Self {
                tables: tables.cloned().collect(),
                ..self.clone()
            }
        };
        [kept(false), kept(true)].into_iter().find_map(|stage| {
            let (_, sentence) = stage.broken_by(property, events.to_vec())?;
            Some((stage, sentence))
        })
    }

    /// The failure of a scenario, in lines for people.
    fn shown(&self, text: &str) -> String {
        let scenario = match Scenario::parse(Path::new(NAME), text) {
            Ok(scenario) => scenario,
            Err(error) => return error.to_string(),
        };
        let mut sources = |binding: &PolicyBinding| Ok(self.source(&scenario, binding));
        match run::run(&scenario, &mut sources) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    /// The events without those that are not needed to break `property`, and how they break it;
    /// absent where they do not in a run that compares each answer.
    fn least(&self, property: Property, events: &[Event]) -> Option<(Vec<Event>, String)> {
        let mut least = self.broken_by(property, events.to_vec())?;
        let mut tries = TRIES_MAX;
        let mut size = least.0.len().div_ceil(2);
        while size > 0 && tries > 0 {
            let before = least.0.len();
            let mut at = 0;
            while at < least.0.len() && tries > 0 {
                let end = least.0.len().min(at + size);
                let without = [&least.0[..at], &least.0[end..]].concat();
                tries -= 1;
                match self.broken_by(property, consistent(without)) {
                    Some(fewer) => least = fewer,
                    None => at = end,
                }
            }
            if size > 1 || least.0.len() == before {
                size /= 2;
            }
        }
        Some(least)
    }

    /// The first of these events that break `property`, if they do, and how.
    fn broken_by(&self, property: Property, events: Vec<Event>) -> Option<(Vec<Event>, String)> {
        let mut events = events.into_iter();
        let wanted = BTreeSet::from([property]);
        let mut played = self
            .play((&wanted, EVERY_ANSWER), &mut |_| events.next())
            .ok()?;
        let (sentence, by_then) = played.broken.remove(&property)?;
        played.events.truncate(by_then);
        Some((played.events, sentence))
    }
}
