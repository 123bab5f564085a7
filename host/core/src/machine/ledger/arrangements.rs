//! Arrangements: the order in which each engine serves its sequences, and the part of a step that
//! prompts may take.

use std::collections::BTreeSet;

use pointsman_events::{Arrangement, Author, Effect, ExecutorId, Fact};

use super::super::outbox::Outbox;
use super::Ledger;

impl Ledger {
    /// Has the sequences of an executor put in order anew, since others run there now: in this round,
    /// or in the next one, which is due wherever a sequence leaves. One alone has no order.
    pub(super) fn arrange(&mut self, executor: ExecutorId) {
        let record = &self[executor];
        let several = record.running().nth(1).is_some();
        if several || record.arrangement != Arrangement::default() {
            self.sets.arrange_due.insert(executor);
        }
    }

    /// Has the sequences of all executors put in order anew, by the policy that has taken over. False if
    /// there is nothing to put in order.
    pub(crate) fn arrange_anew(&mut self) -> bool {
        self.sets.arrange_built_in.clear();
        let executors: Vec<ExecutorId> = self.executors().map(|executor| executor.id).collect();
        for executor in executors {
            self.arrange(executor);
        }
        !self.sets.arrange_due.is_empty()
    }

    /// Takes the list of executors whose sequences are to be put in order anew.
    pub(crate) fn take_arrange_due(&mut self) -> BTreeSet<ExecutorId> {
        std::mem::take(&mut self.sets.arrange_due)
    }

    /// Has the next arrangement of an executor made by the built-in rule.
    pub(crate) fn arrange_built_in(&mut self, executor: ExecutorId) {
        self.sets.arrange_built_in.insert(executor);
        self.sets.arrange_due.insert(executor);
    }

    /// Tells whether the next arrangement of an executor is the built-in one, for this one time.
    pub(crate) fn take_arrange_built_in(&mut self, executor: ExecutorId) -> bool {
        self.sets.arrange_built_in.remove(&executor)
    }

    /// Tells an engine how to spend its steps, where that is not how it does already.
    pub(crate) fn set_arrangement(
        &mut self,
        executor: ExecutorId,
        arrangement: Arrangement,
        author: Author,
        out: &mut Outbox,
    ) {
        let record = self.executor_mut(executor);
        if record.arrangement == arrangement {
            return;
        }
        record.arrangement = arrangement.clone();
        out.effect(Effect::Arrange {
            executor,
            arrangement: arrangement.clone(),
        });
        out.fact(Fact::Arranged {
            executor,
            arrangement,
            author,
        });
    }
}
