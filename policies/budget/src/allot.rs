//! The split of a device's tokens over its busy engines, by weight.

use pointsman_sdk::wire::budget::Allotment;
use pointsman_sdk::wire::types::Health;
use pointsman_sdk::{Executor, Mirror};

use crate::shares;

/// Makes one allotment per engine of the device, in attach order; an idle one gets nothing.
pub(crate) fn allotments(
    mirror: &Mirror,
    device: u32,
    tokens_total: u32,
    permille: u32,
) -> Vec<Allotment> {
    let engines: Vec<Executor<'_>> = mirror.executors_on(device).collect();
    // An engine that is down has nothing to schedule, whatever its last load.
    let serving = |engine: &Executor<'_>| engine.load.health != Health::Down;
    let busy = |engine: &Executor<'_>| serving(engine) && engine.depth() > 0;
    let none_busy = !engines.iter().any(busy);
    let active = |engine: &Executor<'_>| busy(engine) || none_busy && serving(engine);
    let weights: Vec<u32> = engines
        .iter()
        .filter(|engine| active(engine))
        .map(|engine| engine.info.share_weight)
        .collect();
    let mut shares = shares::split(tokens_total, &weights, permille).into_iter();
    let allotment = |engine: &Executor<'_>| Allotment {
        executor: engine.id(),
        tokens_max: if active(engine) {
            shares.next().unwrap_or(0)
        } else {
            0
        },
    };
    engines.iter().map(allotment).collect()
}
