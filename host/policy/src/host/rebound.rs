//! Hooks that others answer for than before, so that the machine asks anew for what stands by an answer.
//!
//! A policy whose settings or component changed is another one here: each has a number of its own. So is one that has
//! rested after a fault, at the end of its rest: the next in line answered meanwhile.

use pointsman_core::{Hook, HookMap, HookSet, Micros};

use super::PolicyHost;
use super::canary::Canary;

/// The time after which it is looked again for an instance that a thread makes beyond the back-off.
const LOOK_AGAIN: Micros = Micros(50_000);

/// The policies whose answers count for a hook, each for its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Answerers {
    in_force: Option<u32>,
    canary: Option<Canary>,
    /// True if the one in force rests, or did when it was its turn: the next in line answers.
    rests: bool,
}

impl Answerers {
    /// Notes that `policy` was passed over at a question, because it rests.
    pub(super) fn pass_over(&mut self, policy: u32) {
        self.rests |= self.in_force == Some(policy);
    }

    /// True if others answer than `before`, or the one in force does again. That it rests is no news: its
    /// answers stand until then.
    fn differs_from(self, before: Self) -> bool {
        let has_rested = before.rests && !self.rests;
        has_rested || (self.in_force, self.canary) != (before.in_force, before.canary)
    }
}

impl PolicyHost {
    /// The hooks that other policies answer for than when this was last called, whatever the reason: a
    /// commit, an order, a rollback, a quarantine, the end of a rest. The caller tells the machine of each, as
    /// `Input::PolicyChanged`.
    pub fn take_rebound(&mut self, now: Micros) -> HookSet {
        let answerers = HookMap::from_fn(|hook| self.answerers(now, hook));
        let before = std::mem::replace(&mut self.answered, answerers);
        let changed = answerers.iter();
        let changed = changed.filter(|(hook, now)| now.differs_from(before[*hook]));
        changed.map(|(hook, _)| hook).collect()
    }

    /// The time at which [`Self::take_rebound`] is to be called again though nothing happens: a policy may have
    /// rested by then. Absent: none rests.
    #[must_use]
    pub fn rest_end(&self, now: Micros) -> Option<Micros> {
        let resting = self.answered.iter().filter(|(_, it)| it.rests);
        let ends = resting.filter_map(|(_, it)| self.runner(it.in_force?)?.down_until());
        let again = now.after(LOOK_AGAIN);
        ends.map(|end| if end > now { end } else { again }).min()
    }

    fn answerers(&mut self, now: Micros, hook: Hook) -> Answerers {
        let chain = self.chains[hook];
        let in_force = chain.in_force;
        let member = in_force.and_then(|policy| self.members.get_mut(&policy));
        Answerers {
            in_force,
            canary: chain.canary,
            rests: member.is_some_and(|member| member.runner.pauses(now)),
        }
    }
}
