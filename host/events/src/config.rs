//! Bounds of the machine, checked once.

use pointsman_interface::{Bounds, Micros};

/// Every bound the machine keeps. [`Config::validate`] is called by the machine when it is made.
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
    /// The time in µs for which an executor takes nothing new after too many faults, and for which it is
    /// degraded then, or after fewer. After it one more fault is one too many.
    pub down_for: Micros,
    /// Longest time in µs that a request may be without a place; counted from the arrival, and anew
    /// from the return after a failure or preemption. What no executor can take then is refused with
    /// a timeout.
    pub wait_max: Micros,
    /// Longest time in µs that a request waits while no executor serves it, because every one that
    /// could is down, is leaving, or was never there. 0: it is refused at once.
    pub unserved_max: Micros,
    /// First liveness clock, in µs: a request that some executor could have taken for so long is
    /// placed by the built-in rule. Also the longest time that a running sequence may lack a block,
    /// and that a reservation may stay open.
    pub unplaced_max: Micros,
    /// Longest time in µs that a policy may hold a request on purpose, without a strike and in all
    /// while it is without a place: the first two liveness clocks stand still meanwhile. With
    /// `unplaced_max` less than `wait_max`.
    pub held_max: Micros,
    /// Second liveness clock: number of times that a request may be overtaken by later, not more
    /// urgent ones where it could have run, outside the queue, or in the queue of an executor.
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
        let wait_max = Micros(600_000_000);
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
            wait_max,
            unserved_max: Micros(0),
            unplaced_max: unplaced_within(wait_max),
            held_max: held_within(wait_max),
            overtaken_max: 256,
            tokenless_steps_max: 64,
            evict_retry: Micros(50_000),
            change_log_max: 65_536,
            completions_max: 4096,
            retry_after_secs: 1,
        }
    }
}

/// The default of `unplaced_max`: 10 s, or a sixth of `wait_max` where that is less.
fn unplaced_within(wait_max: Micros) -> Micros {
    Micros((wait_max.0 / 6).clamp(1, 10_000_000))
}

/// The default of `held_max`: 30 s, or half of `wait_max` where that is less.
fn held_within(wait_max: Micros) -> Micros {
    Micros((wait_max.0 / 2).min(30_000_000))
}

/// Bounds that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// A bound is out of its range.
    #[error("{name} must be between {min} and {max}, not {value}")]
    Range {
        /// The bound's name, as in the configuration file.
        name: &'static str,
        /// The value that was set.
        value: u64,
        /// Smallest value accepted.
        min: u64,
        /// Largest value accepted.
        max: u64,
    },
    /// A request could be held for so long that nobody would place it in time.
    #[error(
        "held-max ({held_max}us) and unplaced-max ({unplaced_max}us) together must be less than \
         wait-max ({wait_max}us)"
    )]
    NoTimeToPlace {
        /// The longest time of holds on purpose.
        held_max: Micros,
        /// The time after which the built-in rule places a request.
        unplaced_max: Micros,
        /// The longest time without a place.
        wait_max: Micros,
    },
}

/// Longest time any clock may be set to: one day.
const DAY: u64 = 24 * 3600 * 1_000_000;

impl Config {
    /// Sets the longest time without a place, and the bounds whose defaults depend on it.
    pub fn wait(&mut self, wait_max: Micros) {
        self.wait_max = wait_max;
        self.unplaced_max = unplaced_within(wait_max);
        self.held_max = held_within(wait_max);
    }

    /// The bounds that policies are told.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        Bounds {
            queue_max: self.queue_max,
            parking_max: self.parking_max,
            batch_max: self.batch_max,
            attempts_max: self.attempts_max,
            overtaken_max: self.overtaken_max,
            wait_max: self.wait_max,
            unplaced_max: self.unplaced_max,
            held_max: self.held_max,
        }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first bound that is out of its range, with the range; or bounds that contradict each
    /// other.
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
            ("held-max", self.held_max.0, 0, DAY),
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
            ("retry-after", u64::from(self.retry_after_secs), 1, 3600),
        ];
        for (name, value, min, max) in bounds {
            if value < min || value > max {
                return Err(InvalidConfig::Range {
                    name,
                    value,
                    min,
                    max,
                });
            }
        }
        if self.held_max.after(self.unplaced_max) >= self.wait_max {
            return Err(InvalidConfig::NoTimeToPlace {
                held_max: self.held_max,
                unplaced_max: self.unplaced_max,
                wait_max: self.wait_max,
            });
        }
        Ok(())
    }
}
