//! Which requests start a model that is warm nowhere, and go before everything else for it.
//!
//! Without this the models that are warm keep all the room for as long as the equalization time.
//!
//! # Invariants
//! 1. Of each model at most one request goes ahead, and only where it finds room
//!    (`tests::one_request_of_each_cold_model_that_finds_room_goes_first`).
//!
//! # Bounds
//! At most [`CHECKS_MAX`] executors are looked at for one question; past that the rest of the
//! requests keep their place. It keeps a question about a large, full fleet within its fuel.

use std::collections::BTreeSet;

use pointsman_sdk::wire::types::Request;
use pointsman_sdk::{Executor, Mirror, Need, Obstacle, Seat, Tentative, fit};

/// Executors looked at for one question.
const CHECKS_MAX: u32 = 50_000;

/// The requests that go ahead, chosen one after the other in order of urgency.
#[derive(Debug, Default)]
pub(crate) struct Diversity {
    /// Where those chosen so far are expected to go.
    placed: Tentative,
    /// Models that one was chosen for.
    started: BTreeSet<u32>,
    checks: u32,
}

impl Diversity {
    /// Forgets the last question.
    pub(crate) fn begin(&mut self) {
        self.placed.clear();
        self.started.clear();
        self.checks = 0;
    }

    /// Whether `request`, whose model is warm nowhere, is the one to start it. The host
    /// tries requests in order until one is placed; one that finds no room now would be tried in
    /// vain, and is left where it is.
    pub(crate) fn starts(&mut self, mirror: &Mirror, request: &Request, now: u64) -> bool {
        let Some(model) = request.model.filter(|model| !self.started.contains(model)) else {
            return false;
        };
        let need = Need::new(mirror, &self.placed, request, now);
        let Some((executor, seat)) = self.room(mirror, &need) else {
            return false;
        };
        self.placed.place(mirror, &need, &executor, seat);
        self.started.insert(model);
        true
    }

    /// The first executor with room, or with a slot that only a warm hold keeps from it: that
    /// is waived for the request that starts a model.
    fn room<'a>(&mut self, mirror: &'a Mirror, need: &Need<'_>) -> Option<(Executor<'a>, Seat)> {
        let mut held = None;
        for executor in mirror.executors() {
            if self.checks == CHECKS_MAX {
                return None;
            }
            self.checks += 1;
            match fit(mirror, &self.placed, need, &executor) {
                Ok(seat) => return Some((executor, seat)),
                Err(Obstacle::WarmHold { .. }) if self.has_free_slot(&executor) => {
                    held.get_or_insert((executor, Seat::Slot));
                }
                Err(
                    Obstacle::WarmHold { .. }
                    | Obstacle::ModelLimit
                    | Obstacle::NotLive
                    | Obstacle::NotServed
                    | Obstacle::NotAllowed
                    | Obstacle::FailedBefore
                    | Obstacle::ModelsMax
                    | Obstacle::NoSlot
                    | Obstacle::NoBlocks,
                ) => {}
            }
        }
        held
    }

    fn has_free_slot(&self, executor: &Executor<'_>) -> bool {
        let taken = self.placed.counts(executor).slots;
        executor.load.slots_used.saturating_add(taken) < executor.info.slots_total
    }
}
