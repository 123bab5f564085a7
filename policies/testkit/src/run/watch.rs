//! Explanations of decisions, collected between the machine and its policies.
//!
//! A copy of the policy is asked for them, so that no decision changes.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_core::{
    Answer, Asked, Hook, Micros, Policies, Question, Reply, RequestId, Sink, Tap,
};
use pointsman_policy::{ExplainError, Explanation, PolicyHost};

/// Policies whose explanations are collected.
pub(super) type Watched = Tap<PolicyHost, Watch>;

/// The explanations of the requests concerned.
#[derive(Debug)]
pub(super) struct Watch {
    about: BTreeSet<RequestId>,
    /// The last explanation of each request, with its time.
    explained: BTreeMap<RequestId, (Micros, Result<Explanation, ExplainError>)>,
    /// True if the next arrival is a probe, at which waiting requests are explained.
    is_probing: bool,
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

    pub(super) fn explanations(
        &self,
    ) -> impl Iterator<Item = (RequestId, Micros, &Explanation)> + '_ {
        self.explained
            .iter()
            .filter_map(|(request, (at, said))| Some((*request, *at, said.as_ref().ok()?)))
    }

    fn explain(&mut self, host: &PolicyHost, asked: &Asked<'_>, request: RequestId) {
        let Asked { view, at, .. } = asked;
        let Some((row, cached)) = view.request(request).zip(view.cached(request)) else {
            return;
        };
        let said = host.explain(view, *at, row, &cached);
        self.explained.insert(request, (at.now, said));
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
