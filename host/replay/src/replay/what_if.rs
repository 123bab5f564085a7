//! The comparison of another policy with the recorded answers.
//!
//! # Bounds
//! [`GROUPS_MAX`] groups of differences; all others are counted as one. The caller sets the number
//! of examples.

use std::collections::BTreeMap;

use pointsman_core::rows::NameKind;
use pointsman_core::{Answer, Asked, Author, Bounds, ExecutorId, Hook, Reply, View};
use pointsman_journal::{Decision, Roster};
use pointsman_policy::compare::{About, DecisionPair, Judged, Likeness, compare, walks};
use pointsman_policy::{PolicySource, Runner, StartError, start};

use super::{ReplayError, Stop};

/// Number of groups of differences.
const GROUPS_MAX: usize = 256;

/// Another policy, with the comparison of its answers and the recorded ones.
#[derive(Debug)]
pub struct WhatIf {
    source: PolicySource,
    runner: Option<Runner>,
    name: String,
    /// The journal's policies by number.
    known: BTreeMap<u32, KnownPolicy>,
    tally: WhatIfTally,
    examples_max: usize,
}

/// The name and reasons of a policy in the journal.
#[derive(Debug)]
struct KnownPolicy {
    name: String,
    reasons: Vec<String>,
}

/// Counts and examples of the decisions that would differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIfTally {
    /// Counts by hook.
    pub hooks: BTreeMap<Hook, HookComparison>,
    /// Counts by hook, recorded decision and other decision, both with their reasons.
    pub groups: BTreeMap<(Hook, String, String), u64>,
    /// Some of the differences in words.
    pub examples: Vec<String>,
}

/// Counters of the answers to one hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookComparison {
    /// Decisions that are the same.
    pub same: u64,
    /// Placements on the same executor, of which only the fallbacks differ.
    pub fallbacks: u64,
    /// Decisions that differ: of placements, the executor on which the request would be.
    pub different: u64,
    /// Questions that no policy had answered.
    pub unanswered: u64,
    /// Questions at which the other policy faulted.
    pub faults: u64,
}

impl WhatIf {
    /// Starts the policy of `source`, with at most `examples_max` examples.
    ///
    /// # Errors
    /// If the policy does not start.
    pub fn new(source: PolicySource, examples_max: usize) -> Result<Self, StartError> {
        let name = start(source.clone())?.description().name.clone();
        Ok(Self {
            source,
            runner: None,
            name,
            known: BTreeMap::new(),
            tally: WhatIfTally::default(),
            examples_max,
        })
    }

    /// The policy's own name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counters so far.
    #[must_use]
    pub fn tally(&self) -> &WhatIfTally {
        &self.tally
    }

    /// Starts the policy, at the beginning of a journal or after a gap.
    pub(super) fn begin(&mut self, roster: &Roster, bounds: Bounds) -> Result<(), Stop> {
        let runner =
            start(self.source.clone().within(bounds)).map_err(|error| ReplayError::Policy {
                name: self.name.clone(),
                source: error.into(),
            })?;
        self.runner = Some(runner);
        self.meet(roster);
        Ok(())
    }

    /// Learns the names of the recorded policies.
    pub(super) fn meet(&mut self, roster: &Roster) {
        let policies = roster.policies.iter();
        self.known.extend(policies.map(|record| {
            let known = KnownPolicy {
                name: record.name.clone(),
                reasons: record.reasons.clone(),
            };
            (record.number, known)
        }));
    }

    /// Asks the policy a recorded question, and compares the answers.
    pub(super) fn answer(&mut self, asked: &Asked<'_>, decision: &Decision<'_>) {
        let hook = decision.hook;
        let Some(runner) = &mut self.runner else {
            return;
        };
        if !runner.hooks().contains(hook) {
            return;
        }
        let answered = runner.ask(asked);
        let compared = self.tally.hooks.entry(hook).or_default();
        let Ok(answered) = answered else {
            compared.faults += 1;
            return;
        };
        let Some(recorded) = &decision.answer.value else {
            compared.unanswered += 1;
            return;
        };
        for pair in compared_with(asked, recorded, &answered.reply) {
            self.count(asked, decision, &pair);
        }
    }

    fn count(&mut self, asked: &Asked<'_>, decision: &Decision<'_>, pair: &DecisionPair) {
        let compared = self.tally.hooks.entry(decision.hook).or_default();
        match pair.likeness() {
            Likeness::Same => compared.same += 1,
            Likeness::Fallbacks => compared.fallbacks += 1,
            Likeness::Different => {
                compared.different += 1;
                self.differs(asked, decision, pair);
            }
        }
    }

    fn differs(&mut self, asked: &Asked<'_>, decision: &Decision<'_>, pair: &DecisionPair) {
        let author = self.author(&decision.answer, pair.in_force.reason);
        let runner = self.runner.as_ref();
        let said = runner.and_then(|runner| {
            let reason = pair.other.reason?;
            runner.description().reason(reason)
        });
        let said = because(said.unwrap_or_default());
        let recorded = format!("{author}: {}", pair.in_force.choice.kind());
        let instead = format!("{}{said}", pair.other.choice.kind());
        let key = (decision.hook, recorded, instead);
        if self.tally.groups.len() < GROUPS_MAX || self.tally.groups.contains_key(&key) {
            *self.tally.groups.entry(key).or_default() += 1;
        } else {
            let rest = (decision.hook, "others".to_owned(), "others".to_owned());
            *self.tally.groups.entry(rest).or_default() += 1;
        }
        if self.tally.examples.len() < self.examples_max {
            let name = |id: ExecutorId| executor_name(&asked.view, id);
            let about = match pair.about {
                About::Executor(id) => name(id),
                About::Request(_) | About::Rank(_) => pair.about.to_string(),
            };
            self.tally.examples.push(format!(
                "round {}, {}, {about}: {author}: {}; {}: {}{said}",
                asked.at.round,
                decision.hook.as_str(),
                pair.in_force.choice.words(&name),
                self.name,
                pair.other.choice.words(&name),
            ));
        }
    }

    /// The author of a decision with the reason it gave.
    fn author(&self, answer: &Answer<Reply>, reason: Option<u16>) -> String {
        match answer.author {
            Author::BuiltIn => "the built-in rule".to_owned(),
            Author::Policy(number) => match self.known.get(&number) {
                Some(known) => {
                    let reason = reason.and_then(|at| known.reasons.get(usize::from(at)));
                    let reason = reason.map(String::as_str).unwrap_or_default();
                    format!("{}{}", known.name, because(reason))
                }
                None => format!("policy {number}"),
            },
        }
    }
}

/// A reason in brackets, if there is one.
fn because(reason: &str) -> String {
    if reason.is_empty() {
        String::new()
    } else {
        format!(" ({reason})")
    }
}

/// The recorded answer and another one to the same question, on the machine as it was then.
fn compared_with(asked: &Asked<'_>, recorded: &Reply, other: &Reply) -> Vec<DecisionPair> {
    let Asked { view, question, .. } = asked;
    let [before, after] = [recorded, other].map(|reply| walks(view, question, reply));
    let judged = |reply, walks| Judged { reply, walks };
    compare(question, judged(recorded, &before), judged(other, &after))
}

fn executor_name(view: &View<'_>, id: ExecutorId) -> String {
    let name = view.name(NameKind::Executor, id.0);
    name.map_or_else(|| format!("executor {id}"), ToOwned::to_owned)
}
