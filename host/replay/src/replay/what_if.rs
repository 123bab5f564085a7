//! The comparison of another policy with the recorded answers.
//!
//! # Bounds
//! [`GROUPS_MAX`] groups of differences; all others are counted as one. The caller sets the number
//! of examples.

use std::collections::BTreeMap;

use pointsman_core::rows::NameKind;
use pointsman_core::{
    Answer, Asked, Author, Bounds, Hook, Reply, RequestId, Round, View, admission, routing,
};
use pointsman_journal::{Decision, Roster};
use pointsman_notation::Time;
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
    /// Verdicts that agree, or whole answers for a hook without verdicts.
    pub same: u64,
    /// Verdicts, or whole answers, that differ.
    pub different: u64,
    /// Questions that no policy had answered.
    pub unanswered: u64,
    /// Questions at which the other policy faulted.
    pub faults: u64,
}

/// A part of an answer that is compared on its own.
struct Part {
    /// The request that it is about; `None` for all of them.
    request: Option<RequestId>,
    /// The decision in words.
    choice: String,
    /// Index into the policy's reasons.
    reason: u16,
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
        let before = parts(&asked.view, &decision.requests, recorded);
        let after = parts(&asked.view, &decision.requests, &answered.reply);
        for (before, after) in before.into_iter().zip(after) {
            self.compare(asked.at.round, decision, (before, after));
        }
    }

    fn compare(&mut self, round: Round, decision: &Decision<'_>, (before, after): (Part, Part)) {
        let compared = self.tally.hooks.entry(decision.hook).or_default();
        if before.choice == after.choice {
            compared.same += 1;
            return;
        }
        compared.different += 1;
        let author = self.author(&decision.answer, before.reason);
        let runner = self.runner.as_ref();
        let said = runner.and_then(|runner| runner.description().reason(after.reason));
        let said = because(said.unwrap_or_default());
        let recorded = format!("{author}: {}", kind(&before.choice));
        let instead = format!("{}{said}", kind(&after.choice));
        let key = (decision.hook, recorded, instead);
        if self.tally.groups.len() < GROUPS_MAX || self.tally.groups.contains_key(&key) {
            *self.tally.groups.entry(key).or_default() += 1;
        } else {
            let rest = (decision.hook, "others".to_owned(), "others".to_owned());
            *self.tally.groups.entry(rest).or_default() += 1;
        }
        if self.tally.examples.len() < self.examples_max {
            let about = before
                .request
                .map_or(String::new(), |id| format!(", request {id}"));
            self.tally.examples.push(format!(
                "round {round}, {}{about}: {author}: {}; {}: {}{said}",
                decision.hook.as_str(),
                before.choice,
                self.name,
                after.choice,
            ));
        }
    }

    /// The author of a decision with the reason it gave.
    fn author(&self, answer: &Answer<Reply>, reason: u16) -> String {
        match answer.author {
            Author::BuiltIn => "the built-in rule".to_owned(),
            Author::Policy(number) => match self.known.get(&number) {
                Some(known) => {
                    let reason = known.reasons.get(usize::from(reason));
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

/// The first word of a choice.
fn kind(choice: &str) -> &str {
    choice.split(' ').next().unwrap_or_default()
}

/// The parts of an answer in words.
fn parts(view: &View<'_>, requests: &[RequestId], reply: &Reply) -> Vec<Part> {
    let name = |id: u32| {
        let name = view.name(NameKind::Executor, id);
        name.map_or_else(|| format!("executor {id}"), ToOwned::to_owned)
    };
    let whole = |choice: String, reason| {
        vec![Part {
            request: None,
            choice,
            reason,
        }]
    };
    match reply {
        Reply::Admission(verdicts) => {
            let verdicts = requests.iter().zip(verdicts);
            let parts = verdicts.map(|(request, verdict)| Part {
                request: Some(*request),
                choice: admitted(verdict.choice),
                reason: verdict.reason,
            });
            parts.collect()
        }
        Reply::Routing(verdicts) => {
            let verdicts = requests.iter().zip(verdicts);
            let parts = verdicts.map(|(request, verdict)| Part {
                request: Some(*request),
                choice: routed(&verdict.choice, &name),
                reason: verdict.reason,
            });
            parts.collect()
        }
        Reply::Priority(order) => whole(format!("orders {order:?}"), 0),
        Reply::Preemption(None) => whole("evicts nobody".to_owned(), 0),
        Reply::Preemption(Some(eviction)) => {
            let on = name(eviction.executor.0);
            let choice = format!("evicts {:?} from {on}", eviction.victims);
            whole(choice, eviction.reason)
        }
        Reply::Budget(allotments) => {
            let parts = allotments.engines.iter();
            let parts: Vec<String> = parts
                .map(|it| format!("{} to {}", it.tokens_max, name(it.executor.0)))
                .collect();
            whole(format!("allots {}", parts.join(", ")), 0)
        }
        Reply::Arrangement(arrangement) => whole(format!("serves {arrangement}"), 0),
    }
}

fn admitted(choice: admission::Choice) -> String {
    match choice {
        admission::Choice::Admit => "admits it".to_owned(),
        admission::Choice::Park => "parks it".to_owned(),
        admission::Choice::Shed(secs) => {
            format!("sheds it for {}", Time::from_secs(secs.into()))
        }
        admission::Choice::Displace(other) => {
            let after = Time::from_secs(other.retry_after.into());
            format!(
                "displaces request {}, to come back in {after}",
                other.request
            )
        }
    }
}

fn routed(choice: &routing::Choice, name: &dyn Fn(u32) -> String) -> String {
    match choice {
        routing::Choice::Place(executors) => {
            let names: Vec<String> = executors.iter().map(|it| name(it.0)).collect();
            format!("places it on {}", names.join(", or else "))
        }
        routing::Choice::Hold(None) => "holds it".to_owned(),
        routing::Choice::Hold(Some(until)) => {
            format!("holds it until {}", Time::from_micros(until.0))
        }
        routing::Choice::GiveUp => "gives it up".to_owned(),
    }
}
