//! The operator's settings.

use pointsman_sdk::check_range;
use serde::Deserialize;

/// Settings; see the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// What a token to be prefilled costs, in thousandths.
    pub prefill_scale: u32,
    /// What a prompt token in device memory saves, in thousandths.
    pub device_credit: u32,
    /// What one in host memory saves.
    pub host_credit: u32,
    /// What one on disk saves.
    pub disk_credit: u32,
    /// What one in a shared cache saves, beyond those in device memory.
    pub shared_credit: u32,
    /// What a request that is there already costs, in tokens.
    pub request_cost: u32,
    /// How far from the least cost the choice may stray, in thousandths; 0: not at all.
    pub temperature: u32,
    /// Who wins among equals.
    pub ties: Ties,
    /// Where chance is called for.
    pub seed: u64,
}

/// Who wins among equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ties {
    /// The one attached first.
    AttachOrder,
    /// One drawn at random.
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
    /// Thousandths of more than a hundred, and requests of more than a million tokens, are slips of
    /// the pen; bounded, no cost overflows.
    pub(crate) fn checked(self) -> Result<Self, String> {
        let bounds = [
            ("prefill-scale", self.prefill_scale, 100_000),
            ("device-credit", self.device_credit, 1000),
            ("host-credit", self.host_credit, 1000),
            ("disk-credit", self.disk_credit, 1000),
            ("shared-credit", self.shared_credit, 1000),
            ("request-cost", self.request_cost, 1_000_000),
            ("temperature", self.temperature, 1_000_000),
        ];
        for (key, value, max) in bounds {
            check_range(key, value, 0..=max)?;
        }
        Ok(self)
    }
}
