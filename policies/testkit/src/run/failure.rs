//! Failed expectations, with all that is needed to understand them without another run.

use std::fmt;

use pointsman_core::{ExecutorId, Fact, RequestId};
use pointsman_notation::Location;

use super::Failed;
use super::check::Miss;
use super::state::ScenarioRun;
use crate::evictions::Names;
use crate::scenario::Scenario;
use crate::scenario::units::shown;

/// Number of facts shown before the failed expectation.
const FACTS_MAX: usize = 40;

/// Number of faults shown.
const FAULTS_MAX: usize = 3;

/// The expectations that were not met at one step, with the facts before them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// The step, or for what is expected at the end the first line.
    pub place: Location,
    /// The step's number, from 1; absent: at the end.
    pub step: Option<usize>,
    /// Expectations that were not met, each as `KEY: expected THIS, got THAT`.
    pub misses: Vec<String>,
    title: String,
    /// Faults of policies, each with the functions in which it happened.
    faults: Vec<String>,
    timeline: Vec<String>,
    explanations: Vec<String>,
    log: Vec<String>,
}

// === impl Unmet ===

impl Unmet {
    /// The failure in one line: the first fault of a policy, and the expectations.
    #[must_use]
    pub fn summary(&self) -> String {
        let fault = self.faults.first().into_iter();
        let parts: Vec<&str> = fault.chain(&self.misses).map(String::as_str).collect();
        parts.join("; ")
    }

    pub(super) fn of(scenario: &Scenario, failed: Failed) -> Self {
        let Failed {
            mut run,
            step,
            misses,
        } = failed;
        let evidence = misses
            .iter()
            .flat_map(|miss| miss.evidence.clone())
            .collect();
        let at = step.checked_sub(1).and_then(|idx| scenario.steps.get(idx));
        let first = run.world.facts().len().saturating_sub(FACTS_MAX);
        let facts = &run.world.facts()[first..];
        let mut timeline: Vec<String> = facts.iter().map(|fact| run.line(fact)).collect();
        if first > 0 {
            timeline.insert(0, format!("({first} earlier facts)"));
        }
        Self {
            place: scenario
                .source
                .location(at.map_or(scenario.at, |step| step.at)),
            step: at.map(|_| step),
            title: scenario.title().to_owned(),
            misses: misses.iter().map(Miss::to_string).collect(),
            faults: faults(&run),
            timeline,
            explanations: [evidence, explanations(&run), evictions(&run)].concat(),
            log: log(&mut run),
        }
    }
}

/// The faults of policies, the first ones, each once.
fn faults(run: &ScenarioRun) -> Vec<String> {
    let facts = run.world.facts().iter();
    let faults = facts.filter_map(|stamped| {
        if let Fact::Fault(_, fault) = &stamped.fact {
            Some(fault.detail.as_str())
        } else {
            None
        }
    });
    let mut told: Vec<&str> = Vec::new();
    for detail in faults {
        if told.len() < FAULTS_MAX && !told.contains(&detail) {
            told.push(detail);
        }
    }
    let lines = told.into_iter().flat_map(str::lines);
    lines.map(ToOwned::to_owned).collect()
}

fn explanations(run: &ScenarioRun) -> Vec<String> {
    let mut lines = Vec::new();
    for (request, said) in run.world.policies.sink.explanations() {
        let policy = run.author(pointsman_core::Author::Policy(said.policy));
        let (name, at) = (run.request_name(request), shown(said.at));
        lines.push(format!("{policy} on `{name}` at {at}:"));
        for candidate in &said.candidates {
            let executor = run.executor_name(candidate.executor);
            let note = &candidate.note;
            lines.push(if candidate.eligible {
                format!("  {executor}: cost {}: {note}", candidate.cost)
            } else {
                format!("  {executor}: no: {note}")
            });
        }
    }
    lines
}

/// Names of a scenario's requests and executors.
pub(super) struct ScenarioNames<'a>(pub(super) &'a ScenarioRun);

impl Names for ScenarioNames<'_> {
    fn request(&self, id: RequestId) -> String {
        format!("`{}`", self.0.request_name(id))
    }

    fn executor(&self, id: ExecutorId) -> String {
        self.0.executor_name(id).to_owned()
    }
}

/// The numbers of the last evictions.
fn evictions(run: &ScenarioRun) -> Vec<String> {
    let mut lines = Vec::new();
    for told in run.world.policies.sink.evictions() {
        lines.push(format!("an eviction at {}:", shown(told.at())));
        let told = told.lines(&ScenarioNames(run)).into_iter();
        lines.extend(told.map(|line| format!("  {line}")));
    }
    lines
}

fn log(run: &mut ScenarioRun) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some(event) = run.world.policies.inner.poll_event() {
        let policy = run.author(pointsman_core::Author::Policy(event.policy));
        lines.push(format!("{} {policy} {}", shown(event.at), event.kind));
    }
    lines
}

impl std::error::Error for Unmet {}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => writeln!(f, "{}: step {step} of \"{}\":", self.place, self.title)?,
            None => writeln!(f, "{}: at the end of \"{}\":", self.place, self.title)?,
        }
        let parts = [
            ("", &self.faults),
            ("", &self.misses),
            ("what happened:", &self.timeline),
            ("why:", &self.explanations),
            ("what the policies logged:", &self.log),
        ];
        for (heading, lines) in parts.into_iter().filter(|(_, lines)| !lines.is_empty()) {
            if !heading.is_empty() {
                writeln!(f, "  {heading}")?;
            }
            lines
                .iter()
                .try_for_each(|line| writeln!(f, "    {line}"))?;
        }
        Ok(())
    }
}
