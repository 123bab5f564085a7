//! What happened outside the machine: the data of its `handle_*` methods.
//!
//! [`Input`] names them all, so that a run can be recorded and run again
//! ([`crate::Machine::handle`]).

use crate::ids::{
    AdapterId, BlockHash, DeviceId, ExecutorId, Incarnation, LabelId, Micros, ModelId, RequestId,
    SessionKey, TenantId,
};
use crate::rows::{ExecutorKind, Health, NameKind, RequestClass, Role};

/// A memory that executors share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceSpec {
    /// Unique among devices.
    pub name: String,
    /// Its KV blocks.
    pub kv: KvSpec,
    /// Tokens all its engines together may schedule in a step; absent: engines set their own.
    pub tokens_per_step: Option<u32>,
}

/// Who keeps the books of a device's KV blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum KvSpec {
    /// The machine: it hands out block ids.
    Owned {
        /// Bytes of one block.
        block_bytes: u64,
        /// Blocks there are.
        blocks_total: u32,
    },
    /// Somebody else, who may report counts ([`KvReport`]).
    Remote,
}

/// Counts reported by a device whose blocks somebody else manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KvReport {
    /// Bytes of one block; 1 where not told.
    pub block_bytes: u64,
    /// Blocks there are.
    pub blocks_total: u32,
    /// Free and holding nothing.
    pub blocks_free: u32,
    /// Free on demand, holding a prefix.
    pub blocks_cached: u32,
    /// Cached blocks dropped so far.
    pub blocks_evicted_total: u64,
}

/// Where prompt blocks are held, other than in a pool of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Tier {
    /// In the memory of a device whose books somebody else keeps.
    Device(DeviceId),
    /// In host memory, to be had by the engines of that device.
    Host(DeviceId),
    /// On disk or outside, to be had by the engines of that device.
    Disk(DeviceId),
    /// In a cache that any executor can read.
    Shared {
        /// Tokens one of its blocks holds.
        tokens_per_block: u32,
    },
}

/// What became of blocks in a [`Tier`]. Hashes are those of [`NewRequest::prompt_hashes`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PrefixEvent {
    /// It holds these now.
    Stored(Vec<BlockHash>),
    /// It no longer holds these.
    Removed(Vec<BlockHash>),
    /// It holds nothing any more.
    Cleared,
}

/// Something that runs sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExecutorSpec {
    /// Unique among attached executors.
    pub name: String,
    /// Where its blocks are.
    pub device: DeviceId,
    /// What it runs on.
    pub kind: ExecutorKind,
    /// What it is for.
    pub role: Role,
    /// Topology group.
    pub group: u32,
    /// Relative share of its device's tokens.
    pub share_weight: u32,
    /// Models it can serve; absent: any.
    pub serves: Option<Vec<ModelId>>,
    /// Sequences it runs at once.
    pub slots_total: u32,
    /// Distinct models at once; absent: unlimited.
    pub models_max: Option<u32>,
    /// Placed and not started that it may hold, per class.
    pub queue_limit: u32,
    /// Tokens of KV one block holds for it; absent: no paged KV.
    pub tokens_per_block: Option<u32>,
    /// It can put a sequence back to waiting and take it up again from its tokens.
    pub preempts: bool,
    /// How long a model stays loaded after its last sequence.
    pub model_unload_delay: Micros,
}

/// What may change about an attached executor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ExecutorUpdate {
    /// It serves, or does not. From `Down` this begins a new incarnation.
    Health(Health),
    /// It runs that many sequences at once from now on.
    SlotsTotal(u32),
    /// Its share of the device's tokens.
    ShareWeight(u32),
    /// The models it can serve.
    Serves(Option<Vec<ModelId>>),
    /// Take nothing new there and remove it when its last sequence has ended.
    Detach,
}

/// A client's request, as far as scheduling is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NewRequest {
    /// Which model; absent: any live executor will do.
    pub model: Option<ModelId>,
    /// LoRA adapter.
    pub adapter: Option<AdapterId>,
    /// Who pays.
    pub tenant: TenantId,
    /// The client's session.
    pub session: Option<SessionKey>,
    /// What the client waits for.
    pub class: RequestClass,
    /// Larger is more urgent; 0 is normal.
    pub priority: i32,
    /// Waiting time granted in advance.
    pub head_start: Micros,
    /// From the operator's list of allowed keys.
    pub labels: Vec<LabelId>,
    /// When the answer is worthless.
    pub deadline: Option<Micros>,
    /// False: background work that would rather be refused than wait outside the queue.
    pub may_wait: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Chained hashes of the prompt's full blocks, for executors with owned KV. May be shorter.
    pub prompt_hashes: Vec<BlockHash>,
    /// Upper bound on generated tokens.
    pub output_tokens_max: u32,
    /// Likely number of generated tokens.
    pub output_tokens_expected: Option<u32>,
    /// Topology group it asks for.
    pub group: Option<u32>,
    /// The only executors allowed.
    pub allowed: Option<Vec<ExecutorId>>,
    /// The executor that served its session last.
    pub preferred: Option<ExecutorId>,
}

impl NewRequest {
    /// A normal request of `tenant`: latency-critical, priority 0, may wait, no hints.
    #[must_use]
    pub fn new(tenant: TenantId, prompt_tokens: u32, output_tokens_max: u32) -> Self {
        Self {
            model: None,
            adapter: None,
            tenant,
            session: None,
            class: RequestClass::LatencyCritical,
            priority: 0,
            head_start: Micros(0),
            labels: Vec::new(),
            deadline: None,
            may_wait: true,
            prompt_tokens,
            prompt_hashes: Vec::new(),
            output_tokens_max,
            output_tokens_expected: None,
            group: None,
            allowed: None,
            preferred: None,
        }
    }
}

/// What one engine did in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepReport {
    /// Which executor.
    pub executor: ExecutorId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// What its sequences made. A sequence with nothing to report may be left out.
    pub progress: Vec<Progress>,
}

/// What one sequence made in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Progress {
    /// Which.
    pub request: RequestId,
    /// Prompt tokens whose KV was computed.
    pub prefilled: u32,
    /// Tokens generated.
    pub generated: u32,
}

/// A message of an executor about one of its sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SequenceRef {
    /// Which request.
    pub request: RequestId,
    /// Where it runs.
    pub executor: ExecutorId,
    /// In which life of the executor.
    pub incarnation: Incarnation,
}

/// What may be done after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RetryClass {
    /// The request itself is at fault, or the client has seen part of the answer.
    Never,
    /// Another executor may serve it.
    Elsewhere,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Input {
    /// A name is used for the first time.
    NameInterned {
        /// Which kind of id.
        kind: NameKind,
        /// The text.
        text: String,
    },
    /// A model's limit was set; absent: unlimited.
    ModelLimitSet(ModelId, Option<u32>),
    /// A tenant's weight and tokens per minute were set.
    TenantSet(TenantId, u32, Option<u64>),
    /// A device was attached.
    DeviceAttached(DeviceSpec),
    /// A device reported its KV counts.
    KvReported(DeviceId, KvReport),
    /// An engine or a cache said which prompt blocks it holds, or no longer does.
    PrefixesReported(Tier, PrefixEvent),
    /// An executor was attached.
    ExecutorAttached(ExecutorSpec),
    /// Something about an executor changed.
    ExecutorUpdated(ExecutorId, ExecutorUpdate),
    /// An executor died; what ran there is gone.
    ExecutorLost(ExecutorId, Incarnation),
    /// A request arrived.
    RequestArrived(Box<NewRequest>),
    /// A client left.
    RequestCancelled(RequestId),
    /// An engine took a sequence up.
    SequenceStarted(SequenceRef),
    /// An engine made a step.
    StepFinished(StepReport),
    /// A sequence came to its end; its blocks are given back.
    SequenceFinished(SequenceRef),
    /// A sequence failed; its blocks are given back.
    SequenceFailed(SequenceRef, RetryClass),
    /// An evicted or cancelled sequence has left; its blocks are given back.
    SequenceLeft(SequenceRef),
    /// Nothing but time.
    TimePassed,
}

impl Input {
    /// The use of a name.
    #[must_use]
    pub fn name(kind: NameKind, text: &str) -> Self {
        Input::NameInterned {
            kind,
            text: text.to_owned(),
        }
    }

    /// The arrival of a request.
    #[must_use]
    pub fn arrival(new: NewRequest) -> Self {
        Input::RequestArrived(Box::new(new))
    }
}

/// An id of a name that needs nothing but its first use to be known.
pub trait InternedId: Sized {
    /// The kind of such names.
    const KIND: NameKind;

    /// The id with this number, as [`crate::Handled::Name`] gives it.
    fn from_number(number: u32) -> Self;
}

macro_rules! interned {
    ($($id:ident: $kind:ident),*) => {$(
        impl InternedId for $id {
            const KIND: NameKind = NameKind::$kind;

            fn from_number(number: u32) -> Self {
                Self(number)
            }
        }
    )*};
}

interned!(ModelId: Model, TenantId: Tenant, AdapterId: Adapter, LabelId: Label);
