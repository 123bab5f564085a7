//! Rehearsals: a throw-away copy of a policy says what it would do with a request.
//!
//! A copy runs the policy's `configure` and `restore` and is told everything, for as long as its
//! limits allow. So a [`Rehearsal`] only collects what a copy needs, and the copy is made wherever
//! the rehearsal is asked: on a thread that no decision waits for.
//!
//! # Invariants
//! 1. The policy in force is neither asked nor told anything, and nothing is counted for it
//!    (`a_copy_is_told_of_the_request_and_asked_and_the_policy_in_force_knows_nothing_of_it`).

use std::fmt;
use std::sync::Arc;

use pointsman_component::{Candidate, Fault, Instance, PolicyDescription};
use pointsman_core::rows::{Cached, Change, Extent, Request};
use pointsman_core::{Hook, Moment, Question, RowKind, routing};

use crate::policy::{Briefing, PolicySource};
use crate::runner::observe_all;

/// A policy as it was at one moment, with all that it would know then.
pub struct Rehearsal {
    pub(crate) policy: u32,
    /// The name by which the operator knows the policy.
    pub(crate) name: String,
    pub(crate) source: PolicySource,
    pub(crate) description: PolicyDescription,
    pub(crate) explains: bool,
    pub(crate) state: Option<Vec<u8>>,
    pub(crate) at: Moment,
    pub(crate) told: Briefing,
}

/// A reason why there is no explanation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// No policy routes, or the one in force does not export `explanation`.
    #[error("the policy in force does not explain")]
    NotExported,
    /// The copy that was asked faulted. The policy in force is not affected.
    #[error("the copy that was asked faulted")]
    Faulted(#[source] Fault),
}

impl Rehearsal {
    /// The policy's number.
    #[must_use]
    pub fn policy(&self) -> u32 {
        self.policy
    }

    /// The name by which the operator knows the policy.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text of a reason that an answer gave.
    #[must_use]
    pub fn reason(&self, reason: u16) -> Option<&str> {
        self.description.reason(reason)
    }

    /// Asks a copy where it would put `request`, which need not exist.
    ///
    /// # Errors
    /// The fault of the copy.
    pub fn route(&self, request: &Request, cached: &Cached) -> Result<routing::Verdict, Fault> {
        let mut copy = self.copy()?;
        let needs = self.description.needs.of(Hook::Routing);
        if needs.contains(RowKind::Waiting) {
            let arrived = [Change::Waiting(Arc::new(request.clone()))];
            let told = (self.at.now, Extent::SinceLast);
            observe_all(copy.as_mut(), self.source.limits(), told, &arrived)?;
        }
        let question = Question::Routing(std::slice::from_ref(cached).into());
        let reply = copy.ask(self.at, &question)?;
        let verdicts = reply.routing().unwrap_or_default();
        // No verdict places nothing.
        Ok(verdicts.into_iter().next().unwrap_or(routing::Verdict {
            choice: routing::Choice::Hold(None),
            reason: 0,
        }))
    }

    /// Asks a copy for the executors that it would consider for `request`, which need not exist.
    ///
    /// # Errors
    /// If the policy does not explain, or the copy faults.
    pub fn explain(
        &self,
        request: &Request,
        cached: &Cached,
    ) -> Result<Vec<Candidate>, ExplainError> {
        if !self.explains {
            return Err(ExplainError::NotExported);
        }
        self.copy()
            .and_then(|mut copy| copy.explain(self.at, request, cached))
            .map_err(|fault| ExplainError::Faulted(self.source.blamed(fault)))
    }

    /// A fresh instance with the policy's last state, which has been told everything.
    fn copy(&self) -> Result<Box<dyn Instance>, Fault> {
        let mut copy = self.source.warm(self.state.as_deref())?.instance;
        self.told
            .tell(copy.as_mut(), self.source.limits(), || true)?;
        Ok(copy)
    }
}

impl fmt::Debug for Rehearsal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rehearsal")
            .field("policy", &self.policy)
            .field("name", &self.name)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}
