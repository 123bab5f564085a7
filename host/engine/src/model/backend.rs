//! The seam between the step loop and what computes: one model with its KV pool.

use pointsman_core::BlockId;

/// Consecutive tokens of one sequence in one step.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Token ids; never empty.
    pub tokens: &'a [u32],
    /// Position of the first token in its sequence, from 0.
    pub start: u32,
    /// The sequence's block table: position `p` lives in `blocks[p / tokens_per_block]`, at
    /// `p % tokens_per_block`. The table covers every position up to the last of `tokens`.
    pub blocks: &'a [BlockId],
    /// The logits to compute.
    pub logits: Logits,
}

/// The logits that a chunk wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// No row: the prompt goes on.
    None,
    /// The row after the last token, by which the next token is chosen.
    Last,
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
    /// [`Self::vocab_size`] logits to `logits`, cleared first, for each chunk that wants them, in
    /// order. The values of a row depend on its own sequence only, bit by bit: not on what else
    /// is in the step, nor on how its prompt was cut.
    ///
    /// # Errors
    /// If the device fails. The content of the pool is then lost.
    ///
    /// # Panics
    /// Before anything is written, if a chunk is wrong: empty, past the context or its own blocks,
    /// with a token outside the vocabulary or a block outside the pool.
    fn forward(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError>;
}

/// The failure of a device, in its driver's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);
