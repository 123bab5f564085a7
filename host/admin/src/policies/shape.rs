//! The JSON of everything about policies.

use std::collections::BTreeMap;

use pointsman_core::Hook;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// Everything about policies: who decides what, what was refused, what happened lately.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PolicyListing {
    /// The time of this state, on the host's clock.
    pub(super) at_micros: u64,
    /// The holder of each hook; null: the built-in rule.
    #[schemars(with = "BTreeMap<&'static str, Option<HookHolder>>")]
    pub(super) hooks: BTreeMap<HookName, Option<HookHolder>>,
    pub(super) policies: Vec<ListedPolicy>,
    /// Versions that were refused, by the name of the policy.
    pub(super) refused: Vec<ListedRefusal>,
    /// Things that the operator has to sort out.
    pub(super) conflicts: Vec<HookConflict>,
    pub(super) folder: PolicyFolder,
    /// The latest transactions, the newest last.
    pub(super) transactions: Vec<ListedTransaction>,
    pub(super) components_compiled: u64,
    /// Components whose code was kept from an earlier life of the server.
    pub(super) components_cached: u64,
    /// Versions that are not put in force, oldest first.
    pub(super) quarantine: Vec<QuarantinedVersion>,
    /// Hooks that were bound by order; null: to the embedded default.
    pub(super) ordered: BTreeMap<&'static str, Option<String>>,
    pub(super) state: StateFolder,
    pub(super) shadows: Vec<ShadowListing>,
}

/// A hook as a key, written as its name. Keys are in the order of a round.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HookName(pub(super) Hook);

impl Serialize for HookName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HookHolder {
    pub(super) policy: String,
    pub(super) number: u32,
    /// Digest of its code.
    pub(super) digest: String,
    /// The rule by which it has the hook: `order`, `ejection` (an order gave it to the embedded default),
    /// `configuration`, `folder` or `default`; null: it is about to change.
    pub(super) by: Option<&'static str>,
}

/// A policy that can be put in force.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListedPolicy {
    pub(super) name: String,
    pub(super) source: PolicyFile,
    /// Digest of its code.
    pub(super) digest: String,
    /// Digest of its code and settings.
    pub(super) fingerprint: String,
    pub(super) settings: Map<String, Value>,
    /// The settings that it describes; empty while it is not running.
    pub(super) takes: Vec<DescribedSetting>,
    /// The hooks it exports.
    pub(super) exports: Vec<&'static str>,
    /// `enforce`, `shadow`, `canary N%`, `canary N% of sessions` or `canary N% of requests`.
    pub(super) mode: String,
    /// Digest of the file that its sidecar waits for.
    pub(super) waits_for: Option<String>,
    /// The hooks it holds.
    pub(super) holds: Vec<&'static str>,
    /// The hooks it claims and does not hold, each with the reason.
    pub(super) denied: BTreeMap<&'static str, String>,
    /// Null: it holds nothing and stands behind no other policy.
    pub(super) running: Option<PolicyCounters>,
    /// Earlier versions that the host still has, the newest last.
    pub(super) earlier: Vec<PolicyCounters>,
}

/// A setting that a policy takes, in its own words.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct DescribedSetting {
    pub(super) key: String,
    /// The meaning.
    pub(super) about: String,
    /// The values that it may have.
    pub(super) values: String,
    /// The value where it is left out; null: to leave it out means something of its own.
    pub(super) default: Option<Value>,
}

/// The origin of a policy's code.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[schemars(inline)]
pub(super) enum PolicyFile {
    Embedded,
    File { path: String },
    LastGood { path: String },
}

/// A policy in the host, with its counters.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PolicyCounters {
    pub(super) number: u32,
    /// The name that it gives itself.
    pub(super) calls_itself: String,
    pub(super) version: String,
    pub(super) digest: String,
    /// The hooks it decides.
    pub(super) in_force: Vec<&'static str>,
    /// The hooks it decides where the policy in force fails.
    pub(super) behind: Vec<&'static str>,
    /// Instances so far.
    pub(super) generation: u32,
    /// The time before which it is not asked, after a fault; null: it can be asked.
    pub(super) down_until_micros: Option<u64>,
    /// Questions answered, by hook.
    pub(super) answers: BTreeMap<&'static str, u64>,
    /// Actions that the interlock refused, by hook.
    pub(super) refusals: BTreeMap<&'static str, u64>,
    pub(super) refusal_last: Option<String>,
    /// Faults by kind.
    pub(super) faults: BTreeMap<String, u64>,
    /// The last fault that has words; null: there was none.
    pub(super) fault_last: Option<FaultShape>,
    pub(super) fuel_last: u64,
    pub(super) fuel_max: u64,
    /// Fuel by hook.
    pub(super) fuel: BTreeMap<&'static str, Quantiles>,
    /// Time by hook.
    pub(super) latency_nanos: BTreeMap<&'static str, Quantiles>,
    /// The hooks it is tried on, as a canary or a shadow.
    pub(super) on_trial: Vec<&'static str>,
    /// The requests that its hooks were asked about while it was a canary; null: it was none.
    pub(super) canary: Option<CanarySeen>,
    /// Its probation so far; null: it is on none.
    pub(super) probation: Option<ProbationShape>,
    /// Calls that told it about changes.
    pub(super) observes: u64,
    pub(super) snapshots: u64,
}

/// Requests by whether they were a canary's, each counted as often as it was asked about.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct CanarySeen {
    /// Requests in its share.
    pub(super) tried: u64,
    /// Requests outside its share.
    pub(super) others: u64,
}

/// A probation so far. It ends when the questions are answered and the time is over.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ProbationShape {
    /// Questions answered.
    pub(super) questions: u32,
    pub(super) questions_wanted: u32,
    pub(super) until_micros: u64,
    /// Faults and strikes.
    pub(super) faults: u32,
    /// Rows that it was asked about.
    pub(super) rows: u64,
    /// Rows that were refused.
    pub(super) refused: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Quantiles {
    pub(super) questions: u64,
    pub(super) p50: Option<u64>,
    pub(super) p90: Option<u64>,
    pub(super) p99: Option<u64>,
    pub(super) max: u64,
}

/// A fault of a policy.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PolicyFault")]
pub(super) struct FaultShape {
    /// The policy, and what happened.
    pub(super) line: String,
    /// The policy's functions in which it happened, then every frame of the backtrace, a line each; null:
    /// none is known.
    pub(super) trace: Option<String>,
}

/// A version of a policy that was refused.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ListedRefusal {
    pub(super) name: String,
    /// The step that it did not pass.
    pub(super) step: &'static str,
    pub(super) why: String,
    pub(super) digest: Option<String>,
    pub(super) at_micros: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct HookConflict {
    /// `contested`, `absent`, `not-exported`, `not-enforced`, `closed` or `contested-canary`.
    pub(super) kind: &'static str,
    pub(super) hook: &'static str,
    pub(super) policies: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct PolicyFolder {
    /// Null: none is configured.
    pub(super) path: Option<String>,
    /// `none`, `watched`, `missing`, `emptied` or `unreadable`.
    pub(super) state: &'static str,
    /// The reason why it is unreadable.
    pub(super) why: Option<String>,
    pub(super) left_out: Vec<LeftOutFile>,
}

/// A file in the folder that is not considered.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct LeftOutFile {
    pub(super) file: String,
    pub(super) why: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ListedTransaction {
    /// Counted from one.
    pub(super) number: u64,
    pub(super) at_micros: u64,
    pub(super) policy: String,
    pub(super) digest: Option<String>,
    /// `start`, `folder`, `order` or `conduct`.
    pub(super) cause: &'static str,
    /// `in-force`, `canary`, `shadow`, `idle`, `proven`, `waits`, `refused`, `removed`, `dropped` or
    /// `rolled-back`.
    pub(super) outcome: &'static str,
    pub(super) hooks: Option<Vec<&'static str>>,
    /// The step that was not passed.
    pub(super) step: Option<&'static str>,
    pub(super) why: Option<String>,
    /// Time of each step.
    pub(super) phases_micros: BTreeMap<&'static str, u64>,
    /// The fate of the predecessor's state; null: it was not handed over.
    pub(super) state: Option<RestoredState>,
    /// The time for which the driver was held up.
    pub(super) pause_micros: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum RestoredState {
    Cold,
    Warm,
    Refused(String),
    Faulted(String),
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct QuarantinedVersion {
    pub(super) fingerprint: String,
    pub(super) digest: String,
    pub(super) name: String,
    /// `faulted` or `rolled-back`.
    pub(super) cause: &'static str,
    pub(super) why: String,
    pub(super) at_micros: u64,
}

/// The state folder: what outlives the server.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct StateFolder {
    /// Null: nothing is kept.
    pub(super) path: Option<String>,
    pub(super) problem: Option<String>,
    /// The file of an earlier life that could not be read, and why.
    pub(super) set_aside: Option<String>,
}

/// A shadow and its agreement with the policies in force.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ShadowListing {
    /// The name that it gives itself.
    pub(super) policy: Option<String>,
    pub(super) number: u32,
    /// The reason why it is not asked any more.
    pub(super) ended: Option<String>,
    /// Questions that wait.
    pub(super) pending: u64,
    /// Questions that it was not asked.
    pub(super) dropped: u64,
    pub(super) hooks: BTreeMap<&'static str, Compared>,
    pub(super) by_reason: Vec<ComparedReason>,
    /// The newest decisions in which they differ, the newest first.
    pub(super) examples: Vec<Example>,
    pub(super) fuel: BTreeMap<&'static str, Quantiles>,
    pub(super) latency_nanos: BTreeMap<&'static str, Quantiles>,
    pub(super) faults: u64,
    pub(super) fault_last: Option<FaultShape>,
}

/// Decisions that were compared.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Compared {
    pub(super) compared: u64,
    /// Decisions with the same effect: of a placement, the same executor for the request.
    pub(super) agreed: u64,
    /// Of these, placements of which only the fallbacks differ.
    pub(super) fallbacks: u64,
    pub(super) differed: u64,
}

/// The same of one reason in force.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ComparedReason {
    #[serde(flatten)]
    pub(super) compared: Compared,
    pub(super) hook: &'static str,
    pub(super) reason: String,
}

/// A decision that would have been another.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Example {
    pub(super) at_micros: u64,
    pub(super) round: String,
    pub(super) hook: &'static str,
    /// Such as `request 7`.
    pub(super) about: String,
    pub(super) in_force: Verdict,
    pub(super) shadow: Verdict,
}

/// One policy's decision.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ShadowVerdict")]
pub(super) struct Verdict {
    pub(super) policy_number: u32,
    pub(super) choice: String,
    pub(super) reason: Option<String>,
}
