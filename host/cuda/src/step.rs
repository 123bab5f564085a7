//! The memory of steps: what a backend takes on a device beside its model and its part of the pool, and keeps.
//!
//! A server leaves so much free beside the KV pool ([`CudaDevices::room`](crate::CudaDevices::room)): a step that finds no
//! memory is the end of its engine's life.
//!
//! # Invariants
//! 1. No step up to a size takes more than is told for that (`tests/room.rs`).
//!
//! # Not here
//! The numbers by which choices of tokens are told, and steps that are recorded: some kilobytes for each sequence, and
//! the driver's own. The memory of NCCL.

use pointsman_model::open::OpenModel;
use pointsman_model::split::Rank;

use crate::backend::BLAS_BYTES;
use crate::buffer::room_for;
use crate::input::{DeviceNumbers, filled_up};
use crate::ops::Attention;
use crate::products::widened_bytes_max;

const BF16: usize = size_of::<u16>();
const F32: usize = size_of::<f32>();

/// The size of an executor's largest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    /// Number of tokens.
    pub tokens: u32,
    /// Number of sequences.
    pub sequences: u32,
}

/// Rows of a step, with those that fill it up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRows {
    /// One for each token.
    pub(crate) tokens: usize,
    /// One for each sequence, which has a token at least.
    pub(crate) sequences: usize,
}

impl StepSize {
    /// Bytes that a backend takes for steps up to this size, of which this is a rank's part of the model.
    pub(crate) fn bytes(self, part: &OpenModel, rank: Rank) -> u64 {
        let config = part.config();
        let sequences = filled_up(self.sequences.min(self.tokens) as usize);
        let rows = StepRows {
            tokens: sequences.max(self.tokens as usize),
            sequences,
        };
        let numbers = DeviceNumbers::bytes_max(config, rows);
        let attention = Attention::bytes_max(config, rows);
        let widened = widened_bytes_max(part, rows.tokens);
        let all = BLAS_BYTES + numbers + attention + widened + activation_bytes(part, rank, rows);
        all as u64
    }
}

/// Bytes of the rows that `pointsman_model::graph::Activations` has.
fn activation_bytes(part: &OpenModel, rank: Rank, rows: StepRows) -> usize {
    let config = part.config();
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (qkv, q) = (config.qkv_size(), config.q_size());
    // Hidden states, what is added to them, and their norms; what goes into attention and comes out; the same of MLPs.
    let of_tokens = [hidden, hidden, hidden, qkv, q, 2 * inner, inner];
    let of_tokens = of_tokens.map(|width| room_for(rows.tokens * width * BF16));
    // Norms by which logits are computed, and those that are asked for themselves.
    let of_sequences = [hidden, hidden].map(|width| room_for(rows.sequences * width * BF16));
    let logits = match rank.is_first() {
        true => room_for(rows.sequences * config.vocab_size * F32),
        false => 0,
    };
    of_tokens.iter().chain(&of_sequences).sum::<usize>() + logits
}
