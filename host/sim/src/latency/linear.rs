//! A step's time as a sum of products, which can be fitted to measured steps.

use super::StepWork;
use crate::numbers::float;

/// Milliseconds for each part of a step's work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearCost {
    /// A step whatever is in it.
    pub step_ms: f64,
    /// A prompt token.
    pub prefill_token_ms: f64,
    /// A pair of a prompt token and a token before it: attention.
    pub prefill_pair_ms: f64,
    /// A sequence that gets a token.
    pub decode_ms: f64,
    /// A token in KV of such a sequence.
    pub decode_context_ms: f64,
}

impl LinearCost {
    /// The engine of this project with the demo model on two shared processors: 12,200 prompt
    /// tokens/s, and 5,600 tokens/s alone or 7,700 in a batch of eight at a context of 128
    /// (`tests/benches/results/engine.md`).
    pub const MEASURED: LinearCost = LinearCost {
        step_ms: 0.056,
        prefill_token_ms: 0.0815,
        prefill_pair_ms: 0.0,
        decode_ms: 0.108,
        decode_context_ms: 0.000_11,
    };

    /// The time of a step in ms.
    pub(super) fn step_ms(&self, work: &StepWork) -> f64 {
        self.step_ms
            + self.prefill_token_ms * float(work.prefill_tokens)
            + self.prefill_pair_ms * float(work.prefill_context)
            + self.decode_ms * float(work.decodes)
            + self.decode_context_ms * float(work.decode_context)
    }
}
