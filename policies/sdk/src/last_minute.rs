//! Tokens counted within the last minute.
//!
//! A minute of the host's clock and the one before are kept. Tokens of the minute before count as spread
//! evenly over it, so the count falls steadily and costs the same however many were counted.

use crate::snapshot::take_u64;

const MINUTE: u64 = 60_000_000;

/// Tokens of the last minute, as of the latest count.
///
/// ```
/// use pointsman_sdk::LastMinute;
///
/// let mut tokens = LastMinute::default();
/// tokens.add(30_000_000, 600);
/// assert_eq!(tokens.at(60_000_000), 600);
/// // Half a minute later half of that minute is past.
/// assert_eq!(tokens.at(90_000_000), 300);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastMinute {
    /// Number of the minute that was counted in last.
    minute: u64,
    /// Tokens counted in that minute.
    pub(crate) here: u64,
    /// Tokens counted in the minute before.
    before: u64,
}

impl LastMinute {
    /// Counts tokens at a time, in microseconds. Times never go back.
    pub fn add(&mut self, now: u64, tokens: u64) {
        *self = self.moved(now);
        self.here = self.here.saturating_add(tokens);
    }

    /// The tokens counted within the minute before a time, in microseconds.
    #[must_use]
    pub fn at(&self, now: u64) -> u64 {
        let tokens = self.exactly_at(now) / u128::from(MINUTE);
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// The same times a minute in microseconds, which takes no rounding.
    pub(crate) fn exactly_at(&self, now: u64) -> u128 {
        let moved = self.moved(now);
        let left = MINUTE - now % MINUTE;
        u128::from(moved.here) * u128::from(MINUTE) + u128::from(moved.before) * u128::from(left)
    }

    /// Writes the count to a snapshot, as [`Self::taken`] reads it.
    ///
    /// ```
    /// use pointsman_sdk::LastMinute;
    ///
    /// let mut tokens = LastMinute::default();
    /// tokens.add(30_000_000, 600);
    /// let mut bytes = Vec::new();
    /// tokens.put(&mut bytes);
    /// let mut left = bytes.as_slice();
    /// assert_eq!(LastMinute::taken(&mut left), Some(tokens));
    /// assert_eq!(LastMinute::taken(&mut left), None);
    /// ```
    pub fn put(&self, bytes: &mut Vec<u8>) {
        let numbers = [self.minute, self.here, self.before];
        bytes.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
    }

    /// Takes what [`Self::put`] wrote off the front of a snapshot; absent: it has no more of it.
    pub fn taken(state: &mut &[u8]) -> Option<Self> {
        Some(Self {
            minute: take_u64(state)?,
            here: take_u64(state)?,
            before: take_u64(state)?,
        })
    }

    /// The same counts in the minute of `now`.
    pub(crate) fn moved(&self, now: u64) -> Self {
        let minute = now / MINUTE;
        let (here, before) = match minute.saturating_sub(self.minute) {
            0 => (self.here, self.before),
            1 => (0, self.here),
            _ => (0, 0),
        };
        Self {
            minute: minute.max(self.minute),
            here,
            before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LastMinute, MINUTE};

    #[test]
    fn tokens_leave_the_count_within_a_minute_after_their_own_has_ended() {
        let mut tokens = LastMinute::default();
        tokens.add(0, 100);
        tokens.add(MINUTE - 1, 100);
        assert_eq!(tokens.at(MINUTE - 1), 200);
        tokens.add(MINUTE, 50);
        assert_eq!(tokens.at(MINUTE + MINUTE / 4), 50 + 150);
        assert_eq!(tokens.at(2 * MINUTE), 50);
        assert_eq!(tokens.at(3 * MINUTE), 0);
    }
}
