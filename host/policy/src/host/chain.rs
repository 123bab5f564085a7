//! The chain of one hook: the policies that are asked, in order, before the built-in rule.

use crate::host::canary::Canary;

/// The policy in force, the policy that it displaced, and the canary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) in_force: Option<u32>,
    pub(crate) behind: Option<u32>,
    pub(crate) canary: Option<Canary>,
}

/// The part of what is decided that a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// All of it, or what is outside the canary's share.
    Steady,
    /// The canary's share.
    Canary,
}

impl Chain {
    /// Puts `policy` in force, and the policy that it displaces behind it. It is no canary any
    /// more.
    pub(crate) fn put(&mut self, policy: u32) {
        self.end_canary(policy);
        if self.in_force != Some(policy) {
            self.behind = self.in_force.replace(policy);
        }
    }

    /// Removes `policy`. If it was in force, the policy behind it is now.
    pub(crate) fn remove(&mut self, policy: u32) {
        self.end_canary(policy);
        if self.behind == Some(policy) {
            self.behind = None;
        }
        if self.in_force == Some(policy) {
            self.in_force = self.behind.take();
        }
    }

    /// Makes a policy the canary, which then holds the hook in no other way.
    pub(crate) fn put_canary(&mut self, canary: Canary) {
        self.remove(canary.policy);
        self.canary = Some(canary);
    }

    fn end_canary(&mut self, policy: u32) {
        self.canary = self.canary.filter(|canary| canary.policy != policy);
    }

    pub(crate) fn is_tried(&self, policy: u32) -> bool {
        self.canary.is_some_and(|canary| canary.policy == policy)
    }

    pub(crate) fn holds(&self, policy: u32) -> bool {
        self.everybody().any(|number| number == policy)
    }

    /// All policies of the chain.
    pub(crate) fn everybody(self) -> impl Iterator<Item = u32> {
        self.iter(Arm::Canary)
    }

    /// The policies that are asked about requests of `arm`, in order.
    pub(crate) fn iter(self, arm: Arm) -> impl Iterator<Item = u32> {
        let first = match arm {
            Arm::Steady => None,
            Arm::Canary => self.canary.map(|canary| canary.policy),
        };
        [first, self.in_force, self.behind].into_iter().flatten()
    }
}
