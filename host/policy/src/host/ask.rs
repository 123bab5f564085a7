//! Asking: down the chain of a hook, and a throw-away copy for an explanation.

use pointsman_core as core;
use pointsman_core::rows::{Cached, Request};
use pointsman_core::{
    Allotment, Answer, Author, DeviceId, Eviction, Feed, Hook, Moment, Policies, Refusal, Reply,
    RequestId, Shortage, Strike, View, admission, routing,
};

use crate::host::chain::Arm;
use crate::host::member::{Ask, Asked, Question, Rows};
use crate::host::{ExplainError, Explanation, PolicyHost};

impl PolicyHost {
    /// Asks a throw-away copy of the policy that routes why `request` would go where it would
    /// go. The request need not exist. Slow: a fresh instance is fed everything.
    ///
    /// # Errors
    /// If that policy does not explain, or the copy faults.
    pub fn explain(
        &self,
        view: &View<'_>,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Result<Explanation, ExplainError> {
        self.explain_by(self.router_of(view, request), view, at, (request, cached))
    }

    pub(super) fn explain_by(
        &self,
        policy: Option<u32>,
        rows: &dyn Rows,
        at: Moment,
        (request, cached): (&Request, &Cached),
    ) -> Result<Explanation, ExplainError> {
        let member = policy
            .and_then(|number| self.members.get(&number))
            .filter(|member| member.explains)
            .ok_or(ExplainError::NotExported)?;
        let candidates = member
            .copy_told(rows, at.now)
            .and_then(|mut copy| copy.explain(at, request, cached))
            .map_err(ExplainError::Faulted)?;
        Ok(Explanation {
            policy: member.number,
            candidates,
        })
    }

    /// Asks down the chain, and shows the question to shadows; `named` notes in the feed what the answer named.
    pub(super) fn ask<R>(
        &mut self,
        question: &Question<'_>,
        ask: Ask<'_, R>,
        named: &dyn Fn(&mut Feed, &R),
    ) -> Answer<R>
    where
        R: Clone,
        Reply: From<R>,
    {
        let now = question.at.now;
        let hook = question.asked.hook();
        let otherwise = self.otherwise(hook);
        let mut faults = Vec::new();
        self.shared.last.began.clear();
        self.shared.last.standing = None;
        for policy in self.askable(hook).iter(question.arm) {
            self.hold_canary_against(policy, hook);
            let Some(member) = self.members.get_mut(&policy) else {
                continue;
            };
            match member.ask(&mut self.shared, question, &mut *ask) {
                Asked::Answered(value) => {
                    named(&mut member.feed, &value);
                    self.shared.last.standing = Some(member.standing());
                    member.save_in_turn(&mut self.shared, now);
                    self.show(question, Some((policy, &value)));
                    self.settle(now, policy, "faulted at a snapshot");
                    return Answer {
                        faults,
                        otherwise,
                        ..Answer::by(policy, value)
                    };
                }
                Asked::Faulted(fault) => {
                    self.settle(now, policy, &fault.detail);
                    faults.push(fault);
                }
                Asked::TooEarly => {}
            }
        }
        self.show::<R>(question, None);
        Answer {
            faults,
            otherwise,
            ..Answer::unbound()
        }
    }
}

// === impl Policies ===

impl Policies for PolicyHost {
    fn admit(
        &mut self,
        view: &View<'_>,
        at: Moment,
        arrivals: &[RequestId],
        room: u32,
    ) -> Answer<Vec<admission::Verdict>> {
        self.ask(
            &Question {
                asked: core::Question::Admission { arrivals, room },
                at,
                rows: view,
                arm: self.arm(view, Hook::Admission, arrivals.first().copied()),
            },
            &mut |policy| policy.admit(at, arrivals, room),
            &|feed, verdicts| feed.named.by_admit(arrivals, verdicts),
        )
    }

    fn order(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[RequestId],
    ) -> Answer<Vec<RequestId>> {
        self.ask(
            &Question {
                asked: core::Question::Priority(requests),
                at,
                rows: view,
                arm: Arm::Steady,
            },
            &mut |policy| policy.order(at, requests),
            // An order counts on nothing that could be refused.
            &|_, _| {},
        )
    }

    fn route(
        &mut self,
        view: &View<'_>,
        at: Moment,
        requests: &[Cached],
    ) -> Answer<Vec<routing::Verdict>> {
        self.ask(
            &Question {
                asked: core::Question::Routing(requests),
                at,
                rows: view,
                arm: self.arm(view, Hook::Routing, requests.first().map(|row| row.request)),
            },
            &mut |policy| policy.route(at, requests),
            &|feed, verdicts| {
                let ids: Vec<RequestId> = requests.iter().map(|cached| cached.request).collect();
                feed.named.by_route(&ids, verdicts);
            },
        )
    }

    fn evict(
        &mut self,
        view: &View<'_>,
        at: Moment,
        shortage: &Shortage,
    ) -> Answer<Option<Eviction>> {
        self.ask(
            &Question {
                asked: core::Question::Preemption(shortage),
                at,
                rows: view,
                arm: Arm::Steady,
            },
            &mut |policy| policy.evict(at, shortage),
            &|feed, eviction| {
                if let Some(eviction) = eviction {
                    feed.named.by_evict(eviction);
                }
            },
        )
    }

    fn allot(
        &mut self,
        view: &View<'_>,
        at: Moment,
        device: DeviceId,
        tokens_total: u32,
    ) -> Answer<Vec<Allotment>> {
        self.ask(
            &Question {
                asked: core::Question::Budget {
                    device,
                    tokens_total,
                },
                at,
                rows: view,
                arm: Arm::Steady,
            },
            &mut |policy| policy.allot(at, device, tokens_total),
            // The executor's row says nothing of its allotment.
            &|_, _| {},
        )
    }

    fn run(&self, view: &View<'_>, hook: Hook, requests: &[RequestId]) -> usize {
        self.run_of(view, hook, requests)
    }

    fn refused(&mut self, author: Author, hook: Hook, refusal: &Refusal) {
        let Author::Policy(policy) = author else {
            return;
        };
        if let Some(member) = self.members.get_mut(&policy) {
            member.count_refusal(hook, refusal);
        }
    }

    fn struck(&mut self, view: &View<'_>, strike: &Strike) {
        let arm = self.arm(view, strike.hook, strike.request);
        self.strike(strike, arm);
    }
}
