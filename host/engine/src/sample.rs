//! The choice of each next token from a row of logits: the likeliest, or one drawn at random.
//!
//! Called by the step loop, once per generated token. In order: temperature, top-k, top-p. The draw
//! depends on the seed and on how many tokens the sequence has generated, and on nothing else:
//! a sequence that goes on after a preemption, or elsewhere, draws as if nothing had happened.
//!
//! # Invariants
//! All held by `sample/tests.rs`.
//! 1. Same logits, [`Sampling`] and index: same token (`equal_arguments_give_equal_tokens`).
//! 2. Each token comes up as often as its probability among those kept says
//!    (`draws_follow_the_distribution_computed_by_hand`).
//! 3. A logit that is not a number, or minus infinity, is never chosen
//!    (`never_chooses_what_is_forbidden`).
//!
//! # Not here
//! The token ids that may come up at all: the step loop gives only those that the tokenizer has.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use pointsman_executor::job::Sampling;

/// A chooser of tokens. Between two choices a sampler keeps nothing but memory to work in, so that
/// one does for all sequences of an engine.
#[derive(Debug, Default)]
pub struct Sampler {
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
    /// A number proportional to the probability.
    weight: f64,
}

/// Number of candidates sorted at first in search of a nucleus: most nuclei are smaller.
const NUCLEUS_GUESS: usize = 64;

impl Sampler {
    /// Returns the id of the token after `generated` others, by its row of `logits`. Absent if no
    /// logit is a number above minus infinity.
    pub fn choose(&mut self, logits: &[f32], sampling: &Sampling, generated: usize) -> Option<u32> {
        let (likeliest, logit_max) = likeliest(logits)?;
        let is_random = sampling.temperature > 0.0 && logit_max.is_finite();
        if !is_random {
            return Some(likeliest);
        }
        let kept = self.weigh(logits, logit_max, sampling.temperature);
        let kept = top_k(kept, sampling.top_k);
        let kept = top_p(kept, sampling.top_p);
        Some(draw(kept, uniform(sampling.seed, generated)))
    }

    fn weigh(&mut self, logits: &[f32], logit_max: f32, temperature: f32) -> &mut [Candidate] {
        let possible = (0..).zip(logits).filter(|(_, logit)| is_possible(**logit));
        self.candidates.clear();
        self.candidates.extend(possible.map(|(id, &logit)| {
            let scaled = f64::from(logit - logit_max) / f64::from(temperature);
            Candidate {
                id,
                logit,
                weight: scaled.exp(),
            }
        }));
        &mut self.candidates
    }
}

/// Returns true unless the logit is minus infinity or not a number.
fn is_possible(logit: f32) -> bool {
    logit > f32::NEG_INFINITY
}

/// Returns the likeliest token and its logit; among equals the lowest id.
fn likeliest(logits: &[f32]) -> Option<(u32, f32)> {
    let possible = (0..).zip(logits.iter().copied());
    possible
        .filter(|(_, logit)| is_possible(*logit))
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
}

/// Orders likelier candidates first, then by id, so that no two are equal.
fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Keeps the `k` likeliest, in any order.
fn top_k(candidates: &mut [Candidate], k: u32) -> &mut [Candidate] {
    let k = k as usize;
    if k == 0 || k >= candidates.len() {
        return candidates;
    }
    candidates.select_nth_unstable_by(k - 1, by_likelihood);
    &mut candidates[..k]
}

/// Keeps the fewest of the likeliest that together have at least the share `p`, but one at least.
fn top_p(candidates: &mut [Candidate], p: f32) -> &mut [Candidate] {
    if p.is_nan() || p >= 1.0 {
        return candidates;
    }
    let total: f64 = candidates.iter().map(|c| c.weight).sum();
    let enough = total * f64::from(p);
    let (mut sum, mut sorted, mut guess) = (0.0, 0, NUCLEUS_GUESS);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let next = guess.min(rest.len());
        if next < rest.len() {
            rest.select_nth_unstable_by(next - 1, by_likelihood);
        }
        rest[..next].sort_unstable_by(by_likelihood);
        for (idx, candidate) in rest[..next].iter().enumerate() {
            sum += candidate.weight;
            if sum >= enough {
                return &mut candidates[..=sorted + idx];
            }
        }
        sorted += next;
        guess *= 8;
    }
    candidates
}

/// Draws one of `candidates`, among which the likeliest has weight 1, by a number in `[0, 1)`.
fn draw(candidates: &[Candidate], uniform: f64) -> u32 {
    let total: f64 = candidates.iter().map(|c| c.weight).sum();
    let mut left = uniform * total;
    let mut drawn = 0;
    for candidate in candidates.iter().filter(|c| c.weight > 0.0) {
        drawn = candidate.id;
        if left < candidate.weight {
            break;
        }
        left -= candidate.weight;
    }
    drawn
}

/// Returns a number in `[0, 1)`: the top 53 bits of output `index` of a [`splitmix64`] generator.
fn uniform(seed: u64, index: usize) -> f64 {
    const SCALE: f64 = 1.0 / (1_u64 << 53) as f64;
    (splitmix64(seed, index as u64) >> 11) as f64 * SCALE
}

/// Returns output `index` of `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014) seeded with `seed`.
/// The generator's state is a counter, so any output can be had without those before it.
fn splitmix64(seed: u64, index: u64) -> u64 {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = seed.wrapping_add(GAMMA.wrapping_mul(index.wrapping_add(1)));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
