//! Decides where requests run.

use std::cmp::Reverse;

use pointsman_sdk::{Place, Ranked, Seat};

use crate::{Decisions, reason};

impl Ranked for Decisions {
    type Rank = (Seat, Reverse<u32>);

    const BEST: u16 = reason::MOST_FREE;
    const NO_ROOM: u16 = reason::NO_SLOT;

    /// A slot goes before a place in the queue, then the most free slots; the least is the best.
    fn rank(&self, place: &Place<'_>) -> (Seat, Reverse<u32>) {
        (place.seat, Reverse(place.slots_free()))
    }
}
