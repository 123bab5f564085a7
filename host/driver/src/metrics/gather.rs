//! All metrics together: those that are counted, and the states that are asked for at that moment.

use std::time::Duration;

use tokio::time::timeout;

use super::{EngineTotals, Metrics};
use crate::catalog::Catalog;
use crate::message::DriverHandle;
use crate::operator::Operator;

/// The longest wait for an answer of the driver.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(2);

impl Metrics {
    /// Renders all metrics, for whoever reads them. The driver is asked for the gauges; without an answer
    /// they keep their last values.
    ///
    /// # Cancellation
    /// Some gauges may have been set.
    pub async fn gather(&self, driver: &DriverHandle, catalog: &Catalog) -> String {
        let overview = driver.operate(Operator::Overview);
        if let Ok(Some(overview)) = timeout(DRIVER_TIMEOUT, overview).await {
            self.overview(&overview);
            let loads = driver.operate(Operator::Loads);
            if let Ok(Some(loads)) = timeout(DRIVER_TIMEOUT, loads).await {
                self.executors(&loads);
            }
        }
        let policies = timeout(DRIVER_TIMEOUT, driver.policies()).await;
        if let Ok(Some(policies)) = policies {
            self.policies(&policies);
            let shadows = driver.operate(Operator::Shadows);
            if let Ok(Some(shadows)) = timeout(DRIVER_TIMEOUT, shadows).await {
                self.shadows(&shadows, &policies);
            }
        }
        for (executor, stats) in &catalog.engines {
            let totals = EngineTotals {
                steps: stats.steps.get(),
                prefill_tokens: stats.prefill_tokens.get(),
                decode_tokens: stats.generated_tokens.get(),
                busy: Duration::from_nanos(stats.busy_nanos.get()),
                sat_out: stats.sat_out.get(),
            };
            self.engine(executor, totals);
        }
        self.render()
    }
}
