//! The operator's settings, and the weights that follow from them.

use pointsman_sdk::{Setting, TimeUnit};
use serde::Deserialize;

const MICROS_PER_SECOND: u64 = 1_000_000;
const MICROS_PER_MILLISECOND: u64 = 1000;
const DAY_SECONDS: u64 = 86_400;

/// Settings; see the README for what they do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Milliseconds of waiting that outweigh one token more.
    pub wait_per_token: u32,
    /// Microseconds of waiting that outweigh one token more of the prompt that is not cached.
    pub wait_per_prompt_token: u32,
    /// Learning of lengths from answers that were completed, for requests without a hint.
    pub learn: bool,
    /// Tokens of an answer that all work counts as, at most.
    pub tokens_max: u32,
    /// Seconds of head start, at most: a longer one counts as this.
    pub head_start_max: u32,
}

/// The settings in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weights {
    pub(crate) wait_per_token: u64,
    pub(crate) wait_per_prompt_token: u64,
    pub(crate) work_max: u64,
    pub(crate) learns: bool,
    pub(crate) head_start_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            wait_per_token: 50,
            wait_per_prompt_token: 1000,
            learn: true,
            tokens_max: 4096,
            head_start_max: 300,
        }
    }
}

impl Settings {
    /// The settings, described.
    pub(crate) fn described() -> Vec<Setting> {
        let default = Self::default();
        vec![
            Setting::duration(
                "wait-per-token",
                (TimeUnit::Millis, 0..=60_000),
                default.wait_per_token,
                "Waiting that outweighs one token more.",
            ),
            Setting::duration(
                "wait-per-prompt-token",
                (TimeUnit::Micros, 0..=60_000_000),
                default.wait_per_prompt_token,
                "Waiting that outweighs one token more of the prompt that is not cached.",
            ),
            Setting::yes_or_no(
                "learn",
                default.learn,
                "Whether lengths of answers are learnt, for requests without a hint.",
            ),
            Setting::number(
                "tokens-max",
                1..=10_000_000,
                default.tokens_max,
                "Tokens of an answer that all work counts as, at most.",
            ),
            Setting::duration(
                "head-start-max",
                (TimeUnit::Seconds, 0..=DAY_SECONDS),
                default.head_start_max,
                "Head start, at most.",
            ),
        ]
    }

    pub(crate) fn weights(self) -> Weights {
        let wait_per_token = u64::from(self.wait_per_token) * MICROS_PER_MILLISECOND;
        Weights {
            wait_per_token,
            wait_per_prompt_token: u64::from(self.wait_per_prompt_token),
            work_max: u64::from(self.tokens_max) * wait_per_token,
            learns: self.learn,
            head_start_max: u64::from(self.head_start_max) * MICROS_PER_SECOND,
        }
    }
}
