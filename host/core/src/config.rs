//! Bounds of the machine, checked once.

use pointsman_interface::Micros;

/// Every bound the machine keeps. [`Config::validate`] is called by [`crate::Machine::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Config {
    /// Requests that may be queued. Past it admission must refuse, park or displace.
    pub queue_max: u32,
    /// Requests that may be parked outside the queue. Past it the built-in rule refuses.
    pub parking_max: u32,
    /// Executors that may be attached at once.
    pub executors_max: u32,
    /// Requests routed by one question.
    pub batch_max: u32,
    /// Executors named in one request's `overlaps`.
    pub overlaps_max: u32,
    /// Prompt blocks remembered per tier of a device, and of a shared cache, as reported. Blocks
    /// stored past this bound are not known here.
    pub tier_blocks_max: u32,
    /// Placements of one request that may end because an executor failed it or died; then it
    /// has failed. Evictions do not count.
    pub attempts_max: u32,
    /// Faults of an executor without a sequence served to its end in between, from which on the
    /// executor is degraded. A fault is a sequence that failed for a reason of the executor's, or its
    /// death.
    pub degraded_after: u32,
    /// Further such faults, from which on the executor takes nothing new for [`Self::down_for`].
    pub down_after: u32,
    /// The time in µs for which an executor takes nothing new after too many faults. After it one more
    /// fault is one too many.
    pub down_for: Micros,
    /// Longest time in µs that a request may be without a place before it is refused with a
    /// timeout; counted from the arrival, and anew from the return after a failure or preemption.
    pub wait_max: Micros,
    /// Longest time in µs that a request waits while no executor serves it, because every one that
    /// could is down, is leaving, or was never there. 0: it is refused at once.
    pub unserved_max: Micros,
    /// First liveness clock, in µs: a request that some executor could have taken for so long is
    /// placed by the built-in rule. Also the longest time that a running sequence may lack a block,
    /// and that a reservation may stay open.
    pub unplaced_max: Micros,
    /// Second liveness clock: number of times that a request may be overtaken by later, not more
    /// urgent ones where it could have run.
    pub overtaken_max: u32,
    /// Third liveness clock: steps of its engine that a running sequence may go without a token.
    pub tokenless_steps_max: u32,
    /// The time in µs for which `evict` is not asked again for a class after an answer that freed
    /// nothing.
    pub evict_retry: Micros,
    /// Row changes kept for policies that are not asked. A policy further behind is told
    /// everything anew.
    pub change_log_max: u32,
    /// Completions kept for policies that are not asked.
    pub completions_max: u32,
    /// Retry-After, in seconds, of the built-in admission rule.
    pub retry_after_secs: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            queue_max: 4096,
            parking_max: 4096,
            executors_max: 16_384,
            batch_max: 64,
            overlaps_max: 8,
            tier_blocks_max: 1 << 18,
            attempts_max: 8,
            degraded_after: 3,
            down_after: 5,
            down_for: Micros(10_000_000),
            wait_max: Micros(60_000_000),
            unserved_max: Micros(0),
            unplaced_max: Micros(10_000_000),
            overtaken_max: 256,
            tokenless_steps_max: 64,
            evict_retry: Micros(50_000),
            change_log_max: 65_536,
            completions_max: 4096,
            retry_after_secs: 1,
        }
    }
}

/// A bound that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} must be between {min} and {max}, not {value}")]
pub struct InvalidConfig {
    /// The bound's name, as in the configuration file.
    pub name: &'static str,
    /// The value that was set.
    pub value: u64,
    /// Smallest value accepted.
    pub min: u64,
    /// Largest value accepted.
    pub max: u64,
}

/// Longest time any clock may be set to: one day.
const DAY: u64 = 24 * 3600 * 1_000_000;

impl Config {
    /// Checks every bound.
    ///
    /// # Errors
    /// The first bound that is out of its range, with the range.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let bounds = [
            ("queue-max", u64::from(self.queue_max), 1, 1 << 20),
            ("parking-max", u64::from(self.parking_max), 0, 1 << 20),
            ("executors-max", u64::from(self.executors_max), 1, 1 << 20),
            ("batch-max", u64::from(self.batch_max), 1, 4096),
            ("overlaps-max", u64::from(self.overlaps_max), 0, 1024),
            (
                "tier-blocks-max",
                u64::from(self.tier_blocks_max),
                0,
                1 << 26,
            ),
            ("attempts-max", u64::from(self.attempts_max), 1, 1000),
            ("degraded-after", u64::from(self.degraded_after), 1, 1 << 20),
            ("down-after", u64::from(self.down_after), 1, 1 << 20),
            ("down-for", self.down_for.0, 1, DAY),
            ("wait-max", self.wait_max.0, 1, DAY),
            ("unserved-max", self.unserved_max.0, 0, DAY),
            ("unplaced-max", self.unplaced_max.0, 1, DAY),
            ("overtaken-max", u64::from(self.overtaken_max), 1, 1 << 20),
            (
                "tokenless-steps-max",
                u64::from(self.tokenless_steps_max),
                1,
                1 << 20,
            ),
            ("evict-retry", self.evict_retry.0, 1, DAY),
            (
                "change-log-max",
                u64::from(self.change_log_max),
                64,
                1 << 24,
            ),
            (
                "completions-max",
                u64::from(self.completions_max),
                1,
                1 << 20,
            ),
            (
                "retry-after-secs",
                u64::from(self.retry_after_secs),
                1,
                3600,
            ),
        ];
        for (name, value, min, max) in bounds {
            if value < min || value > max {
                return Err(InvalidConfig {
                    name,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }
}
