//! The contract between the host's driver and an executor: commands in, events out.
//!
//! One thread or task per executor owns everything it runs. The driver never waits for it:
//! commands go through a bounded channel, and what finds no room waits in the driver's outbox. The
//! executor may wait for the driver. When the command channel closes, the executor ends.
//!
//! # Invariants
//! Held by the suite that every executor passes (`tests/contract.rs`).
//! 1. Each [`Command::Start`] is answered by [`Event::Started`], then by exactly one of
//!    [`Event::Finished`], [`Event::Failed`], [`Event::Left`], unless the executor is lost.
//! 2. After that event the executor touches none of the sequence's blocks.
//! 3. A sequence writes only into blocks of its own table, and never beyond what it was granted:
//!    one that lacks a block sits out.
//! 4. The tokens of a step are at most the budget, and a sequence is at most once in a step.
//! 5. Commands about a sequence that is not there, or of another incarnation, change nothing.

use pointsman_core::{
    BlockId, ExecutorId, Incarnation, RetryClass, SequenceRef, StartOrder, StepReport,
};

use crate::delivery::StopReason;
use crate::job::Sequence;

/// What the driver wants of an executor.
#[derive(Debug)]
pub enum Command {
    /// Take a sequence up.
    Start(Box<Start>),
    /// More blocks for a running sequence, appended to its block table.
    Grant {
        /// Which.
        sequence: SequenceRef,
        /// The blocks.
        blocks: Vec<BlockId>,
    },
    /// Put a sequence back: stop it, keep its tokens, give it back with [`Event::Left`].
    Evict(SequenceRef),
    /// Its client left: stop it, and say [`Event::Left`].
    Cancel(SequenceRef),
    /// Schedule at most so many tokens in a step from now on.
    SetBudget {
        /// Tokens per step.
        tokens_max: u32,
    },
}

/// A sequence to take up.
#[derive(Debug)]
pub struct Start {
    /// What the machine ordered.
    pub order: StartOrder,
    /// What there is to do, and how far it has come.
    pub sequence: Sequence,
}

/// What an executor says, gathered per step.
#[derive(Debug)]
pub struct Events {
    /// Who.
    pub executor: ExecutorId,
    /// In which life.
    pub incarnation: Incarnation,
    /// What, in order.
    pub list: Vec<Event>,
}

/// Something that happened in an executor.
#[derive(Debug)]
pub enum Event {
    /// It took a sequence up.
    Started(SequenceRef),
    /// It made a step.
    Stepped(StepReport),
    /// A sequence came to its end. Its last text has been delivered.
    Finished {
        /// Which.
        sequence: SequenceRef,
        /// Why it ended.
        stop: StopReason,
    },
    /// A sequence cannot go on here.
    Failed {
        /// Which.
        sequence: SequenceRef,
        /// What may be tried.
        retry: RetryClass,
        /// For the operator's log.
        why: String,
        /// How far it has come, where it can be taken up elsewhere.
        state: Option<Box<Sequence>>,
    },
    /// An evicted or cancelled sequence has left.
    Left {
        /// Which.
        sequence: SequenceRef,
        /// How far it has come.
        state: Box<Sequence>,
    },
    /// Everything it ran is gone. What it says from now on is of its next life, `incarnation` + 1.
    Lost {
        /// For the operator's log.
        why: String,
    },
}
