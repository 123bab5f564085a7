//! The part of the prefill pending on an executor that a prompt placed there waits for, learnt from what became of
//! earlier ones.
//!
//! Engines differ: one prefills a prompt after the other, so that a new one waits for all that is pending; another
//! prefills them side by side, and it waits for none. Where it waits for little, a cached prefix is worth a busier executor.
//!
//! Of each executor the times to the first token, from the placement on, are fitted by least squares to
//!
//! ```text
//! time = constant + pace x (own tokens + weight x tokens pending when it was placed)
//! ```
//!
//! An uncertain weight is drawn to 1, in the measure of its variance: it is that of a posterior whose prior has the mean 1.
//! (Bishop, Pattern Recognition and Machine Learning, 2.3.6.)

use std::collections::BTreeMap;

use pointsman_sdk::snapshot::{put_len, take, take_u32, take_u64};
use pointsman_sdk::wire::types::Completion;
use pointsman_sdk::{Case, Executor, Pick, Seat};

use crate::credit;

/// Requests whose end is waited for, at most: each at its place, which is its id modulo this.
const STARTS_MAX: u64 = 1024;
/// One of so many requests takes a place that another one has: of that one nothing may come any more. The others are not
/// learnt from. Did each take its place, all would be forgotten before they end where more are in flight.
const REPLACING: u64 = 32;
/// Executors that are learnt of, at most: those of which something was learnt first.
const FITS_MAX: usize = 4096;
/// Completions before a weight is other than 1.
const LEARNT_MIN: f64 = 16.0;
/// Completions that count: an older one fades.
const LEARNT_SPAN: f64 = 256.0;
/// Variance of weights before anything is known of them.
const PRIOR_VARIANCE: f64 = 0.25;
/// Trust in an estimate from which on it says whether prompts are prefilled side by side: it is as certain as a guess would be.
const TRUST_MIN: f64 = 0.5;
/// Weight from which on they are not.
const IN_TURN_MIN: f64 = 0.5;
/// Steps from 0 to 1 that a weight is rounded to, so that costs do not change with every completion.
const STEPS: u32 = 8;
/// A weight of 1.
pub(crate) const WHOLE_PERMILLE: u32 = 1000;

/// Weights of what is pending, by executor.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    starts: Starts,
    fits: BTreeMap<u32, Fit>,
}

/// Placements whose outcomes are waited for, by [`STARTS_MAX`]; there are no places before the first of them.
#[derive(Debug, Default)]
struct Starts(Vec<Option<Start>>);

/// A placement whose outcome is waited for.
#[derive(Clone, Copy, Debug)]
struct Start {
    request: u64,
    executor: u32,
    /// Microseconds from the request's arrival to the placement.
    waited: u64,
    /// Tokens that were pending on the executor.
    pending: u64,
}

/// Measures of a placement, in the order of [`OWN`], [`PENDING`] and [`TIME`].
type Measures = [f64; 3];

/// Tokens of the prompt that were not cached.
const OWN: usize = 0;
/// Tokens that were pending on the executor.
const PENDING: usize = 1;
/// Microseconds from the placement to the first token.
const TIME: usize = 2;
/// Every two measures, in the order of a fit's covariances.
const PAIRS: [(usize, usize); 6] = [
    (OWN, OWN),
    (OWN, PENDING),
    (PENDING, PENDING),
    (OWN, TIME),
    (PENDING, TIME),
    (TIME, TIME),
];

/// The placements on one executor.
#[derive(Clone, Copy, Debug)]
struct Fit {
    /// Placements taken in, up to [`LEARNT_SPAN`].
    samples: f64,
    means: Measures,
    /// Covariances of [`PAIRS`] about the means.
    covariances: [f64; 6],
    /// The weight that follows from these.
    weight_permille: u32,
    /// The weight was below a half when it was last known well. Where prompts wait in the queue few are pending, and little is
    /// learnt.
    side_by_side: bool,
}

// === impl Waits ===

impl Waits {
    /// The weight of what is pending on an executor, in permille.
    #[inline]
    pub(crate) fn weight_permille(&self, executor: &Executor<'_>) -> u32 {
        let fit = self.fits.get(&executor.id());
        fit.map_or(WHOLE_PERMILLE, |fit| fit.weight_permille)
    }

    /// The part of an amount pending on an executor that a prompt placed there waits for.
    #[inline]
    pub(crate) fn awaited(&self, executor: &Executor<'_>, pending: u64) -> u64 {
        credit::times(pending, self.weight_permille(executor)) / 1000
    }

    /// Returns whether prompts on an executor are known to be prefilled side by side, and not one after the other.
    #[inline]
    pub(crate) fn are_side_by_side(&self, executor: &Executor<'_>) -> bool {
        let fit = self.fits.get(&executor.id());
        fit.is_some_and(|fit| fit.side_by_side)
    }

    /// Notes a placement that will be learnt from.
    pub(crate) fn picked(&mut self, case: &Case<'_>, pick: &Pick) {
        let request = case.request;
        // In a queue it would wait for more than prefill.
        if pick.seat == Seat::Queue {
            return;
        }
        let first = pick.executors.first();
        let Some(executor) = first.and_then(|id| case.fleet.mirror.executor(*id)) else {
            return;
        };
        self.starts.note(Start {
            request: request.id,
            executor: executor.id(),
            waited: case.now.saturating_sub(request.arrived),
            pending: credit::pending_tokens(case.fleet, &executor),
        });
    }

    /// Forgets an executor that is gone, and the placements there.
    pub(crate) fn forget(&mut self, executor: u32) {
        self.fits.remove(&executor);
        self.starts.forget(executor);
    }

    /// Learns from a request that ended, unless it ran elsewhere than it was to, or its first token came of an earlier
    /// placement.
    pub(crate) fn learn(&mut self, completion: &Completion) {
        let start = self.starts.take(completion.request);
        let start = start.filter(|start| start.executor == completion.executor && completion.ok);
        let Some((start, ttft)) = start.zip(completion.ttft_micros) else {
            return;
        };
        let Some(time) = ttft.checked_sub(start.waited) else {
            return;
        };
        let own = completion
            .prompt_tokens
            .saturating_sub(completion.cached_tokens);
        if self.fits.len() < FITS_MAX || self.fits.contains_key(&start.executor) {
            let fit = self.fits.entry(start.executor).or_default();
            fit.learn([own.into(), float(start.pending), float(time)]);
        }
    }

    /// Everything that was learnt and is waited for as bytes, with their numbers before them.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_len(&mut bytes, self.fits.len());
        for (executor, fit) in &self.fits {
            bytes.extend(executor.to_le_bytes());
            bytes.extend(fit.numbers().flat_map(f64::to_le_bytes));
            bytes.push(u8::from(fit.side_by_side));
        }
        let starts = self.starts.0.iter().flatten();
        put_len(&mut bytes, starts.clone().count());
        for start in starts {
            bytes.extend(start.executor.to_le_bytes());
            let numbers = [start.request, start.waited, start.pending];
            bytes.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
        }
        bytes
    }

    /// Takes the bytes that [`Self::snapshot`] made off the front.
    ///
    /// # Errors
    ///
    /// A sentence, where they end before their numbers are reached.
    pub(crate) fn restore(state: &mut &[u8]) -> Result<Self, String> {
        let all = state.len();
        let cut = || format!("a snapshot of {all} bytes ends within what was learnt of executors");
        Self::taken(state).ok_or_else(cut)
    }

    fn taken(state: &mut &[u8]) -> Option<Self> {
        let mut waits = Self::default();
        for _ in 0..take_u32(state)? {
            let executor = take_u32(state)?;
            waits.fits.insert(executor, Fit::taken(state)?);
        }
        for _ in 0..take_u32(state)? {
            let executor = take_u32(state)?;
            waits.starts.note(Start {
                request: take_u64(state)?,
                executor,
                waited: take_u64(state)?,
                pending: take_u64(state)?,
            });
        }
        Some(waits)
    }
}

// === impl Starts ===

impl Starts {
    /// Notes a placement, if its place is free, or it is one of those that take places.
    fn note(&mut self, start: Start) {
        if self.0.is_empty() {
            self.0 = vec![None; 1 + Self::place(STARTS_MAX - 1)];
        }
        let replaces = (start.request / STARTS_MAX).is_multiple_of(REPLACING);
        let place = &mut self.0[Self::place(start.request)];
        if replaces || place.is_none_or(|other| other.request == start.request) {
            *place = Some(start);
        }
    }

    /// Takes the placement of a request out.
    fn take(&mut self, request: u64) -> Option<Start> {
        let place = self.0.get_mut(Self::place(request))?;
        place.take_if(|start| start.request == request)
    }

    fn forget(&mut self, executor: u32) {
        for place in &mut self.0 {
            place.take_if(|start| start.executor == executor);
        }
    }

    fn place(request: u64) -> usize {
        (request % STARTS_MAX) as usize
    }
}

// === impl Fit ===

impl Default for Fit {
    fn default() -> Self {
        Self {
            samples: 0.0,
            means: Measures::default(),
            covariances: Default::default(),
            weight_permille: WHOLE_PERMILLE,
            side_by_side: false,
        }
    }
}

impl Fit {
    /// Takes in a placement, and fades the others.
    fn learn(&mut self, measures: Measures) {
        self.samples = (self.samples + 1.0).min(LEARNT_SPAN);
        let part = 1.0 / self.samples;
        let off: Measures = std::array::from_fn(|at| measures[at] - self.means[at]);
        for (mean, off) in self.means.iter_mut().zip(off) {
            *mean += part * off;
        }
        for (covariance, (one, other)) in self.covariances.iter_mut().zip(PAIRS) {
            *covariance = (1.0 - part) * (*covariance + part * off[one] * off[other]);
        }
        self.weigh();
    }

    fn weigh(&mut self) {
        let estimate = self.estimate();
        let weight = estimate.map_or(1.0, |(weight, trust)| 1.0 + trust * (weight - 1.0));
        self.weight_permille = nearest_step(weight.clamp(0.0, 1.0)) * WHOLE_PERMILLE / STEPS;
        if let Some((weight, trust)) = estimate
            && trust >= TRUST_MIN
        {
            self.side_by_side = weight < IN_TURN_MIN;
        }
    }

    /// The weight by the measures alone, and how far it is to be trusted, from 0 to 1; absent where too little is known, or longer
    /// prompts take no longer.
    fn estimate(&self) -> Option<(f64, f64)> {
        if self.samples < LEARNT_MIN {
            return None;
        }
        let [own, own_pending, pending, own_time, pending_time, time] = self.covariances;
        let determinant = own * pending - own_pending * own_pending;
        let pace = (own_time * pending - pending_time * own_pending) / determinant;
        let of_pending = (pending_time * own - own_time * own_pending) / determinant;
        let left = time - pace * own_time - of_pending * pending_time;
        let variance = left.max(0.0) * own / determinant / self.samples / (pace * pace);
        let is_known = determinant > 0.0 && pace > 0.0 && variance.is_finite();
        let trust = PRIOR_VARIANCE / (PRIOR_VARIANCE + variance);
        is_known.then(|| (of_pending / pace, trust))
    }

    /// The numbers that the weight follows from.
    fn numbers(&self) -> impl Iterator<Item = f64> {
        let Self {
            samples,
            means,
            covariances,
            ..
        } = *self;
        [samples].into_iter().chain(means).chain(covariances)
    }

    /// Takes the numbers off the front of a snapshot.
    fn taken(state: &mut &[u8]) -> Option<Self> {
        let mut fit = Self::default();
        let numbers = [&mut fit.samples].into_iter();
        for number in numbers.chain(&mut fit.means).chain(&mut fit.covariances) {
            *number = f64::from_le_bytes(take(state)?);
        }
        fit.weigh();
        fit.side_by_side = take(state)? != [0];
        Some(fit)
    }
}

/// The step next to a weight between 0 and 1.
fn nearest_step(weight: f64) -> u32 {
    let is_passed = |step: &u32| f64::from(*step) - 0.5 <= weight * f64::from(STEPS);
    (1..=STEPS).take_while(is_passed).last().unwrap_or(0)
}

/// A number as a fraction; one beyond 32 bits counts as the largest of them.
fn float(number: u64) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::Fit;

    /// The weight after so many placements whose time is `time` of their number, own and pending tokens.
    fn weight_permille(placements: u32, time: impl Fn(u32, f64, f64) -> f64) -> u32 {
        let mut fit = Fit::default();
        for number in 0..placements {
            let own = f64::from(100 + number * 37 % 900);
            let pending = f64::from(number * 53 % 7 * 200);
            fit.learn([own, pending, time(number, own, pending)]);
        }
        fit.weight_permille
    }

    fn waiting_for(part: f64) -> impl Fn(u32, f64, f64) -> f64 {
        move |_, own, pending| 30_000.0 + 250.0 * (own + part * pending)
    }

    #[test]
    fn the_weight_is_the_part_of_the_pending_tokens_that_adds_to_the_time() {
        assert_eq!(weight_permille(64, waiting_for(0.0)), 0);
        assert_eq!(weight_permille(64, waiting_for(0.5)), 500);
        assert_eq!(weight_permille(64, waiting_for(1.0)), 1000);
        // Nothing is worth more than its own prefill, nor less than nothing.
        assert_eq!(weight_permille(64, waiting_for(3.0)), 1000);
        assert_eq!(weight_permille(64, waiting_for(-1.0)), 0);
    }

    #[test]
    fn a_weight_that_is_not_known_is_1_and_one_that_hardly_is_is_near() {
        assert_eq!(weight_permille(15, waiting_for(0.0)), 1000);
        assert_eq!(weight_permille(16, waiting_for(0.0)), 0);
        // Prompts of one length.
        let mut fit = Fit::default();
        (0..64).for_each(|_| fit.learn([100.0, 200.0, 25_000.0]));
        assert_eq!(fit.weight_permille, 1000);
        // Times that have nothing to do with prompts.
        let noise = |number: u32, _, _| f64::from(number * 7919 % 1009) * 1000.0;
        assert_eq!(weight_permille(64, noise), 750);
    }

    #[test]
    fn an_engine_that_changes_is_learnt_anew() {
        let time = |number, own, pending| {
            let part = if number < 512 { 1.0 } else { 0.0 };
            waiting_for(part)(number, own, pending)
        };
        assert_eq!(weight_permille(512, time), 1000);
        assert_eq!(weight_permille(2048, time), 0);
    }
}
