//! Another workload, changed: faster or slower, spread out, or cut off.

use std::collections::VecDeque;

use pointsman_core::Micros;

use super::{Arrival, Roll, Workload};
use crate::draws::Draws;
use crate::numbers::{float, whole};

/// The changes of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reshaping {
    /// Arrivals come so many times as fast.
    pub speed_up: f64,
    /// The seed by which arrivals of one time are spread over the time to the next ones; absent:
    /// they stay together. At speed 1: in the trace's own time.
    pub spread: Option<u64>,
    /// The number of arrivals that are taken; absent: all.
    pub requests_max: Option<u64>,
    /// The time after which answers are worthless; absent: as the workload says.
    pub patience: Option<Micros>,
}

impl Default for Reshaping {
    fn default() -> Self {
        Self {
            speed_up: 1.0,
            spread: None,
            requests_max: None,
            patience: None,
        }
    }
}

/// A workload with changes.
#[derive(Debug)]
pub struct Shaped<W> {
    inner: W,
    shape: Reshaping,
    draws: Option<Draws>,
    /// Arrivals that came together and were spread.
    ready: VecDeque<Arrival>,
    taken: u64,
}

impl<W: Workload> Shaped<W> {
    /// Changes a workload.
    #[must_use]
    pub fn new(inner: W, shape: Reshaping) -> Self {
        let mut shaped = Self {
            inner,
            draws: shape.spread.map(Draws::new),
            shape,
            ready: VecDeque::new(),
            taken: 0,
        };
        shaped.refill();
        shaped
    }

    fn scaled(&self, at: Micros) -> Micros {
        Micros(whole(float(at.0) / self.shape.speed_up.max(1e-9)))
    }

    /// Takes all arrivals of the next time, if they are to be spread.
    fn refill(&mut self) {
        let Some(draws) = &mut self.draws else {
            return;
        };
        if !self.ready.is_empty() {
            return;
        }
        let Some(at) = self.inner.next_at() else {
            return;
        };
        let mut together = Vec::new();
        while self.inner.next_at() == Some(at) {
            together.extend(self.inner.pop());
        }
        let gap = self.inner.next_at().map_or(0, |next| next.since(at).0);
        for arrival in &mut together {
            arrival.at = at.after(Micros(draws.below(gap.max(1))));
        }
        together.sort_by_key(|arrival| arrival.at);
        self.ready.extend(together);
    }

    fn is_over(&self) -> bool {
        let max = self.shape.requests_max;
        max.is_some_and(|max| self.taken >= max)
    }
}

impl<W: Workload> Workload for Shaped<W> {
    fn roll(&self) -> &Roll {
        self.inner.roll()
    }

    fn next_at(&self) -> Option<Micros> {
        if self.is_over() {
            return None;
        }
        let ready = self.ready.front().map(|arrival| arrival.at);
        let at = match self.draws {
            Some(_) => ready?,
            None => self.inner.next_at()?,
        };
        Some(self.scaled(at))
    }

    fn pop(&mut self) -> Option<Arrival> {
        if self.is_over() {
            return None;
        }
        self.taken += 1;
        let arrival = match self.draws {
            Some(_) => self.ready.pop_front(),
            None => self.inner.pop(),
        };
        let arrival = arrival?;
        self.refill();
        Some(Arrival {
            at: self.scaled(arrival.at),
            patience: self.shape.patience.or(arrival.patience),
            ..arrival
        })
    }

    fn ended(&mut self, ticket: u64, at: Micros) {
        let at = whole(float(at.0) * self.shape.speed_up);
        self.inner.ended(ticket, Micros(at));
        self.refill();
    }

    fn total(&self) -> Option<u64> {
        match (self.inner.total(), self.shape.requests_max) {
            (Some(total), Some(max)) => Some(total.min(max)),
            (total, max) => total.or(max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Listed, PromptText};
    use super::*;

    fn times(shape: Reshaping) -> Vec<u64> {
        let at = |at| Arrival::new(Micros(at), PromptText::unlike_others(1), 1);
        let listed = Listed::new(Roll::single(), [0, 0, 0, 900, 900].map(at).to_vec());
        let mut shaped = Shaped::new(listed, shape);
        let mut times = Vec::new();
        while let Some(next) = shaped.next_at() {
            let arrival = shaped.pop().unwrap();
            assert_eq!(arrival.at, next);
            times.push(arrival.at.0);
        }
        times
    }

    #[test]
    fn arrivals_come_faster_and_end_early() {
        let shape = Reshaping {
            speed_up: 3.0,
            requests_max: Some(4),
            ..Reshaping::default()
        };
        assert_eq!(times(shape), [0, 0, 0, 300]);
    }

    #[test]
    fn arrivals_of_one_time_are_spread_up_to_the_next() {
        let shape = |seed| Reshaping {
            spread: Some(seed),
            ..Reshaping::default()
        };
        let spread = times(shape(1));
        assert!(
            spread.is_sorted() && spread[2] > 0 && spread[2] < 900,
            "{spread:?}"
        );
        assert_eq!(
            spread[3..],
            [900, 900],
            "nothing is known of a time after them"
        );
        assert_eq!(spread, times(shape(1)));
        assert_ne!(spread, times(shape(2)));
    }
}
