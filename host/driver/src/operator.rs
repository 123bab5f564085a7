//! Questions and orders of operators to the driver, and its answers.
//!
//! Operators ask seldom, and are answered between two rounds: no client's request comes this way.
//!
//! # Not here
//! The check that the sender is an operator, and the JSON of the answers (`pointsman-admin`).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use pointsman_component::Candidate;
use pointsman_core::rows::{ExecutorKind, ExecutorLoad, RequestClass};
use pointsman_core::{
    AttachError, ExecutorId, HookSet, Micros, PotentialLoad, PromptBlocks, Round, WaitReason,
};
use pointsman_executor::delivery::Authorship;
use pointsman_executor::handle::EngineHandle;
use pointsman_executor::server::{ServerConfig, ServerLoad};
use pointsman_policy::ShadowReport;
use tokio::sync::oneshot;

use super::activity::{ActivityReport, ExecutorActivity, ModelActivity};
use super::decisions::Trace;
use super::finished::FinishedRequest;
pub use super::forecast::{ExplainedDraft, ForecastDraft};
use super::message::{Hints, Load, TicketId};
use super::provider::{ExecutorTerms, PreparedExecutor};

/// A question or an order of an operator.
#[derive(Debug)]
pub enum Operator {
    /// The state of the host.
    Overview(oneshot::Sender<Overview>),
    /// The loads of the executors that metrics tell of, in attach order.
    Loads(oneshot::Sender<Vec<LoadRow>>),
    /// The state of an executor, by name; absent: there is none.
    Executor(String, oneshot::Sender<Option<ExecutorRow>>),
    /// The state of the host with its activity, and the requests that wait.
    Monitor(oneshot::Sender<MonitorReport>),
    /// The agreement of each shadow so far.
    Shadows(oneshot::Sender<Vec<ShadowReport>>),
    /// The route that a request would take, and why.
    Route(
        Box<RouteQuery>,
        oneshot::Sender<Result<ForecastDraft, NoTenant>>,
    ),
    /// The decisions about a request; absent: they are not remembered.
    Decision(TicketId, oneshot::Sender<Option<ExplainedDraft>>),
    /// The decisions about this number of newest requests, the newest first.
    Decisions(usize, oneshot::Sender<Traces>),
    /// Gives hooks back to the embedded defaults, at once. The answer has the policies that lost a
    /// hook.
    Eject(HookSet, oneshot::Sender<Vec<u32>>),
    /// The order to attach another executor.
    Attach(
        Box<PreparedExecutor>,
        oneshot::Sender<Result<Attached, AttachRefused>>,
    ),
    /// The models that a server elsewhere, an executor by name, serves from now on.
    Serve(
        String,
        Vec<String>,
        oneshot::Sender<Result<(), ChangeRefused>>,
    ),
    /// The description and the terms of a server elsewhere, an executor by name, from now on.
    Configure(
        String,
        Box<(ServerConfig, ExecutorTerms)>,
        oneshot::Sender<Result<ExecutorRow, ChangeRefused>>,
    ),
    /// A change of an executor, by name.
    Change(
        String,
        ExecutorChange,
        oneshot::Sender<Result<ExecutorRow, ChangeRefused>>,
    ),
    /// The tokens that the engines of a device, by name, may schedule in a step from now on.
    TokensPerStep(
        String,
        u32,
        oneshot::Sender<Result<DeviceRow, DeviceRefused>>,
    ),
    /// The requests of a model, by name, that may run at once from now on; absent: unlimited.
    RunningMax(String, Option<u32>, oneshot::Sender<ModelRow>),
    /// The terms of tenants from now on; those that are not named keep theirs. The answer has all tenants.
    Tenants(Vec<TenantTerms>, oneshot::Sender<Vec<TenantRow>>),
}

/// The terms of a tenant that policies are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantTerms {
    pub name: String,
    /// Its share, relative to the others'; at least 1.
    pub weight: u32,
    /// Tokens per minute that it is to have where others want some too; absent: unlimited.
    pub tokens_per_minute: Option<u64>,
}

// === The state of the host ===

/// The state of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// The time of this state, on the host's clock.
    pub at: Micros,
    /// The last round.
    pub round: Round,
    /// The requests and resources in use.
    pub load: Load,
    /// The first [`EXECUTORS_SHOWN`] executors in attach order.
    pub executors: Vec<ExecutorRow>,
    /// Number of all executors.
    pub executors_total: usize,
    /// The KV pools.
    pub devices: Vec<DeviceRow>,
    /// The models that were ever named.
    pub models: Vec<ModelRow>,
    /// The tenants that are configured or have asked.
    pub tenants: Vec<TenantRow>,
    /// The name of its policy for each version in quarantine.
    pub quarantined: Vec<String>,
}

/// The state of the host, with its activity and the requests that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonitorReport {
    pub overview: Overview,
    pub activity: ActivityReport,
    /// The activity on each executor of the overview, in the same order.
    pub executors: Vec<WatchedExecutor>,
    /// The activity for each model of the overview, in the same order.
    pub models: Vec<WatchedModel>,
    /// The first [`WAITING_SHOWN`] requests of the queue, then of those parked outside it, each in order
    /// of arrival.
    pub waiting: Vec<WaitingRow>,
    /// The number of sessions that are remembered.
    pub sessions: usize,
    /// The newest requests that have ended, the newest first.
    pub finished: Vec<Arc<FinishedRequest>>,
}

/// The most waiting requests in a [`MonitorReport`].
pub const WAITING_SHOWN: usize = 100;

/// The activity on an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchedExecutor {
    pub activity: ExecutorActivity,
    /// The time at which it last told something; absent: it never has.
    pub last_report: Option<Micros>,
}

/// The activity for a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchedModel {
    pub activity: ModelActivity,
    /// The number of its sessions that are remembered.
    pub sessions: usize,
}

/// A request that waits, as operators see it: without its prompt, its session or its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRow {
    pub ticket: TicketId,
    pub tenant: String,
    /// The model that the client asks for; absent: any.
    pub model: Option<String>,
    pub class: RequestClass,
    pub priority: i32,
    pub prompt_tokens: u32,
    pub output_tokens_max: u32,
    pub arrived: Micros,
    pub reason: WaitReason,
    /// The name of the executor in the reason; absent: it names none.
    pub executor: Option<String>,
    /// The newest decision that left it waiting; absent: none did.
    pub delayed_by: Option<Authorship>,
}

/// The most executors in an [`Overview`], so that the driver's thread is not held up by making one.
pub const EXECUTORS_SHOWN: usize = 1000;

/// An executor as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorRow {
    pub name: String,
    pub kind: ExecutorKind,
    /// The name of the executor's device.
    pub device: String,
    /// The models that the executor serves; absent: any.
    pub models: Option<Vec<String>>,
    /// The effect of an order.
    pub fate: Fate,
    pub group: u32,
    /// Relative share of the device's tokens.
    pub share_weight: u32,
    /// Requests of each class that may wait in the executor's own queue.
    pub queue_max: u32,
    /// True if a sequence may be taken off it for a more urgent one.
    pub preemptible: bool,
    /// The number of distinct models that may be there at once; absent: unlimited.
    pub models_max: Option<u32>,
    /// The models that are there: with sequences, or kept loaded.
    pub present: Vec<PresentModel>,
    pub slots_total: u32,
    /// Tokens per step that were allotted last; absent: none were allotted.
    pub tokens_max: Option<u32>,
    /// Tokens that it computed since its device's last allotment.
    pub tokens_used: u64,
    /// The parts of the executor that are in use, and its speed.
    pub load: ExecutorLoad,
}

/// The load of an executor, as metrics tell of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadRow {
    pub name: String,
    pub slots_total: u32,
    /// The parts of the executor that are in use, and its speed.
    pub load: ExecutorLoad,
}

/// A model on an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentModel {
    /// The model's name.
    pub model: String,
    /// Sequences of the model, queued ones too.
    pub sequences: u32,
    /// The time until which the model is kept loaded without a sequence; absent: it has sequences.
    pub warm_until: Option<Micros>,
    /// True if the server tells that it is loaded; absent: it does not tell.
    pub loaded: Option<bool>,
}

/// A model as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRow {
    pub name: String,
    /// Requests that may run at once; absent: unlimited.
    pub running_max: Option<u32>,
    /// Requests that run or wait at an executor.
    pub running: u32,
    /// Requests that wait in the host.
    pub waiting: u32,
}

/// A tenant as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRow {
    pub name: String,
    /// Its share, relative to the others'.
    pub weight: u32,
    /// Tokens per minute that it is to have where others want some too; absent: unlimited.
    pub tokens_per_minute: Option<u64>,
    /// Requests that run or wait at an executor.
    pub running: u32,
    /// Requests that wait in the host.
    pub waiting: u32,
    /// Tokens of prompts and answers since the start.
    pub tokens_total: u64,
}

/// The KV pool of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRow {
    pub name: String,
    /// Tokens that all engines of the device together may schedule in a step; absent: each engine
    /// sets a number of its own.
    pub tokens_per_step: Option<u32>,
    /// Absent: the server elsewhere tells nothing of blocks.
    pub blocks: Option<BlockCounts>,
    /// Blocks of host memory, to which what evicted sequences hold can be moved.
    pub host_blocks_total: u32,
    /// Blocks of host memory that hold nothing.
    pub host_blocks_free: u32,
}

/// The KV blocks of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCounts {
    /// Bytes of one; absent: a server elsewhere, which does not tell.
    pub bytes: Option<u64>,
    pub total: u32,
    /// Blocks that hold nothing.
    pub free: u32,
    /// Blocks that are free on demand and hold a prefix.
    pub cached: u32,
}

// === Executors ===

/// The effect on an executor of an order, of an operator or of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// There is no order.
    #[default]
    Stays,
    /// The executor takes nothing new until it is resumed.
    Drains,
    /// The executor goes when its last sequence has ended.
    Leaves,
}

/// An order about an executor, of an operator or of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutorChange {
    /// The order to take nothing new.
    Drain,
    /// The order to take new requests again.
    Resume,
    /// The order to take nothing new, and to go when the last sequence has ended.
    Remove,
    /// The relative share of the device's tokens from now on.
    ShareWeight(u32),
    /// The load of a server elsewhere.
    Load(ServerLoad),
}

impl ExecutorChange {
    /// The name of the order.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            ExecutorChange::Drain => "drain",
            ExecutorChange::Resume => "resume",
            ExecutorChange::Remove => "remove",
            ExecutorChange::ShareWeight(_) => "share-weight",
            ExecutorChange::Load(_) => "load",
        }
    }
}

/// The reason why an order about an executor is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefused {
    /// No executor has this name.
    #[error("there is no executor `{name}`; there are: {known}")]
    Unknown {
        name: String,
        /// The names of the executors that there are.
        known: String,
    },
    /// The order to go cannot be taken back.
    #[error("executor `{0}` is being removed: add it again once it is gone")]
    Leaves(String),
    /// The configuration does not have the server at present, which drains meanwhile.
    #[error(
        "executor `{0}` is not in the configuration or DNS at present: it can be resumed once it is"
    )]
    Withdrawn(String),
    /// The executor's engine has ended.
    #[error("executor `{0}` has ended: remove it, then add it again")]
    Ended(String),
    /// The executor's load is known here.
    #[error("executor `{0}` is an engine of this server, which knows its load")]
    OwnEngine(String),
    /// The executor is described by its model and its device.
    #[error("executor `{0}` is an engine of this server: give the backend another name")]
    NoServer(String),
}

/// The reason why an order about a device is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceRefused {
    /// No device has this name.
    #[error("there is no device `{name}`; there are: {known}")]
    Unknown {
        name: String,
        /// The names of the devices that there are.
        known: String,
    },
    /// The machine refuses the change.
    #[error(transparent)]
    Machine(#[from] AttachError),
}

/// An executor that was attached, and its engine.
#[derive(Debug)]
pub struct Attached {
    /// The executor's id in the machine.
    pub executor: ExecutorId,
    /// The executor's state.
    pub row: ExecutorRow,
    /// The executor's engine. The driver has the commands too.
    pub engine: EngineHandle,
}

/// The reason why an executor was not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachRefused {
    /// The machine refuses the executor.
    #[error(transparent)]
    Machine(#[from] AttachError),
    /// There is no thread for the engine.
    #[error("no thread for its engine: {0}")]
    NoThread(io::Error),
}

// === Forecasts of routes ===

/// A question about the route of a request, which is not submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// The name of a model in the catalogue; absent: any.
    pub model: Option<String>,
    /// The name of the tenant that would ask.
    pub tenant: String,
    /// The lengths of the prompt and of the answer.
    pub size: RequestSize,
    /// The client's wishes about the scheduling.
    pub hints: Hints,
}

/// The lengths of a request's prompt and of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSize {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// The full blocks of the prompt. None are known of a prompt that is only a number of tokens.
    pub prompt_blocks: PromptBlocks,
    /// Upper bound on generated tokens.
    pub output_tokens_max: u32,
}

/// The error of a tenant of whom no request has arrived and whom the configuration does not name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no tenant `{0}`")]
pub struct NoTenant(pub String);

/// The route that a request would take now, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteForecast {
    /// The next step of the request.
    pub outcome: ForecastOutcome,
    /// The author of the answer.
    pub by: ForecastAuthor,
    /// The executors that the answer names, in the order of the answer.
    pub named: Vec<String>,
    /// The first [`EXECUTORS_SHOWN`] executors in attach order.
    pub candidates: Vec<RouteCandidate>,
    /// Number of all executors.
    pub executors_total: usize,
    /// The reason why the policy has no words on the candidates; absent: the policy has some.
    pub unexplained: Option<String>,
}

/// The next step of a request by a forecast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForecastOutcome {
    /// The executor of this name would take the request.
    Place(String),
    /// The request would wait: no executor that the answer names could take it now.
    Wait,
    /// The policy would hold the request, and be asked again at that time at the latest.
    Hold(Option<Micros>),
    /// The policy would give the request up.
    GiveUp,
}

/// The author of a forecast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForecastAuthor {
    /// The machine's own rule: no policy routes.
    BuiltIn,
    /// The machine's own rule: the copy of the policy failed.
    Faulted { policy: String, detail: String },
    /// A policy, with the reason in its words.
    Policy {
        name: String,
        number: u32,
        reason: String,
    },
}

/// An executor as a candidate for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteCandidate {
    /// The executor's name.
    pub executor: String,
    /// The interlock's reason to take the request or to refuse it.
    pub interlock: Result<&'static str, String>,
    /// The executor's load if it took the request.
    pub load: PotentialLoad,
    /// The policy's words on the executor; absent: none.
    pub words: Option<Candidate>,
}

// === Decisions about requests ===

/// The decisions about requests.
#[derive(Clone, Debug)]
pub struct Traces {
    /// The requests with their decisions, the newest first.
    pub list: Vec<Trace>,
    /// Names of the executors in the decisions.
    pub names: BTreeMap<ExecutorId, String>,
}

/// The decisions about a request, with the words of the policy that routes now.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The decisions about the request alone.
    pub traces: Traces,
    /// The words of the policy that routes now on each executor, by name, or the reason why there
    /// are none.
    pub candidates: Result<Vec<(String, Candidate)>, String>,
    /// The policy that routes now; absent: the built-in rule.
    pub by: Option<String>,
}
