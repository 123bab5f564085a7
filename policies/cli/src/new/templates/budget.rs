//! Decides how many tokens each engine of a device may schedule in a step.

use pointsman_sdk::wire::budget::Allotment;
use pointsman_sdk::{Budget, Mirror, Moment};

use crate::Decisions;

impl Budget for Decisions {
    /// Gives the same to each; the remainder is left over.
    fn allot(&mut self, mirror: &Mirror, _: Moment, device: u32, tokens: u32) -> Vec<Allotment> {
        let engines: Vec<_> = mirror.executors_on(device).collect();
        let count = u32::try_from(engines.len()).unwrap_or(u32::MAX);
        let share = tokens.checked_div(count).unwrap_or(0);
        let allotment = |executor| Allotment {
            executor,
            tokens_max: share,
        };
        let engines = engines.iter().map(|engine| engine.id());
        engines.map(allotment).collect()
    }
}
