//! The input about policies: another one answers for a hook.
//!
//! Most answers are asked for in each round, or act once and are over. The others stand until something
//! happens in the fleet or to a request, and would outlive the policy that gave them:
//!
//! | hook | what stands by an answer | here |
//! |---|---|---|
//! | `admission` | nothing: an arrival is decided once | |
//! | `priority` | the order of the queue of an executor | asked for anew |
//! | `routing` | a request that is held, where nothing else makes a round due | a round is due |
//! | `preemption` | the pause after an answer that freed nothing | ends |
//! | `budget` | budgets of devices, and arrangements of engines | asked for anew |
//!
//! # Invariants
//! 1. Nothing that an answer has brought about is undone: who is placed, evicted, parked or turned away
//!    is so (`pointsman-sim`, `tests/rebinding.rs`).

use pointsman_events::Hook;

use super::super::Machine;

impl Machine {
    /// Has a new policy asked for all that stands by an answer of the one before, in a round that is due
    /// where there is such a thing.
    pub(super) fn policy_changed(&mut self, hook: Hook) {
        let stands = match hook {
            Hook::Admission => false,
            Hook::Priority => self.ledger.order_queues_anew(),
            Hook::Routing => !self.requests.queue().is_empty(),
            Hook::Preemption => {
                self.out.timers.open_evict_gates();
                !self.requests.queue().is_empty()
            }
            Hook::Budget => {
                let (budgets, arrangements) =
                    (self.ledger.allot_anew(), self.ledger.arrange_anew());
                budgets || arrangements
            }
        };
        self.out.due |= stands;
    }
}
