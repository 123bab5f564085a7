//! Explanations of decisions, collected between the machine and its policies.
//!
//! A copy of the policy is asked for them, so that no decision changes.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_core::{
    Answer, Asked, Hook, Micros, Policies, Question, Reply, RequestId, Sink, Tap,
};
use pointsman_policy::{Candidate, PolicyHost};

/// Policies whose explanations are collected.
pub(super) type Watched = Tap<PolicyHost, Watch>;

/// The explanations of the requests concerned.
#[derive(Debug)]
pub(super) struct Watch {
    about: BTreeSet<RequestId>,
    /// The last explanation of each request, with its time.
    explained: BTreeMap<RequestId, Explanation>,
    /// True if the next arrival is a probe, at which waiting requests are explained.
    is_probing: bool,
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
    pub(super) fn new(about: BTreeSet<RequestId>) -> Self {
        Self {
            about,
            explained: BTreeMap::new(),
            is_probing: false,
        }
    }

    pub(super) fn wants_explanations(&self) -> bool {
        !self.about.is_empty()
    }

    pub(super) fn probe_next_arrival(&mut self) {
        self.is_probing = true;
    }

    pub(super) fn explanations(&self) -> impl Iterator<Item = (RequestId, &Explanation)> + '_ {
        self.explained
            .iter()
            .map(|(request, said)| (*request, said))
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
        if self.is_probing && asked.question.hook() == Hook::Admission {
            self.is_probing = false;
            for request in self.about.clone() {
                self.explain(host, asked, request);
            }
        }
        if let Question::Routing(requests) = &asked.question {
            for cached in requests.iter() {
                if self.about.contains(&cached.request) {
                    self.explain(host, asked, cached.request);
                }
            }
        }
        host.ask(asked)
    }
}
