//! What the policy that routes would do with a request, asked of a throw-away copy.
//!
//! # Invariants
//! 1. The policy in force is not asked, told or counted anything (`tests`).
//!
//! # Not here
//! Its reasons, executor by executor ([`PolicyHost::explain`]).

use std::sync::Arc;

use pointsman_core::rows::{Cached, Change, Extent, Request};
use pointsman_core::{Hook, Moment, View, routing};

use super::PolicyHost;
use super::member::Rows;
use crate::instance::Fault;
use crate::policy::observe_all;

/// What a policy would answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rehearsal {
    /// Whose answer it would be.
    pub policy: u32,
    /// What it would be.
    pub verdict: routing::Verdict,
}

impl PolicyHost {
    /// Asks a throw-away copy of the policy that routes where it would put `request`, which need
    /// not exist. Absent: no policy routes. Slow: a fresh instance is fed everything.
    ///
    /// # Errors
    /// If the copy faults. The policy in force is untouched.
    pub fn rehearse(
        &self,
        view: &View<'_>,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Option<Result<Rehearsal, Fault>> {
        self.rehearse_from(view, at, request, cached)
    }

    pub(super) fn rehearse_from(
        &self,
        rows: &dyn Rows,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Option<Result<Rehearsal, Fault>> {
        let policy = self.holder(Hook::Routing)?;
        let member = self.members.get(&policy)?;
        let answer = member.copy_told(rows, at.now).and_then(|mut copy| {
            if member.description.feed.waiting {
                let limits = member.source.limits();
                let arrived = [Change::Waiting(Arc::new(request.clone()))];
                observe_all(copy.as_mut(), limits, (at.now, Extent::SinceLast), &arrived)?;
            }
            copy.route(at, std::slice::from_ref(cached))
        });
        Some(answer.map(|verdicts| Rehearsal {
            policy,
            verdict: verdicts.into_iter().next().unwrap_or(routing::Verdict {
                choice: routing::Choice::Hold(None),
                reason: 0,
            }),
        }))
    }
}

#[cfg(test)]
mod tests {
    use pointsman_core::rows::{RequestClass, Stage};
    use pointsman_core::{ExecutorId, Feed, Micros, RequestId, Round, TenantId};

    use super::*;
    use crate::fixture::{Handle, scripted};
    use crate::instance::HookSet;
    use crate::limits::Patience;
    use crate::policy::start;

    struct Nobody;

    impl Rows for Nobody {
        fn changes(&self, _: &mut Feed, out: &mut Vec<Change>) -> Extent {
            out.clear();
            Extent::Everything
        }
    }

    const AT: Moment = Moment {
        now: Micros(1),
        round: Round(1),
    };

    fn request() -> (Request, Cached) {
        let request = Request {
            id: RequestId(9),
            model: None,
            adapter: None,
            tenant: TenantId(0),
            session: None,
            class: RequestClass::LatencyCritical,
            priority: 0,
            head_start: Micros(0),
            stage: Stage::Queued,
            labels: Vec::new(),
            arrived: Micros(0),
            deadline: None,
            may_wait: true,
            prompt_tokens: 1,
            output_tokens_max: 1,
            output_tokens_expected: None,
            group: None,
            allowed: None,
            failed_on: Vec::new(),
            preferred: None,
            attempts: 0,
        };
        let cached = Cached {
            request: request.id,
            overlaps: Vec::new(),
            floor_tokens: 0,
            shared_tokens: 0,
        };
        (request, cached)
    }

    fn routing(policy: &Handle) -> PolicyHost {
        policy.set(|script| script.hooks = HookSet::from_iter([Hook::Routing]));
        let mut host = PolicyHost::new(Patience::default());
        let number = host.add(start(policy.source()).unwrap()).unwrap();
        let hooks = HookSet::from_iter([Hook::Routing]);
        host.bind(Micros(0), number, hooks).unwrap();
        policy.calls();
        host
    }

    #[test]
    fn a_copy_is_told_of_the_request_and_asked_and_the_policy_in_force_knows_nothing_of_it() {
        let policy = scripted("p");
        policy.set(|script| script.description.feed.waiting = true);
        let host = routing(&policy);
        let before: Vec<_> = host.status().collect();
        let (request, cached) = request();
        let rehearsed = host.rehearse_from(&Nobody, AT, &request, &cached);
        let verdict = routing::Verdict {
            choice: routing::Choice::Place(vec![ExecutorId(99)]),
            reason: 0,
        };
        assert_eq!(rehearsed, Some(Ok(Rehearsal { policy: 0, verdict })));
        let calls = [
            "configure {}",
            "observe 1 Everything 0",
            "observe 1 SinceLast 1",
            "route",
        ];
        assert_eq!(policy.calls(), calls);
        assert_eq!(host.status().collect::<Vec<_>>(), before);
    }

    #[test]
    fn where_no_policy_routes_nobody_is_asked() {
        let (request, cached) = request();
        let host = PolicyHost::new(Patience::default());
        assert_eq!(host.rehearse_from(&Nobody, AT, &request, &cached), None);
    }
}
