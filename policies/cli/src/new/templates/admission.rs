//! Decides whether requests may wait at all.

use pointsman_sdk::wire::admission::{Choice, Verdict};
use pointsman_sdk::wire::types::AskedRequest;
use pointsman_sdk::{Admission, Mirror, Moment, Feed};

use crate::{Decisions, reason};

impl Admission for Decisions {
    const NEEDS: Feed = Feed::empty();

    /// Admits as many requests as there is room for; the others wait outside the queue.
    fn admit(
        &mut self,
        _: &Mirror,
        _: Moment,
        arrivals: &[AskedRequest],
        room: u32,
    ) -> Vec<Verdict> {
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let verdict = |index| {
            let (choice, reason) = if index < room {
                (Choice::Admit, reason::ROOM)
            } else {
                (Choice::Park, reason::FULL)
            };
            Verdict { choice, reason }
        };
        (0..arrivals.len()).map(verdict).collect()
    }
}
