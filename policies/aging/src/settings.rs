//! The operator's settings, and the weights that follow from them.

use pointsman_sdk::{Setting, TimeUnit};
use serde::Deserialize;

const MICROS_PER_SECOND: i64 = 1_000_000;
/// A day. Longer is a mistake of unit, and would put the sums near overflow.
const SECONDS_MAX: u64 = 86_400;

/// Settings; see the README for what they do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Points of a request whose model is warm; waiting earns as many in each
    /// `queue-aging-equalization`. 0: warmth does not count.
    pub affinity_bonus: u32,
    /// Seconds of waiting that outweigh a warm model.
    pub queue_aging_equalization: u32,
    /// Seconds of waiting that a latency-critical request is ahead of a throughput one.
    pub class_lead: u32,
    /// Seconds of waiting that each step of client priority is worth.
    pub priority_step: u32,
    /// Client priority, at most, either way: one beyond counts as this.
    pub priority_max: u32,
    /// Seconds of head start, at most: a longer one counts as this.
    pub head_start_max: u32,
    /// Seconds of waiting by which a tenant is behind that was served all tokens of the last minute while
    /// another wants some; one with less beyond its share is behind by less. 0: shares do not count.
    pub share_lag: u32,
}

/// The worth of each advantage, in microseconds of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weights {
    pub(crate) warm: i64,
    pub(crate) class_lead: i64,
    pub(crate) priority_step: i64,
    pub(crate) priority_max: i64,
    pub(crate) head_start_max: i64,
    pub(crate) share_lag: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            affinity_bonus: 10,
            queue_aging_equalization: 30,
            class_lead: 120,
            priority_step: 60,
            priority_max: 10,
            head_start_max: 300,
            share_lag: 300,
        }
    }
}

impl Settings {
    /// The settings, described.
    pub(crate) fn described() -> Vec<Setting> {
        let default = Self::default();
        vec![
            Setting::number(
                "affinity-bonus",
                0..=1_000_000,
                default.affinity_bonus,
                "Points of a request whose model is warm; 0: warmth does not count.",
            ),
            Setting::duration(
                "queue-aging-equalization",
                (TimeUnit::Seconds, 1..=SECONDS_MAX),
                default.queue_aging_equalization,
                "Waiting that outweighs a warm model.",
            ),
            Setting::duration(
                "class-lead",
                (TimeUnit::Seconds, 0..=SECONDS_MAX),
                default.class_lead,
                "Waiting by which a latency-critical request is ahead of a throughput one.",
            ),
            Setting::duration(
                "priority-step",
                (TimeUnit::Seconds, 0..=SECONDS_MAX),
                default.priority_step,
                "Waiting that each step of client priority is worth.",
            ),
            Setting::number(
                "priority-max",
                0..=1000,
                default.priority_max,
                "Client priority, at most, either way.",
            ),
            Setting::duration(
                "head-start-max",
                (TimeUnit::Seconds, 0..=SECONDS_MAX),
                default.head_start_max,
                "Head start, at most.",
            ),
            Setting::duration(
                "share-lag",
                (TimeUnit::Seconds, 0..=SECONDS_MAX),
                default.share_lag,
                "Waiting by which a tenant that was served all tokens is behind; 0s: shares do not \
                 count.",
            ),
        ]
    }

    pub(crate) fn weights(self) -> Weights {
        // A warm model earns the bonus, and waiting earns it in each equalization time: a warm
        // model is worth just that time, however large the bonus.
        let warm = match self.affinity_bonus {
            0 => 0,
            _ => micros(self.queue_aging_equalization),
        };
        Weights {
            warm,
            class_lead: micros(self.class_lead),
            priority_step: micros(self.priority_step),
            priority_max: i64::from(self.priority_max),
            head_start_max: micros(self.head_start_max),
            share_lag: micros(self.share_lag),
        }
    }
}

fn micros(seconds: u32) -> i64 {
    i64::from(seconds) * MICROS_PER_SECOND
}
