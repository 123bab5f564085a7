//! Snapshots of a runner's policy: taken, kept, and handed on.

use pointsman_component::Fault;
use pointsman_core::{Micros, View};

use super::life::Life;
use super::{Rows, Runner, Saved};
use crate::policy::Snapshot;

/// The state of a policy, as its instances hand it on.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// The last snapshot, or the state that the policy was started with.
    pub(super) last: Option<Vec<u8>>,
    /// True as long as the policy is asked for snapshots.
    pub(super) are_taken: bool,
}

impl Runner {
    /// Takes a snapshot and keeps it. A policy that faults at it, or has more than is kept, is not
    /// asked for a snapshot again.
    pub(crate) fn save(&mut self, now: Micros) -> Result<Saved, Fault> {
        let Life::Up(instance) = &mut self.life else {
            return Ok(Saved::Skipped);
        };
        if !self.snapshots.are_taken {
            return Ok(Saved::Skipped);
        }
        let max = self.source.limits().snapshot_bytes;
        let given = instance.snapshot();
        self.counters.snapshots += u64::from(given.is_ok());
        match given {
            Ok(state) if u64::try_from(state.len()).is_ok_and(|bytes| bytes <= max) => {
                self.counters.snapshots_kept += 1;
                self.snapshots.last = Some(state);
                Ok(Saved::Kept)
            }
            Ok(state) => {
                self.snapshots.are_taken = false;
                Ok(Saved::TooLarge(state.len()))
            }
            Err(fault) => {
                self.snapshots.are_taken = false;
                self.back_off(now);
                Err(self.source.blamed(fault))
            }
        }
    }

    /// A snapshot as of now, or the last one, for a successor.
    pub fn handover(&mut self, now: Micros) -> Option<Snapshot> {
        // A fault is booked; the last snapshot stands.
        drop(self.save(now));
        self.snapshot()
    }

    /// Takes no more snapshots.
    pub fn end_snapshots(&mut self) {
        self.snapshots.are_taken = false;
    }

    /// Lets the next instance begin with `snapshot`, if the policy has no state and this is of its
    /// kind; returns whether it is.
    pub(crate) fn begin_with(&mut self, snapshot: Snapshot) -> bool {
        let is_its_kind = self.is_kind_of(&snapshot);
        if is_its_kind && self.snapshots.last.is_none() {
            self.snapshots.last = Some(snapshot.state);
            self.remake();
        }
        is_its_kind
    }

    /// Tells the policy what it has not been told yet, and takes a snapshot. Its next question
    /// tells it everything, and so does one to a policy that is restored from that snapshot.
    ///
    /// # Errors
    /// The fault that ended one of the calls.
    pub fn renew(&mut self, view: &View<'_>, now: Micros) -> Result<(), Fault> {
        self.catch_up(view, now)?;
        let saved = self.save(now);
        self.forget_told();
        saved.map(drop)
    }

    /// Tells the policy what it has not been told yet, if it has an instance.
    pub(crate) fn catch_up(&mut self, rows: &dyn Rows, now: Micros) -> Result<(), Fault> {
        if !self.is_up() {
            return Ok(());
        }
        let kinds = self.description.needs.decided();
        let told = self.tell((rows, kinds), now, 0);
        if told.is_err() {
            self.back_off(now);
        }
        told.map(drop).map_err(|fault| self.source.blamed(fault))
    }

    /// Forgets what the policy has been told: its next question tells it everything.
    pub(crate) fn forget_told(&mut self) {
        self.feed.reset();
    }
}
