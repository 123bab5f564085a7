//! The messages between the driver and an executor: commands in, events out.
//!
//! One thread or task per executor owns everything that runs there. The driver never waits for an
//! executor: commands go through a bounded channel, and a command that finds no room waits in the
//! driver's outbox. The executor may wait for the driver. When the command channel closes, the
//! executor ends.
//!
//! # Invariants
//! Held by the suite that every executor passes (`test_util::suite`).
//! 1. Each [`Command::Start`] is answered by [`Event::Started`], then by exactly one of
//!    [`Event::Finished`], [`Event::Failed`], [`Event::Left`], unless the executor is lost.
//! 2. After that event the executor touches none of the sequence's blocks. Host blocks that a start names
//!    are read before [`Event::Started`], those that an eviction names are written before
//!    [`Event::Left`].
//! 3. A sequence writes only into blocks of its own table, and never beyond its grants: a sequence
//!    that lacks a block sits out.
//! 4. The tokens of a step are at most the budget, and a sequence is at most once in a step. Prompts
//!    are computed in the order of the last [`Command::Arrange`], but no sequence goes without.
//! 5. A sequence whose job [is to be embedded](crate::job::Job::is_to_embed) is finished once its prompt is computed and
//!    the embedding is handed in. It generates nothing.
//! 6. Commands about an unknown sequence, or one of another incarnation, change nothing.
//!
//! 2 to 5 are about engines. A server elsewhere has KV, steps and an order of its own, and its embeddings are responses like
//! any other. What it gives back at an eviction has made no progress: its answer begins anew. Where its client has left it
//! says nothing more of a sequence before [`Command::Cancel`].

use pointsman_events::{
    Arrangement, Availability, BlockId, ExecutorId, HostBlockId, Incarnation, KvReport,
    PromptCount, RetryClass, SequenceRef, StartOrder, StepReport,
};

use crate::delivery::StopReason;
use crate::job::JobState;
use crate::server::{BrokenStreams, ServerAnswer, ServerConfig, ServerLoad};
use crate::trace::TraceHeaders;

/// An order of the driver to an executor.
#[derive(Debug)]
pub enum Command {
    /// Starts a sequence.
    Start(Box<Start>),
    /// Appends blocks to the block table of a running sequence.
    Grant {
        /// The sequence that grows.
        sequence: SequenceRef,
        /// The new blocks, in the order of the table.
        blocks: Vec<BlockId>,
    },
    /// Stops a sequence and takes it back with [`Event::Left`], to go on later.
    Evict {
        /// The sequence that must leave.
        sequence: SequenceRef,
        /// Host blocks to which its KV is copied first, one for each block of its table, in that
        /// order; empty: its KV is dropped.
        host_blocks: Vec<HostBlockId>,
    },
    /// Stops a sequence whose client has left; answered by [`Event::Left`] too.
    Cancel(SequenceRef),
    /// Bounds the steps from now on.
    SetBudget {
        /// Most tokens in a step, over all sequences; 0 pauses the executor.
        tokens_max: u32,
    },
    /// Deals out the tokens of the steps in this way from now on ([`crate::shares`]).
    Arrange(Arrangement),
    /// The load of a server elsewhere, as somebody has told it. An engine here knows its own.
    Load(ServerLoad),
    /// A server elsewhere is described so from now on: to requests that start, and when it is asked. What runs
    /// there runs on as it began. An engine here is told nothing of the kind.
    Configure {
        /// The server.
        server: Box<ServerConfig>,
        /// The most models that it may have loaded where it takes orders; absent: it decides.
        models_max: Option<u32>,
    },
}

/// A sequence to start.
#[derive(Debug)]
pub struct Start {
    /// The machine's order, with the block table.
    pub order: StartOrder,
    /// The job and its progress so far.
    pub sequence: JobState,
    /// The trace that a server elsewhere is told, in the place of the client's; absent: the client's, if
    /// it told one.
    pub trace: Option<TraceHeaders>,
}

impl Start {
    /// Tokens that may still be generated: the smaller of the client's bound and the machine's.
    #[must_use]
    pub fn output_tokens_left(&self) -> u32 {
        let generated = u32::try_from(self.sequence.generated().len()).unwrap_or(u32::MAX);
        let wanted = self.sequence.job.output_tokens_max;
        wanted
            .saturating_sub(generated)
            .min(self.order.output_tokens_max)
    }
}

/// Events of an executor, gathered per step.
#[derive(Debug)]
pub struct Events {
    /// The executor that reports.
    pub executor: ExecutorId,
    /// The life in which all of `list` happened.
    pub incarnation: Incarnation,
    /// The events, in order.
    pub list: Vec<Event>,
}

/// Something that happened in an executor.
#[derive(Debug)]
pub enum Event {
    /// A sequence took its slot, and has its KV back from host memory, if it had any there.
    Started(SequenceRef),
    /// A step was made.
    Stepped(StepReport),
    /// A server elsewhere has told the tokens of a sequence's prompt, as it counts them.
    PromptCounted(SequenceRef, PromptCount),
    /// A server elsewhere has said this of its answer, all of which was passed on. Told where its trace is recorded.
    Answered(SequenceRef, ServerAnswer),
    /// A sequence came to its end. All its text has been delivered.
    Finished {
        /// The sequence that ended.
        sequence: SequenceRef,
        /// The reason, for the client.
        stop: StopReason,
    },
    /// A sequence cannot go on here.
    Failed {
        /// The sequence that failed.
        sequence: SequenceRef,
        /// The retry that the machine may make.
        retry: RetryClass,
        /// The cause, for the operator's log.
        why: String,
        /// The sequence as far as it came; absent: the host goes on from what was handed in.
        state: Option<Box<JobState>>,
    },
    /// An evicted or cancelled sequence has left.
    Left {
        /// The sequence that left.
        sequence: SequenceRef,
        /// The sequence as far as it came.
        state: Box<JobState>,
        /// Leading tokens whose KV is in the host blocks that its eviction named; 0: none.
        swapped_tokens: u32,
    },
    /// Everything that ran is gone. Later events are of the next life, `incarnation` + 1.
    Lost {
        /// The cause, for the operator's log.
        why: String,
    },
    /// Something about a server elsewhere has changed.
    Changed(ServerChange),
}

/// A change of a server elsewhere, as its executor has found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerChange {
    /// The server answers in this way from now on.
    Availability(Availability),
    /// The server runs so many sequences of ours at once from now on; at least 1.
    Slots(u32),
    /// The server's KV blocks have so many tokens each; absent: it has none.
    TokensPerBlock(Option<u32>),
    /// The server's KV blocks are counted so.
    Kv(KvReport),
    /// The server has at most so many models loaded at once; absent: it sets no bound.
    ModelsMax(Option<u32>),
    /// The server has the models of these names loaded, and no others; absent: it does not tell.
    Loaded(Option<Vec<String>>),
    /// The server takes this part in streams that break off.
    BrokenStreams(BrokenStreams),
    /// Another server is there from now on, and has not been heard yet.
    Replaced,
}
