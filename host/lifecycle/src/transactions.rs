//! The record of changes to policies: attempts under way, and the newest transactions.
//!
//! An [`Attempt`] collects the steps of a change to one policy, and ends as a [`Transaction`].
//!
//! # Bounds
//! The newest [`TRANSACTIONS_MAX`] transactions are kept.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use pointsman_component::{Digest, LoadError};
use pointsman_interface::Micros;
use pointsman_notation::chain;
use pointsman_policy::{Restored, StartError};

use super::report::{ReloadStep, StepTime, Transaction, TransactionOutcome, Trigger};

/// The most transactions that are kept.
const TRANSACTIONS_MAX: usize = 64;

/// The most bytes of a reason.
const WHY_BYTES_MAX: usize = 4096;

/// A function that reads the host's clock.
pub type HostClock = Arc<dyn Fn() -> Micros + Send + Sync>;

/// The record of changes to policies.
pub(crate) struct Transactions {
    // Immutable.
    clock: HostClock,
    // Of the present pass.
    /// The beginning of the pass.
    pub(crate) at: Micros,
    /// The cause of the transactions that end from now on.
    pub(crate) cause: Trigger,
    /// Attempts under way, by policy name.
    open: BTreeMap<String, Attempt>,
    /// Transactions that are not numbered yet.
    ended: Vec<Transaction>,
    // Of all passes.
    kept: VecDeque<Transaction>,
    numbered: u64,
}

/// An attempt to put one policy in force.
pub(crate) struct Attempt {
    clock: HostClock,
    at: Micros,
    pub(crate) digest: Option<Digest>,
    steps: Vec<StepTime>,
    pub(crate) restored: Option<Restored>,
    /// The step that has begun and has not ended.
    step: Option<ReloadStep>,
}

/// The step at which an attempt failed, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) step: ReloadStep,
    pub(crate) why: String,
}

// === impl Transactions ===

impl Transactions {
    pub(crate) fn new(clock: HostClock) -> Self {
        Self {
            clock,
            at: Micros(0),
            cause: Trigger::default(),
            open: BTreeMap::new(),
            ended: Vec::new(),
            kept: VecDeque::new(),
            numbered: 0,
        }
    }

    /// Begins a pass, whose transactions have that `cause`.
    pub(crate) fn begin_pass(&mut self, cause: Trigger) {
        self.at = (self.clock)();
        self.cause = cause;
    }

    /// The time now, which goes on while a pass lasts.
    pub(crate) fn now(&self) -> Micros {
        (self.clock)()
    }

    /// A new attempt, which is not part of the record yet.
    pub(crate) fn new_attempt(&self) -> Attempt {
        Attempt::new(&self.clock)
    }

    /// The attempt under way about `name`, begun if there is none.
    pub(crate) fn attempt(&mut self, name: &str) -> &mut Attempt {
        let Self { open, clock, .. } = self;
        open.entry(name.to_owned())
            .or_insert_with(|| Attempt::new(clock))
    }

    /// Makes `attempt` the one under way about `name`.
    pub(crate) fn resume(&mut self, name: &str, attempt: Attempt) {
        self.open.insert(name.to_owned(), attempt);
    }

    /// Ends the attempt under way about `name`; `pause` is the time for which the host was held up.
    pub(crate) fn end(&mut self, name: &str, outcome: TransactionOutcome, pause: Option<Micros>) {
        let attempt = self.open.remove(name);
        let attempt = attempt.unwrap_or_else(|| Attempt::new(&self.clock));
        self.note(name, attempt, outcome, pause);
    }

    /// Ends a new attempt about `digest` of `name`, whatever is under way about the policy.
    pub(crate) fn end_new(&mut self, name: &str, digest: Digest, outcome: TransactionOutcome) {
        let mut attempt = self.new_attempt();
        attempt.digest = Some(digest);
        self.note(name, attempt, outcome, None);
    }

    fn note(
        &mut self,
        name: &str,
        attempt: Attempt,
        outcome: TransactionOutcome,
        pause: Option<Micros>,
    ) {
        self.ended.push(Transaction {
            number: 0,
            at: attempt.at,
            cause: self.cause,
            policy: name.to_owned(),
            digest: attempt.digest,
            outcome,
            steps: attempt.steps,
            restored: attempt.restored,
            pause,
        });
    }

    /// The names of policies about which attempts are under way.
    pub(crate) fn open(&self) -> Vec<String> {
        self.open.keys().cloned().collect()
    }

    /// Numbers and keeps the transactions that have ended since the last call, and returns them.
    pub(crate) fn take_ended(&mut self) -> Vec<Transaction> {
        let mut ended = std::mem::take(&mut self.ended);
        for transaction in &mut ended {
            self.numbered += 1;
            transaction.number = self.numbered;
            if self.kept.len() >= TRANSACTIONS_MAX {
                self.kept.pop_front();
            }
            self.kept.push_back(transaction.clone());
        }
        ended
    }

    /// The newest transactions, the newest last.
    pub(crate) fn kept(&self) -> &VecDeque<Transaction> {
        &self.kept
    }
}

// === impl Attempt and Failure ===

impl Attempt {
    pub(crate) fn new(clock: &HostClock) -> Self {
        Self {
            clock: Arc::clone(clock),
            at: clock(),
            digest: None,
            steps: Vec::new(),
            restored: None,
            step: None,
        }
    }

    /// Does `work`, and notes its duration as that of `step`.
    pub(crate) fn time<R>(&mut self, step: ReloadStep, work: impl FnOnce() -> R) -> R {
        self.step = Some(step);
        let begun = (self.clock)();
        let done = work();
        let took = (self.clock)().since(begun);
        self.steps.push(StepTime { step, took });
        self.step = None;
        done
    }

    /// The step that has begun and has not ended.
    pub(crate) fn step(&self) -> Option<ReloadStep> {
        self.step
    }
}

impl Failure {
    /// The failure of `step` by `error`, with all sources of the error.
    pub(crate) fn new(step: ReloadStep, error: &(dyn Error + 'static)) -> Self {
        let mut why = chain(error);
        why.truncate(why.floor_char_boundary(WHY_BYTES_MAX));
        Self { step, why }
    }

    pub(crate) fn load(error: &LoadError) -> Self {
        let compiler = matches!(
            error,
            LoadError::Compile(_)
                | LoadError::Link(_)
                | LoadError::Panicked(_)
                | LoadError::Stopped(_)
                | LoadError::GivenUp { .. }
                | LoadError::NoCompiler(_)
        );
        let step = if compiler {
            ReloadStep::Compile
        } else {
            ReloadStep::Validate
        };
        Self::new(step, error)
    }

    pub(crate) fn start(error: &StartError) -> Self {
        let configure = matches!(
            error,
            StartError::ConfigureFaulted(_) | StartError::SettingsRefused(_)
        );
        let step = if configure {
            ReloadStep::Configure
        } else {
            ReloadStep::Start
        };
        Self::new(step, error)
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("digest", &self.digest)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Transactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transactions")
            .field("open", &self.open)
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_the_version_in_force_takes_nothing_from_the_one_that_comes() {
        let mut transactions = Transactions::new(Arc::new(|| Micros(0)));
        transactions.attempt("a").time(ReloadStep::Start, || ());
        let digest = Digest::of(b"the version in force");
        transactions.end_new("a", digest, TransactionOutcome::Proven);
        let why = String::new();
        transactions.end("a", TransactionOutcome::Idle { why }, None);
        let steps = transactions.ended.iter().map(|made| made.steps.len());
        assert_eq!(steps.collect::<Vec<_>>(), [0, 1]);
        assert_eq!(transactions.ended[0].digest, Some(digest));
    }
}
