//! What happens to a hook whose policy does not answer: the next in line, or nobody.
//!
//! # Invariants
//! 1. Under [`OnFailure::Closed`] nobody but the policy in force answers, and where it went into
//!    quarantine nobody does before another is bound (`host::tests::closed`).

use pointsman_core::{Hook, HookSet, Micros, Otherwise};

use super::PolicyHost;
use super::chain::Chain;
use super::event::PolicyEventKind;

/// What happens when the policy in force for a hook does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// The one behind it answers, then the built-in rule.
    #[default]
    Fallback,
    /// Nobody does: arrivals are refused. For whom no admission is worse than none.
    Closed,
}

/// Only `admission` can be closed: with any other hook requests would be taken and never served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("only admission can be closed, not {}", .0.as_str())]
pub struct CannotClose(pub Hook);

impl PolicyHost {
    /// Sets what happens when the policy in force for `hook` does not answer.
    ///
    /// # Errors
    /// If a hook other than `admission` is to be closed.
    pub fn set_on_failure(&mut self, hook: Hook, on_failure: OnFailure) -> Result<(), CannotClose> {
        match on_failure {
            OnFailure::Closed if hook != Hook::Admission => return Err(CannotClose(hook)),
            OnFailure::Closed => {}
            OnFailure::Fallback => self.shut.remove(hook),
        }
        self.on_failure[hook] = on_failure;
        Ok(())
    }

    /// What happens when the policy in force for `hook` does not answer.
    #[must_use]
    pub fn on_failure(&self, hook: Hook) -> OnFailure {
        self.on_failure[hook]
    }

    /// Closed hooks whose policy went into quarantine: nobody answers before another is bound.
    #[must_use]
    pub fn shut(&self) -> HookSet {
        self.shut
    }

    /// Leaves `hook` shut, as an earlier life of the server had it, if it is closed.
    pub fn leave_shut(&mut self, hook: Hook) {
        if self.on_failure(hook) == OnFailure::Closed {
            self.shut.insert(hook);
        }
    }

    /// Those of a hook's policies that may be asked.
    pub(super) fn askable(&self, hook: Hook) -> Chain {
        let mut chain = self.chains[hook];
        if self.shut.contains(hook) {
            chain = Chain::default();
        }
        if self.on_failure(hook) == OnFailure::Closed {
            chain.behind = None;
        }
        chain
    }

    /// Who decides where they give no usable answer. A hook that nobody was ever bound to is not
    /// closed: there is nobody who could fail.
    pub(super) fn otherwise(&self, hook: Hook) -> Otherwise {
        let has_policy = self.shut.contains(hook) || self.holder(hook).is_some();
        match self.on_failure(hook) {
            OnFailure::Closed if has_policy => Otherwise::Closed,
            OnFailure::Closed | OnFailure::Fallback => Otherwise::BuiltIn,
        }
    }

    /// Shuts the closed hooks for which `policy`, which goes into quarantine, is in force.
    pub(super) fn shut_after(&mut self, now: Micros, policy: u32) {
        for hook in self.in_force(policy).iter() {
            if self.on_failure(hook) == OnFailure::Closed {
                self.shut.insert(hook);
                let kind = PolicyEventKind::Shut(hook);
                self.shared.events.push(now, policy, kind);
            }
        }
    }
}
