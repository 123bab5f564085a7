//! The reconciler's report: every policy it knows, the refused versions, and its latest
//! transactions.
//!
//! Published as a whole whenever it changes; `/admin/policies` and the metrics read it.
//!
//! # Not here
//! The conduct of policies in force: [`pointsman_policy::PolicyStatus`], for which the driver is
//! asked. `PolicyListing` in `pointsman-admin` puts the two side by side.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::PathBuf;

use pointsman_component::Digest;
use pointsman_interface::{Hook, HookSet, Micros};
use pointsman_policy::{CanaryShare, Mode, Quarantined, Restored};
use pointsman_state::{BoundTo, Remembered, StateReport};
use serde_json::{Map, Value};

use super::binding::Bindings;
pub use super::binding::{BoundBy, Conflict};
pub use super::folder::{FolderState, LeftOut};
use super::registry::Entry;
pub use super::registry::Origin;

/// A report of the reconciler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReconcilerReport {
    /// True once the first pass is over.
    pub begun: bool,
    /// Every policy that can be put in force, by name.
    pub policies: Vec<PolicyReport>,
    /// Newest versions that are not in force, by policy name.
    pub refused: Vec<(String, VersionRefusal)>,
    pub conflicts: Vec<Conflict>,
    pub folder: FolderReport,
    /// Transactions, the newest last.
    pub transactions: VecDeque<Transaction>,
    /// Components compiled so far.
    pub compiled: u64,
    /// Components so far whose code was kept from an earlier life of the server.
    pub cached: u64,
    /// Versions of policies that are not put in force, oldest first.
    pub quarantine: Vec<Quarantined>,
    /// Hooks that an operator has bound by order.
    pub ordered: BTreeMap<Hook, BoundTo>,
    /// The rule by which each hook has its holder; the built-in rule decides the hooks that are missing.
    pub bound_by: BTreeMap<Hook, BoundBy>,
    pub state: StateReport,
}

/// A policy that can be put in force.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyReport {
    /// The policy's name.
    pub name: String,
    pub origin: Origin,
    /// Digest of the policy's code.
    pub digest: Digest,
    /// Digest of the policy's code and settings.
    pub fingerprint: Digest,
    pub settings: Map<String, Value>,
    /// The hooks that the policy exports.
    pub hooks: HookSet,
    pub mode: Mode,
    /// The hooks that the policy holds.
    pub held: HookSet,
    /// The hooks that the policy claims and does not hold, each with the reason.
    pub denied: Vec<(Hook, String)>,
    /// The file that the sidecar waits for, which is not there yet; absent: none.
    pub waits_for: Option<Digest>,
    /// The host's number of the policy; absent: the policy holds nothing and stands behind nobody.
    pub number: Option<u32>,
    /// The numbers of earlier versions that the host still has, the newest last.
    pub earlier: Vec<u32>,
}

/// The reason why a version of a policy is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRefusal {
    /// The step that failed.
    pub step: ReloadStep,
    /// The error, with the errors behind it.
    pub why: String,
    /// Digest of the version's code; absent: the code could not be read.
    pub digest: Option<Digest>,
    pub at: Micros,
}

/// The state of the policy folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderReport {
    /// The folder's path; absent: no folder is configured.
    pub path: Option<PathBuf>,
    pub state: FolderState,
    /// Files that are not considered.
    pub left_out: Vec<LeftOut>,
}

/// An attempt to change a policy, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The transaction's number, counted from one.
    pub number: u64,
    /// The time of the beginning, on the host's clock.
    pub at: Micros,
    pub cause: Trigger,
    /// The policy's name.
    pub policy: String,
    /// Digest of the policy's code; absent: the code could not be read.
    pub digest: Option<Digest>,
    pub outcome: TransactionOutcome,
    pub steps: Vec<StepTime>,
    /// The fate of the predecessor's state; absent: the transaction ended before.
    pub restored: Option<Restored>,
    /// The time for which the driver was held up; absent: the driver was not asked.
    pub pause: Option<Micros>,
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// The policy holds these hooks.
    InForce(HookSet),
    /// The policy answers for a share of tenants, sessions or requests.
    Canary(HookSet, CanaryShare),
    /// The policy is asked and compared.
    Shadow(HookSet),
    /// The sidecar is about another file, with the digest `pinned`, which is waited for.
    Waits { pinned: Digest },
    /// The policy could be put in force and holds no hook; `why` says who has them.
    Idle { why: String },
    /// The version failed at a step. Everything is as if it had not been tried.
    Refused { step: ReloadStep, why: String },
    /// The file is gone.
    Removed,
    /// The version has stood its probation.
    Proven,
    /// The host dropped the version, which faulted too often; `why` is its last fault.
    Dropped { why: String },
    /// The version before is in force again, or nobody; `why` names the deviation.
    RolledBack { why: String },
}

/// The cause of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trigger {
    /// The server starts.
    Start,
    /// The policy folder has changed.
    #[default]
    Folder,
    /// An operator has given an order.
    Order,
    /// A policy in force has faulted, failed or proven itself.
    Conduct,
}

/// A step of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReloadStep {
    /// The file is read whole.
    Read,
    /// The file's format, imports and exports are checked, and the sidecar.
    Validate,
    /// The component is compiled to machine code.
    Compile,
    /// An instance is made and describes itself.
    Start,
    /// The instance takes its settings.
    Configure,
    /// A copy of the instance answers the questions that any policy must be able to answer.
    Test,
    /// The instance takes over its predecessor's state.
    Restore,
    /// The instance is told the machine's rows.
    Observe,
    /// The instance is put in force, between two rounds.
    Bind,
    /// The instance answers.
    Serve,
}

/// The duration of a step. The start includes the configuration, the compilation the validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    pub step: ReloadStep,
    pub took: Micros,
}

// === impl ReconcilerReport ===

impl ReconcilerReport {
    /// Each hook with the name of the policy that holds it, or of the rule that decides it, in the
    /// order of a round.
    pub fn holders(&self) -> impl Iterator<Item = (Hook, &str)> {
        let holder = |hook| {
            let mut policies = self.policies.iter();
            let holder = policies.find(|policy| policy.held.contains(hook));
            holder.map_or("built-in rule", |policy| &policy.name)
        };
        let hooks = Hook::ALL.into_iter();
        hooks.map(move |hook| (hook, holder(hook)))
    }
}

// === impl PolicyReport ===

impl PolicyReport {
    /// The report on the policy `name`; absent: no version of it can be put in force.
    pub(super) fn new(
        name: &str,
        entry: &Entry,
        (remembered, bindings): (&Remembered, &Bindings),
    ) -> Option<Self> {
        let version = entry.current()?;
        let number = entry.serving().map(|serving| serving.number);
        let installed = entry.installed.iter();
        let numbers = installed.clone().map(|installed| installed.number);
        Some(Self {
            name: name.to_owned(),
            origin: version.origin.clone(),
            digest: version.source.digest(),
            fingerprint: version.source.fingerprint(),
            settings: version.settings.clone(),
            hooks: version.hooks,
            mode: entry.mode(name, remembered).unwrap_or_default(),
            held: installed.flat_map(|it| it.held.iter()).collect(),
            denied: bindings.denied(name),
            waits_for: entry.waits_for,
            number,
            earlier: numbers.filter(|it| Some(*it) != number).collect(),
        })
    }
}

// === Names ===

impl ReloadStep {
    /// The name of the step.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ReloadStep::Read => "read",
            ReloadStep::Validate => "validate",
            ReloadStep::Compile => "compile",
            ReloadStep::Start => "start",
            ReloadStep::Configure => "configure",
            ReloadStep::Test => "self-test",
            ReloadStep::Restore => "restore",
            ReloadStep::Observe => "observe",
            ReloadStep::Bind => "bind",
            ReloadStep::Serve => "serve",
        }
    }
}

impl Trigger {
    /// The name of the cause.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Trigger::Start => "start",
            Trigger::Folder => "folder",
            Trigger::Order => "order",
            Trigger::Conduct => "conduct",
        }
    }
}

impl fmt::Display for ReloadStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FolderState {
    /// The name of the state.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            FolderState::None => "none",
            FolderState::Watched => "watched",
            FolderState::Missing => "missing",
            FolderState::Emptied => "emptied",
            FolderState::Unreadable(_) => "unreadable",
        }
    }
}
