//! The operator's emergency switch: it gives a hook to the embedded default at once.
//!
//! # Invariants
//! 1. The embedded default is ready to take over, whether it holds a hook or not
//!    (`host::tests::eject`).
//!
//! # Not here
//! The choice of the embedded default: the server makes it.

use pointsman_core::{Hook, HookSet, Micros};

use super::PolicyHost;
use super::chain::Chain;
use super::event::PolicyEventKind;
use crate::host::BindError;

impl PolicyHost {
    /// Makes `policy` the embedded default of `hooks`, in place of an earlier one. It is kept even
    /// if it holds no hook, so that [`Self::eject`] finds it ready.
    ///
    /// # Errors
    /// If there is no such policy, or it lacks one of the hooks; then nothing changes.
    pub fn set_default(
        &mut self,
        now: Micros,
        policy: u32,
        hooks: HookSet,
    ) -> Result<(), BindError> {
        self.check_exported(policy, hooks)?;
        self.put_default(policy, hooks);
        self.retire(now);
        Ok(())
    }

    /// Makes `policy` the embedded default of `hooks`, which it exports. An earlier one that has no hook is a
    /// member until [`Self::retire`] is called.
    pub(super) fn put_default(&mut self, policy: u32, hooks: HookSet) {
        for hook in hooks.iter() {
            self.defaults[hook] = Some(policy);
        }
    }

    /// The embedded default of `hook`.
    #[must_use]
    pub fn default_of(&self, hook: Hook) -> Option<u32> {
        self.defaults[hook]
    }

    /// Takes `hook` from everybody but its embedded default, which is in force now; where there is
    /// none, the built-in rule is. A closed hook is open again. Returns the policies that lost the
    /// hook: the one in force, the one behind it, and the canary.
    pub fn eject(&mut self, now: Micros, hook: Hook) -> Vec<u32> {
        let default = self.default_of(hook);
        let alone = Chain {
            in_force: default,
            ..Chain::default()
        };
        let before = std::mem::replace(&mut self.chains[hook], alone);
        self.closed.remove(hook);
        let mut ejected: Vec<u32> = before
            .everybody()
            .filter(|number| Some(*number) != default)
            .collect();
        ejected.sort_unstable();
        for policy in &ejected {
            let kind = PolicyEventKind::Ejected(hook);
            self.shared.events.push(now, *policy, kind);
        }
        self.retire(now);
        ejected
    }

    pub(super) fn is_default(&self, policy: u32) -> bool {
        let mut defaults = self.defaults.iter();
        defaults.any(|(_, default)| *default == Some(policy))
    }
}
