//! Failures by seed: executors that die and come back or slow down, sequences that fail, clients that
//! leave.
//!
//! # Invariants
//! 1. Whatever policies decide, at one seed executors are lost and slow at the same times, the same
//!    clients leave after the same time, and the same placements of a request fail (those of a request by the number of
//!    its arrival). Held by `policies_at_one_seed_see_the_same_failures`,
//!    `placements_fail_and_clients_leave_whoever_came_before` and
//!    `executors_are_slow_at_the_same_times_whatever_is_placed`.

use std::collections::BTreeSet;

use pointsman_core::{Micros, RequestId};

use crate::draws::{Draws, mix};
use crate::numbers::{from_secs, secs};

/// The factor of times of a slow executor where only listed failures make one slow.
const LISTED_FACTOR: f64 = 3.0;

/// The failures of a simulation. The default has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FailurePlan {
    /// The seed of all draws.
    pub seed: u64,
    /// Executors that die, with all that runs there, and come back.
    pub losses: Option<Recurring>,
    /// Executors that take longer for a while, and how many times as long.
    pub slowdowns: Option<(Recurring, f64)>,
    /// The part of placements that fail, from 0 to 1.
    pub failing_share: f64,
    /// The part of clients that leave before their answer has ended, from 0 to 1.
    pub leaving_share: f64,
    /// The mean time after which they leave.
    pub leaves_after: Micros,
    /// Failures at set times, beside those that are drawn.
    pub listed: Vec<(Micros, Failure)>,
}

impl FailurePlan {
    /// True if failures are drawn, so that another seed has others.
    #[must_use]
    pub fn is_random(&self) -> bool {
        let shares = [self.failing_share, self.leaving_share];
        let is_drawn = shares.iter().any(|share| *share > 0.0);
        is_drawn || self.losses.is_some() || self.slowdowns.is_some()
    }
}

/// Something that happens to each executor again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurring {
    /// The mean time between two of them.
    pub between: Micros,
    /// The mean time for which each lasts.
    pub lasting: Micros,
}

/// A failure. Executors are named by their place in the fleet, requests by the number of their arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// An executor dies.
    Dies(usize),
    /// An executor comes back.
    Returns(usize),
    /// An executor takes longer for all that begins.
    Slows(usize),
    /// An executor is as fast as before.
    Recovers(usize),
    /// The placement of a request on that executor fails, if there is one.
    Fails(RequestId, usize),
    /// The client of a request leaves.
    Leaves(RequestId),
}

/// The failures to come.
#[derive(Debug)]
pub(super) struct Failures {
    plan: FailurePlan,
    /// The draws of each executor.
    losses: Vec<Draws>,
    slowdowns: Vec<Draws>,
    due: BTreeSet<(Micros, Failure)>,
}

/// Failures that are drawn apart from all others.
#[derive(Clone, Copy, Debug)]
enum DrawnFor {
    Losses,
    Slowdowns,
    Leaving,
    Failing,
}

impl Failures {
    pub(super) fn new(plan: FailurePlan, executors: u32) -> Self {
        let each = |what| {
            let draws = (0..u64::from(executors)).map(|number| draws_of(plan.seed, what, number));
            draws.collect()
        };
        let mut failures = Self {
            losses: each(DrawnFor::Losses),
            slowdowns: each(DrawnFor::Slowdowns),
            due: plan.listed.iter().copied().collect(),
            plan,
        };
        for executor in 0..executors as usize {
            failures.plan_next(Failure::Returns(executor), Micros(0));
            failures.plan_next(Failure::Recovers(executor), Micros(0));
        }
        failures
    }

    pub(super) fn next_at(&self) -> Option<Micros> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes the next failure that is due, and plans what follows it.
    pub(super) fn pop_due(&mut self, now: Micros) -> Option<Failure> {
        let (at, failure) = self.due.first().copied()?;
        if at > now {
            return None;
        }
        self.due.pop_first();
        self.plan_next(failure, at);
        Some(failure)
    }

    /// The factor of times of an executor that is slow.
    pub(super) fn slow_factor(&self) -> f64 {
        self.plan
            .slowdowns
            .map_or(LISTED_FACTOR, |(_, factor)| factor)
    }

    /// Plans the event of an executor that follows another one.
    fn plan_next(&mut self, failure: Failure, at: Micros) {
        let slowdowns = self.plan.slowdowns.map(|(recurring, _)| recurring);
        let (recurring, all, next): (_, _, fn(usize) -> Failure) = match failure {
            Failure::Returns(_) => (self.plan.losses, &mut self.losses, Failure::Dies),
            Failure::Dies(_) => (self.plan.losses, &mut self.losses, Failure::Returns),
            Failure::Recovers(_) => (slowdowns, &mut self.slowdowns, Failure::Slows),
            Failure::Slows(_) => (slowdowns, &mut self.slowdowns, Failure::Recovers),
            Failure::Fails(..) | Failure::Leaves(_) => return,
        };
        let (executor, is_end) = match failure {
            Failure::Dies(executor) | Failure::Slows(executor) => (executor, true),
            Failure::Returns(executor) | Failure::Recovers(executor) => (executor, false),
            Failure::Fails(..) | Failure::Leaves(_) => return,
        };
        if let (Some(recurring), Some(draws)) = (recurring, all.get_mut(executor)) {
            let mean = if is_end {
                recurring.lasting
            } else {
                recurring.between
            };
            self.due.insert((later(at, mean, draws), next(executor)));
        }
    }

    /// Hears of an arrival: its client may leave.
    pub(super) fn note_arrival(&mut self, request: RequestId, now: Micros) {
        if self.plan.leaving_share <= 0.0 {
            return;
        }
        let mut draws = draws_of(self.plan.seed, DrawnFor::Leaving, request.0);
        if draws.chance(self.plan.leaving_share) {
            let at = later(now, self.plan.leaves_after.max(Micros(1)), &mut draws);
            self.due.insert((at, Failure::Leaves(request)));
        }
    }

    /// Hears of a placement on an executor, after so many others of that request: it may fail, some while
    /// later.
    pub(super) fn note_start(
        &mut self,
        (request, attempt): (RequestId, u32),
        executor: usize,
        now: Micros,
    ) {
        if self.plan.failing_share <= 0.0 {
            return;
        }
        let placement = mix(request.0) ^ u64::from(attempt);
        let mut draws = draws_of(self.plan.seed, DrawnFor::Failing, placement);
        if draws.chance(self.plan.failing_share) {
            let at = later(now, Micros(1_000_000), &mut draws);
            self.due.insert((at, Failure::Fails(request, executor)));
        }
    }
}

/// The draws of an executor, an arrival or a placement: whatever else is drawn, they are the same. Those of
/// a workload with this seed are others.
fn draws_of(seed: u64, what: DrawnFor, number: u64) -> Draws {
    Draws::part(mix(seed) ^ (u64::MAX - what as u64), number)
}

/// A time after another one, by this mean.
fn later(at: Micros, mean: Micros, draws: &mut Draws) -> Micros {
    let after = from_secs(draws.exponential(secs(mean)));
    at.after(after.max(Micros(1)))
}

#[cfg(test)]
mod tests;
