//! What the runtime must do: the machine's orders to executors and answers to clients.

use crate::fact::Outcome;
use crate::ids::{BlockId, DeviceId, ExecutorId, Incarnation, ModelId, RequestId};
use crate::policies::EvictHow;

/// One thing to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Effect {
    /// Take a sequence up in a slot.
    Start(StartOrder),
    /// More blocks for a running sequence, appended to its block table.
    Grant {
        /// Which sequence.
        request: RequestId,
        /// Where it runs.
        executor: ExecutorId,
        /// Its life.
        incarnation: Incarnation,
        /// The new blocks.
        blocks: Vec<BlockId>,
    },
    /// Stop a sequence, keep its tokens, and say when its blocks are no longer used
    /// ([`crate::Input::SequenceLeft`]).
    Evict {
        /// Which sequence.
        request: RequestId,
        /// Where it runs.
        executor: ExecutorId,
        /// Its life.
        incarnation: Incarnation,
        /// How.
        how: EvictHow,
    },
    /// Stop a sequence for good, and say when its blocks are no longer used.
    Cancel {
        /// Which sequence.
        request: RequestId,
        /// Where it runs.
        executor: ExecutorId,
        /// Its life.
        incarnation: Incarnation,
    },
    /// Schedule at most so many tokens in a step from now on.
    SetBudget {
        /// Which engine.
        executor: ExecutorId,
        /// Tokens per step.
        tokens_max: u32,
    },
    /// Tell the client how its request ended.
    Finish {
        /// Which request.
        request: RequestId,
        /// How.
        outcome: Outcome,
    },
    /// An executor that was being detached has nothing left to do and is gone.
    Detached {
        /// Which.
        executor: ExecutorId,
    },
}

/// Everything an engine needs to take up a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StartOrder {
    /// Which request.
    pub request: RequestId,
    /// Where.
    pub executor: ExecutorId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The device the blocks are on.
    pub device: DeviceId,
    /// Which model.
    pub model: Option<ModelId>,
    /// Tokens to have in KV before the first new one: the prompt and what was generated before
    /// a preemption.
    pub prompt_tokens: u32,
    /// How many of them, from the start, the blocks already hold.
    pub cached_tokens: u32,
    /// Upper bound on tokens still to generate.
    pub output_tokens_max: u32,
    /// The block table; empty where the executor has no blocks of the machine's.
    pub blocks: Vec<BlockId>,
}
