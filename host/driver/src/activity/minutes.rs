//! The last hour of something, in minutes.

use std::collections::VecDeque;

use pointsman_core::Micros;

/// Minutes of the host's clock that count as the last hour: the one that has begun, and those before it.
pub(super) const MINUTES: u64 = 60;

const MINUTE: u64 = 60_000_000;

/// A bucket for each of the last [`MINUTES`] in which something happened.
#[derive(Clone, Debug)]
pub(super) struct Minutes<T> {
    /// The numbers of the minutes with their buckets, the oldest first.
    buckets: VecDeque<(u64, T)>,
}

impl<T> Default for Minutes<T> {
    fn default() -> Self {
        let buckets = VecDeque::new();
        Self { buckets }
    }
}

impl<T: Default> Minutes<T> {
    /// The bucket of the minute of `now`. Time does not run backwards.
    pub(super) fn at(&mut self, now: Micros) -> &mut T {
        let minute = number(now);
        let is_last = |(last, _): &(u64, T)| *last >= minute;
        if !self.buckets.back().is_some_and(is_last) {
            while self
                .buckets
                .front()
                .is_some_and(|(first, _)| first + MINUTES <= minute)
            {
                self.buckets.pop_front();
            }
            self.buckets.push_back((minute, T::default()));
        }
        let last = self.buckets.back_mut();
        let (_, bucket) = last.expect("the bucket of this minute is there");
        bucket
    }

    /// The buckets of the hour before `now` with their minutes, the oldest first.
    pub(super) fn hour(&self, now: Micros) -> impl Iterator<Item = (u64, &T)> {
        self.newest(now, MINUTES)
    }

    /// The buckets of so many minutes up to the one of `now`, with their minutes, the oldest first.
    pub(super) fn newest(&self, now: Micros, minutes: u64) -> impl Iterator<Item = (u64, &T)> {
        let minute = number(now);
        let buckets = self.buckets.iter();
        let newer = buckets.filter(move |(at, _)| at + minutes > minute);
        newer.map(|(at, bucket)| (*at, bucket))
    }
}

/// The number of the minute of `now`, from the start of the clock.
pub(super) fn number(now: Micros) -> u64 {
    now.0 / MINUTE
}

/// The beginning of a minute.
pub(super) fn beginning(minute: u64) -> Micros {
    Micros(minute.saturating_mul(MINUTE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: u64) -> Micros {
        beginning(minute).after(Micros(5))
    }

    #[test]
    fn an_hour_has_sixty_minutes_and_forgets_the_rest() {
        let mut minutes = Minutes::<u32>::default();
        for minute in 0..100 {
            *minutes.at(at(minute)) += 1;
            *minutes.at(at(minute)) += 1;
        }
        assert_eq!(minutes.buckets.len(), 60);
        let hour: Vec<_> = minutes.hour(at(99)).collect();
        assert_eq!((hour.len(), hour[0], hour[59]), (60, (40, &2), (99, &2)));
        let newest: Vec<_> = minutes.newest(at(99), 15).collect();
        assert_eq!((newest.len(), newest[0]), (15, (85, &2)));
        assert_eq!(minutes.hour(at(158)).count(), 1, "silence is forgotten too");
        assert_eq!(minutes.hour(at(159)).count(), 0);
        *minutes.at(at(500)) += 1;
        assert_eq!(minutes.buckets.len(), 1);
    }
}
