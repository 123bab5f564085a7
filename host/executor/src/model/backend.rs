//! The seam between the step loop and what computes: one model with its KV pool.

use pointsman_core::BlockId;

/// Consecutive tokens of one sequence in one step.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Their ids; never empty.
    pub tokens: &'a [u32],
    /// Position of the first in its sequence.
    pub start: u32,
    /// The sequence's block table: position `p` lives in `blocks[p / tokens_per_block]`, at
    /// `p % tokens_per_block`. It covers every position up to the last of `tokens`.
    pub blocks: &'a [BlockId],
    /// Whether the logits after the last token are wanted.
    pub logits: Logits,
}

/// Whether logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// The prompt goes on.
    None,
    /// The next token is chosen by them.
    Last,
}

/// One model with its KV pool, on one device.
pub trait Backend: Send {
    /// Length of a row of logits.
    fn vocab_size(&self) -> usize;

    /// Tokens a block holds.
    fn tokens_per_block(&self) -> u32;

    /// Blocks in the pool.
    fn blocks_total(&self) -> u32;

    /// Longest sequence, in tokens.
    fn context_tokens(&self) -> u32;

    /// Runs one step: writes the KV of every chunk into its blocks, and appends one row of
    /// [`Self::vocab_size`] logits to `logits`, cleared first, for each chunk that wants them, in
    /// order. The values of a row depend on its own sequence only, bit by bit: not on what else
    /// is in the step, nor on how its prompt was cut.
    ///
    /// # Errors
    /// If the device fails. What is in the pool is then lost.
    ///
    /// # Panics
    /// Before anything is written, if a chunk is none: empty, past the context or its own blocks,
    /// with a token outside the vocabulary or a block outside the pool.
    fn forward(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError>;
}

/// A device that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);
