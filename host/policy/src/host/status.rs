//! What an operator sees of each policy.

use std::collections::BTreeMap;

use pointsman_core::{FaultKind, HookMap, HookSet, Micros, Refusal};

use crate::component::Digest;
use crate::host::quarantine::Cause;
use crate::instance::PolicyDescription;
use crate::mode::Mode;
use crate::runner::InstanceCounters;
use crate::stats::Spread;

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
    /// Counts of its instances and calls.
    pub counters: InstanceCounters,
    /// Counts of its answers, faults and refusals.
    pub stats: PolicyStats,
}

/// What a policy has done since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Questions answered.
    pub answers: HookMap<u64>,
    /// Faults by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Actions the interlock refused.
    pub refusals: HookMap<u64>,
    /// The newest of them.
    pub refusal_last: Option<Refusal>,
    /// Fuel of the questions it answered, if it is metered.
    pub fuel: HookMap<Spread>,
    /// How long they took, in nanoseconds.
    pub latency: HookMap<Spread>,
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
