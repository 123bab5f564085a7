//! Events outside the machine, as the data that `Machine::handle` takes.
//!
//! [`Input`] names them all, so that a run can be recorded and run again.

use pointsman_interface::rows::{ExecutorKind, Health, NameKind, RequestClass, Role};
use pointsman_interface::{
    AdapterId, BlockHash, DeviceId, ExecutorId, Hook, Incarnation, LabelId, Micros, ModelId,
    RequestId, SessionKey, TenantId,
};

/// A memory that executors share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceSpec {
    /// The name, unique among devices.
    pub name: String,
    /// The KV blocks of the device.
    pub kv: KvSpec,
    /// Tokens that all engines of the device together may schedule in a step; absent: each engine
    /// sets a number of its own.
    pub tokens_per_step: Option<u32>,
}

/// The keeper of the books of a device's KV blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum KvSpec {
    /// The machine, which hands out block ids.
    Owned {
        /// Bytes of one block.
        block_bytes: u64,
        /// Blocks of the device in all.
        blocks_total: u32,
        /// Blocks of host memory, as large, to which what sequences hold can be moved; 0: there are
        /// none.
        host_blocks: u32,
    },
    /// A remote server, which may report counts ([`KvReport`]) and prompt blocks ([`PrefixEvent`]).
    Remote,
    /// A remote server that says nothing of prompt blocks, and is assumed to hold those of the prompts that
    /// it was sent last. It may report counts.
    Assumed,
}

/// Counts reported by a device whose blocks somebody else manages; all 0: it tells no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KvReport {
    /// Bytes of one block; 0 where the server does not tell.
    pub block_bytes: u64,
    /// Blocks of the device in all.
    pub blocks_total: u32,
    /// Blocks that are free and hold nothing.
    pub blocks_free: u32,
    /// Blocks that hold a prefix and are free on demand.
    pub blocks_cached: u32,
    /// Cached blocks dropped so far.
    pub blocks_evicted_total: u64,
}

/// A place that holds prompt blocks, other than a pool of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Tier {
    /// The memory of a device whose books somebody else keeps.
    Device(DeviceId),
    /// Host memory, from which the engines of that device can read.
    Host(DeviceId),
    /// A disk or an outside store, from which the engines of that device can read.
    Disk(DeviceId),
    /// A cache that any executor can read.
    Shared,
}

/// Everything that decides, besides the text, about the numbers in a prompt's blocks. Hashes stand for the
/// text alone: two models with one tokenizer have equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockKind {
    /// The model that the blocks are for; absent: the only one there is, which requests need not
    /// name.
    pub model: Option<ModelId>,
    /// The LoRA adapter; absent: none.
    pub adapter: Option<AdapterId>,
    /// Tokens in a block.
    pub tokens_per_block: u32,
}

/// The full blocks of a prompt. None are known where the list is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PromptBlocks {
    /// Tokens in a block. Executors with blocks of another size share nothing.
    pub tokens_per_block: u32,
    /// A hash for each full block, chained: it stands for the text up to the block's end. The list
    /// may be shorter than the prompt.
    pub hashes: Vec<BlockHash>,
}

/// A change of the blocks in a [`Tier`]. Hashes are those of [`PromptBlocks`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PrefixEvent {
    /// The tier holds these blocks now.
    Stored(BlockKind, Vec<BlockHash>),
    /// The tier no longer holds these blocks.
    Removed(BlockKind, Vec<BlockHash>),
    /// The tier holds nothing any more.
    Cleared,
}

/// The executors whose cached prompt blocks an executor can read. Model, adapter and block size have to
/// agree besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReadableBlocks {
    /// Only its own blocks: each executor of the device has memory of its own behind them.
    Own,
    /// The blocks of all executors of the device, which have one memory.
    Device,
}

/// An executor to attach: an engine or a server that runs sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExecutorSpec {
    /// The name, unique among attached executors.
    pub name: String,
    /// The device that holds the executor's blocks.
    pub device: DeviceId,
    /// The hardware or server that runs the sequences.
    pub kind: ExecutorKind,
    /// The part of inference that the executor is for.
    pub role: Role,
    /// The topology group; executors of one group are near each other.
    pub group: u32,
    /// The relative share of the device's tokens.
    pub share_weight: u32,
    /// The models that the executor can serve; absent: any.
    pub serves: Option<Vec<ModelId>>,
    /// Sequences that the executor runs at once.
    pub slots_total: u32,
    /// The number of distinct models that may run at once; absent: unlimited.
    pub models_max: Option<u32>,
    /// Requests that may be placed there and not started, per class.
    pub queue_limit: u32,
    /// The tokens of the executor's model in one block; absent: no paged KV.
    pub tokens_per_block: Option<u32>,
    /// True if the executor can put a sequence back to waiting and take it up again from its
    /// tokens.
    pub preempts: bool,
    /// The executors whose cached prompt blocks the executor can read.
    pub reads: ReadableBlocks,
    /// The time in µs for which a model stays loaded after its last sequence.
    pub model_unload_delay: Micros,
}

/// A change to an attached executor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ExecutorUpdate {
    /// The executor serves, or does not. From `Down` a new incarnation begins.
    Health(Health),
    /// The executor runs that many sequences at once from now on.
    SlotsTotal(u32),
    /// The executor has this relative share of the device's tokens from now on.
    ShareWeight(u32),
    /// The executor can serve these models; absent: any.
    Serves(Option<Vec<ModelId>>),
    /// The executor takes nothing new, and is removed when its last sequence has ended.
    Detach,
    /// A server elsewhere answers in this way from now on.
    Availability(Availability),
    /// The executor has so many tokens in one block; absent: no paged KV.
    TokensPerBlock(Option<u32>),
    /// Requests are placed on the executor on these terms from now on. What is there beyond them stays.
    Terms(PlacementTerms),
    /// So many distinct models may run on the executor at once from now on; absent: unlimited. What is there
    /// beyond them stays.
    ModelsMax(Option<u32>),
    /// Another server stands behind the executor from now on: nothing is known of its cache or its faults,
    /// and it is busy until it says otherwise. What runs on the one before runs on.
    Replaced,
    /// A server elsewhere tells that it has these models loaded, and no others; absent: it does not tell.
    Loaded(Option<Vec<ModelId>>),
}

/// The terms on which requests are placed on an executor, as far as they can change while it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PlacementTerms {
    /// The topology group ([`ExecutorSpec::group`]).
    pub group: u32,
    /// The number of distinct models that may run at once; absent: unlimited.
    pub models_max: Option<u32>,
    /// Requests that may be placed there and not started, per class.
    pub queue_limit: u32,
    /// The time in µs for which a model stays loaded after its last sequence.
    pub model_unload_delay: Micros,
    /// True if the prompts that were sent there last are assumed to be cached there. Ignored where the
    /// machine keeps the books of the blocks.
    pub assumes_prompts: bool,
}

/// The answer of a server elsewhere to somebody who has new work for it. What runs there runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Availability {
    /// The server takes requests.
    #[default]
    Open,
    /// The server answers, and has no room: it is saturated, or loads a model. Or it is late with its answer, while
    /// requests of ours run there.
    Busy,
    /// The server does not answer.
    Silent,
}

/// A client's request, as far as scheduling is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NewRequest {
    /// The model; absent: any live executor will do.
    pub model: Option<ModelId>,
    /// The LoRA adapter; absent: none.
    pub adapter: Option<AdapterId>,
    /// The tenant, who pays for the request.
    pub tenant: TenantId,
    /// The client's session; absent: none.
    pub session: Option<SessionKey>,
    /// The class: a fast first token or total throughput matters more.
    pub class: RequestClass,
    /// The priority: larger is more urgent, and 0 is normal.
    pub priority: i32,
    /// The waiting time in µs that is granted in advance.
    pub head_start: Micros,
    /// The labels, with keys from the operator's list.
    pub labels: Vec<LabelId>,
    /// The time from which the answer is worthless; absent: never.
    pub deadline: Option<Micros>,
    /// True if the request may wait outside the queue; background work is rather refused.
    pub may_wait: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// The prompt's full blocks, by which executors share what they hold of it.
    pub prompt_blocks: PromptBlocks,
    /// Upper bound on generated tokens.
    pub output_tokens_max: u32,
    /// The likely number of generated tokens; absent: unknown.
    pub output_tokens_expected: Option<u32>,
    /// The topology group that the request asks for; absent: any.
    pub group: Option<u32>,
    /// The only executors allowed; absent: any that serves the model.
    pub allowed: Option<Vec<ExecutorId>>,
    /// The executor that served the session last; absent: none.
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
            prompt_blocks: PromptBlocks::default(),
            output_tokens_max,
            output_tokens_expected: None,
            group: None,
            allowed: None,
            preferred: None,
        }
    }
}

/// The progress that one engine made in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepReport {
    /// The executor that made the step.
    pub executor: ExecutorId,
    /// The life of the executor in which the step was made.
    pub incarnation: Incarnation,
    /// The progress of each sequence. A sequence with nothing to report may be left out.
    pub progress: Vec<Progress>,
}

/// The progress that one sequence made in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Progress {
    /// The request that the sequence serves.
    pub request: RequestId,
    /// Prompt tokens whose KV was computed.
    pub prefilled: u32,
    /// Tokens that were generated.
    pub generated: u32,
}

impl Progress {
    /// True if the time of the first of these tokens is known: of several that come at once, as of a whole answer, it is not.
    #[must_use]
    pub fn is_one_token(&self) -> bool {
        self.generated == 1
    }
}

/// A prompt's tokens, as the server counts them that has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PromptCount {
    /// All tokens of the prompt.
    pub tokens: u32,
    /// The part of them that was cached there.
    pub cached: u32,
}

/// The name of a sequence in messages of its executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SequenceRef {
    /// The request that the sequence serves.
    pub request: RequestId,
    /// The executor that runs the sequence.
    pub executor: ExecutorId,
    /// The life of the executor in which the sequence runs.
    pub incarnation: Incarnation,
}

/// The part of a request's answer that the host has when its executor can do no more for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Kept {
    /// The request.
    pub request: RequestId,
    /// Tokens generated so far, over all placements, from which another executor can go on.
    pub generated: u32,
}

/// The retry that may follow a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RetryClass {
    /// No retry: the request itself is at fault, or its answer cannot be continued elsewhere.
    Never,
    /// Another executor may serve the request.
    Elsewhere,
    /// Any executor may serve the request, this one too: it had no room or was not reached, and has not failed.
    Anywhere,
    /// No retry, though the executor is at fault: its client has a part of the answer, with which nobody can go
    /// on.
    TooLate,
}

/// An event outside the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Input {
    /// A name is used for the first time.
    NameInterned {
        /// The kind of thing that has the name.
        kind: NameKind,
        /// The name as text.
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
    /// An engine or a cache reported prompt blocks that it holds, or no longer holds.
    PrefixesReported(Tier, PrefixEvent),
    /// An executor was attached.
    ExecutorAttached(ExecutorSpec),
    /// Something about an executor changed.
    ExecutorUpdated(ExecutorId, ExecutorUpdate),
    /// An executor died; all sequences that ran there are gone.
    ExecutorLost {
        /// The executor that died.
        executor: ExecutorId,
        /// The life that ended.
        incarnation: Incarnation,
        /// The part that is left of their answers. A request that is missing has lost all that was
        /// generated there.
        kept: Vec<Kept>,
    },
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
    SequenceFailed {
        /// The sequence that failed.
        sequence: SequenceRef,
        /// The retry that may follow.
        retry: RetryClass,
        /// Tokens generated so far, over all placements, from which another executor can go on.
        kept: u32,
    },
    /// An evicted or cancelled sequence has left; its blocks are given back. The number is that of the
    /// leading tokens whose KV it left in the host blocks that its eviction named; 0: none.
    SequenceLeft(SequenceRef, u32),
    /// Time passed, and nothing else happened.
    TimePassed,
    /// The tokens were set that all engines of a device together may schedule in a step.
    TokensPerStepSet(DeviceId, u32),
    /// A server elsewhere told the tokens of a prompt as it counts them itself. Tenants pay for those, once
    /// the sequence has ended.
    PromptCounted(SequenceRef, PromptCount),
    /// A client has a part of a sequence's answer with which only these executors can go on: no other may
    /// serve its request from now on.
    KeptTo(SequenceRef, Vec<ExecutorId>),
    /// Another policy answers for a hook from now on, or the same one with other settings, or again after it rested.
    /// Answers of the one before that still stand are asked for anew.
    PolicyChanged(Hook),
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
