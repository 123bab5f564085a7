//! The faults of an executor in a row, and the health that follows from them.
//!
//! After `degraded-after` faults without a sequence served to its end in between, an executor is
//! degraded; after `down-after` more nothing new starts there for `down-for`. Then it is on trial: it is degraded
//! again, one sequence at a time may start, and one more fault brings the next rest. An executor that is
//! degraded for `down-for` is chosen like any other one, and one more fault makes it what it was. A sequence
//! served to its end makes it whole and ends the trial, as does the return of a server that was silent. What
//! runs there runs on all the while.

use std::collections::BTreeMap;

use pointsman_events::rows::Health;
use pointsman_events::{Config, Micros, RequestId};

use super::executor::SlotUse;

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
    /// One sequence at a time, until one is served to its end.
    OnTrial {
        /// Rather others, until then; absent: that time is over.
        doubtful_until: Option<Micros>,
        /// The sequence that started last.
        probe: Option<RequestId>,
    },
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
        match &mut self.standing {
            Standing::Resting(until) if *until <= now => {
                self.standing = Standing::OnTrial {
                    doubtful_until: Some(now.after(config.down_for)),
                    probe: None,
                };
            }
            Standing::Doubtful(until) if *until <= now => self.standing = Standing::Good,
            Standing::OnTrial { doubtful_until, .. } => {
                *doubtful_until = doubtful_until.filter(|until| *until > now);
            }
            Standing::Good | Standing::Doubtful(_) | Standing::Resting(_) => {}
        }
    }

    /// The end of the rest or doubt; absent: there is none.
    pub(super) fn until(&self) -> Option<Micros> {
        match self.standing {
            Standing::Good => None,
            Standing::Doubtful(until) | Standing::Resting(until) => Some(until),
            Standing::OnTrial { doubtful_until, .. } => doubtful_until,
        }
    }

    /// The health of an executor that works, by its faults.
    pub(super) fn health(&self) -> Health {
        match self.standing {
            Standing::Good => Health::Up,
            Standing::Doubtful(_) => Health::Degraded,
            Standing::Resting(_) => Health::Down,
            Standing::OnTrial { doubtful_until, .. } => match doubtful_until {
                Some(_) => Health::Degraded,
                None => Health::Up,
            },
        }
    }

    /// The number of sequences that may start beside those in slots.
    pub(super) fn starts_max(&self, slots: &BTreeMap<RequestId, SlotUse>) -> u32 {
        match self.standing {
            Standing::Good | Standing::Doubtful(_) => u32::MAX,
            Standing::Resting(_) => 0,
            Standing::OnTrial { probe, .. } => {
                let is_under_way = probe.is_some_and(|probe| slots.contains_key(&probe));
                u32::from(!is_under_way)
            }
        }
    }

    /// Takes note of a sequence that starts.
    pub(super) fn start(&mut self, request: RequestId) {
        if let Standing::OnTrial { probe, .. } = &mut self.standing {
            *probe = Some(request);
        }
    }
}
