//! The clocks of a request without a place, and the holds that stop them.
//!
//! A policy holds a request *on purpose* when it says until when. Such a hold stops the first two
//! liveness clocks, but in one stay without a place all of them together last `held-max` at most.
//! A hold without a time, and one past that bound, stops nothing.

use pointsman_events::{Decided, ExecutorId, Hook, Micros};

/// A request without a place.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Waiting {
    /// Start of the time that counts against the bound on waiting.
    pub(crate) since: Micros,
    /// The time since which some executor could have taken it in every round, moved on by the time
    /// for which it was held on purpose.
    feasible_since: Option<Micros>,
    /// The time since which no executor has served it.
    pub(crate) unserved_since: Option<Micros>,
    /// The number of placements that went past it.
    pub(crate) overtaken: u32,
    /// The hook whose answer let the last of them go past it.
    pub(crate) overtaken_by: Hook,
    /// The time at which the policy that holds it wants to be asked again.
    wake: Option<Micros>,
    /// The hold on purpose that lasts.
    hold: Option<Hold>,
    /// The time in µs for which it was held on purpose, without the hold that lasts.
    held: Micros,
    /// Room kept for it.
    pub(super) reservation: Option<Reservation>,
}

/// Room kept on an executor for a request that others give way to.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Reservation {
    pub(crate) executor: ExecutorId,
    pub(crate) since: Micros,
    /// The author of the eviction.
    pub(crate) by: Decided,
}

/// A hold on purpose.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Hold {
    since: Micros,
    until: Micros,
}

// === impl Waiting ===

impl Waiting {
    pub(super) fn new(since: Micros) -> Self {
        Self {
            since,
            feasible_since: None,
            unserved_since: None,
            overtaken: 0,
            overtaken_by: Hook::Priority,
            wake: None,
            hold: None,
            held: Micros(0),
            reservation: None,
        }
    }

    /// The same stay after a place that came to nothing, in which it was from `placed_at` on: it has
    /// waited since its beginning, and what was held and overtook it counts on.
    pub(super) fn resumed(&self, placed_at: Micros) -> Self {
        Self {
            overtaken: self.overtaken,
            overtaken_by: self.overtaken_by,
            held: self.held_by(placed_at),
            ..Self::new(self.since)
        }
    }

    /// Starts the first clock, unless it runs.
    pub(crate) fn could_run(&mut self, now: Micros) {
        self.feasible_since.get_or_insert(now);
    }

    /// Stops the first clock. What nothing could take is not held on purpose any more.
    pub(crate) fn could_not_run(&mut self, now: Micros) {
        self.end_hold(now);
        self.feasible_since = None;
    }

    /// Puts a new hold in the place of the one before. Returns its end; absent: it stops no clock.
    pub(crate) fn hold(
        &mut self,
        now: Micros,
        until: Option<Micros>,
        held_max: Micros,
    ) -> Option<Micros> {
        self.end_hold(now);
        self.wake = until.filter(|at| *at > now);
        let until = until?.min(self.hold_end(now, held_max));
        if until <= now {
            return None;
        }
        self.hold = Some(Hold { since: now, until });
        Some(until)
    }

    /// Books the hold that lasts, and ends it if its time is over.
    pub(crate) fn pass(&mut self, now: Micros) {
        self.wake = self.wake.filter(|at| *at > now);
        if self.held_until().is_some_and(|until| until <= now) {
            self.end_hold(now);
        }
    }

    /// The time at which the policy is asked again at the latest.
    pub(crate) fn asked_at(&self) -> Option<Micros> {
        self.held_until().into_iter().chain(self.wake).min()
    }

    /// The end of the hold that lasts.
    pub(crate) fn held_until(&self) -> Option<Micros> {
        self.hold.map(|hold| hold.until)
    }

    /// The latest time at which a hold that lasts or begins `now` ends.
    pub(crate) fn hold_end(&self, now: Micros, held_max: Micros) -> Micros {
        now.after(held_max.since(self.held_by(now)))
    }

    /// Tells whether it was held on purpose in this stay without a place.
    pub(crate) fn was_held(&self) -> bool {
        self.hold.is_some() || self.held > Micros(0)
    }

    /// The time at which the first clock runs out, if it runs.
    pub(crate) fn unplaced_at(&self, unplaced_max: Micros) -> Option<Micros> {
        match self.hold {
            Some(_) => None,
            None => Some(self.feasible_since?.after(unplaced_max)),
        }
    }

    /// The time for which it was held on purpose.
    pub(crate) fn held_by(&self, now: Micros) -> Micros {
        let lasts = |hold: Hold| hold.until.min(now).since(hold.since);
        self.held.after(self.hold.map_or(Micros(0), lasts))
    }

    fn end_hold(&mut self, now: Micros) {
        self.held = self.held_by(now);
        let Some(hold) = self.hold.take() else {
            return;
        };
        let end = hold.until.min(now);
        self.feasible_since = self.feasible_since.map(|since| {
            let stopped = end.since(hold.since.max(since));
            since.after(stopped)
        });
    }
}
