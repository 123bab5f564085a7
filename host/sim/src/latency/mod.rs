//! Speeds of executors: how long a step takes, by the work in it.
//!
//! | profile | from |
//! |---|---|
//! | `polynomial` | Dynamo's mocker, its default engine model |
//! | `smg` | the mock worker of the Shepherd Model Gateway |
//! | `llm-d` | llm-d-inference-sim, profile "8B on H100, balanced" |
//! | `splitwise-h100`, `splitwise-a100` | splitwise-sim, Llama-2 70B on eight devices |
//! | `measured` | the engine of this project, with the demo model on two processors |
//!
//! The first three and the tables are formulas that others published; see the constants for each. They
//! differ by a factor of ten for one prompt, so a policy that is better is better under several.
//!
//! # Not here
//! The work of a step: chunks, batches and caches (`executor`).

mod fit;
mod linear;
mod table;

use pointsman_core::Micros;

use crate::numbers::{float, from_millis};
pub use fit::{LinearFit, TimedWork};
pub use linear::LinearCost;
pub use table::{CostTable, TableError};

/// The work of one step of an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Prompt tokens that are computed.
    pub prefill_tokens: u64,
    /// Tokens in KV, beside those, that the prompts' computation reads.
    pub prefill_context: u64,
    /// Sequences that get a token, those whose prompt is done in this step included.
    pub decodes: u64,
    /// Tokens in KV of those sequences.
    pub decode_context: u64,
}

/// The speed of an executor.
#[derive(Clone, Debug, PartialEq)]
pub enum LatencyProfile {
    /// Polynomials of the prompt tokens and of the share of KV in use.
    Polynomial,
    /// A rate of prompt tokens, and a time that grows with the batch.
    Rates(RateCost),
    /// A measured table of prompts and batches.
    Table(CostTable),
    /// A sum of products, as fitted to measurements.
    Linear(LinearCost),
    /// Requests that do not wait for each other: each has times of its own.
    Each(EachCost),
}

/// A rate of prompt tokens, and a step that takes longer with each sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateCost {
    /// Prompt tokens in a second.
    pub prefill_tokens_per_s: f64,
    /// Time of a step with sequences that decode, in ms.
    pub decode_ms: f64,
    /// Time for each of them, in ms.
    pub decode_sequence_ms: f64,
}

/// Times of a request that does not wait for others, as long as it has a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EachCost {
    /// Time of a prompt whatever its length, in ms.
    pub prefill_ms: f64,
    /// Time for each token of a prompt that is not cached, in ms.
    pub prefill_token_ms: f64,
    /// Time between two tokens, in ms.
    pub decode_ms: f64,
    /// Factor of all times where every place is taken; it is 1 for one alone, and grows with the
    /// number of requests in between.
    pub full_factor: f64,
}

impl LatencyProfile {
    /// SMG's mock worker: 8,000 prompt tokens/s, and 6 ms + 0.35 ms for each sequence of a step
    /// (`crates/mock_worker` of lightseekorg/smg at 73da68ca).
    pub const SMG: LatencyProfile = LatencyProfile::Rates(RateCost {
        prefill_tokens_per_s: 8000.0,
        decode_ms: 6.0,
        decode_sequence_ms: 0.35,
    });

    /// llm-d-inference-sim: 30 ms + 0.25 ms for each token, and 12 ms between tokens, twice that at
    /// full load (`manifests/latency-profiles/8b-h100-balanced-per-token.yaml` at 90e9d320).
    pub const LLM_D: LatencyProfile = LatencyProfile::Each(EachCost {
        prefill_ms: 30.0,
        prefill_token_ms: 0.25,
        decode_ms: 12.0,
        full_factor: 2.0,
    });

    /// The time that a step takes on a device with so many KV tokens, at least 1 µs.
    #[must_use]
    pub fn step(&self, work: &StepWork, kv_tokens: u64) -> Micros {
        let millis = match self {
            Self::Polynomial => polynomial_ms(work, kv_tokens),
            Self::Rates(cost) => cost.step_ms(work),
            Self::Table(table) => table.step_ms(work),
            Self::Linear(cost) => cost.step_ms(work),
            Self::Each(cost) => cost.step_ms(work),
        };
        from_millis(millis).max(Micros(1))
    }
}

/// Dynamo's `PerfModel::Polynomial` (`lib/mocker/src/common/perf_model.rs`): prefill by the prompt
/// tokens of a step, decode by the share `u` of the device's KV tokens that the batch reads.
fn polynomial_ms(work: &StepWork, kv_tokens: u64) -> f64 {
    let mut millis = 0.0;
    if work.prefill_tokens > 0 {
        let tokens = float(work.prefill_tokens);
        millis += 4.209_989e-7 * tokens * tokens + 1.518_344e-2 * tokens + 16.501_42;
    }
    if work.decodes > 0 {
        let u = (float(work.decode_context) / float(kv_tokens.max(1))).min(1.0);
        millis += (-25.74 * u * u + 54.01 * u + 5.74).max(1.0);
    }
    millis
}

impl RateCost {
    fn step_ms(&self, work: &StepWork) -> f64 {
        let prefill = float(work.prefill_tokens) * 1000.0 / self.prefill_tokens_per_s;
        let decode = if work.decodes > 0 {
            self.decode_ms + self.decode_sequence_ms * float(work.decodes)
        } else {
            0.0
        };
        prefill + decode
    }
}

impl EachCost {
    /// The factor of all times while `running` of `places` requests are there.
    #[must_use]
    pub fn factor(&self, running: u32, places: u32) -> f64 {
        if places <= 1 {
            return 1.0;
        }
        let others = f64::from(running.saturating_sub(1));
        1.0 + (self.full_factor - 1.0) * others / f64::from(places - 1)
    }

    /// The time of a prompt of which so many tokens are not cached, at a factor.
    #[must_use]
    pub fn prefill(&self, tokens: u32, factor: f64) -> Micros {
        from_millis((self.prefill_ms + self.prefill_token_ms * f64::from(tokens)) * factor)
    }

    /// The time between two tokens at a factor.
    #[must_use]
    pub fn decode(&self, factor: f64) -> Micros {
        from_millis(self.decode_ms * factor)
    }

    /// The time of a step of an engine that is as fast: its sequences have to wait for each other.
    fn step_ms(&self, work: &StepWork) -> f64 {
        let prefill = float(work.prefill_tokens) * self.prefill_token_ms;
        let decode = if work.decodes > 0 {
            self.decode_ms
        } else {
            0.0
        };
        prefill + decode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(profile: &LatencyProfile, prefill_tokens: u64, decodes: u64, context: u64) -> u64 {
        let work = StepWork {
            prefill_tokens,
            prefill_context: 0,
            decodes,
            decode_context: context,
        };
        profile.step(&work, 1 << 20).0
    }

    #[test]
    fn polynomials_are_those_of_dynamos_mocker() {
        let profile = LatencyProfile::Polynomial;
        // 4.209989e-7 x 8192^2 + 1.518344e-2 x 8192 + 16.50142 = 169.137 ms.
        assert_eq!(step(&profile, 8192, 0, 0), 169_137);
        // u = 1/4: -25.74/16 + 54.01/4 + 5.74 = 17.634 ms.
        assert_eq!(step(&profile, 0, 3, 1 << 18), 17_634);
        assert_eq!(step(&profile, 8192, 3, 1 << 18), 186_771);
        // No more than all of it is in use.
        assert_eq!(step(&profile, 0, 3, 1 << 21), step(&profile, 0, 3, 1 << 20));
    }

    #[test]
    fn a_rate_takes_as_long_for_twice_the_tokens() {
        assert_eq!(step(&LatencyProfile::SMG, 2048, 0, 0), 256_000);
        assert_eq!(step(&LatencyProfile::SMG, 0, 10, 0), 9500);
        assert_eq!(step(&LatencyProfile::SMG, 2048, 10, 0), 265_500);
    }

    #[test]
    fn times_of_each_grow_with_the_load() {
        let LatencyProfile::Each(cost) = LatencyProfile::LLM_D else {
            panic!("llm-d's requests have times of their own");
        };
        assert_eq!(cost.prefill(2048, cost.factor(1, 16)), Micros(542_000));
        assert_eq!(cost.decode(cost.factor(16, 16)), Micros(24_000));
        assert_eq!(cost.decode(cost.factor(1, 1)), Micros(12_000));
    }
}
