//! What the keeper shows: every policy it knows, what it refused and why, and its latest
//! transactions.
//!
//! Published as a whole whenever it changes; `/admin/policies` and the metrics read it.
//!
//! # Not here
//! What policies have done since they are in force: [`pointsman_policy::PolicyStatus`], of which
//! the driver is asked. [`policies_json`] puts the two side by side.

mod json;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::PathBuf;

use pointsman_core::{Hook, HookSet, Micros};
use pointsman_policy::{Digest, Mode, Percent, Quarantined, Restored};
use serde_json::{Map, Value};

pub use super::binding::Conflict;
pub use super::folder::{FolderState, LeftOut};
pub use super::roster::Origin;
use crate::state::{Bound, StateReport};
pub use json::policies_json;
pub(crate) use json::spreads_json;

/// What the keeper shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeeperReport {
    /// The first pass is over.
    pub begun: bool,
    /// Every policy that can be put in force, by name.
    pub policies: Vec<PolicyReport>,
    /// Why the newest of a policy is not in force, by name.
    pub refused: Vec<(String, Refusal)>,
    /// What the operator has to sort out.
    pub conflicts: Vec<Conflict>,
    /// How the folder stands.
    pub folder: FolderReport,
    /// The newest last.
    pub transactions: VecDeque<Transaction>,
    /// Components compiled so far.
    pub compiled: u64,
    /// Components so far whose code was kept from an earlier life of the server.
    pub cached: u64,
    /// Versions of policies that are not put in force, oldest first.
    pub quarantine: Vec<Quarantined>,
    /// Hooks that an operator has bound by order.
    pub ordered: BTreeMap<Hook, Bound>,
    /// What outlives the server, and where.
    pub state: StateReport,
}

/// A policy that can be put in force.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyReport {
    /// The name under which it is known.
    pub name: String,
    /// Where its code comes from.
    pub origin: Origin,
    /// Digest of its code.
    pub digest: Digest,
    /// Digest of its code and settings.
    pub fingerprint: Digest,
    /// Its settings.
    pub settings: Map<String, Value>,
    /// The hooks it exports.
    pub hooks: HookSet,
    /// How far its answers count.
    pub mode: Mode,
    /// The hooks it holds.
    pub held: HookSet,
    /// The file that its sidecar waits for, which is not there yet.
    pub waits_for: Option<Digest>,
    /// Its number in the host; absent: it holds nothing and stands behind nobody.
    pub number: Option<u32>,
    /// Earlier versions of it that the host still has, the newest last.
    pub earlier: Vec<u32>,
}

/// Why a version of a policy is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which step it did not pass.
    pub step: Step,
    /// Why, with the reasons behind the reason.
    pub why: String,
    /// Digest of its code, if it could be read.
    pub digest: Option<Digest>,
    /// When.
    pub at: Micros,
}

/// How the folder stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderReport {
    /// Where it is; absent: none is configured.
    pub path: Option<PathBuf>,
    /// Whether it is listed.
    pub state: FolderState,
    /// What is in it and not considered.
    pub left_out: Vec<LeftOut>,
}

/// What was done about a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Counted from one.
    pub number: u64,
    /// When it began.
    pub at: Micros,
    /// What set it off.
    pub cause: Trigger,
    /// The policy's name.
    pub policy: String,
    /// Digest of its code, if it could be read.
    pub digest: Option<Digest>,
    /// What came of it.
    pub outcome: Outcome,
    /// How long it took, step by step.
    pub phases: Vec<Phase>,
    /// What became of its predecessor's state; absent: it did not come to that.
    pub restored: Option<Restored>,
    /// For how long the driver was held up; absent: it was not asked.
    pub pause: Option<Micros>,
}

/// What came of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds these hooks.
    InForce(HookSet),
    /// It answers for a share of the tenants.
    Canary(HookSet, Percent),
    /// It is asked and compared.
    Shadow(HookSet),
    /// Its sidecar is about another file, which is waited for.
    Waits {
        /// Digest of the file that is waited for.
        pinned: Digest,
    },
    /// It could be put in force and holds no hook.
    Idle,
    /// It is as if it had not been tried.
    Refused {
        /// Which step it did not pass.
        step: Step,
        /// Why.
        why: String,
    },
    /// Its file is gone.
    Removed,
    /// It has stood its probation.
    Proven,
    /// The host dropped it: it faulted too often.
    Dropped {
        /// Its last fault.
        why: String,
    },
    /// The one before it is in force again, or nobody.
    RolledBack {
        /// What was out of line.
        why: String,
    },
}

/// What sets a transaction off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trigger {
    /// The server starts.
    Start,
    /// The policy folder, or what is in it.
    #[default]
    Folder,
    /// An operator's order.
    Order,
    /// What a policy did in force.
    Conduct,
}

/// A step of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The file is read whole.
    Read,
    /// What it is, what it imports and exports, and what its sidecar says.
    Validate,
    /// To machine code.
    Compile,
    /// An instance is made and describes itself.
    Start,
    /// It takes its settings.
    Configure,
    /// A copy of it answers what any policy must be able to answer.
    Test,
    /// It takes over its predecessor's state.
    Restore,
    /// It is told what there is.
    Observe,
    /// It is put in force, between two rounds.
    Bind,
    /// It answers.
    Serve,
}

/// How long a step took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Which step. To start includes to configure, to compile to validate.
    pub step: Step,
    /// How long.
    pub took: Micros,
}

impl Step {
    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Step::Read => "read",
            Step::Validate => "validate",
            Step::Compile => "compile",
            Step::Start => "start",
            Step::Configure => "configure",
            Step::Test => "self-test",
            Step::Restore => "restore",
            Step::Observe => "observe",
            Step::Bind => "bind",
            Step::Serve => "serve",
        }
    }
}

impl Trigger {
    /// Its name.
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

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FolderState {
    /// Its name.
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
