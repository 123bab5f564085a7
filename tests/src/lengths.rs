//! Simulations of requests of which nobody says how long their answers become: how long they wait in the order that
//! `shortest-first` gives them. Logical time, so a test can hold it to its numbers.

use anyhow::{Context, Result};
use pointsman_sim::numbers::float_len;

use crate::overload::routed_by;
use crate::simulated::{policy, report};

/// Requests that may wait at once: more than ever do.
pub const QUEUE_MAX: u32 = 20_000;
/// Settings of `memory-aware` with which no slots are kept free, so that the order alone decides who waits.
pub const NONE_KEPT: &str = ",share-reserve=0";

/// Waits by what the order goes by.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// In order of arrival.
    pub by_arrival: Waits,
    /// By lengths that are learnt from completions.
    pub learnt: Waits,
    /// By the lengths themselves, which clients state: what an oracle would say.
    pub stated: Waits,
}

/// Waits for a first place, in several runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// The mean of the runs' means, in milliseconds.
    pub mean_ms: f64,
    /// The longest of all, in milliseconds.
    pub longest_ms: f64,
    /// Requests that were not served to their end.
    pub unserved: u64,
    /// Bounds on waiting that ran out under the policies.
    pub strikes: u64,
}

impl Lengths {
    /// Simulates each of the workloads at four executors of `llm-d`, where a request may be without a place for `wait_max`. Nobody is
    /// refused for a shorter time.
    ///
    /// # Errors
    /// As the simulation has them.
    pub fn over(workloads: &[String], wait_max: &str) -> Result<Self> {
        let over = |lengths: &str, settings: &str| {
            let order = policy("shortest-first", settings);
            let others = routed_by("memory-aware", NONE_KEPT);
            let host = format!("--queue-max {QUEUE_MAX} --wait-max {wait_max} --lengths {lengths}");
            let words = format!("--profile llm-d --executors 4 {host}{order}{others}");
            Waits::over(workloads, &words)
        };
        Ok(Self {
            by_arrival: over("unknown", ",wait-per-token=0s")?,
            learnt: over("unknown", "")?,
            stated: over("hinted", "")?,
        })
    }

    /// The part of the way from the mean wait in order of arrival to that with stated lengths that learnt ones go.
    #[must_use]
    pub fn way(&self) -> f64 {
        let from = self.by_arrival.mean_ms;
        (from - self.learnt.mean_ms) / (from - self.stated.mean_ms)
    }
}

impl Waits {
    /// Simulates each of the workloads with further words.
    fn over(workloads: &[String], words: &str) -> Result<Self> {
        let mut waits = Self::default();
        for workload in workloads {
            let report = report(&format!("{workload} {words}"))?;
            let time = |key: &str| report["wait_ms"][key].as_f64().context("no wait");
            let count = |key: &str| report[key].as_u64().context("no count");
            waits.mean_ms += time("mean")? / float_len(workloads.len());
            waits.longest_ms = waits.longest_ms.max(time("max")?);
            waits.unserved += count("requests")? - count("finished")?;
            waits.strikes += count("strikes")?;
        }
        Ok(waits)
    }
}
