//! More models than a fleet can have loaded at once: how often they change, and who waits for it.

use anyhow::{Result, ensure};
use pointsman_tests::overload::{ModelChanges, routed_by};

/// The router `in-order` serves in the order of arrival, whatever models it has to load for that.
#[test]
fn models_change_half_as_often_as_in_order_of_arrival_and_nobody_waits_longer_for_it() -> Result<()>
{
    let in_order = ModelChanges::simulated(&routed_by("test/in-order", ""))?;
    let defaults = ModelChanges::simulated(&routed_by("memory-aware", ""))?;
    ensure!(
        2 * defaults.swaps <= in_order.swaps,
        "{defaults:?} {in_order:?}"
    );
    ensure!(
        defaults.ttft_p95_ms <= in_order.ttft_p95_ms,
        "{defaults:?} {in_order:?}"
    );
    let hasty = ModelChanges::simulated(&routed_by("memory-aware", ",model-tenure=0"))?;
    ensure!(
        defaults.ttft_p95_ms < 0.5 * hasty.ttft_p95_ms && defaults.swaps < hasty.swaps,
        "{defaults:?} {hasty:?}"
    );
    Ok(())
}
