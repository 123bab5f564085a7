//! The consequences for a hook whose policy does not answer: the next in line decides, or nobody.
//!
//! A hook fails closed under [`OnFailure::Closed`]. It is closed once its policy went into
//! quarantine, and opens with the next policy that is bound.
//!
//! # Invariants
//! 1. For a hook that fails closed, nobody but the policy in force answers (`host::tests::closed`).

use pointsman_core::{Hook, HookSet, Micros, Otherwise};

use super::PolicyHost;
use super::chain::Chain;
use super::event::PolicyEventKind;

/// The consequence of a policy in force that does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// The policy behind answers, then the built-in rule.
    #[default]
    Fallback,
    /// Nobody answers, and arrivals are refused.
    Closed,
}

/// The refusal to let another hook than `admission` fail closed: its requests would be taken and
/// never served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("only admission can be closed, not {}", .0.as_str())]
pub struct CannotClose(pub Hook);

impl PolicyHost {
    /// Sets the consequence of a policy in force for `hook` that does not answer.
    ///
    /// # Errors
    /// If a hook other than `admission` is to fail closed.
    pub fn set_on_failure(&mut self, hook: Hook, on_failure: OnFailure) -> Result<(), CannotClose> {
        match on_failure {
            OnFailure::Closed if hook != Hook::Admission => return Err(CannotClose(hook)),
            OnFailure::Closed => {}
            OnFailure::Fallback => self.closed.remove(hook),
        }
        self.on_failure[hook] = on_failure;
        Ok(())
    }

    /// The consequence of a policy in force for `hook` that does not answer.
    #[must_use]
    pub fn on_failure(&self, hook: Hook) -> OnFailure {
        self.on_failure[hook]
    }

    /// Hooks whose policy went into quarantine, for which nobody answers before another is bound.
    #[must_use]
    pub fn closed(&self) -> HookSet {
        self.closed
    }

    /// Closes `hook`, as an earlier life of the server had it, if it fails closed.
    pub fn close(&mut self, hook: Hook) {
        if self.on_failure(hook) == OnFailure::Closed {
            self.closed.insert(hook);
        }
    }

    /// The policies of a hook that may be asked.
    pub(super) fn askable(&self, hook: Hook) -> Chain {
        let mut chain = self.chains[hook];
        if self.closed.contains(hook) {
            chain = Chain::default();
        }
        if self.on_failure(hook) == OnFailure::Closed {
            chain.behind = None;
        }
        chain
    }

    /// The decider where no policy gives a usable answer. A hook without a policy does not fail
    /// closed: there is nobody who could fail.
    pub(super) fn otherwise(&self, hook: Hook) -> Otherwise {
        let has_policy = self.closed.contains(hook) || self.holder(hook).is_some();
        match self.on_failure(hook) {
            OnFailure::Closed if has_policy => Otherwise::Closed,
            OnFailure::Closed | OnFailure::Fallback => Otherwise::BuiltIn,
        }
    }

    /// Closes the hooks that fail closed for which `policy`, which goes into quarantine, is in
    /// force.
    pub(super) fn close_after(&mut self, now: Micros, policy: u32) {
        for hook in self.in_force(policy).iter() {
            if self.on_failure(hook) == OnFailure::Closed {
                self.closed.insert(hook);
                let kind = PolicyEventKind::Closed(hook);
                self.shared.events.push(now, policy, kind);
            }
        }
    }
}
