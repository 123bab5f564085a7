//! Rows that the machine tells a policy: those of `wit/types.wit` as plain data.
//!
//! A row is a snapshot of one thing, made when a policy is fed (`Feed` of the core). The fields are
//! documented in the WIT, which is the contract; only differences are documented here.

use std::sync::Arc;

use crate::RowKind;
use crate::ids::{
    AdapterId, DeviceId, ExecutorId, LabelId, Micros, ModelId, RequestId, Round, SessionKey,
    TenantId,
};

/// The round of a question, with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Moment {
    /// The time in µs, the same for the whole round.
    pub now: Micros,
    /// The number of the round, which counts up.
    pub round: Round,
}

/// The kind of thing that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NameKind {
    /// The name of an executor.
    Executor,
    /// The name of a device.
    Device,
    /// The name of a model.
    Model,
    /// The name of a tenant.
    Tenant,
    /// The name of a LoRA adapter.
    Adapter,
    /// The text of a label, `key=value`.
    Label,
}

/// The text behind an id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Name {
    /// The kind of thing that the id stands for.
    pub kind: NameKind,
    /// The number of the id, among ids of that kind.
    pub id: u32,
    /// The text that stands behind the id.
    pub text: String,
}

/// The hardware or server that runs an executor's sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ExecutorKind {
    /// An engine on an NVIDIA device.
    Cuda,
    /// An engine on this machine's processors.
    Cpu,
    /// A server elsewhere, over the network.
    Remote,
    /// A scripted engine of tests and simulations.
    Simulated,
}

impl ExecutorKind {
    /// The name of the kind for clients and operators.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ExecutorKind::Cuda => "cuda",
            ExecutorKind::Cpu => "cpu",
            ExecutorKind::Remote => "remote",
            ExecutorKind::Simulated => "simulated",
        }
    }
}

/// The part of inference that an executor is for, where prefill and decode run apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Role {
    /// Prefill and decode, both here.
    Both,
    /// Prefill only; another executor decodes.
    Prefill,
    /// Decode only; another executor prefills.
    Decode,
}

impl Role {
    /// The name of the role.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Both => "both",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
    }
}

/// The readiness of an executor to serve. The better, the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Health {
    /// The executor serves.
    Up,
    /// The executor serves, with recent failures.
    Degraded,
    /// The executor finishes its sequences and takes nothing new.
    Draining,
    /// The executor does not serve.
    Down,
}

impl Health {
    /// The name of the health for operators.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Health::Up => "up",
            Health::Degraded => "degraded",
            Health::Draining => "draining",
            Health::Down => "down",
        }
    }

    /// Tells whether an executor of this health takes new requests.
    #[must_use]
    pub fn takes_new(self) -> bool {
        matches!(self, Health::Up | Health::Degraded)
    }

    /// Tells whether an executor of this health works on the requests it has.
    #[must_use]
    pub fn works(self) -> bool {
        self != Health::Down
    }
}

/// The facts about an executor that rarely change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(
    missing_docs,
    reason = "documented in wit/types.wit, record executor-info"
)]
pub struct ExecutorInfo {
    pub id: ExecutorId,
    pub device: DeviceId,
    pub kind: ExecutorKind,
    pub role: Role,
    pub group: u32,
    pub share_weight: u32,
    pub serves: Option<Vec<ModelId>>,
    pub slots_total: u32,
    pub models_max: Option<u32>,
    pub queue_limit: u32,
    pub tokens_per_block: Option<u32>,
    pub preempts: bool,
    pub loaded_models: LoadedModels,
}

/// The word of a server elsewhere about the models that it has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LoadedModels {
    /// It does not tell, or it is an engine.
    Untold,
    /// It tells.
    Told,
}

/// The load of an executor, which changes all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(
    missing_docs,
    reason = "documented in wit/types.wit, record executor-load"
)]
pub struct ExecutorLoad {
    pub id: ExecutorId,
    pub health: Health,
    pub slots_used: u32,
    pub queued_critical: u32,
    pub queued_throughput: u32,
    /// True if the queue of either class is filled to 80 % of its limit, or a server elsewhere says that it has no room.
    pub saturated: bool,
    pub prefill_tokens_pending: u64,
    pub blocks_used: u64,
    pub placed_total: u64,
    pub ttft_micros: Option<u64>,
    pub itl_micros: Option<u64>,
}

/// A model's presence on one executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(missing_docs, reason = "documented in wit/types.wit, record residency")]
pub struct Residency {
    pub executor: ExecutorId,
    pub model: ModelId,
    pub sequences: u32,
    pub warm_until: Option<Micros>,
    pub started: Micros,
    pub first_token: Option<Micros>,
    pub loaded: bool,
}

/// A model and an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(missing_docs, reason = "documented in wit/types.wit, record presence")]
pub struct Presence {
    pub executor: ExecutorId,
    pub model: ModelId,
}

/// The KV pool of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(missing_docs, reason = "documented in wit/types.wit, record device")]
pub struct Device {
    pub id: DeviceId,
    pub block_bytes: u64,
    pub blocks_total: u32,
    pub blocks_free: u32,
    pub blocks_cached: u32,
    pub blocks_evicted_total: u64,
    pub host_blocks_total: u32,
    pub host_blocks_free: u32,
}

/// A model and its global limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(missing_docs, reason = "documented in wit/types.wit, record model")]
pub struct Model {
    pub id: ModelId,
    pub running_max: Option<u32>,
    pub running: u32,
    pub waiting: u32,
}

/// A payer for requests, with the usage so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(missing_docs, reason = "documented in wit/types.wit, record tenant")]
pub struct Tenant {
    pub id: TenantId,
    pub weight: u32,
    pub tokens_per_minute: Option<u64>,
    pub running: u32,
    pub waiting: u32,
    pub prompt_tokens_total: u64,
    pub output_tokens_total: u64,
}

/// The class of a request, by the speed that matters to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RequestClass {
    /// Total throughput matters, and nothing else.
    Throughput,
    /// A person waits for the first token. The more urgent class, so the greater one.
    LatencyCritical,
}

impl RequestClass {
    /// The name of the class for clients and operators.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            RequestClass::Throughput => "throughput",
            RequestClass::LatencyCritical => "latency-critical",
        }
    }
}

/// The progress of a request that has not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Stage {
    /// The request is new in this round.
    Arrived,
    /// The request waits outside the queue for room.
    Parked,
    /// The request is in the queue.
    Queued,
    /// The request is in the queue of an executor.
    Placed,
}

/// A request that has not started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(missing_docs, reason = "documented in wit/types.wit, record request")]
pub struct Request {
    pub id: RequestId,
    pub model: Option<ModelId>,
    pub adapter: Option<AdapterId>,
    pub tenant: TenantId,
    pub session: Option<SessionKey>,
    pub class: RequestClass,
    pub priority: i32,
    pub head_start: Micros,
    pub stage: Stage,
    /// The labels of the request; empty: none.
    pub labels: Vec<LabelId>,
    pub arrived: Micros,
    pub deadline: Option<Micros>,
    pub may_wait: bool,
    pub prompt_tokens: u32,
    pub output_tokens_max: u32,
    pub output_tokens_expected: Option<u32>,
    pub group: Option<u32>,
    pub allowed: Option<Vec<ExecutorId>>,
    /// The executors that failed the request; empty: none.
    pub failed_on: Vec<ExecutorId>,
    pub preferred: Option<ExecutorId>,
    pub attempts: u32,
    pub hold_end: Option<Micros>,
}

/// Prompt tokens an executor already holds, by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(missing_docs, reason = "documented in wit/types.wit, record overlap")]
pub struct Overlap {
    pub executor: ExecutorId,
    pub device_tokens: u32,
    pub host_tokens: u32,
    pub disk_tokens: u32,
}

/// The cached part of one request's prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(missing_docs, reason = "documented in wit/types.wit, record cached")]
pub struct Cached {
    pub request: RequestId,
    /// The best holders of each tier, those with most on their device first; empty: none holds more
    /// than the floor.
    pub overlaps: Vec<Overlap>,
    pub floor_tokens: u32,
    pub shared_tokens: u32,
}

/// A request in a question, with the longest part of its prompt that is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(
    missing_docs,
    reason = "documented in wit/types.wit, record asked-request"
)]
pub struct AskedRequest {
    pub request: RequestId,
    pub cached_tokens: u32,
    pub overtaken: u32,
}

/// The state of a placed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SequenceState {
    /// The request is in the executor's queue.
    Queued,
    /// The request has a slot.
    Running,
    /// The request is evicted, and its blocks are not given back yet.
    Leaving,
}

/// A placed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(missing_docs, reason = "documented in wit/types.wit, record sequence")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts: record sequence of wit/types.wit"
)]
pub struct Sequence {
    pub request: RequestId,
    pub executor: ExecutorId,
    pub model: Option<ModelId>,
    pub tenant: TenantId,
    pub class: RequestClass,
    pub priority: i32,
    pub state: SequenceState,
    pub started: Micros,
    pub prompt_tokens: u32,
    pub tokens_generated: u32,
    pub blocks: u32,
    pub blocks_exclusive: u32,
    pub preemptible: bool,
    pub swappable: bool,
    pub preemptions: u32,
}

/// The end of a request on an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(
    missing_docs,
    reason = "documented in wit/types.wit, record completion"
)]
pub struct Completion {
    pub request: RequestId,
    pub executor: ExecutorId,
    pub model: Option<ModelId>,
    pub tenant: TenantId,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub output_tokens: u32,
    pub queued_micros: u64,
    pub ttft_micros: Option<u64>,
    pub total_micros: u64,
    pub ok: bool,
}

/// The extent of a list of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Extent {
    /// The rows that changed since the last list.
    SinceLast,
    /// All rows there are.
    Everything,
}

/// One row that is new or has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Change {
    /// The text behind an id.
    Name(Name),
    /// An executor's lasting facts. Boxed, as `Waiting` is shared: a list of changes is moved
    /// about, and most rows are small.
    Executor(Box<ExecutorInfo>),
    /// An executor's load.
    Load(ExecutorLoad),
    /// An executor was removed.
    ExecutorGone(ExecutorId),
    /// A model's presence.
    Residency(Residency),
    /// A model left an executor.
    ResidencyGone(Presence),
    /// The KV pool of a device.
    Device(Device),
    /// A model and its counts.
    Model(Model),
    /// A tenant and its usage.
    Tenant(Tenant),
    /// A request that has not started.
    Waiting(Arc<Request>),
    /// A request that waited has started or has an outcome now.
    WaitingGone(RequestId),
    /// A placed request.
    Sequence(Sequence),
    /// A placed request has no place any more.
    SequenceGone(RequestId),
    /// A request ended on an executor.
    Completed(Completion),
}

impl Change {
    /// The kind of rows that the change belongs to.
    #[must_use]
    pub fn kind(&self) -> RowKind {
        match self {
            Change::Name(_) => RowKind::Name,
            Change::Executor(_) | Change::ExecutorGone(_) => RowKind::Executor,
            Change::Load(_) => RowKind::Load,
            Change::Residency(_) | Change::ResidencyGone(_) => RowKind::Residency,
            Change::Device(_) => RowKind::Device,
            Change::Model(_) => RowKind::Model,
            Change::Tenant(_) => RowKind::Tenant,
            Change::Waiting(_) | Change::WaitingGone(_) => RowKind::Waiting,
            Change::Sequence(_) | Change::SequenceGone(_) => RowKind::Sequence,
            Change::Completed(_) => RowKind::Completion,
        }
    }
}
