//! What operators ask of the driver, and what they are told.
//!
//! Asked seldom, answered between two rounds: nothing here is on a client's way.
//!
//! # Not here
//! Who may ask (`http`), and how it is shown.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use pointsman_core::rows::{ExecutorKind, Health};
use pointsman_core::{AttachError, DeviceId, ExecutorId, HookSet, Micros, Round};
use pointsman_executor::handle::EngineHandle;
use pointsman_policy::{Candidate, ShadowReport};
use tokio::sync::oneshot;

use super::decisions::Case;
use super::message::{Hints, Load, TicketId};

/// A question or an order of an operator.
#[derive(Debug)]
pub enum Operator {
    /// How everything stands.
    Overview(oneshot::Sender<Overview>),
    /// What came of the shadows so far.
    Shadows(oneshot::Sender<Vec<ShadowReport>>),
    /// Where a request would go, and why.
    Route(Box<Prospect>, oneshot::Sender<Result<Outlook, NoTenant>>),
    /// How a request was decided; absent: it is not remembered.
    Decision(TicketId, oneshot::Sender<Option<Explained>>),
    /// How the newest so many requests were decided, the newest first.
    Decisions(usize, oneshot::Sender<Cases>),
    /// Hooks are the embedded defaults', at once. Answered with the policies that lost one.
    Eject(HookSet, oneshot::Sender<Vec<u32>>),
    /// Another executor.
    Attach(
        Box<Newcomer>,
        oneshot::Sender<Result<Attached, AttachRefused>>,
    ),
    /// Something else of an executor.
    Change(
        String,
        ExecutorChange,
        oneshot::Sender<Result<ExecutorRow, ChangeRefused>>,
    ),
}

// === How everything stands ===

/// How everything stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    /// When, on the host's clock.
    pub at: Micros,
    /// The last round.
    pub round: Round,
    /// What is queued and what runs.
    pub load: Load,
    /// The executors in attach order, the first [`EXECUTORS_SHOWN`] of them.
    pub executors: Vec<ExecutorRow>,
    /// Executors there are.
    pub executors_total: usize,
    /// The KV pools.
    pub devices: Vec<DeviceRow>,
}

/// Executors that an [`Overview`] has at most: it is made on the driver's thread.
pub const EXECUTORS_SHOWN: usize = 1000;

/// An executor as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorRow {
    /// Its name.
    pub name: String,
    /// What it runs on.
    pub kind: ExecutorKind,
    /// The name of its device.
    pub device: String,
    /// Models it serves; absent: any.
    pub models: Option<Vec<String>>,
    /// Whether it serves.
    pub health: Health,
    /// What becomes of it by an operator's order.
    pub fate: Fate,
    /// Slots in use.
    pub slots_used: u32,
    /// Slots there are.
    pub slots_total: u32,
    /// Requests in its own queue.
    pub queued: u32,
    /// KV blocks in use.
    pub blocks_used: u64,
    /// Prompt tokens that it has yet to compute.
    pub prefill_tokens_pending: u64,
    /// Tokens per step it was last allotted.
    pub tokens_max: Option<u32>,
    /// Requests placed there so far.
    pub placed_total: u64,
    /// Usual time to the first token, in microseconds.
    pub ttft_micros: Option<u64>,
    /// Usual time between two tokens, in microseconds.
    pub itl_micros: Option<u64>,
}

/// The KV pool of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    /// Its name.
    pub name: String,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks there are.
    pub blocks_total: u32,
    /// Blocks that hold nothing.
    pub blocks_free: u32,
    /// Blocks that are free on demand and hold a prefix.
    pub blocks_cached: u32,
}

// === Executors ===

/// What becomes of an executor by an operator's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    #[default]
    Stays,
    /// It takes nothing new until it is resumed.
    Drains,
    /// It goes when its last sequence has ended.
    Leaves,
}

/// What an operator wants of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutorChange {
    /// Take nothing new.
    Drain,
    /// Take something new again.
    Resume,
    /// Take nothing new, and go when the last sequence has ended.
    Remove,
}

/// Why an executor stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeRefused {
    /// Nobody is called so.
    #[error("there is no executor `{name}`; there are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// Its order to go cannot be taken back.
    #[error("executor `{0}` is being removed: add it again once it is gone")]
    Leaves(String),
    /// Its engine has ended.
    #[error("executor `{0}` has ended: remove it, then add it again")]
    Ended(String),
}

/// An executor to attach.
pub struct Newcomer {
    /// Its name.
    pub name: String,
    /// The model it serves.
    pub model: String,
    /// Where its blocks are.
    pub device: DeviceId,
    /// Sequences at once.
    pub slots: u32,
    /// Relative share of its device's tokens.
    pub share_weight: u32,
    /// Tokens of its model that a block holds.
    pub tokens_per_block: u32,
    /// Starts its engine. Called on the driver's thread, so that no order can be lost.
    pub spawn: SpawnEngine,
}

/// Starts the engine of an executor.
pub type SpawnEngine = Box<dyn FnOnce(ExecutorId) -> io::Result<EngineHandle> + Send>;

/// An executor that was attached, and what its engine is known by.
#[derive(Debug)]
pub struct Attached {
    /// How it stands.
    pub row: ExecutorRow,
    /// Its engine. The driver has the commands too.
    pub engine: EngineHandle,
}

/// Why an executor was not attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachRefused {
    /// The machine refuses it.
    #[error(transparent)]
    Machine(#[from] AttachError),
    /// There is no thread for its engine.
    #[error("no thread for its engine: {0}")]
    NoThread(io::Error),
}

// === Where a request would go ===

/// A request that nobody has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prospect {
    /// A model of the catalogue.
    pub model: String,
    /// Whose it would be.
    pub tenant: String,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Upper bound on generated tokens.
    pub output_tokens_max: u32,
    /// What it would say about scheduling.
    pub hints: Hints,
}

/// No request of the tenant has arrived, and the configuration does not name it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no tenant `{0}`")]
pub struct NoTenant(pub String);

/// Where a request would go now, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// What would become of it.
    pub would: Would,
    /// Who says so.
    pub by: Teller,
    /// The executors the answer names, in its order.
    pub named: Vec<String>,
    /// Each executor, in attach order, the first [`EXECUTORS_SHOWN`] of them.
    pub candidates: Vec<Contender>,
    /// Executors there are.
    pub executors_total: usize,
    /// Why the policy has no words on the candidates; absent: it has.
    pub unexplained: Option<String>,
}

/// What would become of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Would {
    /// It would be placed on that executor.
    Place(String),
    /// It would wait: nobody that the answer names could take it now.
    Wait,
    /// The policy would hold it, to be asked again then at the latest.
    Hold(Option<Micros>),
    /// The policy would give it up.
    GiveUp,
}

/// Whose answer it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Teller {
    /// The machine's own rule: no policy routes.
    BuiltIn,
    /// The machine's own rule: the copy that was asked failed.
    Faulted {
        /// Whose copy.
        policy: String,
        /// What went wrong.
        detail: String,
    },
    /// A policy.
    Policy {
        /// Its name.
        name: String,
        /// Its number.
        number: u32,
        /// Why, in its words.
        reason: String,
    },
}

/// An executor as a candidate for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Its name.
    pub executor: String,
    /// What the interlock would say to it.
    pub interlock: Result<&'static str, String>,
    /// What the policy says to it.
    pub said: Option<Candidate>,
}

// === How a request was decided ===

/// How requests were decided.
#[derive(Clone, Debug)]
pub struct Cases {
    /// What is remembered, the newest first.
    pub list: Vec<Case>,
    /// Names of the executors in it.
    pub names: BTreeMap<ExecutorId, String>,
}

/// How a request was decided.
#[derive(Clone, Debug)]
pub struct Explained {
    /// What is remembered of it alone.
    pub cases: Cases,
    /// What the policy that routes now says to each executor about it, by name, or why it does not.
    pub candidates: Result<Vec<(String, Candidate)>, String>,
    /// Who routes now; absent: the built-in rule.
    pub by: Option<String>,
}

impl fmt::Debug for Newcomer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Newcomer")
            .field("name", &self.name)
            .field("model", &self.model)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}
