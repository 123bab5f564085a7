//! The properties of policies, judged while a run goes on: at questions by copies of the policy that
//! answers, and by the facts that come of the answers.
//!
//! Some questions are also asked of two fresh instances that have the policy's state. Both are told
//! everything anew, one of them in another order. Their answers must be those of the policy, and
//! the policy's answer must agree with its explanation.

mod copies;
mod exercised;

use std::collections::BTreeSet;

use fastrand::Rng;
use pointsman_component::Candidate;
use pointsman_core::{Answer, Asked, Author, ExecutorId, Policies, Question, Reply, RequestId};
use pointsman_policy::compare::{About, DecisionPair, Judged, Likeness, compare, walks};
use pointsman_policy::{PolicyHost, PolicySource, Runner};

use crate::evictions::{Names, ToldEviction};
use crate::properties::Property;
use crate::shuffled;
use copies::{contradiction, explained, restarted, tied};
pub(crate) use exercised::Exercised;

/// A judge of the properties of all policies of a run.
#[derive(Debug)]
pub(crate) struct Judge {
    wanted: BTreeSet<Property>,
    /// The sources of fresh instances, by the number of the policy.
    copies: Vec<Copies>,
    rng: Rng,
    /// One of this many answers is compared with those of fresh instances.
    every: u32,
    breaches: Vec<Breach>,
    exercised: Exercised,
}

/// The sources of a policy's fresh instances.
#[derive(Debug)]
struct Copies {
    plain: PolicySource,
    shuffled: PolicySource,
}

/// A property that was found broken.
#[derive(Debug)]
pub(crate) struct Breach {
    pub(crate) property: Property,
    /// The breach in a sentence.
    pub(crate) summary: String,
    evidence: Evidence,
}

/// The numbers and answers that show a breach.
#[derive(Debug)]
enum Evidence {
    Nothing,
    /// The request of a fact that speaks against the policy.
    Request(RequestId),
    Eviction(Box<ToldEviction>),
    /// Decisions that differ, the policy's own and a fresh instance's.
    Decisions(Vec<DecisionPair>),
    /// Executors as they are explained.
    Candidates(Vec<Candidate>),
}

// === impl Judge ===

impl Judge {
    /// A judge of these properties. Of the answers one in `every` is compared, drawn by `seed`.
    pub(crate) fn new(
        wanted: BTreeSet<Property>,
        sources: impl Iterator<Item = PolicySource>,
        (every, seed): (u32, u64),
    ) -> Self {
        let copies = sources.map(|plain| Copies {
            shuffled: shuffled::source(&plain, seed),
            plain,
        });
        Self {
            wanted,
            copies: copies.collect(),
            rng: Rng::with_seed(seed),
            every: every.max(1),
            breaches: Vec::new(),
            exercised: Exercised::default(),
        }
    }

    /// True if that property is judged.
    pub(crate) fn judges(&self, property: Property) -> bool {
        self.wanted.contains(&property)
    }

    pub(crate) fn exercised(&self) -> &Exercised {
        &self.exercised
    }

    /// The breaches since the last call.
    pub(crate) fn take_breaches(&mut self) -> Vec<Breach> {
        std::mem::take(&mut self.breaches)
    }

    /// Notes a breach of a property that is judged.
    pub(crate) fn note(&mut self, property: Property, summary: impl Into<String>) {
        self.note_with(property, summary, Evidence::Nothing);
    }

    /// Notes a breach that a request shows.
    pub(crate) fn note_about(
        &mut self,
        request: Option<RequestId>,
        (property, summary): (Property, String),
    ) {
        let evidence = request.map_or(Evidence::Nothing, Evidence::Request);
        self.note_with(property, summary, evidence);
    }

    fn note_with(&mut self, property: Property, summary: impl Into<String>, evidence: Evidence) {
        if self.wanted.contains(&property) {
            self.breaches.push(Breach {
                property,
                summary: summary.into(),
                evidence,
            });
        }
    }

    // === Questions ===

    /// Asks `host`, and judges the answer.
    pub(crate) fn ask(&mut self, host: &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply> {
        let answer = host.ask(asked);
        let Author::Policy(policy) = answer.author else {
            return answer;
        };
        if let Some(reply) = &answer.value {
            self.exercised.count(asked.question.hook(), reply);
            self.judge_eviction(asked, reply);
        }
        let of_copies = [
            Property::SurvivesRestart,
            Property::IgnoresRowOrder,
            Property::ExplainsItself,
        ];
        let compares = of_copies.iter().any(|property| self.judges(*property));
        if !compares || self.rng.u32(0..self.every) != 0 {
            return answer;
        }
        self.compare(host, policy, asked).unwrap_or(answer)
    }

    /// Notes victims that could have been spared.
    fn judge_eviction(&mut self, asked: &Asked<'_>, reply: &Reply) {
        let (Question::Preemption(shortage), Reply::Preemption(Some(eviction))) =
            (&asked.question, reply)
        else {
            return;
        };
        let told = ToldEviction::of(&asked.view, asked.at.now, (shortage, eviction));
        let Some(told) = told.filter(|told| !told.spared.is_empty()) else {
            return;
        };
        let (count, spared) = (eviction.victims.len(), told.spared.len());
        let summary = format!("it evicts {count}, of whom it could spare any of {spared}");
        let evidence = Evidence::Eviction(Box::new(told));
        self.note_with(Property::SparesVictims, summary, evidence);
    }

    /// Compares an answer with those of the policy's copies, and with its explanation.
    fn compare(
        &mut self,
        host: &mut PolicyHost,
        policy: u32,
        asked: &Asked<'_>,
    ) -> Option<Answer<Reply>> {
        let snapshot = host.handover(asked.at.now, policy)?;
        // The policy is asked again, so that it also answers from the state that its copies get.
        let explained = explained(host, asked);
        let answer = host.ask(asked);
        let Some(reply) = &answer.value else {
            return Some(answer);
        };
        if let Some(candidates) = explained {
            self.exercised.explained += 1;
            if let Some(summary) = contradiction(&candidates, reply) {
                let evidence = Evidence::Candidates(candidates);
                self.note_with(Property::ExplainsItself, summary, evidence);
            }
        }
        let Some(copies) = self
            .copies
            .get(usize::try_from(policy).unwrap_or(usize::MAX))
        else {
            return Some(answer);
        };
        let copies = [
            (Property::SurvivesRestart, copies.plain.clone()),
            (Property::IgnoresRowOrder, copies.shuffled.clone()),
        ];
        for (property, source) in copies {
            self.compare_copy(
                property,
                (host, asked),
                reply,
                restarted(source, &snapshot, asked),
            );
        }
        Some(answer)
    }

    fn compare_copy(
        &mut self,
        property: Property,
        (host, asked): (&PolicyHost, &Asked<'_>),
        reply: &Reply,
        copy: Result<Runner, String>,
    ) {
        self.exercised.compared += 1;
        match copy.map(|mut copy| Policies::ask(&mut copy, asked).value) {
            Err(why) => self.note(property, format!("a fresh instance does not start: {why}")),
            Ok(Some(other)) if *reply == other || tied(host, asked, (reply, &other)) => {}
            Ok(other) => {
                let hook = asked.question.hook().as_str();
                let differing = other.map(|other| differing(asked, reply, &other));
                let evidence = Evidence::Decisions(differing.unwrap_or_default());
                let summary = if property == Property::IgnoresRowOrder {
                    format!("told its rows in another order it answers {hook} otherwise")
                } else {
                    format!("after a restart it answers {hook} otherwise")
                };
                self.note_with(property, summary, evidence);
            }
        }
    }
}

// === impl Breach ===

impl Breach {
    /// The requests that the breach is about.
    pub(crate) fn about(&self) -> Vec<RequestId> {
        match &self.evidence {
            Evidence::Decisions(pairs) => {
                let requests = pairs.iter().filter_map(|pair| match pair.about {
                    About::Request(request) => Some(request),
                    About::Rank(_) | About::Executor(_) => None,
                });
                requests.collect()
            }
            Evidence::Request(request) => vec![*request],
            Evidence::Nothing | Evidence::Eviction(_) | Evidence::Candidates(_) => Vec::new(),
        }
    }

    /// The numbers and answers that show the breach, in lines.
    pub(crate) fn lines(&self, names: &dyn Names) -> Vec<String> {
        match &self.evidence {
            Evidence::Nothing | Evidence::Request(_) => Vec::new(),
            Evidence::Eviction(told) => told.lines(names),
            Evidence::Decisions(pairs) => pairs.iter().map(|pair| decision(pair, names)).collect(),
            Evidence::Candidates(candidates) => {
                let lines = candidates.iter().map(|it| {
                    let (executor, note) = (names.executor(it.executor), &it.note);
                    if it.eligible {
                        format!("{executor}: explained cost {}: {note}", it.cost)
                    } else {
                        format!("{executor}: explained as unable: {note}")
                    }
                });
                lines.collect()
            }
        }
    }
}

/// One decision that a fresh instance makes otherwise.
fn decision(pair: &DecisionPair, names: &dyn Names) -> String {
    let name = |id: ExecutorId| names.executor(id);
    let about = match pair.about {
        About::Request(request) => names.request(request),
        About::Executor(executor) => names.executor(executor),
        About::Rank(_) => pair.about.to_string(),
    };
    let (own, other) = (&pair.in_force.choice, &pair.other.choice);
    format!(
        "{about}: {}; a fresh instance: {}",
        own.words(&name),
        other.words(&name)
    )
}

/// The decisions in which two answers to one question differ.
fn differing(asked: &Asked<'_>, own: &Reply, other: &Reply) -> Vec<DecisionPair> {
    let Asked { view, question, .. } = asked;
    let ways = [own, other].map(|reply| walks(view, question, reply));
    let judged = |reply, walks| Judged { reply, walks };
    let pairs = compare(question, judged(own, &ways[0]), judged(other, &ways[1]));
    let differing = pairs.into_iter();
    differing
        .filter(|pair| pair.likeness() != Likeness::Same)
        .collect()
}
