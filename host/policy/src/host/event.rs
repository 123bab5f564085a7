//! What happens to policies besides answering, in a bounded queue.
//!
//! Faults of a question travel with its answer, into the core's facts. Here is the rest.

use std::collections::VecDeque;

use pointsman_core::{Clock, Hook, Micros};

use crate::host::probation::RollbackWhy;
use crate::instance::{Fault, LogLine};
use crate::policy::Restored;

/// Something that happened to a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEvent {
    /// When, on the host's clock.
    pub at: Micros,
    /// To which policy.
    pub policy: u32,
    /// What.
    pub kind: PolicyEventKind,
}

/// What happened to a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyEventKind {
    /// It faulted while no question was open: at a snapshot.
    Faulted(Fault),
    /// A fresh instance took the place of one that faulted.
    Restarted {
        /// Counts the policy's instances, from 1.
        generation: u32,
        /// What became of its last snapshot.
        restored: Restored,
    },
    /// No more snapshots of it are taken. A fresh instance still gets the last one, if any.
    SnapshotsEnded {
        /// Why, for the operator.
        why: String,
    },
    /// It faulted too often and has lost all its hooks.
    Quarantined {
        /// Faults in the window.
        faults: usize,
    },
    /// It was put in force on probation.
    OnProbation,
    /// It stood its probation.
    Proven {
        /// Questions it answered meanwhile.
        questions: u32,
    },
    /// It was taken out, and whom it displaced is in force again.
    RolledBack {
        /// Who that is, by number; nobody: the built-in rules.
        to: Vec<u32>,
        /// Why.
        why: RollbackWhy,
    },
    /// A liveness bound ran out while it was in force. Counts as a fault.
    Struck {
        /// At which of its decisions.
        hook: Hook,
        /// Which bound.
        clock: Clock,
    },
    /// It lost this hook to the embedded default, on somebody's order.
    Ejected(Hook),
    /// It was a shadow, and is one no more.
    ShadowEnded {
        /// Why.
        why: String,
    },
    /// It went into quarantine and nobody may answer in its stead: the hook refuses until
    /// another policy is bound.
    Shut(Hook),
    /// It has no hook left and was dropped.
    Retired,
    /// It logged a line.
    Logged(LogLine),
    /// It logged more lines than are kept.
    LogDropped(u64),
}

/// The newest events, a bounded number.
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

    /// What policy `policy` has logged, and how many lines of it were not kept.
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
