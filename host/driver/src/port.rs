//! The driver as the reconciler sees it, and the ejection of hooks, which goes to both.

use std::sync::Arc;
use std::time::Duration;

use pointsman_core::Needs;
use pointsman_core::{HookSet, Micros};
use pointsman_lifecycle::order::{Order, OrderError, OrderHandle};
use pointsman_lifecycle::port::{HostEnded, PolicyPort};
use pointsman_lifecycle::report::ReloadStep;
use pointsman_policy::{Briefing, Commit, CommitError, Committed, Snapshot};
use tokio::time::timeout;
use tracing::warn;

use crate::message::DriverHandle;
use crate::metrics::Metrics;
use crate::operator::Operator;

/// The time that the reconciler has to note an ejection.
const NOTE_WAIT: Duration = Duration::from_secs(2);

/// The driver, with the metrics that count the reconciler's commits and refusals.
#[derive(Debug)]
pub struct DriverPort {
    pub driver: DriverHandle,
    pub metrics: Arc<Metrics>,
}

impl PolicyPort for DriverPort {
    fn handover(&self, policy: u32) -> Option<Snapshot> {
        self.driver.handover(policy)
    }

    fn brief(&self, needs: Needs) -> Result<Briefing, HostEnded> {
        self.driver.brief(needs).ok_or(HostEnded)
    }

    fn commit(&self, commit: Commit) -> Result<Result<Committed, CommitError>, HostEnded> {
        self.driver.commit(commit).ok_or(HostEnded)
    }

    fn count_committed(&self, pause: Micros) {
        self.metrics
            .policy_committed(Duration::from_micros(pause.0));
    }

    fn count_refused(&self, step: ReloadStep) {
        self.metrics.policy_refused(step.as_str());
    }
}

/// Gives `hooks` back to the embedded defaults. Returns true if the reconciler has noted the order;
/// a busy reconciler notes it later.
///
/// The driver is told directly, so that a policy folder on a slow disk keeps nobody waiting. The
/// reconciler has the order in its inbox by then, notes it, and leaves the hooks where they are.
///
/// # Errors
/// If the host is shutting down.
///
/// # Cancellation
/// An ejection that has begun is carried out.
pub async fn eject(
    driver: &DriverHandle,
    orders: &OrderHandle,
    hooks: HookSet,
) -> Result<bool, OrderError> {
    // Biased, so that the reconciler cannot hear of the ejection before it hears the order.
    let (noted, done) = tokio::join!(
        biased;
        timeout(NOTE_WAIT, orders.order(Order::Eject { hooks })),
        driver.operate(|answer| Operator::Eject(hooks, answer)),
    );
    done.ok_or(OrderError::HostEnded)?;
    let Ok(carried_out) = noted else {
        warn!("hooks ejected, which the reconciler has not noted yet: is the policy folder slow?");
        return Ok(false);
    };
    carried_out.map(|()| true)
}
