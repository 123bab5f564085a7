//! The seam between the step loop and what computes: one model with its KV pool.

use pointsman_events::{BlockCopy, BlockId};
use pointsman_executor::job::Sampling;

use crate::sample::Tokens;
use pointsman_model::config::LlamaConfig;

/// Size of a KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Tokens in a block; at least 1.
    pub tokens_per_block: u32,
    /// Blocks in the pool.
    pub blocks_total: u32,
}

/// The KV blocks of a device, which all its backends share. What they hold is each model's own to lay out:
/// a block has room for as many tokens of a model as its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvBlocks {
    /// Bytes of one block.
    pub bytes: u64,
    /// Number of blocks.
    pub total: u32,
    /// Number of blocks of the host arena, as large.
    pub host: u32,
}

impl KvShape {
    /// The blocks of a device that has this pool for one model, and no host arena.
    #[must_use]
    pub fn blocks(self, bytes_per_token: u64) -> KvBlocks {
        KvBlocks {
            bytes: u64::from(self.tokens_per_block) * bytes_per_token,
            total: self.blocks_total,
            host: 0,
        }
    }
}

/// Consecutive tokens of one sequence in one step.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Token ids; never empty.
    pub tokens: &'a [u32],
    /// Position of the first token in its sequence, from 0.
    pub start: u32,
    /// The sequence's block table: position `p` lives in `blocks[p / tokens_per_block]`, at
    /// `p % tokens_per_block`. The table covers every position up to the last of `tokens`; places that it has behind that
    /// are for the tokens to come, and a device may leave anything there.
    pub blocks: &'a [BlockId],
    /// The logits to compute.
    pub logits: Logits,
}

/// The logits that a chunk wants, or what it wants in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// No row: the prompt goes on.
    None,
    /// The row after the last token, by which the next token is chosen.
    Last,
    /// The same row, which stays on the device: its [`TokenChooser`] chooses by it. Only for a backend that has
    /// one.
    Kept,
    /// No row, but the hidden state after the last token: what logits would be made of.
    Hidden,
}

/// The choice of a sequence's next token.
#[derive(Clone, Copy, Debug)]
pub struct TokenChoice<'a> {
    /// The parameters.
    pub sampling: &'a Sampling,
    /// The tokens of the sequence.
    pub tokens: Tokens<'a>,
}

/// The tokens of a model that may be chosen.
#[derive(Clone, Copy, Debug)]
pub struct PossibleTokens<'a> {
    /// The first id that is none.
    pub count: usize,
    /// Ids below it that are none either, in any order.
    pub missing: &'a [u32],
}

impl Chunk<'_> {
    /// Checks that a model of this architecture can compute the chunk in a pool of this shape.
    ///
    /// # Panics
    /// If the chunk breaks its contract: its maker is wrong, and the pool may be in disorder.
    pub fn check(&self, config: &LlamaConfig, shape: KvShape) {
        let tokens = u32::try_from(self.tokens.len()).unwrap_or(u32::MAX);
        let end = self.start.saturating_add(tokens);
        assert!(tokens > 0, "a chunk has tokens");
        assert!(
            end <= config.context_tokens,
            "position {end} is beyond the context of {} tokens",
            config.context_tokens
        );
        let needed = to_usize(end.div_ceil(shape.tokens_per_block));
        assert!(
            self.blocks.len() >= needed,
            "{end} tokens need {needed} blocks, and the block table has {}",
            self.blocks.len()
        );
        let vocab_size = config.vocab_size;
        for token in self.tokens {
            assert!(
                to_usize(*token) < vocab_size,
                "token {token} is not in the vocabulary of {vocab_size}"
            );
        }
        for block in self.blocks {
            assert!(
                block.0 < shape.blocks_total,
                "block {block} is not in the pool of {}",
                shape.blocks_total
            );
        }
    }
}

/// The direction of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapDirection {
    /// From the pool to the host arena.
    Out,
    /// From the host arena to the pool.
    In,
}

/// The number of a swap among those of its backend, from 1: swaps come to their ends in the order in which
/// they were begun. 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SwapTicket(pub u64);

/// The patience with swaps under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapWait {
    /// Nobody waits for any.
    No,
    /// The next one is waited for, if one is under way.
    ForNext,
}

/// A device that chooses tokens by the rows of logits that are on it.
pub trait TokenChooser {
    /// Chooses a token by each row that the last step kept, in order, as
    /// [`Sampler::choose`](crate::sample::Sampler::choose) does by its logits of `possible` tokens. The rows are
    /// of no use afterwards.
    ///
    /// # Errors
    /// If the device fails. The content of the pool is then lost.
    ///
    /// # Panics
    /// If there are not as many choices as rows.
    fn choose(
        &mut self,
        choices: &[TokenChoice<'_>],
        possible: PossibleTokens<'_>,
    ) -> Result<Vec<Option<u32>>, DeviceError>;
}

/// One model with its KV pool, on one device.
pub trait Backend: Send {
    /// Logits in a row.
    fn vocab_size(&self) -> usize;

    /// Tokens in a block.
    fn tokens_per_block(&self) -> u32;

    /// Blocks in the pool.
    fn blocks_total(&self) -> u32;

    /// Longest sequence, in tokens.
    fn context_tokens(&self) -> u32;

    /// Runs one step: writes the KV of every chunk into its blocks, and appends one row of
    /// [`Self::vocab_size`] logits to `logits`, cleared first, for each chunk that wants the [`Logits::Last`], in
    /// order. The values of a row depend on its own sequence only, bit by bit: not on what else
    /// is in the step, nor on how its prompt was cut. On a CUDA device that is so as far as its cuBLAS keeps to it; and with
    /// weights in FP8 a row has other last bits in a step of more than 64 rows than in a smaller one.
    ///
    /// # Errors
    /// If the device fails. The content of the pool is then lost.
    ///
    /// # Panics
    /// Before anything is written, if a chunk is wrong: empty, past the context or its own blocks,
    /// with a token outside the vocabulary or a block outside the pool.
    fn forward(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError>;

    /// Numbers in a hidden state.
    fn hidden_size(&self) -> usize;

    /// Writes the hidden states that chunks of the last step wanted ([`Logits::Hidden`]) to `hidden`, cleared first,
    /// in order. They depend on as little as rows of logits do.
    ///
    /// # Errors
    /// If the device fails. The content of the pool is then lost.
    fn hidden(&mut self, hidden: &mut Vec<f32>) -> Result<(), DeviceError>;

    /// The device's own chooser of tokens, if it has one.
    fn chooser(&mut self) -> Option<&mut dyn TokenChooser> {
        None
    }

    /// Begins to copy blocks between the pool and the host arena of the device. What is copied out is as
    /// the steps before have left it. Until [`Self::swapped`] returns the ticket, nobody may read what is
    /// written, nor write what is read.
    ///
    /// # Errors
    /// If the device fails. The content of the pool is then lost.
    ///
    /// # Panics
    /// If a block is not in the pool, or not in the arena.
    fn swap(
        &mut self,
        direction: SwapDirection,
        copies: &[BlockCopy],
    ) -> Result<SwapTicket, DeviceError>;

    /// The last swap that has come to its end.
    ///
    /// # Errors
    /// If the device fails. The content of the pool is then lost.
    fn swapped(&mut self, wait: SwapWait) -> Result<SwapTicket, DeviceError>;
}

/// The failure of a device, in its driver's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// The last of the swaps of a backend that makes them at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct SwapsAtOnce(SwapTicket);

impl SwapsAtOnce {
    /// Counts a swap that has come to its end.
    pub fn count(&mut self) -> SwapTicket {
        self.0.0 += 1;
        self.0
    }

    /// The last swap.
    #[must_use]
    pub fn last(self) -> SwapTicket {
        self.0
    }
}

/// Converts an id or a position to an index.
pub(crate) fn to_usize(value: u32) -> usize {
    usize::try_from(value).expect("32 bits fit into an address")
}
