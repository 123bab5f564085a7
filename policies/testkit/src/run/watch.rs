//! Between the machine and its policies: has them explained what they are asked about.
//!
//! An explanation is asked of a copy of the policy, so that watching changes no decision.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_core::{Answer, Asked, Micros, Policies, Question, Reply, RequestId, Sink, Tap};
use pointsman_policy::{ExplainError, Explanation, PolicyHost};

/// Policies that are watched.
pub(super) type Watched = Tap<PolicyHost, Watch>;

/// What policies say about the requests concerned.
#[derive(Debug)]
pub(super) struct Watch {
    about: BTreeSet<RequestId>,
    /// The newest explanation of each, and when it was given.
    explained: BTreeMap<RequestId, (Micros, Result<Explanation, ExplainError>)>,
    /// Whether the next arrival is only there to have those that wait explained.
    probing: Probing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probing {
    No,
    Yes,
}

// === impl Watch ===

impl Watch {
    pub(super) fn new(about: BTreeSet<RequestId>) -> Self {
        Self {
            about,
            explained: BTreeMap::new(),
            probing: Probing::No,
        }
    }

    pub(super) fn wants_explanations(&self) -> bool {
        !self.about.is_empty()
    }

    pub(super) fn probe_next_arrival(&mut self) {
        self.probing = Probing::Yes;
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
        match &asked.question {
            Question::Admission { .. } if self.probing == Probing::Yes => {
                self.probing = Probing::No;
                for request in self.about.clone() {
                    self.explain(host, asked, request);
                }
            }
            Question::Routing(requests) => {
                for cached in requests.iter() {
                    if self.about.contains(&cached.request) {
                        self.explain(host, asked, cached.request);
                    }
                }
            }
            Question::Admission { .. }
            | Question::Priority(_)
            | Question::Preemption(_)
            | Question::Budget { .. } => {}
        }
        host.ask(asked)
    }
}
