//! Decides how many tokens each engine of a device may schedule in a step.

use pointsman_sdk::wire::budget::{Allotment, Allotments, DeviceTokens};
use pointsman_sdk::{Budget, Mirror, Moment, Feed};

use crate::Decisions;

impl Budget for Decisions {
    const NEEDS: Feed = Feed::empty();

    /// Gives the same to each; the remainder is left over.
    fn allot(&mut self, _: &Mirror, _: Moment, tokens: &DeviceTokens) -> Allotments {
        let count = u32::try_from(tokens.used.len()).unwrap_or(u32::MAX);
        let tokens_max = tokens.tokens_total.checked_div(count).unwrap_or(0);
        let engines = tokens.used.iter().map(|engine| Allotment {
            executor: engine.executor,
            tokens_max,
        });
        Allotments {
            engines: engines.collect(),
            again: None,
        }
    }
}
