//! The operator's settings. The defaults of the thresholds are those of SGLang's cache-aware
//! router.

use pointsman_sdk::Setting;
use serde::Deserialize;

/// Settings; see the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Part of a prompt, in permille; more than that must be cached to be worth a detour.
    pub cache_threshold: u32,
    /// Requests by which a load may exceed the one it is measured against.
    pub balance_abs: u32,
    /// Permille of that load up to which it may grow beyond.
    pub balance_rel: u32,
    /// Loads that a load is measured against.
    pub against: Against,
}

/// Loads that a load is measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Against {
    /// The least load of all executors that serve the request.
    Least,
    /// The mean load of these executors.
    Mean,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cache_threshold: 300,
            balance_abs: 64,
            balance_rel: 1500,
            against: Against::Least,
        }
    }
}

impl Settings {
    /// The settings, described.
    pub(crate) fn described() -> Vec<Setting> {
        let default = Self::default();
        vec![
            Setting::number(
                "cache-threshold",
                0..=1000,
                default.cache_threshold,
                "Permille of a prompt; more than that must be cached to be worth a detour.",
            ),
            Setting::number(
                "balance-abs",
                0..=1_000_000,
                default.balance_abs,
                "Requests by which a load may exceed the one it is measured against.",
            ),
            Setting::number(
                "balance-rel",
                1000..=1_000_000,
                default.balance_rel,
                "Permille of that load up to which it may grow beyond.",
            ),
            Setting::choice(
                "against",
                &["least", "mean"],
                "Loads that a load is measured against.",
            ),
        ]
    }
}
