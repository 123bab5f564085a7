//! The operator's settings.

use pointsman_sdk::{Overridable, Overrides, Setting};
use serde::Deserialize;

/// The most that a cached token may save, in thousandths. Above 1,000 it also outweighs prompts that
/// wait for their prefill.
const CREDIT_MAX: u64 = 10_000;

/// Settings; see the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Cost of a token to be prefilled, in thousandths.
    pub prefill_scale: u32,
    /// Savings by a prompt token in device memory, in thousandths.
    pub device_credit: u32,
    /// Savings by a prompt token in host memory, in thousandths.
    pub host_credit: u32,
    /// Savings by a prompt token on disk, in thousandths.
    pub disk_credit: u32,
    /// Savings by a prompt token in a shared cache and not in device memory, in thousandths.
    pub shared_credit: u32,
    /// Cost of a request that is on the executor already, in tokens.
    pub request_cost: u32,
    /// Distance from the least cost that the choice may stray, in thousandths; 0: none.
    pub temperature: u32,
    /// Winner among equals.
    pub ties: Ties,
    /// Seed of all that is drawn.
    pub seed: u64,
}

/// Winner among executors of equal cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ties {
    /// The executor attached first.
    AttachOrder,
    /// An executor drawn at random.
    Seeded,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefill_scale: 1000,
            device_credit: 1000,
            host_credit: 750,
            disk_credit: 250,
            shared_credit: 0,
            request_cost: 0,
            temperature: 0,
            ties: Ties::AttachOrder,
            seed: 0,
        }
    }
}

/// Settings that a request may override: those that its cost and the draw depend on.
const OVERRIDABLE: [Overridable<Settings>; 7] = [
    ("prefill-scale", |own| &mut own.prefill_scale),
    ("device-credit", |own| &mut own.device_credit),
    ("host-credit", |own| &mut own.host_credit),
    ("disk-credit", |own| &mut own.disk_credit),
    ("shared-credit", |own| &mut own.shared_credit),
    ("request-cost", |own| &mut own.request_cost),
    ("temperature", |own| &mut own.temperature),
];

impl Settings {
    /// The settings that a request may override.
    pub(crate) fn overrides() -> Overrides<Self> {
        Overrides::new("kv-cost", &Self::described(), &OVERRIDABLE)
    }

    /// Returns whether the executor of the least cost is chosen, and of equals the first attached.
    pub(crate) fn least_wins(&self) -> bool {
        (self.temperature, self.ties) == (0, Ties::AttachOrder)
    }

    /// The settings, described. Scales above a hundred and requests of more than a million tokens are
    /// slips of the pen, and within these ranges no cost overflows.
    pub(crate) fn described() -> Vec<Setting> {
        let default = Self::default();
        vec![
            Setting::number(
                "prefill-scale",
                0..=100_000,
                default.prefill_scale,
                "Cost of a token to be prefilled, in thousandths.",
            ),
            Setting::number(
                "device-credit",
                0..=CREDIT_MAX,
                default.device_credit,
                "Savings by a prompt token in device memory, in thousandths.",
            ),
            Setting::number(
                "host-credit",
                0..=CREDIT_MAX,
                default.host_credit,
                "Savings by a prompt token in host memory, in thousandths.",
            ),
            Setting::number(
                "disk-credit",
                0..=CREDIT_MAX,
                default.disk_credit,
                "Savings by a prompt token on disk, in thousandths.",
            ),
            Setting::number(
                "shared-credit",
                0..=CREDIT_MAX,
                default.shared_credit,
                "Savings by a prompt token in a shared cache, in thousandths.",
            ),
            Setting::number(
                "request-cost",
                0..=1_000_000,
                default.request_cost,
                "Cost of a request that is on the executor already, in tokens.",
            ),
            Setting::number(
                "temperature",
                0..=1_000_000,
                default.temperature,
                "Distance from the least cost that the choice may stray, in thousandths; 0: none.",
            ),
            Setting::choice("ties", &["attach-order", "seeded"], "Winner among equals."),
            Setting::other("seed", "a whole number", "0", "Seed of all that is drawn."),
        ]
    }
}
