//! A policy of a few lines: each request goes where the most slots are free.

use std::cmp::Reverse;

use pointsman_sdk::{ByRank, Description, NoSettings, Place, Policy, Ranked, Seat, export};

/// The policy. It keeps no state: all that it needs is in the rows of an executor.
#[derive(Debug)]
pub struct MostFreeSlots;

impl Ranked for MostFreeSlots {
    type Rank = (Seat, Reverse<u32>);

    /// A slot goes before a place in the queue, then the most free slots; the least is the best.
    fn rank(&self, place: &Place<'_>) -> (Seat, Reverse<u32>) {
        (place.seat, Reverse(place.slots_free()))
    }
}

impl Policy for MostFreeSlots {
    type Settings = NoSettings;

    fn describe() -> Description {
        Description {
            name: "first-policy".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "Each request goes where the most slots are free.".into(),
            reasons: vec!["most free slots".into(), "no room anywhere".into()],
            state_version: 1,
        }
    }

    fn new(_: NoSettings) -> Result<Self, String> {
        Ok(Self)
    }
}

export!(ByRank<MostFreeSlots>: routing);
