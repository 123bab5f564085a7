//! Explanations of decisions, collected between the machine and its policies.
//!
//! A copy of the policy is asked for them, so that no decision changes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pointsman_component::Candidate;
use pointsman_core::{
    Answer, Asked, Hook, Micros, Policies, Question, Reply, RequestId, Sink, Tap,
};
use pointsman_policy::PolicyHost;

use super::judge::Judge;
use crate::evictions::ToldEviction;

/// Number of evictions that are kept.
const EVICTIONS_MAX: usize = 3;

/// Policies whose explanations are collected.
pub(super) type Watched = Tap<PolicyHost, Watch>;

/// The explanations of the requests concerned.
#[derive(Debug)]
pub(super) struct Watch {
    about: BTreeSet<RequestId>,
    /// The requests whose costs are compared with what the scenario expects.
    costed: BTreeSet<RequestId>,
    /// The last explanation of each request, with its time.
    explained: BTreeMap<RequestId, Explanation>,
    /// The last evictions.
    evictions: VecDeque<ToldEviction>,
    phase: Phase,
    /// Judge of the properties that are checked; absent: none are.
    pub(super) judge: Option<Judge>,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Scenario,
    /// The scenario is over. The next arrival is a probe, at which waiting requests are explained.
    BeforeProbe,
    /// The probe has arrived: what comes is of its making.
    AfterProbe,
}

/// The executors that a policy considered for a request.
#[derive(Debug)]
pub(super) struct Explanation {
    pub(super) at: Micros,
    /// Number of the policy.
    pub(super) policy: u32,
    pub(super) candidates: Vec<Candidate>,
}

// === impl Watch ===

impl Watch {
    pub(super) fn new(about: BTreeSet<RequestId>, judge: Option<Judge>) -> Self {
        Self {
            about,
            costed: BTreeSet::new(),
            explained: BTreeMap::new(),
            evictions: VecDeque::new(),
            phase: Phase::Scenario,
            judge,
        }
    }

    pub(super) fn wants_explanations(&self) -> bool {
        !self.about.is_empty()
    }

    pub(super) fn probe_next_arrival(&mut self) {
        self.phase = Phase::BeforeProbe;
    }

    /// Has a request explained for its costs.
    pub(super) fn explain_cost_of(&mut self, request: RequestId) {
        self.costed.insert(request);
    }

    /// The executors that a policy considered when it was last asked where a request goes; absent: no policy
    /// that explains was asked.
    pub(super) fn candidates(&self, request: RequestId) -> Option<&[Candidate]> {
        let explained = self.explained.get(&request)?;
        Some(&explained.candidates)
    }

    /// The explanations of the requests concerned.
    pub(super) fn explanations(&self) -> impl Iterator<Item = (RequestId, &Explanation)> + '_ {
        let concerned = self.explained.iter();
        let concerned = concerned.filter(|(request, _)| self.about.contains(request));
        concerned.map(|(request, said)| (*request, said))
    }

    pub(super) fn evictions(&self) -> impl Iterator<Item = &ToldEviction> {
        self.evictions.iter()
    }

    /// Keeps the numbers of an eviction, where a run is to be explained.
    fn keep_eviction(&mut self, asked: &Asked<'_>, answer: &Answer<Reply>) {
        let (Question::Preemption(shortage), Some(Reply::Preemption(Some(eviction)))) =
            (&asked.question, &answer.value)
        else {
            return;
        };
        if self.evictions.len() >= EVICTIONS_MAX {
            self.evictions.pop_front();
        }
        let told = ToldEviction::of(&asked.view, asked.at.now, (shortage, eviction));
        self.evictions.extend(told);
    }

    fn explain(&mut self, host: &PolicyHost, asked: &Asked<'_>, request: RequestId) {
        let Asked { view, at, .. } = asked;
        let Some((row, cached)) = view.request(request).zip(view.cached(request)) else {
            return;
        };
        let Some(rehearsal) = host.rehearse(view, *at, row) else {
            return;
        };
        if let Ok(candidates) = rehearsal.explain(row, &cached) {
            let explanation = Explanation {
                at: at.now,
                policy: rehearsal.policy(),
                candidates,
            };
            self.explained.insert(request, explanation);
        }
    }
}

impl Sink<PolicyHost> for Watch {
    fn ask(&mut self, host: &mut PolicyHost, asked: &Asked<'_>) -> Answer<Reply> {
        if self.phase == Phase::BeforeProbe && asked.question.hook() == Hook::Admission {
            self.phase = Phase::AfterProbe;
            for request in self.about.clone() {
                self.explain(host, asked, request);
            }
        }
        if let Question::Routing(requests) = &asked.question {
            for cached in requests.iter() {
                let request = &cached.request;
                if self.about.contains(request) || self.costed.contains(request) {
                    self.explain(host, asked, cached.request);
                }
            }
        }
        let answer = match &mut self.judge {
            Some(judge) if self.phase == Phase::Scenario => judge.ask(host, asked),
            Some(_) | None => host.ask(asked),
        };
        if self.wants_explanations() && self.phase == Phase::Scenario {
            self.keep_eviction(asked, &answer);
        }
        answer
    }
}
