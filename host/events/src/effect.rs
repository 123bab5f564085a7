//! Effects: the machine's orders to executors and answers to clients, for the runtime to carry out.

use crate::fact::Outcome;
use crate::input::SequenceRef;
use pointsman_interface::{
    Arrangement, BlockId, DeviceId, ExecutorId, HostBlockId, ModelId, RequestId,
};

/// One thing to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Effect {
    /// Takes a sequence up in a slot.
    Start(StartOrder),
    /// Appends more blocks to a running sequence's block table.
    Grant {
        /// The sequence that grows.
        sequence: SequenceRef,
        /// The new blocks.
        blocks: Vec<BlockId>,
    },
    /// Stops a sequence, keeps its tokens, and has the executor say when its blocks are no longer
    /// used ([`crate::Input::SequenceLeft`]).
    Evict {
        /// The sequence that must leave.
        sequence: SequenceRef,
        /// Host blocks to which its KV is copied first, one for each block of its table, in that
        /// order; empty: its KV is dropped.
        host_blocks: Vec<HostBlockId>,
    },
    /// Stops a sequence for good, and has the executor say when its blocks are no longer used.
    Cancel(SequenceRef),
    /// Bounds the tokens that an engine schedules in a step from now on.
    SetBudget {
        /// The executor that has the bound.
        executor: ExecutorId,
        /// Tokens per step.
        tokens_max: u32,
    },
    /// Has an engine spend its steps in another way from now on.
    Arrange {
        /// The executor whose engine this is.
        executor: ExecutorId,
        /// The way: sequences that it does not name come after, in order of arrival.
        arrangement: Arrangement,
    },
    /// Tells the client how its request ended.
    Finish {
        /// The request that ended.
        request: RequestId,
        /// The way in which it ended.
        outcome: Outcome,
    },
    /// Forgets an executor that was being detached: it has nothing left to do and is gone.
    Detached {
        /// The executor that is gone.
        executor: ExecutorId,
    },
}

/// Everything an engine needs to take up a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StartOrder {
    /// The sequence, by the executor that takes it up.
    pub sequence: SequenceRef,
    /// The device the blocks are on.
    pub device: DeviceId,
    /// The model; absent: any that the executor serves.
    pub model: Option<ModelId>,
    /// Tokens to have in KV before the first new one: the prompt and what was generated before
    /// a preemption.
    pub prompt_tokens: u32,
    /// Tokens of the prompt, from its start, that the blocks already hold, or will once `copies` are
    /// made.
    pub cached_tokens: u32,
    /// Upper bound on tokens still to generate.
    pub output_tokens_max: u32,
    /// The block table; empty where the executor has no blocks of the machine's.
    pub blocks: Vec<BlockId>,
    /// Copies from host memory to make before anything is computed. The host blocks are the
    /// sequence's until [`crate::Input::SequenceStarted`].
    pub copies: Vec<BlockCopy>,
}

/// A copy of a block's contents from or to host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockCopy {
    /// The block of the device's host arena.
    pub host: HostBlockId,
    /// The block of the device's KV pool.
    pub block: BlockId,
}
