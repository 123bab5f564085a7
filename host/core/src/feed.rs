//! What one policy has been told, and what it must be told before its next question.
//!
//! The protocol is `observe` of `wit/hooks.wit`: each row that changed since the last time,
//! and each row the last answer named, changed or not, so that what a policy counted while
//! answering cannot outlive a refusal.
//!
//! # Invariants
//! 1. After [`Feed::changes`] the policy's mirror equals the machine's rows
//!    (`tests/feed.rs` folds random runs and compares).
//! 2. A row named by an answer is among the next changes (`tests/feed.rs`).

use std::collections::BTreeSet;

use crate::ids::{ExecutorId, RequestId};
use crate::log::{RowKey, Wanted};
use crate::policies::{Eviction, admission, routing};
use crate::rows::{Change, Extent, FeedKinds};
use crate::view::View;

/// One policy's position in the machine's changes.
#[derive(Debug)]
pub struct Feed {
    kinds: FeedKinds,
    /// Where to go on; absent: it knows nothing yet.
    position: Option<u64>,
    /// Rows the last answer named.
    named: BTreeSet<RowKey>,
}

impl Feed {
    /// For a policy that knows nothing yet and wants `kinds` besides what everybody gets.
    #[must_use]
    pub fn new(kinds: FeedKinds) -> Self {
        Self {
            kinds,
            position: None,
            named: BTreeSet::new(),
        }
    }

    /// The policy has forgotten everything: a fresh instance took its place.
    pub fn reset(&mut self) {
        self.position = None;
        self.named.clear();
    }

    /// Writes to `out` what the policy must be told now, and takes it as told. With nothing to
    /// tell, `out` stays empty and no `observe` is due.
    pub fn changes(&mut self, view: &View<'_>, out: &mut Vec<Change>) -> Extent {
        out.clear();
        let kinds = self.kinds;
        let known = self.position.and_then(|at| Some((at, view.since(at)?)));
        let extent = match known {
            Some((position, entries)) => {
                out.extend(
                    entries.filter_map(|(stamp, key)| view.row(key, Wanted::Entry(stamp), kinds)),
                );
                let named = self.named.iter();
                out.extend(named.filter_map(|key| view.row(*key, Wanted::Untold(position), kinds)));
                Extent::SinceLast
            }
            None => {
                view.everything(self.kinds, out);
                Extent::Everything
            }
        };
        self.position = Some(view.end());
        self.named.clear();
        extent
    }

    /// An answer named this request.
    pub fn named_request(&mut self, request: RequestId) {
        self.named.insert(RowKey::Waiting(request));
        self.named.insert(RowKey::Sequence(request));
    }

    /// An answer named this executor.
    pub fn named_executor(&mut self, executor: ExecutorId) {
        self.named.insert(RowKey::Load(executor));
    }

    /// Notes what an answer of the hook `admission` named.
    pub fn named_by_admit(&mut self, arrivals: &[RequestId], verdicts: &[admission::Verdict]) {
        for request in arrivals {
            self.named_request(*request);
        }
        for verdict in verdicts {
            if let admission::Choice::Displace(request) = verdict.choice {
                self.named_request(request);
            }
        }
    }

    /// Notes what an answer of the hook `routing` named.
    pub fn named_by_route(&mut self, requests: &[RequestId], verdicts: &[routing::Verdict]) {
        for (request, verdict) in requests.iter().zip(verdicts) {
            if let routing::Choice::Place(executors) = &verdict.choice {
                self.named_request(*request);
                for executor in executors {
                    self.named_executor(*executor);
                }
            }
        }
    }

    /// Notes what an answer of the hook `preemption` named.
    pub fn named_by_evict(&mut self, eviction: &Eviction) {
        self.named_executor(eviction.executor);
        for victim in &eviction.victims {
            self.named_request(victim.request);
        }
    }
}
