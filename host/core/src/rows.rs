//! What the machine tells a policy: the rows of `wit/types.wit` as plain data.
//!
//! A row is a snapshot of one thing, made when a policy is fed ([`crate::Feed`]). The fields
//! are documented in the WIT, which is the contract; here only what differs is said.

use std::sync::Arc;

use crate::ids::{
    AdapterId, DeviceId, ExecutorId, LabelId, Micros, ModelId, RequestId, Round, SessionKey,
    TenantId,
};

/// When a question is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Moment {
    /// The round's one time.
    pub now: Micros,
    /// Counts up.
    pub round: Round,
}

/// What kind of thing a name belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NameKind {
    /// An executor.
    Executor,
    /// A device.
    Device,
    /// A model.
    Model,
    /// A tenant.
    Tenant,
    /// A LoRA adapter.
    Adapter,
    /// A label.
    Label,
}

/// The text behind an id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Name {
    /// Which kind of id.
    pub kind: NameKind,
    /// The id's number.
    pub id: u32,
    /// The text.
    pub text: String,
}

/// What an executor runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ExecutorKind {
    /// An engine on an NVIDIA device.
    Cuda,
    /// An engine on this machine's processors.
    Cpu,
    /// Another server.
    Remote,
    /// A scripted engine of tests and simulations.
    Simulated,
}

/// What an executor is for, where prefill and decode run apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Role {
    /// Prefill and decode.
    Both,
    /// Prefill only.
    Prefill,
    /// Decode only.
    Decode,
}

/// Whether an executor serves. The better, the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Health {
    /// Serving.
    Up,
    /// Serving, with recent failures.
    Degraded,
    /// Finishing what it runs; takes nothing new.
    Draining,
    /// Not serving.
    Down,
}

impl Health {
    /// Whether something new may be placed there.
    #[must_use]
    pub fn takes_new(self) -> bool {
        matches!(self, Health::Up | Health::Degraded)
    }

    /// Whether it works on what is placed there.
    #[must_use]
    pub fn works(self) -> bool {
        self != Health::Down
    }
}

/// What rarely changes about an executor.
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
}

/// What changes all the time about an executor.
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

/// Who pays, and what they used.
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

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RequestClass {
    /// Only total throughput matters.
    Throughput,
    /// A person is waiting for the first token. The more urgent one, so the greater one.
    LatencyCritical,
}

/// How far a request that has no place yet has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Stage {
    /// New in this round.
    Arrived,
    /// Waiting outside the queue for room.
    Parked,
    /// In the queue.
    Queued,
}

/// A request without a place.
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
    /// Empty: none.
    pub labels: Vec<LabelId>,
    pub arrived: Micros,
    pub deadline: Option<Micros>,
    pub may_wait: bool,
    pub prompt_tokens: u32,
    pub output_tokens_max: u32,
    pub output_tokens_expected: Option<u32>,
    pub group: Option<u32>,
    pub allowed: Option<Vec<ExecutorId>>,
    /// Empty: none.
    pub failed_on: Vec<ExecutorId>,
    pub preferred: Option<ExecutorId>,
    pub attempts: u32,
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

/// What is cached of one request's prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(missing_docs, reason = "documented in wit/types.wit, record cached")]
pub struct Cached {
    pub request: RequestId,
    /// Empty: none holds more than the floor.
    pub overlaps: Vec<Overlap>,
    pub floor_tokens: u32,
    pub shared_tokens: u32,
}

/// What a placed request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SequenceState {
    /// In the executor's queue.
    Queued,
    /// Has a slot.
    Running,
    /// Evicted, its blocks not yet given back.
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
    pub tokens_generated: u32,
    pub blocks: u32,
    pub blocks_exclusive: u32,
    pub preemptible: bool,
    pub swappable: bool,
    pub preemptions: u32,
}

/// How a request ended on an executor.
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

/// What a list of changes covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Extent {
    /// What changed since the last one.
    SinceLast,
    /// Everything there is.
    Everything,
}

/// One row that is new or has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Change {
    /// The text behind an id.
    Name(Name),
    /// An executor's lasting facts. Boxed, as the one below is shared: a list of changes is moved
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
    /// A KV pool.
    Device(Device),
    /// A model.
    Model(Model),
    /// A tenant.
    Tenant(Tenant),
    /// A request without a place.
    Waiting(Arc<Request>),
    /// It has a place or an outcome now.
    WaitingGone(RequestId),
    /// A placed request.
    Sequence(Sequence),
    /// It has no place any more.
    SequenceGone(RequestId),
    /// A request ended on an executor.
    Completed(Completion),
}

/// The optional kinds of change a policy asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches: `flags feed` of wit/hooks.wit"
)]
pub struct FeedKinds {
    /// Requests without a place.
    pub waiting: bool,
    /// Placed requests.
    pub sequences: bool,
    /// Ended requests.
    pub completed: bool,
}
