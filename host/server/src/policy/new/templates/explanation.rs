//! Why a request would go where it would go.

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::types::{Cached, Request};
use pointsman_sdk::{Explanation, Mirror, Moment, Need, Tentative, fit};

use crate::Decisions;

impl Explanation for Decisions {
    /// Each executor by its slots in use, and what stands in the way there.
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
                cost: i64::from(executor.load.slots_used),
                note: match fit {
                    Ok(seat) => format!("{seat:?}"),
                    Err(obstacle) => format!("{obstacle:?}"),
                },
            }
        };
        mirror.executors().map(candidate).collect()
    }
}
