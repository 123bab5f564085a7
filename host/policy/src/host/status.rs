//! The status of policies, for operators.

use std::collections::BTreeMap;

use pointsman_component::{Digest, Fault, Limits, PolicyDescription};
use pointsman_core::{FaultKind, HookMap, HookSet, Micros, Refusal};
use serde::{Deserialize, Serialize};

use crate::host::canary::CanaryCounts;
use crate::host::probation::ProbationProgress;
use crate::host::quarantine::Cause;
use crate::mode::Mode;
use crate::policy::PolicySource;
use crate::runner::InstanceCounters;
use crate::stats::Spread;

/// The current state of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyStatus {
    /// Number, never reused.
    pub number: u32,
    /// The name by which the operator knows the policy.
    pub name: String,
    /// The policy's description of itself.
    pub description: PolicyDescription,
    /// Digest of its code.
    pub digest: Digest,
    /// Digest of its code and settings.
    pub fingerprint: Digest,
    /// Hooks that it exports.
    pub hooks: HookSet,
    /// Hooks for which it is in force.
    pub in_force: HookSet,
    /// Hooks for which it answers if the policy in force fails.
    pub behind: HookSet,
    /// The weight of its answers.
    pub mode: Mode,
    /// Hooks for which it is a canary or a shadow.
    pub on_trial: HookSet,
    /// Its probation, while it is in force on one.
    pub probation: Option<ProbationProgress>,
    /// End of its back-off after a fault; `None` if it can be asked.
    pub down_until: Option<Micros>,
    /// Counts of its instances and calls.
    pub counters: InstanceCounters,
    /// Counts of its answers, faults and refusals.
    pub stats: PolicyStats,
}

/// Counters of a policy since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Questions answered, by hook.
    pub answers: HookMap<u64>,
    /// Faults by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// The last fault; absent: it has not faulted, or was only struck.
    pub fault_last: Option<Fault>,
    /// Actions that the interlock refused, by hook.
    pub refusals: HookMap<u64>,
    /// Requests that its hooks were asked about while it was a canary.
    pub canary: CanaryCounts,
    /// The last of these refusals.
    pub refusal_last: Option<Refusal>,
    /// Fuel of the answered questions and of the changes told before each, if the policy is metered.
    pub fuel: HookMap<Spread>,
    /// Time of the answered questions and of what was told before each, in nanoseconds.
    pub latency: HookMap<Spread>,
}

/// A policy that is not added again before it is released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quarantined {
    /// Digest of code and settings, the key of the list.
    pub fingerprint: Digest,
    /// Limits of the policy; absent: all limits are meant, as in an entry of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Digest of the code.
    pub digest: Digest,
    /// Name of the policy.
    pub name: String,
    /// Time of the entry, in µs of the host's clock. Not written down: the clock begins anew with
    /// each life of a server.
    #[serde(skip)]
    pub at: Micros,
    /// Cause of the entry.
    pub cause: Cause,
    /// The last fault, or the reason of the rollback, for the operator.
    pub detail: String,
}

impl Quarantined {
    /// True if the entry keeps policies of `source` out. With other settings or limits the same code
    /// gets its own chance.
    #[must_use]
    pub fn keeps_out(&self, source: &PolicySource) -> bool {
        self.fingerprint == source.fingerprint()
            && self.limits.is_none_or(|limits| limits == *source.limits())
    }
}
