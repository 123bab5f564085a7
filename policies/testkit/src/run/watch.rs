//! Between the machine and its policies: has them explained what they are asked about.
//!
//! An explanation is asked of a copy of the policy, so that watching changes no decision.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_core::rows::Cached;
use pointsman_core::{
    Allotment, Answer, Author, DeviceId, Eviction, Hook, Micros, Moment, Policies, Refusal,
    RequestId, Shortage, View, admission, routing,
};
use pointsman_policy::{ExplainError, Explanation, PolicyHost};

/// Policies, and what they say about the requests concerned.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) host: PolicyHost,
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

// === impl Watched ===

impl Watched {
    pub(super) fn new(host: PolicyHost, about: BTreeSet<RequestId>) -> Self {
        Self {
            host,
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

    fn explain(&mut self, view: &View<'_>, at: Moment, request: RequestId) {
        let Some((row, cached)) = view.request(request).zip(view.cached(request)) else {
            return;
        };
        let said = self.host.explain(view, at, row, &cached);
        self.explained.insert(request, (at.now, said));
    }
}

impl Policies for Watched {
    fn admit(
        &mut self,
        view: &View<'_>,
        at: Moment,
        arrivals: &[RequestId],
        room: u32,
    ) -> Answer<Vec<admission::Verdict>> {
        if self.probing == Probing::Yes {
            self.probing = Probing::No;
            for request in self.about.clone() {
                self.explain(view, at, request);
            }
        }
        self.host.admit(view, at, arrivals, room)
    }

    fn order(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[RequestId],
    ) -> Answer<Vec<RequestId>> {
        self.host.order(view, at, requests)
    }

    fn route(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[Cached],
    ) -> Answer<Vec<routing::Verdict>> {
        for asked in requests {
            if self.about.contains(&asked.request) {
                self.explain(view, at, asked.request);
            }
        }
        self.host.route(view, at, requests)
    }

    fn evict(
        &mut self,
        view: &View<'_>,
        at: Moment,
        shortage: &Shortage,
    ) -> Answer<Option<Eviction>> {
        self.host.evict(view, at, shortage)
    }

    fn allot(
        &mut self,
        view: &View<'_>,
        at: Moment,
        device: DeviceId,
        tokens_total: u32,
    ) -> Answer<Vec<Allotment>> {
        self.host.allot(view, at, device, tokens_total)
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        self.host.refused(author, hook, refusal);
    }
}
