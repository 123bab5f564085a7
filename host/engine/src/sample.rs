//! The choice of each next token from a row of logits: the likeliest, or one drawn at random.
//!
//! Called by the step loop, once per generated token. In order: bias, penalties, temperature, min-p, top-k,
//! top-p. The choice depends on [`Sampling`] and the sequence's tokens, and on nothing else: a sequence that
//! goes on after a preemption, or elsewhere, draws as if nothing had happened.
//!
//! # Invariants
//! All held by `sample/tests.rs`.
//! 1. Same logits, [`Sampling`] and tokens: same token (`equal_arguments_give_equal_tokens`).
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

use pointsman_executor::job::{Penalties, Sampling};

/// A chooser of tokens. Between two choices a sampler keeps nothing but memory to work in, so that
/// one does for all sequences of an engine.
#[derive(Debug, Default)]
pub struct Sampler {
    candidates: Vec<Candidate>,
    /// A row of logits with bias and penalties.
    adjusted: Vec<f32>,
    /// The times that each token came up; 0 between two choices.
    counts: Vec<u32>,
}

/// The tokens of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Token ids of the prompt.
    pub prompt: &'a [u32],
    /// Token ids generated so far.
    pub generated: &'a [u32],
}

/// The natural logarithms of the probabilities in a row of logits.
#[derive(Clone, Copy, Debug)]
pub struct Logprobs<'a> {
    logits: &'a [f32],
    /// The logarithm of the sum of their exponentials.
    total: f64,
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
    /// Returns the id of the token after `tokens`, by its row of `logits`. Absent if no logit is a number
    /// above minus infinity.
    pub fn choose(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        tokens: Tokens<'_>,
    ) -> Option<u32> {
        let is_plain = sampling.logit_bias.is_empty() && sampling.penalties == Penalties::NONE;
        if is_plain {
            return self.draw(logits, sampling, tokens.generated.len());
        }
        let mut adjusted = std::mem::take(&mut self.adjusted);
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        for (id, bias) in &sampling.logit_bias {
            change(&mut adjusted, *id, |logit| logit + bias);
        }
        self.penalise(&mut adjusted, sampling.penalties, tokens);
        let chosen = self.draw(&adjusted, sampling, tokens.generated.len());
        self.adjusted = adjusted;
        chosen
    }

    /// Takes from the logits of tokens that came up before.
    fn penalise(&mut self, logits: &mut [f32], penalties: Penalties, tokens: Tokens<'_>) {
        let Penalties {
            repetition,
            frequency,
            presence,
        } = penalties;
        let Tokens { prompt, generated } = tokens;
        self.counts.resize(self.counts.len().max(logits.len()), 0);
        let counts = &mut self.counts[..logits.len()];
        for id in prompt.iter().chain(generated) {
            if count(counts, *id) == 1 {
                change(logits, *id, |logit| match logit > 0.0 {
                    true => logit / repetition,
                    false => logit * repetition,
                });
            }
        }
        forget(counts, prompt);
        forget(counts, generated);
        for id in generated {
            let times = count(counts, *id);
            let first = if times == 1 { presence } else { 0.0 };
            change(logits, *id, |logit| logit - frequency - first);
        }
        forget(counts, generated);
    }

    /// Returns the id of the token after `generated` others.
    fn draw(&mut self, logits: &[f32], sampling: &Sampling, generated: usize) -> Option<u32> {
        let (likeliest, logit_max) = likeliest(logits)?;
        let is_random = sampling.temperature > 0.0 && logit_max.is_finite();
        if !is_random {
            return Some(likeliest);
        }
        self.weigh(logits, logit_max, sampling);
        let kept = top_k(&mut self.candidates, sampling.top_k);
        let kept = top_p(kept, sampling.top_p);
        Some(draw(kept, uniform(sampling.seed, generated)))
    }

    /// Weighs the tokens that are likely enough.
    fn weigh(&mut self, logits: &[f32], logit_max: f32, sampling: &Sampling) {
        let possible = (0..).zip(logits).filter(|(_, logit)| is_possible(**logit));
        let weighed = possible.map(|(id, &logit)| {
            let scaled = f64::from(logit - logit_max) / f64::from(sampling.temperature);
            Candidate {
                id,
                logit,
                weight: scaled.exp(),
            }
        });
        // The likeliest has weight 1, and is kept whatever is asked for.
        let weight_min = f64::from(sampling.min_p).min(1.0);
        self.candidates.clear();
        self.candidates
            .extend(weighed.filter(|candidate| candidate.weight >= weight_min));
    }
}

impl<'a> Logprobs<'a> {
    /// Reads a row of logits.
    #[must_use]
    pub fn new(logits: &'a [f32]) -> Self {
        let largest = likeliest(logits).map_or(0.0, |(_, logit)| f64::from(logit));
        let possible = logits.iter().filter(|logit| is_possible(**logit));
        let sum: f64 = possible
            .map(|logit| (f64::from(*logit) - largest).exp())
            .sum();
        Self {
            logits,
            total: largest + sum.ln(),
        }
    }

    /// The natural logarithm of a token's probability.
    #[must_use]
    pub fn of(&self, token: u32) -> f64 {
        let logit = self.logits.get(token as usize).copied();
        let logit = logit.filter(|logit| is_possible(*logit));
        logit.map_or(f64::NEG_INFINITY, |logit| f64::from(logit) - self.total)
    }

    /// The ids of the `count` likeliest tokens, the likeliest first.
    #[must_use]
    pub fn top(&self, count: u32) -> Vec<u32> {
        let possible = (0..).zip(self.logits).filter(|(_, l)| is_possible(**l));
        let mut candidates: Vec<Candidate> = possible
            .map(|(id, &logit)| Candidate {
                id,
                logit,
                weight: 0.0,
            })
            .collect();
        let count = (count as usize).min(candidates.len());
        if count == 0 {
            return Vec::new();
        }
        candidates.select_nth_unstable_by(count - 1, by_likelihood);
        candidates.truncate(count);
        candidates.sort_unstable_by(by_likelihood);
        candidates.iter().map(|candidate| candidate.id).collect()
    }
}

/// Changes the logit of a token, if the row has it.
fn change(logits: &mut [f32], id: u32, changed: impl FnOnce(f32) -> f32) {
    if let Some(logit) = logits.get_mut(id as usize) {
        *logit = changed(*logit);
    }
}

/// Counts a token that came up, and returns its count; 0 for one that the row has not.
fn count(counts: &mut [u32], id: u32) -> u32 {
    let Some(count) = counts.get_mut(id as usize) else {
        return 0;
    };
    *count += 1;
    *count
}

fn forget(counts: &mut [u32], ids: &[u32]) {
    for id in ids {
        if let Some(count) = counts.get_mut(*id as usize) {
            *count = 0;
        }
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
