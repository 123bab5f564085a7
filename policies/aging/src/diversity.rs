//! The requests that start a model which is warm nowhere, and so go before everything else.
//!
//! Without them the models that are warm keep all the room for as long as the equalization time.
//!
//! # Invariants
//! 1. Of each model at most one request goes ahead, and only where it finds room
//!    (`tests::one_request_of_each_cold_model_that_finds_room_goes_first`).
//!
//! # Bounds
//! At most [`CHECKS_MAX`] executors are looked at for one question; past that the rest of the
//! requests keep their place. A question about a large, full fleet so stays within its fuel.

use std::collections::BTreeSet;

use pointsman_sdk::wire::types::Request;
use pointsman_sdk::{BatchPlacements, Case, Executor, Fleet, Mirror, Obstacle, Seat};

/// Executors looked at for one question.
const CHECKS_MAX: u32 = 50_000;

/// The requests that go ahead, chosen one after the other in order of urgency.
#[derive(Debug, Default)]
pub(crate) struct Diversity {
    /// Expected placements of the requests chosen so far.
    placed: BatchPlacements,
    /// Models that a request was chosen for.
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

    /// Returns whether `request`, whose model is warm nowhere, is the one to start it. The host
    /// tries requests in order until one is placed. A request that finds no room now would be
    /// tried in vain, and keeps its place.
    pub(crate) fn starts(&mut self, mirror: &Mirror, request: &Request, now: u64) -> bool {
        let Some(model) = request.model.filter(|model| !self.started.contains(model)) else {
            return false;
        };
        let Some((executor, seat)) = self.room(mirror, request, now) else {
            return false;
        };
        self.placed.place(mirror, request, &executor, seat);
        self.started.insert(model);
        true
    }

    /// The first executor with room, or with a slot that only a warm hold keeps from it: that
    /// is waived for the request that starts a model.
    fn room<'a>(
        &mut self,
        mirror: &'a Mirror,
        request: &Request,
        now: u64,
    ) -> Option<(Executor<'a>, Seat)> {
        let placed = &self.placed;
        let fleet = Fleet { mirror, placed };
        let case = Case::new(fleet, request, now);
        let mut held = None;
        for executor in mirror.executors() {
            if self.checks == CHECKS_MAX {
                return None;
            }
            self.checks += 1;
            match case.fit(&executor) {
                Ok(seat) => return Some((executor, seat)),
                Err(Obstacle::WarmHold { .. }) if fleet.slots_free(&executor) > 0 => {
                    held.get_or_insert((executor, Seat::Slot));
                }
                Err(
                    Obstacle::WarmHold { .. }
                    | Obstacle::ModelLimit
                    | Obstacle::NotLive
                    | Obstacle::NotServed
                    | Obstacle::NotAllowed
                    | Obstacle::FailedBefore
                    | Obstacle::NeverFits
                    | Obstacle::ModelsMax
                    | Obstacle::NoSlot
                    | Obstacle::NoBlocks,
                ) => {}
            }
        }
        held
    }
}
