//! Questions, asked down the chain of a hook.

use pointsman_core::{
    Answer, Asked, Author, Hook, Policies, Refusal, Reply, RequestId, Strike, View,
};

use crate::host::PolicyHost;
use crate::host::member::Asking;

impl PolicyHost {
    /// Asks the policies of the chain in turn, and passes the question on to shadows.
    pub(super) fn ask_chain(&mut self, asking: &Asking<'_>) -> Answer<Reply> {
        let now = asking.at.now;
        let hook = asking.question.hook();
        let otherwise = self.otherwise(hook);
        let mut faults = Vec::new();
        self.shared.last.began.clear();
        self.shared.last.briefed.clear();
        self.shared.last.counters = None;
        self.shared.last.cost = None;
        for policy in self.askable(hook).iter(asking.arm) {
            self.hold_canary_against(policy, hook);
            let Some(member) = self.members.get_mut(&policy) else {
                continue;
            };
            if member.rests(&mut self.shared, asking) {
                self.answered[hook].pass_over(policy);
                continue;
            }
            match member.ask(&mut self.shared, asking) {
                Ok(reply) => {
                    self.shared.last.counters = Some(member.runner.counters());
                    let fault = member.save_in_turn(&mut self.shared, now);
                    self.show(asking, Some((policy, &reply)));
                    self.settle(now, policy, &fault.unwrap_or_default());
                    return Answer {
                        faults,
                        otherwise,
                        ..Answer::by(policy, reply)
                    };
                }
                Err(fault) => {
                    self.settle(now, policy, fault.headline());
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
        let hook = question.hook();
        let arm = self.arm(view, hook, question.requests().next());
        self.count_for_canary(hook, arm, question.requests().count());
        let asking = Asking {
            arm,
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
