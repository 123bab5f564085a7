//! The operator's settings.

use pointsman_sdk::{Setting, TimeUnit};
use serde::Deserialize;

/// Settings; see the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Fate of a request that finds the queue full.
    pub overflow: Overflow,
    /// Seconds after which a refused client is told to come back.
    pub retry_after: u32,
    /// Milliseconds that a latency-critical request without a deadline may wait.
    pub wait_max: u32,
    /// Milliseconds that a request of a tenant beyond its share may wait; absent: half of the time for which the host
    /// lets a request be held.
    pub share_wait_max: Option<u32>,
    /// Milliseconds that a latency-critical request without a deadline may wait in a surge.
    pub surge_wait_max: u32,
    /// Permille of the time that a request may wait by which its expected wait may exceed it.
    pub late_tolerance: u32,
    /// Permille of its share of the tokens served that a tenant may go beyond it before its
    /// waiting requests make place for others.
    pub share_tolerance: u32,
    /// Permille of a device's tokens that one engine gets at most.
    pub max_single_engine: u32,
    /// Prompt tokens that an engine may compute in a step, all its sequences together; absent: as
    /// many as the step has.
    pub prefill_max: Option<u32>,
    /// Permission for a running sequence that cannot grow to take the blocks of one that is as
    /// urgent but came later, where no less urgent sequence can give any.
    pub yield_to_older: bool,
    /// Requests for which a running sequence that is less urgent gives its slot.
    pub take_slots: TakeSlots,
    /// Permille of the tokens served within the last minute that may be computed again within one for
    /// slots that were taken.
    pub recompute_max: u32,
    /// Tokens that a victim must hold for itself to be moved to host memory, where there is room,
    /// instead of being computed again.
    pub swap_from: u32,
}

/// Fate of a request that finds the queue full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overflow {
    /// The client waits outside the queue.
    Block,
    /// The request is refused.
    DropNewest,
    /// The oldest of the least urgent requests in the queue is refused in its stead.
    DropOldest,
}

/// Requests for which a running sequence that is less urgent gives its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TakeSlots {
    /// No request: slots are waited for.
    Never,
    /// Requests that have waited for half of the time to their deadline.
    Deadline,
    /// The same, and latency-critical requests, for which only throughput work gives way.
    Critical,
    /// All requests.
    Urgent,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            overflow: Overflow::Block,
            retry_after: 1,
            wait_max: 60_000,
            share_wait_max: None,
            surge_wait_max: 500,
            late_tolerance: 250,
            share_tolerance: 250,
            max_single_engine: 900,
            prefill_max: None,
            yield_to_older: true,
            take_slots: TakeSlots::Deadline,
            recompute_max: 50,
            swap_from: 32,
        }
    }
}

impl Settings {
    /// The settings, described.
    pub(crate) fn described() -> Vec<Setting> {
        let mut all = Self::of_admission();
        all.extend(Self::of_room());
        all
    }

    /// The settings about who may wait.
    fn of_admission() -> Vec<Setting> {
        let default = Self::default();
        vec![
            Setting::choice(
                "overflow",
                &["block", "drop-newest", "drop-oldest"],
                "Fate of a request that finds the queue full.",
            ),
            Setting::duration(
                "retry-after",
                (TimeUnit::Seconds, 1..=3600),
                default.retry_after,
                "Time after which a refused client is told to come back.",
            ),
            Setting::duration(
                "wait-max",
                (TimeUnit::Millis, 1..=86_400_000),
                default.wait_max,
                "Time that a latency-critical request without a deadline may wait, or is refused at once.",
            ),
            Setting::optional_duration(
                "share-wait-max",
                (TimeUnit::Millis, 1..=86_400_000),
                "Time that a request of a tenant beyond its share may wait; left out: half of `core.held-max`.",
            ),
            Setting::duration(
                "surge-wait-max",
                (TimeUnit::Millis, 1..=86_400_000),
                default.surge_wait_max,
                "Time that a request may wait which `wait-max` binds, while far more come than get a place.",
            ),
            Setting::number(
                "late-tolerance",
                0..=1_000_000,
                default.late_tolerance,
                "Permille by which the expected wait of an arrival may exceed what it may wait.",
            ),
            Setting::number(
                "share-tolerance",
                0..=1_000_000,
                default.share_tolerance,
                "Permille of its share that a tenant may go beyond it before its requests make place.",
            ),
        ]
    }

    /// The settings about the room of those who run.
    fn of_room() -> Vec<Setting> {
        let default = Self::default();
        vec![
            Setting::number(
                "max-single-engine",
                100..=1000,
                default.max_single_engine,
                "Permille of a device's tokens that one engine gets at most.",
            ),
            Setting::optional_number(
                "prefill-max",
                1..=1_000_000,
                "Prompt tokens that an engine may compute in a step; left out: as many as the step has.",
            ),
            Setting::yes_or_no(
                "yield-to-older",
                default.yield_to_older,
                "Whether a sequence that cannot grow may take the blocks of a later one.",
            ),
            Setting::choice(
                "take-slots",
                &["deadline", "critical", "urgent", "never"],
                "Requests for which a running sequence that is less urgent gives its slot.",
            ),
            Setting::number(
                "recompute-max",
                0..=1000,
                default.recompute_max,
                "Permille of the tokens served in a minute that may be computed again for slots taken.",
            ),
            Setting::number(
                "swap-from",
                1..=1_000_000,
                default.swap_from,
                "Tokens that a victim must hold to be moved to host memory instead of being computed again.",
            ),
        ]
    }
}

/// Milliseconds in microseconds.
pub(crate) fn micros(millis: u32) -> u64 {
    u64::from(millis) * 1000
}
