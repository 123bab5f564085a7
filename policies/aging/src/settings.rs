//! The operator's settings, and the weights that follow from them.

use pointsman_sdk::check_range;
use serde::Deserialize;

const MICROS_PER_SECOND: i64 = 1_000_000;
/// A day. Longer is a mistake of unit, and would put the sums near overflow.
const SECONDS_MAX: u32 = 86_400;

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
}

/// The worth of each advantage, in microseconds of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weights {
    pub(crate) warm: i64,
    pub(crate) class_lead: i64,
    pub(crate) priority_step: i64,
    pub(crate) priority_max: i64,
    pub(crate) head_start_max: i64,
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
        }
    }
}

impl Settings {
    pub(crate) fn weights(self) -> Result<Weights, String> {
        check_range("affinity-bonus", self.affinity_bonus, 0..=1_000_000)?;
        check_range(
            "queue-aging-equalization",
            self.queue_aging_equalization,
            1..=SECONDS_MAX,
        )?;
        check_range("class-lead", self.class_lead, 0..=SECONDS_MAX)?;
        check_range("priority-step", self.priority_step, 0..=SECONDS_MAX)?;
        check_range("priority-max", self.priority_max, 0..=1000)?;
        check_range("head-start-max", self.head_start_max, 0..=SECONDS_MAX)?;
        // A warm model earns the bonus, and waiting earns it in each equalization time: a warm
        // model is worth just that time, however large the bonus.
        let warm = match self.affinity_bonus {
            0 => 0,
            _ => micros(self.queue_aging_equalization),
        };
        Ok(Weights {
            warm,
            class_lead: micros(self.class_lead),
            priority_step: micros(self.priority_step),
            priority_max: i64::from(self.priority_max),
            head_start_max: micros(self.head_start_max),
        })
    }
}

fn micros(seconds: u32) -> i64 {
    i64::from(seconds) * MICROS_PER_SECOND
}
