//! Why a request would go where it would go.

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::types::{Cached, Request};
use pointsman_sdk::{Executor, Explanation, Mirror, Moment, Need, Seat, Tentative, fit};

use crate::Decisions;

impl Explanation for Decisions {
    /// Each executor by its free slots, and what stands in the way there.
    fn explain(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        request: &Request,
        _: &Cached,
    ) -> Vec<Candidate> {
        let placed = Tentative::default();
        let need = Need::new(mirror, &placed, request, at.now);
        let candidate = |executor| {
            let fit = fit(mirror, &placed, &need, &executor);
            Candidate {
                executor: executor.id(),
                eligible: fit.is_ok(),
                cost: cost(&executor, fit.as_ref().ok()),
                note: match fit {
                    Ok(seat) => format!("{seat:?}"),
                    Err(obstacle) => format!("{obstacle:?}"),
                },
            }
        };
        mirror.executors().map(candidate).collect()
    }
}

/// Less is better: a slot before a queue, then the most free slots, as `route` has it.
fn cost(executor: &Executor<'_>, seat: Option<&Seat>) -> i64 {
    let total = executor.info.slots_total;
    let free = total.saturating_sub(executor.load.slots_used);
    let behind = match seat {
        Some(Seat::Slot) => 0,
        Some(Seat::Queue) | None => i64::from(u32::MAX),
    };
    behind - i64::from(free)
}
