//! Events of policies, in a bounded queue.
//!
//! The fault of a question is not among them: it travels with the answer, into the core's facts.

use std::collections::VecDeque;
use std::fmt;

use pointsman_component::{Fault, LogLine};
use pointsman_core::{Clock, Hook, Micros};

use crate::host::probation::RollbackWhy;
use crate::policy::Restored;

/// An event of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEvent {
    /// Time of the event, in µs of the host's clock.
    pub at: Micros,
    /// Number of the policy.
    pub policy: u32,
    /// Kind of the event.
    pub kind: PolicyEventKind,
}

/// The kind of an event, with its details.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyEventKind {
    /// The policy faulted outside of a question: at a snapshot.
    Faulted(Fault),
    /// A fresh instance took the place of one that faulted.
    Restarted {
        /// Number of the instance, counted from 1.
        generation: u32,
        /// Result of offering it the last snapshot.
        restored: Restored,
    },
    /// No more snapshots are taken. A fresh instance still gets the last one.
    SnapshotsEnded {
        /// Reason, for the operator.
        why: String,
    },
    /// The policy faulted too often and lost all its hooks.
    Quarantined {
        /// Number of faults in the window.
        faults: usize,
    },
    /// The policy was put in force on probation.
    OnProbation,
    /// The policy passed its probation.
    Proven {
        /// Number of questions that it answered on probation.
        questions: u32,
    },
    /// The policy was taken out, and the one that it displaced is in force again.
    RolledBack {
        /// Numbers of the policies that are in force again; empty if the built-in rules are.
        to: Vec<u32>,
        /// Reason of the rollback.
        why: RollbackWhy,
    },
    /// A liveness bound ran out while the policy was in force. Counts as a fault.
    Struck {
        /// Hook that the policy holds.
        hook: Hook,
        /// Bound that ran out.
        clock: Clock,
    },
    /// The policy lost this hook to the embedded default, by order.
    Ejected(Hook),
    /// The policy is no shadow any more.
    ShadowEnded {
        /// Reason, for the operator.
        why: String,
    },
    /// It went into quarantine and nobody may answer in its stead: the hook refuses until
    /// another policy is bound.
    Closed(Hook),
    /// It has no hook left and was dropped.
    Retired,
    /// The policy logged a line.
    Logged(LogLine),
    /// The policy logged this many lines more than are kept or told of. Told once a second at most,
    /// and when the policy goes.
    LogDropped(u64),
}

/// The event as a predicate, of which the policy is the subject.
impl fmt::Display for PolicyEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faulted(fault) => write!(f, "faulted at a snapshot: {fault}"),
            Self::Restarted {
                generation,
                restored,
            } => write!(f, "restarted as number {generation}, {restored}"),
            Self::SnapshotsEnded { why } => write!(f, "is not asked for its state again: {why}"),
            Self::Quarantined { faults } => write!(f, "is in quarantine after {faults} faults"),
            Self::OnProbation => f.write_str("is on probation"),
            Self::Proven { questions } => write!(f, "is proven by {questions} questions"),
            Self::RolledBack { to: _, why } => write!(f, "is rolled back: {why}"),
            Self::Struck { hook, clock } => {
                write!(
                    f,
                    "let a bound run out at {}: {}",
                    hook.as_str(),
                    clock.as_str()
                )
            }
            Self::Ejected(hook) => write!(f, "is ejected from {}", hook.as_str()),
            Self::ShadowEnded { why } => write!(f, "is no shadow any more: {why}"),
            Self::Closed(hook) => write!(f, "leaves {} closed", hook.as_str()),
            Self::Retired => f.write_str("has no hook left"),
            Self::Logged(line) => write!(f, "{}: {}", line.level, line.message),
            Self::LogDropped(lines) => write!(f, "logged {lines} more lines, which were dropped"),
        }
    }
}

/// The newest events, in a bounded queue.
#[derive(Debug)]
pub(crate) struct Events {
    max: usize,
    queue: VecDeque<PolicyEvent>,
    dropped: u64,
}

impl Events {
    pub(crate) fn new(max: u32) -> Self {
        Self {
            max: usize::try_from(max).unwrap_or(usize::MAX),
            queue: VecDeque::new(),
            dropped: 0,
        }
    }

    pub(crate) fn push(&mut self, at: Micros, policy: u32, kind: PolicyEventKind) {
        if self.queue.len() >= self.max {
            self.queue.pop_front();
            self.dropped += 1;
        }
        self.queue.push_back(PolicyEvent { at, policy, kind });
    }

    /// Adds an event for each line that `policy` logged, and one for the number of lines dropped.
    pub(crate) fn log(&mut self, at: Micros, policy: u32, lines: Vec<LogLine>, dropped: u64) {
        for line in lines {
            self.push(at, policy, PolicyEventKind::Logged(line));
        }
        if dropped > 0 {
            self.push(at, policy, PolicyEventKind::LogDropped(dropped));
        }
    }

    pub(crate) fn pop(&mut self) -> Option<PolicyEvent> {
        self.queue.pop_front()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}
