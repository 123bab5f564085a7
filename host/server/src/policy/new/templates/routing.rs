//! Where a request runs.

use std::cmp::Reverse;

use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::Cached;
use pointsman_sdk::{Mirror, Moment, Need, Routing, Tentative, fit};

use crate::{Decisions, reason};

impl Routing for Decisions {
    /// Each where the most slots are free.
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let asked = requests.iter().map(|asked| asked.request);
        asked.map(|id| place(mirror, placed, at, id)).collect()
    }
}

/// Where one request goes. `placed` counts what this answer has placed before it.
fn place(mirror: &Mirror, placed: &mut Tentative, at: Moment, id: u64) -> Verdict {
    let hold = Verdict {
        choice: Choice::Hold(None),
        reason: reason::NO_SLOT,
    };
    let Some(request) = mirror.request(id) else {
        return hold;
    };
    let need = Need::new(mirror, placed, request, at.now);
    let open = mirror.executors().filter_map(|executor| {
        let seat = fit(mirror, placed, &need, &executor).ok()?;
        let used = executor.load.slots_used + placed.counts(&executor).slots;
        let free = executor.info.slots_total.saturating_sub(used);
        Some((executor, seat, free))
    });
    // Of equals the first that was attached.
    let best = open.min_by_key(|(executor, seat, free)| (*seat, Reverse(*free), executor.id()));
    let Some((executor, seat, _)) = best else {
        return hold;
    };
    placed.place(mirror, &need, &executor, seat);
    Verdict {
        choice: Choice::Place(vec![executor.id()]),
        reason: reason::MOST_FREE,
    }
}
