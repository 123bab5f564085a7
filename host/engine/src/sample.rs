//! The choice of each next token from a row of logits: the likeliest, or one drawn at random.
//!
//! Called by the step loop, once per generated token. In order: bias, penalties, temperature, min-p, top-k,
//! top-p. The choice depends on [`Sampling`] and the sequence's tokens, and on nothing else: a sequence that
//! goes on after a preemption, or elsewhere, draws as if nothing had happened. Devices that choose tokens
//! themselves ([`TokenChooser`](crate::backend::TokenChooser)) take [`Draw`] and [`Changes`] from here,
//! and the same token by the same logits: among those kept, in the order of their ids, the one in whose part of
//! all weight the random number falls.
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
    changes: Changes,
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

/// A random choice, as it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// The temperature; above 0, or the likeliest token is chosen.
    pub temperature: f32,
    /// Most tokens that are kept; 0: any number.
    pub top_k: u32,
    /// The share of all weight that those kept have at least; 1: all of it.
    pub top_p: f32,
    /// The part of the likeliest token's weight that others have at least.
    pub min_p: f32,
    /// The random number.
    pub random: u64,
}

/// A token whose logit changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitChange {
    /// The token's id.
    pub token: u32,
    /// The number that is added to the logit.
    pub bias: f32,
    /// The times that the token was generated.
    pub times: u32,
    /// True if it came up, in the prompt or after it, and that is penalised.
    pub came_up: bool,
}

/// A finder of the tokens whose logits change. Between two rows it keeps nothing but memory to work in.
#[derive(Debug, Default)]
pub struct Changes {
    /// Of each token its place in the list, from 1; 0 between two rows.
    places: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
    /// A number in proportion to the probability.
    weight: u64,
}

/// The weight of the likeliest token. Weights are whole numbers, so that sums of them are the same in any
/// order.
const UNIT: f64 = (1_u64 << 40) as f64;
/// The logarithm of a weight so small that it is none.
const NOTHING: f32 = -28.0;

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
        let draw = Draw::new(sampling, tokens.generated.len());
        let changes = self.changes.of(sampling, tokens, logits.len());
        if changes.is_empty() {
            return self.draw(logits, draw);
        }
        let mut adjusted = std::mem::take(&mut self.adjusted);
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        for change in &changes {
            let logit = &mut adjusted[change.token as usize];
            *logit = change.apply(*logit, sampling.penalties);
        }
        let chosen = self.draw(&adjusted, draw);
        self.adjusted = adjusted;
        chosen
    }

    fn draw(&mut self, logits: &[f32], draw: Draw) -> Option<u32> {
        let (likeliest, logit_max) = likeliest(logits)?;
        let is_random = draw.temperature > 0.0 && logit_max.is_finite();
        if !is_random {
            return Some(likeliest);
        }
        self.weigh(logits, logit_max, draw);
        let kept = top_k(&mut self.candidates, draw.top_k);
        let kept = top_p(kept, draw.top_p);
        kept.sort_unstable_by_key(|candidate| candidate.id);
        Some(drawn(kept, draw.random))
    }

    /// Weighs the tokens that are likely enough.
    fn weigh(&mut self, logits: &[f32], logit_max: f32, draw: Draw) {
        let Draw {
            temperature, min_p, ..
        } = draw;
        let scale = 1.0 / f64::from(temperature);
        let possible = (0..).zip(logits).filter(|(_, logit)| is_possible(**logit));
        let likely = possible.map(|(id, logit)| (id, logit, logit - logit_max));
        let likely = likely.filter(|(_, _, below)| *below >= temperature * NOTHING);
        let weighed = likely.map(|(id, logit, below)| {
            let weight = (f64::from(below) * scale).exp();
            let is_kept = weight >= f64::from(min_p);
            Candidate {
                id,
                // There is one zero.
                logit: logit + 0.0,
                weight: if is_kept { whole(weight) } else { 0 },
            }
        });
        self.candidates.clear();
        self.candidates
            .extend(weighed.filter(|candidate| candidate.weight > 0));
    }
}

impl Draw {
    /// The choice of the token after `generated` others.
    #[must_use]
    pub fn new(sampling: &Sampling, generated: usize) -> Self {
        let is_all = sampling.top_p.is_nan() || sampling.top_p >= 1.0;
        Self {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: if is_all { 1.0 } else { sampling.top_p },
            // The likeliest is kept whatever is asked for.
            min_p: sampling.min_p.min(1.0),
            random: splitmix64(sampling.seed, generated as u64),
        }
    }
}

impl LogitChange {
    /// Changes a logit: by the bias, then by the penalties for having come up.
    fn apply(self, logit: f32, penalties: Penalties) -> f32 {
        let Penalties {
            repetition,
            frequency,
            presence,
        } = penalties;
        let mut logit = logit + self.bias;
        if self.came_up {
            logit = match logit > 0.0 {
                true => logit / repetition,
                false => logit * repetition,
            };
        }
        for time in 0..self.times {
            let first = if time == 0 { presence } else { 0.0 };
            logit = logit - frequency - first;
        }
        logit
    }
}

impl Changes {
    /// Lists the tokens whose logits change in a row of so many, each once.
    pub fn of(
        &mut self,
        sampling: &Sampling,
        tokens: Tokens<'_>,
        count: usize,
    ) -> Vec<LogitChange> {
        let mut changes = Vec::new();
        self.places.resize(self.places.len().max(count), 0);
        let places = &mut self.places[..count];
        for (id, bias) in &sampling.logit_bias {
            note(places, &mut changes, *id, |change| change.bias += bias);
        }
        if sampling.penalties != Penalties::NONE {
            for id in tokens.prompt {
                note(places, &mut changes, *id, |change| change.came_up = true);
            }
            for id in tokens.generated {
                note(places, &mut changes, *id, |change| {
                    change.came_up = true;
                    change.times += 1;
                });
            }
        }
        for change in &changes {
            places[change.token as usize] = 0;
        }
        changes
    }
}

/// Notes something of a token's change, if the row has the token.
fn note(
    places: &mut [u32],
    changes: &mut Vec<LogitChange>,
    id: u32,
    noted: impl FnOnce(&mut LogitChange),
) {
    let Some(place) = places.get_mut(id as usize) else {
        return;
    };
    if *place == 0 {
        changes.push(LogitChange {
            token: id,
            bias: 0.0,
            times: 0,
            came_up: false,
        });
        *place = u32::try_from(changes.len()).expect("tokens are numbered in 32 bits");
    }
    noted(&mut changes[*place as usize - 1]);
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
                weight: 0,
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
    if p >= 1.0 {
        return candidates;
    }
    let enough = weight(candidates) as f64 * f64::from(p);
    let (mut sum, mut sorted, mut guess) = (0, 0, NUCLEUS_GUESS);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let next = guess.min(rest.len());
        if next < rest.len() {
            rest.select_nth_unstable_by(next - 1, by_likelihood);
        }
        rest[..next].sort_unstable_by(by_likelihood);
        for (idx, candidate) in rest[..next].iter().enumerate() {
            sum += candidate.weight;
            if sum as f64 >= enough {
                return &mut candidates[..=sorted + idx];
            }
        }
        sorted += next;
        guess *= 8;
    }
    candidates
}

/// A weight of at most 1 as a whole number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is between 0 and the unit"
)]
fn whole(weight: f64) -> u64 {
    (weight * UNIT) as u64
}

/// The weight of all of these.
fn weight(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(|candidate| candidate.weight).sum()
}

/// The first of `candidates`, never none, up to which they have more than the random part of all weight.
fn drawn(candidates: &[Candidate], random: u64) -> u32 {
    let product = u128::from(random) * u128::from(weight(candidates));
    let mut left = (product >> 64) as u64;
    for candidate in candidates {
        if left < candidate.weight {
            return candidate.id;
        }
        left -= candidate.weight;
    }
    candidates.last().map_or(0, |candidate| candidate.id)
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
