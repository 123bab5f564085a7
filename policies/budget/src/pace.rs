//! The pace of a line: how fast requests leave it while others wait.
//!
//! It is counted from the rows of waiting requests alone, so it has whatever makes a line shorter: placements,
//! and clients that give up. It is known only after enough requests have left, and only of the time in which somebody
//! waits: how fast an empty line would move is not known, since nobody is there to leave it.
//!
//! # Invariants
//! 1. A pace is of between [`LEFT_MIN`] requests and three times [`LEFT_SPAN`] of those that left last, unless they
//!    left within [`LASTING_SPAN`] (`tests`).

use pointsman_sdk::snapshot::{take, take_u64};

/// Requests that must have left before there is a pace.
const LEFT_MIN: u64 = 8;
/// Requests after which a new span begins.
const LEFT_SPAN: u64 = 16;
/// Time that a span lasts at least, in microseconds, so that requests that leave together are no pace.
const LASTING_SPAN: u64 = 5_000_000;

/// The pace of a line in which somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The span before the present one.
    last: Option<Span>,
    present: Span,
}

/// A time in which somebody waited throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    began: u64,
    /// Requests that left the line.
    left: u64,
}

impl Pace {
    /// The pace of a line that somebody joins at `now`, in microseconds, as the first.
    pub(crate) fn beginning(now: u64) -> Self {
        Self {
            last: None,
            present: Span::beginning(now),
        }
    }

    /// Counts a request that leaves at `now`.
    pub(crate) fn leaves(&mut self, now: u64) {
        self.present.left += 1;
        let lasted = now.saturating_sub(self.present.began);
        if self.present.left >= LEFT_SPAN && lasted >= LASTING_SPAN {
            self.last = Some(self.present);
            self.present = Span::beginning(now);
        }
    }

    /// Leaves out a time in which nobody waited, up to now, in microseconds.
    pub(crate) fn skip(&mut self, time: u64) {
        for span in self.last.iter_mut().chain([&mut self.present]) {
            span.began += time;
        }
    }

    /// The time in which so many requests leave, in microseconds; absent while the pace is not known.
    pub(crate) fn time_for(&self, requests: usize, now: u64) -> Option<u64> {
        let began = self.last.unwrap_or(self.present).began;
        let left = self.last.map_or(0, |last| last.left) + self.present.left;
        let lasted = now.saturating_sub(began);
        if left < LEFT_MIN || lasted < LASTING_SPAN {
            return None;
        }
        let time = u128::from(lasted) * requests as u128 / u128::from(left);
        Some(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// Writes what [`Self::taken`] reads.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self.last.is_some()));
        self.last.unwrap_or(Span::beginning(0)).put(bytes);
        self.present.put(bytes);
    }

    /// Takes it off the front of a snapshot.
    pub(crate) fn taken(state: &mut &[u8]) -> Option<Self> {
        let [has_last] = take(state)?;
        let last = Span::taken(state)?;
        Some(Self {
            last: (has_last != 0).then_some(last),
            present: Span::taken(state)?,
        })
    }
}

impl Span {
    fn beginning(now: u64) -> Self {
        Self {
            began: now,
            left: 0,
        }
    }

    fn put(self, bytes: &mut Vec<u8>) {
        let numbers = [self.began, self.left];
        bytes.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
    }

    fn taken(state: &mut &[u8]) -> Option<Self> {
        Some(Self {
            began: take_u64(state)?,
            left: take_u64(state)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;

    const SECOND: u64 = 1_000_000;

    /// A line that began at 10 s and that a request left at each of these times.
    fn line(left_at: impl IntoIterator<Item = u64>) -> Pace {
        let mut pace = Pace::beginning(10 * SECOND);
        left_at.into_iter().for_each(|at| pace.leaves(at));
        pace
    }

    #[test]
    fn a_pace_is_known_once_eight_have_left_in_five_seconds() {
        let every_second = |count: u64| line((1..=count).map(|idx| (10 + idx) * SECOND));
        assert_eq!(every_second(7).time_for(1, 17 * SECOND), None);
        assert_eq!(every_second(8).time_for(3, 18 * SECOND), Some(3 * SECOND));
        // Eight that left at once are no pace before five seconds have passed, and then one of 1.6 a second.
        let at_once = line([11 * SECOND; 8]);
        assert_eq!(at_once.time_for(1, 14 * SECOND), None);
        assert_eq!(at_once.time_for(8, 15 * SECOND), Some(5 * SECOND));
    }

    #[test]
    fn a_time_in_which_nobody_waited_does_not_count() {
        let mut pace = line((1..=8).map(|idx| (10 + idx) * SECOND));
        pace.skip(4 * SECOND);
        assert_eq!(pace.time_for(3, 22 * SECOND), Some(3 * SECOND));
    }

    #[test]
    fn a_pace_is_of_the_last_requests_and_falls_while_nobody_leaves() {
        // One a second for a minute, then ten a second for a minute.
        let slow = (1..=60).map(|idx| (10 + idx) * SECOND);
        let fast = (1..=600).map(|idx| 70 * SECOND + idx * SECOND / 10);
        let pace = line(slow.chain(fast));
        let time = pace.time_for(10, 130 * SECOND).expect("many have left");
        assert!((SECOND * 9 / 10..=SECOND).contains(&time), "{time}");
        let later = pace.time_for(10, 190 * SECOND).expect("many have left");
        assert!(later > 5 * SECOND, "{later}");
    }
}
