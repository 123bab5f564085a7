//! One pass of the keeper: what is being done about which policy, and what comes of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pointsman_core::Micros;

use super::attempt::{Attempt, Now};
use super::prepare::Ready;
use super::report::{Outcome, Transaction, Trigger};

/// Transactions that are kept.
const TRANSACTIONS_MAX: usize = 64;

/// One pass.
pub(crate) struct Pass {
    // Immutable.
    pub(crate) at: Micros,
    clock: Now,
    // Owned state.
    /// What sets off what is begun from now on.
    pub(crate) cause: Trigger,
    open: BTreeMap<String, Attempt>,
    ready: BTreeMap<String, Ready>,
    done: Vec<Transaction>,
}

/// The newest transactions.
#[derive(Debug, Default)]
pub(crate) struct History {
    kept: VecDeque<Transaction>,
    /// Transactions so far.
    made: u64,
}

// === impl Pass ===

impl Pass {
    pub(crate) fn new(clock: &Now, cause: Trigger) -> Self {
        Self {
            at: clock(),
            clock: Arc::clone(clock),
            cause,
            open: BTreeMap::new(),
            ready: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    /// Something new is being done about `name`.
    pub(crate) fn open(&mut self, name: &str) -> &mut Attempt {
        self.forgo(name);
        self.attempt(name)
    }

    /// What is being done about `name`.
    pub(crate) fn attempt(&mut self, name: &str) -> &mut Attempt {
        let Self { open, clock, .. } = self;
        open.entry(name.to_owned())
            .or_insert_with(|| Attempt::new(clock))
    }

    /// What was begun about `name` in an earlier pass goes on.
    pub(crate) fn resume(&mut self, name: &str, attempt: Attempt) {
        self.open.insert(name.to_owned(), attempt);
    }

    /// Nothing has to be done about `name` after all.
    pub(crate) fn forgo(&mut self, name: &str) {
        self.open.remove(name);
    }

    /// `ready` waits for its hooks.
    pub(crate) fn keep(&mut self, name: &str, ready: Ready) {
        self.ready.insert(name.to_owned(), ready);
    }

    /// What waits as `name`.
    pub(crate) fn take(&mut self, name: &str) -> Option<Ready> {
        self.ready.remove(name)
    }

    /// What was being done about `name` has come to `outcome`, and held the driver up for `pause`.
    pub(crate) fn finish(&mut self, name: &str, outcome: Outcome, pause: Option<Micros>) {
        let attempt = self.open.remove(name);
        let attempt = attempt.unwrap_or_else(|| Attempt::new(&self.clock));
        self.done.push(Transaction {
            number: 0,
            at: attempt.at,
            cause: self.cause,
            policy: name.to_owned(),
            digest: attempt.digest,
            outcome,
            phases: attempt.phases,
            restored: attempt.restored,
            pause,
        });
    }

    /// What it has come to so far, and was not taken yet.
    pub(crate) fn take_done(&mut self) -> Vec<Transaction> {
        std::mem::take(&mut self.done)
    }

    /// What else it came to. What could have been put in force, and was not, is idle.
    pub(crate) fn end(mut self) -> Vec<Transaction> {
        let idle: Vec<String> = self.open.keys().cloned().collect();
        for name in idle {
            self.finish(&name, Outcome::Idle, None);
        }
        self.done
    }
}

// === impl History ===

impl History {
    /// Numbers `transactions` and keeps the newest.
    pub(crate) fn extend(&mut self, transactions: Vec<Transaction>) {
        for mut transaction in transactions {
            self.made += 1;
            transaction.number = self.made;
            if self.kept.len() >= TRANSACTIONS_MAX {
                self.kept.pop_front();
            }
            self.kept.push_back(transaction);
        }
    }

    pub(crate) fn kept(&self) -> &VecDeque<Transaction> {
        &self.kept
    }
}
