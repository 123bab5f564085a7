//! The operator's settings, and the weights that follow from them.

use pointsman_sdk::check_range;
use serde::Deserialize;

const MICROS_PER_SECOND: u64 = 1_000_000;
const MICROS_PER_MILLISECOND: u64 = 1000;
const DAY_SECONDS: u32 = 86_400;

/// Settings; see the README for what they do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Milliseconds of waiting that outweigh one token more.
    pub wait_per_token: u32,
    /// Tokens of an answer, at most: a longer one counts as this long.
    pub tokens_max: u32,
    /// Seconds of head start, at most: a longer one counts as this.
    pub head_start_max: u32,
}

/// The settings in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weights {
    pub(crate) wait_per_token: u64,
    pub(crate) tokens_max: u32,
    pub(crate) head_start_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            wait_per_token: 10,
            tokens_max: 4096,
            head_start_max: 300,
        }
    }
}

impl Settings {
    pub(crate) fn weights(self) -> Result<Weights, String> {
        check_range("wait-per-token", self.wait_per_token, 0..=60_000)?;
        check_range("tokens-max", self.tokens_max, 1..=10_000_000)?;
        check_range("head-start-max", self.head_start_max, 0..=DAY_SECONDS)?;
        Ok(Weights {
            wait_per_token: u64::from(self.wait_per_token) * MICROS_PER_MILLISECOND,
            tokens_max: self.tokens_max,
            head_start_max: u64::from(self.head_start_max) * MICROS_PER_SECOND,
        })
    }
}
