//! What an operator sees of each policy.

use std::collections::BTreeMap;

use pointsman_core::{FaultKind, Hook, Micros, Refusal};

use crate::component::Digest;
use crate::host::quarantine::Cause;
use crate::instance::{HookSet, PolicyDescription, index};
use crate::mode::Mode;
use crate::stats::Spreads;

/// One policy as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyStatus {
    /// Its number, never reused.
    pub number: u32,
    /// What it says about itself.
    pub description: PolicyDescription,
    /// Digest of its code.
    pub digest: Digest,
    /// Digest of its code and settings.
    pub fingerprint: Digest,
    /// The decisions it could make.
    pub hooks: HookSet,
    /// The decisions it makes.
    pub in_force: HookSet,
    /// The decisions it makes where the one in force fails.
    pub behind: HookSet,
    /// How far its answers count.
    pub mode: Mode,
    /// The decisions it is tried on, as a canary or a shadow.
    pub on_trial: HookSet,
    /// It was put in force, and has yet to prove itself.
    pub is_on_probation: bool,
    /// Absent: it can be asked. Otherwise it faulted, and is not asked before that time.
    pub down_until: Option<Micros>,
    /// What it has done.
    pub stats: PolicyStats,
}

/// What a policy has done since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Instances so far, the present one included.
    pub generation: u32,
    /// Questions answered.
    pub answers: PerHook,
    /// Calls that told it about changes.
    pub observes: u64,
    /// Snapshots taken.
    pub snapshots: u64,
    /// Faults by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Actions the interlock refused.
    pub refusals: PerHook,
    /// The newest of them.
    pub refusal_last: Option<Refusal>,
    /// Fuel of the questions it answered, if it is metered.
    pub fuel: Spreads,
    /// How long they took, in nanoseconds.
    pub latency: Spreads,
    /// Fuel of its last question, if it is metered.
    pub fuel_last: u64,
    /// Most fuel of one question.
    pub fuel_max: u64,
}

/// A count for each hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerHook([u64; Hook::ALL.len()]);

impl PerHook {
    /// The count of `hook`.
    #[must_use]
    pub fn of(&self, hook: Hook) -> u64 {
        self.0[index(hook)]
    }

    /// All hooks together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn count(&mut self, hook: Hook) {
        self.0[index(hook)] += 1;
    }
}

/// A policy that is not added again before it is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Digest of its code and settings, by which it is known.
    pub fingerprint: Digest,
    /// Digest of its code.
    pub digest: Digest,
    /// Its name.
    pub name: String,
    /// Since when, on the host's clock.
    pub at: Micros,
    /// Why it is here.
    pub cause: Cause,
    /// Its last fault, or what was out of line, for the operator.
    pub detail: String,
}
