//! The operator's settings.

use pointsman_sdk::{Setting, TimeUnit};
use serde::Deserialize;

const MICROS_PER_SECOND: u64 = 1_000_000;
const DAY_SECONDS: u64 = 86_400;

/// Settings; see the README for what they do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Seconds after its arrival at which a request without a deadline should have started.
    pub patience: u32,
    /// Permille of the bound that an answer is taken to have where its length is not hinted.
    pub output_share: u32,
    /// Fate of a request that no executor can end in time.
    pub late: Late,
}

/// Fate of a request that no executor can end in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Late {
    /// The request is given up.
    #[default]
    GiveUp,
    /// The request runs when no other can.
    RunLast,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            patience: 30,
            output_share: 0,
            late: Late::GiveUp,
        }
    }
}

impl Settings {
    /// The settings, described.
    pub(crate) fn described() -> Vec<Setting> {
        let default = Self::default();
        vec![
            Setting::duration(
                "patience",
                (TimeUnit::Seconds, 0..=DAY_SECONDS),
                default.patience,
                "Time after its arrival at which a request without a deadline should have started.",
            ),
            Setting::number(
                "output-share",
                0..=1000,
                default.output_share,
                "Permille of the bound that an answer is taken to have where its length is not hinted.",
            ),
            Setting::choice(
                "late",
                &["give-up", "run-last"],
                "Fate of a request that no executor can end in time.",
            ),
        ]
    }

    pub(crate) fn patience_micros(&self) -> u64 {
        u64::from(self.patience) * MICROS_PER_SECOND
    }
}
