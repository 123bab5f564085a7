//! Surges: times in which far more requests come to a line than leave it.
//!
//! Most of those who come then never get a place in time, however long the line is let grow. A long line has the others be
//! late, too, and serves no more of them than a short one does.
//!
//! A surge begins where half as many more come as leave, or where the line has become as long as one may wait who is in a hurry, and a minute: or half as long
//! as routing may hold a request, where holds run out. It ends with the line, or where half as many come as leave. Who finds nobody waiting has a place at once, and does not count.
//!
//! Both are counted in spans of five seconds, of which the last whole one and the present one count, together and the present
//! one alone. So requests that come together are no surge, and neither are clients that
//! send a request for each that was answered, however many they are and however they began.

use pointsman_sdk::snapshot::{take, take_u64};

/// Time of a span, in microseconds.
const SPAN: u64 = 5_000_000;
/// Requests that must have come: far more than are usual come by chance where fewer do, and a line for a model that is
/// being loaded stands still for a while.
const CAME_MIN: u64 = 32;
/// Requests that must have come in the present span.
const CAME_NOW_MIN: u64 = 8;
/// Time that the present span must have lasted, in microseconds: of clients that ask again, some were answered in the span before.
const LASTING_NOW_MIN: u64 = 1_000_000;
/// Holds run out where, of so many that leave, at least one could be held no longer.
const LEFT_PER_RUN_OUT: u64 = 8;

/// The requests that came to a line of late, and those that left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Surge {
    lasts: bool,
    began: u64,
    /// The span before the present one; absent: the line began in the present one.
    last: Option<Traffic>,
    present: Traffic,
}

/// Requests of a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traffic {
    came: u64,
    left: u64,
    /// Requests among those that left which routing could hold no longer.
    ran_out: u64,
}

impl Surge {
    /// The traffic of a line that begins at `now`, in microseconds: no surge yet.
    pub(crate) fn beginning(now: u64) -> Self {
        Self {
            lasts: false,
            began: now,
            last: None,
            present: Traffic::default(),
        }
    }

    /// Returns whether there is a surge, as of the last request that came.
    pub(crate) fn lasts(&self) -> bool {
        self.lasts
    }

    /// Counts a request that comes at `now` and finds others waiting, whatever becomes of it.
    pub(crate) fn comes(&mut self, now: u64) {
        self.pass(now);
        self.present.came += 1;
        let Some(last) = self.last else {
            return;
        };
        let both = last.and(self.present);
        self.lasts = if self.lasts {
            both.came * 2 > both.left
        } else {
            let lasting = now.saturating_sub(self.began) >= LASTING_NOW_MIN;
            lasting && self.present.outruns(CAME_NOW_MIN) && both.outruns(CAME_MIN)
        };
    }

    /// Counts a request that leaves the line at `now`, which could be held until `hold_end` if at all.
    pub(crate) fn leaves(&mut self, now: u64, hold_end: Option<u64>) {
        self.pass(now);
        self.present.left += 1;
        self.present.ran_out += u64::from(hold_end.is_some_and(|end| end <= now));
    }

    /// Returns whether many of those that leave could be held no longer.
    pub(crate) fn holds_run_out(&self) -> bool {
        let Traffic { left, ran_out, .. } = self.last.unwrap_or_default().and(self.present);
        ran_out > 0 && ran_out * LEFT_PER_RUN_OUT >= left
    }

    /// Has a surge begin: the line has become too long.
    pub(crate) fn begins(&mut self) {
        self.lasts = true;
    }

    /// Begins a new span where the present one is over at `now`.
    fn pass(&mut self, now: u64) {
        let spans = now.saturating_sub(self.began) / SPAN;
        if spans == 0 {
            return;
        }
        let ended = std::mem::take(&mut self.present);
        self.last = Some(if spans == 1 {
            ended
        } else {
            Traffic::default()
        });
        self.began += spans * SPAN;
    }

    /// Writes what [`Self::taken`] reads.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self.lasts));
        bytes.extend(self.began.to_le_bytes());
        bytes.push(u8::from(self.last.is_some()));
        self.last.unwrap_or_default().put(bytes);
        self.present.put(bytes);
    }

    /// Takes it off the front of a snapshot.
    pub(crate) fn taken(state: &mut &[u8]) -> Option<Self> {
        let [lasts] = take(state)?;
        let began = take_u64(state)?;
        let [has_last] = take(state)?;
        let last = Traffic::taken(state)?;
        Some(Self {
            lasts: lasts != 0,
            began,
            last: (has_last != 0).then_some(last),
            present: Traffic::taken(state)?,
        })
    }
}

impl Traffic {
    /// Returns whether at least half as many more came as left, and so many.
    fn outruns(self, came_min: u64) -> bool {
        self.came >= came_min && self.came * 2 >= self.left * 3
    }

    fn and(self, other: Self) -> Self {
        Self {
            came: self.came + other.came,
            left: self.left + other.left,
            ran_out: self.ran_out + other.ran_out,
        }
    }

    fn put(self, bytes: &mut Vec<u8>) {
        let numbers = [self.came, self.left, self.ran_out];
        bytes.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
    }

    fn taken(state: &mut &[u8]) -> Option<Self> {
        Some(Self {
            came: take_u64(state)?,
            left: take_u64(state)?,
            ran_out: take_u64(state)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Surge;

    const SECOND: u64 = 1_000_000;

    /// A line that began at 10 s, after so many seconds, and one more request, in each of which these left and came.
    fn after(secs: u64, came: u64, left: u64) -> Surge {
        let mut surge = Surge::beginning(10 * SECOND);
        go_on(&mut surge, 10, [secs, came, left]);
        surge.comes((10 + secs) * SECOND);
        surge
    }

    /// Goes on for so many seconds, in each of which these came and left.
    fn go_on(surge: &mut Surge, from: u64, [secs, came, left]: [u64; 3]) {
        for sec in from..from + secs {
            let now = sec * SECOND;
            (0..left).for_each(|_| surge.leaves(now, None));
            (0..came).for_each(|_| surge.comes(now));
        }
    }

    #[test]
    fn half_as_many_more_that_come_as_leave_are_a_surge_after_six_seconds() {
        assert!(!after(5, 9, 6).lasts());
        assert!(after(6, 9, 6).lasts());
        assert!(!after(6, 8, 6).lasts());
        assert!(after(60, 9, 6).lasts());
        assert!(!after(60, 8, 6).lasts());
    }

    #[test]
    fn it_lasts_until_half_as_many_come_as_leave() {
        let mut surge = after(6, 10, 5);
        go_on(&mut surge, 17, [60, 3, 5]);
        assert!(surge.lasts());
        go_on(&mut surge, 77, [11, 2, 5]);
        assert!(!surge.lasts());
    }

    #[test]
    fn a_line_that_is_too_long_is_one_as_long_as_many_come() {
        let mut surge = after(60, 6, 5);
        assert!(!surge.lasts());
        surge.begins();
        go_on(&mut surge, 71, [60, 6, 5]);
        assert!(surge.lasts());
        go_on(&mut surge, 131, [11, 1, 5]);
        assert!(!surge.lasts());
    }

    #[test]
    fn those_that_came_together_are_none_once_they_have_come() {
        let mut surge = Surge::beginning(10 * SECOND);
        go_on(&mut surge, 10, [1, 1000, 0]);
        surge.leaves(12 * SECOND, None);
        surge.comes(20 * SECOND);
        assert!(!surge.lasts());
        surge.comes(1000 * SECOND);
        assert!(!surge.lasts());
    }

    #[test]
    fn clients_that_ask_again_once_they_are_answered_are_none_though_they_began_together() {
        for each_second in [1, 5, 20] {
            let mut surge = Surge::beginning(10 * SECOND);
            go_on(&mut surge, 10, [1, 1000, 0]);
            go_on(&mut surge, 11, [60, each_second, each_second]);
            assert!(!surge.lasts());
        }
    }

    #[test]
    fn a_few_are_none_though_nobody_leaves() {
        assert!(!after(6, 1, 0).lasts());
        assert!(!after(60, 1, 0).lasts());
        assert!(!after(60, 3, 0).lasts());
        assert!(after(60, 4, 0).lasts());
    }
}
