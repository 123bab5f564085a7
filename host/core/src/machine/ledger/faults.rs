//! The faults of an executor in a row, and the health that follows from them.
//!
//! After `degraded-after` faults without a sequence served to its end in between, an executor is
//! degraded; after `down-after` more it takes nothing new for `down-for`. Then it is degraded again:
//! one more fault brings the next rest. An executor that is degraded for `down-for` is tried like any
//! other one, and one more fault makes it what it was. A sequence served to its end makes it whole, as does
//! the return of a server that was silent. What runs there runs on all the while.

use pointsman_events::rows::Health;
use pointsman_events::{Config, Micros};

/// The faults of one life after another.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Faults {
    /// Faults since the last sequence that was served to its end.
    in_a_row: u32,
    standing: Standing,
}

/// The consequence of an executor's faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
enum Standing {
    #[default]
    Good,
    /// Rather others, until then.
    Doubtful(Micros),
    /// Nothing new until then.
    Resting(Micros),
}

impl Faults {
    /// Counts a fault at the time `now`.
    pub(super) fn add(&mut self, now: Micros, config: &Config) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        if let Standing::Resting(_) = self.standing {
            return;
        }
        let down_after = config.degraded_after.saturating_add(config.down_after);
        if self.in_a_row >= down_after {
            self.standing = Standing::Resting(now.after(config.down_for));
        } else if self.in_a_row >= config.degraded_after {
            self.standing = Standing::Doubtful(now.after(config.down_for));
        }
    }

    /// True if no fault is counted.
    pub(super) fn is_empty(&self) -> bool {
        self.in_a_row == 0
    }

    /// Forgets all faults: a sequence was served to its end.
    pub(super) fn forgive(&mut self) {
        *self = Self::default();
    }

    /// Ends a rest or a doubt that is over at the time `now`.
    pub(super) fn pass(&mut self, now: Micros, config: &Config) {
        self.standing = match self.standing {
            Standing::Resting(until) if until <= now => {
                Standing::Doubtful(now.after(config.down_for))
            }
            Standing::Doubtful(until) if until <= now => Standing::Good,
            Standing::Good | Standing::Doubtful(_) | Standing::Resting(_) => self.standing,
        };
    }

    /// The end of the rest or doubt; absent: there is none.
    pub(super) fn until(&self) -> Option<Micros> {
        match self.standing {
            Standing::Good => None,
            Standing::Doubtful(until) | Standing::Resting(until) => Some(until),
        }
    }

    /// The health of an executor that works, by its faults.
    pub(super) fn health(&self) -> Health {
        match self.standing {
            Standing::Good => Health::Up,
            Standing::Doubtful(_) => Health::Degraded,
            Standing::Resting(_) => Health::Down,
        }
    }
}
