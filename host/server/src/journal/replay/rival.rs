//! What another policy would have answered: asked beside the recorded answers, and counted.
//!
//! # Bounds
//! [`GROUPS_MAX`] groups of differences; more are counted in the last. As many examples as asked
//! for.

use std::collections::BTreeMap;

use pointsman_core::rows::NameKind;
use pointsman_core::{
    Answer, Asked, Author, Hook, Reply, RequestId, Round, View, admission, routing,
};
use pointsman_journal::{Decision, Roster};
use pointsman_policy::{PolicySource, Runner, StartError, start};

use super::{ReplayError, Stop};

/// Groups of differences told apart.
const GROUPS_MAX: usize = 256;

/// Another policy, and how it compares.
#[derive(Debug)]
pub struct Rival {
    source: PolicySource,
    runner: Option<Runner>,
    name: String,
    /// Policies of the journal by number.
    known: BTreeMap<u32, Known>,
    tally: RivalTally,
    examples_max: usize,
}

/// A policy of the journal, in words.
#[derive(Debug)]
struct Known {
    name: String,
    reasons: Vec<String>,
}

/// What a rival would have done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RivalTally {
    /// By hook.
    pub hooks: BTreeMap<Hook, Compared>,
    /// By hook, by what was decided and why, and by what the rival would have decided and why.
    pub groups: BTreeMap<(Hook, String, String), u64>,
    /// Some of the differences, in words.
    pub examples: Vec<String>,
}

/// How the answers to a hook compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Verdicts, or answers where one is about all requests together, that are the same.
    pub same: u64,
    /// And that are not.
    pub different: u64,
    /// Questions that no policy had answered.
    pub unanswered: u64,
    /// Questions at which the rival faulted.
    pub faults: u64,
}

/// A part of an answer, in words: what, and why.
type Verdict = (Option<RequestId>, String, u16);

impl Rival {
    /// The policy that `source` makes, which shows at most `examples_max` differences.
    ///
    /// # Errors
    /// If it does not start.
    pub fn new(source: PolicySource, examples_max: usize) -> Result<Self, StartError> {
        let name = start(source.clone())?.description().name.clone();
        Ok(Self {
            source,
            runner: None,
            name,
            known: BTreeMap::new(),
            tally: RivalTally::default(),
            examples_max,
        })
    }

    /// What it calls itself.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it compares.
    #[must_use]
    pub fn tally(&self) -> &RivalTally {
        &self.tally
    }

    /// A journal begins, or goes on after a gap.
    pub(super) fn begin(&mut self, roster: &Roster) -> Result<(), Stop> {
        let runner = start(self.source.clone())
            .map_err(|error| Stop::Error(ReplayError::Policy(error.to_string())))?;
        self.runner = Some(runner);
        self.meet(roster);
        Ok(())
    }

    /// Learns the names of the recorded policies.
    pub(super) fn meet(&mut self, roster: &Roster) {
        let policies = roster.policies.iter();
        self.known.extend(policies.map(|record| {
            let known = Known {
                name: record.name.clone(),
                reasons: record.reasons.clone(),
            };
            (record.number, known)
        }));
    }

    /// Asks it what was asked then.
    pub(super) fn answer(&mut self, now: &Asked<'_>, decision: &Decision<'_>) {
        let hook = decision.hook;
        let Some(runner) = &mut self.runner else {
            return;
        };
        if !runner.hooks().contains(hook) {
            return;
        }
        let answered = runner.ask(now);
        let compared = self.tally.hooks.entry(hook).or_default();
        let Ok(answered) = answered else {
            compared.faults += 1;
            return;
        };
        let Some(recorded) = &decision.answer.value else {
            compared.unanswered += 1;
            return;
        };
        let before = verdicts(&now.view, &decision.requests, recorded);
        let after = verdicts(&now.view, &decision.requests, &answered.reply);
        for (before, after) in before.into_iter().zip(after) {
            self.compare(now.at.round, decision, (before, after));
        }
    }

    fn compare(&mut self, round: Round, decision: &Decision<'_>, pair: (Verdict, Verdict)) {
        let ((request, before, reason), (_, after, other_reason)) = pair;
        let compared = self.tally.hooks.entry(decision.hook).or_default();
        if before == after {
            compared.same += 1;
            return;
        }
        compared.different += 1;
        let author = self.author(&decision.answer, reason);
        let runner = self.runner.as_ref();
        let said = runner.and_then(|runner| runner.description().reason(other_reason));
        let said = because(said.unwrap_or_default());
        let recorded = format!("{author}: {}", kind(&before));
        let instead = format!("{}{said}", kind(&after));
        let key = (decision.hook, recorded, instead);
        if self.tally.groups.len() < GROUPS_MAX || self.tally.groups.contains_key(&key) {
            *self.tally.groups.entry(key).or_default() += 1;
        } else {
            let rest = (decision.hook, "others".to_owned(), "others".to_owned());
            *self.tally.groups.entry(rest).or_default() += 1;
        }
        if self.tally.examples.len() < self.examples_max {
            let about = request.map_or(String::new(), |id| format!(", request {id}"));
            self.tally.examples.push(format!(
                "round {round}, {}{about}: {author}: {before}; {}: {after}{said}",
                decision.hook.as_str(),
                self.name,
            ));
        }
    }

    /// Who decided, and why.
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

/// A reason, where there is one.
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

/// An answer as choices in words, one for each part of it that can differ by itself.
fn verdicts(view: &View<'_>, requests: &[RequestId], reply: &Reply) -> Vec<Verdict> {
    let name = |id: u32| {
        let name = view.name(NameKind::Executor, id);
        name.map_or_else(|| format!("executor {id}"), ToOwned::to_owned)
    };
    let requests = requests.iter().copied().map(Some);
    match reply {
        Reply::Admission(verdicts) => requests
            .zip(verdicts)
            .map(|(request, verdict)| {
                let choice = match verdict.choice {
                    admission::Choice::Admit => "admits it".to_owned(),
                    admission::Choice::Park => "parks it".to_owned(),
                    admission::Choice::Shed(secs) => format!("sheds it for {secs} s"),
                    admission::Choice::Displace(other) => format!("displaces request {other}"),
                };
                (request, choice, verdict.reason)
            })
            .collect(),
        Reply::Routing(verdicts) => requests
            .zip(verdicts)
            .map(|(request, verdict)| {
                let choice = match &verdict.choice {
                    routing::Choice::Place(executors) => {
                        let names: Vec<String> = executors.iter().map(|it| name(it.0)).collect();
                        format!("places it on {}", names.join(", or else "))
                    }
                    routing::Choice::Hold(None) => "holds it".to_owned(),
                    routing::Choice::Hold(Some(until)) => format!("holds it until {until} µs"),
                    routing::Choice::GiveUp => "gives it up".to_owned(),
                };
                (request, choice, verdict.reason)
            })
            .collect(),
        Reply::Priority(order) => vec![(None, format!("orders {order:?}"), 0)],
        Reply::Preemption(None) => vec![(None, "evicts nobody".to_owned(), 0)],
        Reply::Preemption(Some(eviction)) => {
            let victims = &eviction.victims;
            let on = name(eviction.executor.0);
            let choice = format!("evicts {victims:?} from {on}");
            vec![(None, choice, eviction.reason)]
        }
        Reply::Budget(allotments) => {
            let parts = allotments.iter();
            let parts: Vec<String> = parts
                .map(|it| format!("{} to {}", it.tokens_max, name(it.executor.0)))
                .collect();
            vec![(None, format!("allots {}", parts.join(", ")), 0)]
        }
    }
}
