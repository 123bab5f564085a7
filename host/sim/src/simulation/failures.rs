//! Failures by seed: executors that die and come back or slow down, sequences that fail, clients that
//! leave.

use std::collections::BTreeSet;

use pointsman_core::{Micros, RequestId};

use crate::draws::Draws;
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
    draws: Draws,
    due: BTreeSet<(Micros, Failure)>,
}

impl Failures {
    pub(super) fn new(plan: FailurePlan, executors: u32) -> Self {
        let mut failures = Self {
            draws: Draws::part(plan.seed, u64::MAX),
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
        let (recurring, next): (_, fn(usize) -> Failure) = match failure {
            Failure::Returns(_) => (self.plan.losses, Failure::Dies),
            Failure::Dies(_) => (self.plan.losses, Failure::Returns),
            Failure::Recovers(_) => (slowdowns, Failure::Slows),
            Failure::Slows(_) => (slowdowns, Failure::Recovers),
            Failure::Fails(..) | Failure::Leaves(_) => return,
        };
        let (executor, is_end) = match failure {
            Failure::Dies(executor) | Failure::Slows(executor) => (executor, true),
            Failure::Returns(executor) | Failure::Recovers(executor) => (executor, false),
            Failure::Fails(..) | Failure::Leaves(_) => return,
        };
        if let Some(recurring) = recurring {
            let mean = if is_end {
                recurring.lasting
            } else {
                recurring.between
            };
            self.plan_after(at, mean, next(executor));
        }
    }

    fn plan_after(&mut self, at: Micros, mean: Micros, failure: Failure) {
        let after = from_secs(self.draws.exponential(secs(mean)));
        self.due.insert((at.after(after.max(Micros(1))), failure));
    }

    /// Hears of an arrival: its client may leave.
    pub(super) fn note_arrival(&mut self, request: RequestId, now: Micros) {
        if self.plan.leaving_share > 0.0 && self.draws.chance(self.plan.leaving_share) {
            let mean = self.plan.leaves_after.max(Micros(1));
            self.plan_after(now, mean, Failure::Leaves(request));
        }
    }

    /// Hears of a placement on an executor: it may fail, some while later.
    pub(super) fn note_start(&mut self, request: RequestId, executor: usize, now: Micros) {
        if self.plan.failing_share > 0.0 && self.draws.chance(self.plan.failing_share) {
            let mean = Micros(1_000_000);
            self.plan_after(now, mean, Failure::Fails(request, executor));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_die_and_come_back_in_turn_at_the_mean_times() {
        let recurring = Recurring {
            between: Micros(9_000_000),
            lasting: Micros(1_000_000),
        };
        let mut failures = Failures::new(
            FailurePlan {
                losses: Some(recurring),
                ..FailurePlan::default()
            },
            2,
        );
        let end = Micros(4_000_000_000);
        let mut is_down = [false; 2];
        let mut deaths = 0;
        while let Some(failure) = failures.pop_due(end) {
            if let Failure::Dies(executor) = failure {
                assert!(!std::mem::replace(&mut is_down[executor], true));
                deaths += 1;
            } else if let Failure::Returns(executor) = failure {
                assert!(std::mem::replace(&mut is_down[executor], false));
            } else {
                panic!("{failure:?} was not planned");
            }
        }
        assert!((700..900).contains(&deaths), "{deaths} of about 800");
    }

    #[test]
    fn a_plan_without_failures_has_none() {
        let mut failures = Failures::new(FailurePlan::default(), 100);
        failures.note_arrival(RequestId(0), Micros(0));
        failures.note_start(RequestId(0), 0, Micros(0));
        assert_eq!(failures.next_at(), None);
    }
}
