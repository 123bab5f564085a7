//! Hooks that others answer for than before, so that the machine asks anew for what stands by an answer.
//!
//! A policy whose settings or component changed is another one here: each has a number of its own.
//!
//! # Not here
//! A policy that rests after a fault: the next in line answers meanwhile, and the hook is still its own.

use pointsman_core::{HookMap, HookSet};

use super::PolicyHost;
use super::canary::Canary;
use super::chain::Chain;

/// The policies whose answers count for a hook, each for its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Answerers {
    in_force: Option<u32>,
    canary: Option<Canary>,
}

impl From<&Chain> for Answerers {
    fn from(chain: &Chain) -> Self {
        Self {
            in_force: chain.in_force,
            canary: chain.canary,
        }
    }
}

impl PolicyHost {
    /// The hooks that other policies answer for than when this was last called, whatever the reason: a
    /// commit, an order, a rollback, a quarantine. The caller tells the machine of each, as
    /// `Input::PolicyChanged`.
    pub fn take_rebound(&mut self) -> HookSet {
        let now = HookMap::from_fn(|hook| Answerers::from(&self.chains[hook]));
        let before = std::mem::replace(&mut self.answered, now);
        let changed = now.iter().filter(|(hook, now)| before[*hook] != **now);
        changed.map(|(hook, _)| hook).collect()
    }
}
