//! Timers: when something may fall due, at most one for each request, executor and device.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_events::{DeviceId, ExecutorId, Micros, RequestId};

use super::CLASSES;

/// The owner of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Timer {
    Request(RequestId),
    Executor(ExecutorId),
    /// `evict` may be asked again.
    Evict,
    /// `allot` is to be asked again, as its last answer wanted.
    Allot(DeviceId),
}

/// Timers by time and by owner.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Timers {
    by_time: BTreeSet<(Micros, Timer)>,
    armed: BTreeMap<Timer, Micros>,
    /// One gate for each class, in the order of [`CLASSES`].
    pub(super) evict_gates: [EvictGate; CLASSES.len()],
}

/// Keeps `evict` from being asked in every round of an overloaded host.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct EvictGate {
    /// The time at which `evict` may be asked again.
    pub(super) until: Micros,
    /// A more urgent request than this passes all the same.
    pub(super) priority: Option<i32>,
}

impl Timers {
    pub(super) fn next(&self) -> Option<Micros> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Sets a timer; absent: takes it away.
    pub(super) fn arm(&mut self, timer: Timer, at: Option<Micros>) {
        let old = match at {
            Some(at) => self.armed.insert(timer, at),
            None => self.armed.remove(&timer),
        };
        if old == at {
            return;
        }
        if let Some(old) = old {
            self.by_time.remove(&(old, timer));
        }
        if let Some(at) = at {
            self.by_time.insert((at, timer));
        }
    }

    /// Lets `evict` be asked again for every class.
    pub(super) fn open_evict_gates(&mut self) {
        self.evict_gates = Default::default();
        self.arm_evict();
    }

    pub(super) fn arm_evict(&mut self) {
        let gates = self.evict_gates.iter().map(|gate| gate.until);
        let next = gates.filter(|at| *at > Micros(0)).max();
        self.arm(Timer::Evict, next);
    }

    /// Takes the next timer that is due at `now`.
    pub(super) fn pop_due(&mut self, now: Micros) -> Option<Timer> {
        let (at, timer) = self.by_time.first().copied()?;
        if at > now {
            return None;
        }
        self.arm(timer, None);
        Some(timer)
    }

    /// Requests that have a timer.
    pub(super) fn requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.armed.keys().filter_map(|timer| match timer {
            Timer::Request(id) => Some(*id),
            Timer::Executor(_) | Timer::Evict | Timer::Allot(_) => None,
        })
    }
}
