//! Questions: asked down the chain of a hook, or of a throw-away copy for an explanation.

use pointsman_core::rows::{Cached, Request};
use pointsman_core::{
    Answer, Asked, Author, Hook, Moment, Policies, Refusal, Reply, RequestId, Strike, View,
};

use crate::host::member::Asking;
use crate::host::{ExplainError, Explanation, PolicyHost};
use crate::runner::Rows;

impl PolicyHost {
    /// Asks a throw-away copy of the policy that routes to explain its routing of `request`, which
    /// need not exist. Slow: a fresh instance is told everything.
    ///
    /// # Errors
    /// If the policy does not explain, or the copy faults.
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
        about: (&Request, &Cached),
    ) -> Result<Explanation, ExplainError> {
        let member = policy
            .and_then(|number| self.members.get(&number))
            .filter(|member| member.runner.explains)
            .ok_or(ExplainError::NotExported)?;
        let explained = member.runner.explain(rows, at, about);
        Ok(Explanation {
            policy: member.number,
            candidates: explained.map_err(ExplainError::Faulted)?,
        })
    }

    /// Asks the policies of the chain in turn, and passes the question on to shadows.
    pub(super) fn ask_chain(&mut self, asking: &Asking<'_>) -> Answer<Reply> {
        let now = asking.at.now;
        let hook = asking.question.hook();
        let otherwise = self.otherwise(hook);
        let mut faults = Vec::new();
        self.shared.last.began.clear();
        self.shared.last.counters = None;
        for policy in self.askable(hook).iter(asking.arm) {
            self.hold_canary_against(policy, hook);
            let Some(member) = self.members.get_mut(&policy) else {
                continue;
            };
            if member.runner.rests(now) {
                continue;
            }
            match member.ask(&mut self.shared, asking) {
                Ok(reply) => {
                    self.shared.last.counters = Some(member.runner.counters());
                    member.save_in_turn(&mut self.shared, now);
                    self.show(asking, Some((policy, &reply)));
                    self.settle(now, policy, "faulted at a snapshot");
                    return Answer {
                        faults,
                        otherwise,
                        ..Answer::by(policy, reply)
                    };
                }
                Err(fault) => {
                    self.settle(now, policy, &fault.detail);
                    faults.push(fault);
                }
            }
        }
        self.show(asking, None);
        Answer {
            faults,
            otherwise,
            ..Answer::unbound()
        }
    }
}

// === impl Policies ===

impl Policies for PolicyHost {
    fn ask(&mut self, asked: &Asked<'_>) -> Answer<Reply> {
        let Asked { view, at, question } = asked;
        let asking = Asking {
            arm: self.arm(view, question.hook(), question.requests().next()),
            question,
            at: *at,
            rows: view,
        };
        self.ask_chain(&asking)
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
