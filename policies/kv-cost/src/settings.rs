//! The operator's settings.

use pointsman_sdk::check_range;
use serde::Deserialize;

/// The most that a cached token may save, in thousandths. Above 1,000 it also outweighs prompts that
/// wait for their prefill.
const CREDIT_MAX: u32 = 10_000;

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

impl Settings {
    /// Checks the ranges. Scales above a hundred and requests of more than a million tokens are
    /// slips of the pen, and within these bounds no cost overflows.
    pub(crate) fn checked(self) -> Result<Self, String> {
        let bounds = [
            ("prefill-scale", self.prefill_scale, 100_000),
            ("device-credit", self.device_credit, CREDIT_MAX),
            ("host-credit", self.host_credit, CREDIT_MAX),
            ("disk-credit", self.disk_credit, CREDIT_MAX),
            ("shared-credit", self.shared_credit, CREDIT_MAX),
            ("request-cost", self.request_cost, 1_000_000),
            ("temperature", self.temperature, 1_000_000),
        ];
        for (key, value, max) in bounds {
            check_range(key, value, 0..=max)?;
        }
        Ok(self)
    }
}
