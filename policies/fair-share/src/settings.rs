//! The operator's settings, and the cost of tokens by them.

use pointsman_sdk::Setting;
use pointsman_sdk::wire::types::Tenant;
use serde::Deserialize;

/// Parts of a token that counters are kept in: a token each second is one part each microsecond.
const PARTS: i128 = 1_000_000;

/// Settings; see the README for what they do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Cost of a prompt token.
    pub prompt_token_cost: u32,
    /// Cost of a generated token.
    pub output_token_cost: u32,
    /// Tokens that a second of waiting is worth.
    pub aging: u32,
}

/// Costs of the two kinds of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    pub(crate) prompt_token: u32,
    pub(crate) output_token: u32,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            prompt_token_cost: 1,
            output_token_cost: 2,
            aging: 100,
        }
    }
}

impl Settings {
    /// The settings, described.
    pub(crate) fn described() -> Vec<Setting> {
        let default = Self::default();
        vec![
            Setting::number(
                "prompt-token-cost",
                0..=1000,
                default.prompt_token_cost,
                "Cost of a prompt token.",
            ),
            Setting::number(
                "output-token-cost",
                0..=1000,
                default.output_token_cost,
                "Cost of a generated token; one of both costs is above 0.",
            ),
            Setting::number(
                "aging",
                0..=1_000_000,
                default.aging,
                "Tokens that a second of waiting is worth.",
            ),
        ]
    }

    pub(crate) fn validated(self) -> Result<Self, String> {
        if self.prompt_token_cost == 0 && self.output_token_cost == 0 {
            return Err(
                "`prompt-token-cost` and `output-token-cost`: one must be above 0".to_owned(),
            );
        }
        Ok(self)
    }

    pub(crate) fn costs(&self) -> Costs {
        Costs {
            prompt_token: self.prompt_token_cost,
            output_token: self.output_token_cost,
        }
    }

    /// The cost that a prompt will add.
    pub(crate) fn prompt(&self, tokens: u32, weight: u32) -> i128 {
        i128::from(tokens) * i128::from(self.prompt_token_cost) * PARTS / i128::from(weight.max(1))
    }

    /// The delay of a request's turn by its time of arrival, in parts of a token.
    pub(crate) fn lateness(&self, arrived: u64) -> i128 {
        i128::from(arrived) * i128::from(self.aging)
    }
}

// === impl Costs ===

impl Costs {
    /// The cost of all tokens a tenant was served since the host started, for its weight, in parts
    /// of a token.
    pub(crate) fn served(self, tenant: &Tenant) -> i128 {
        let prompt = i128::from(tenant.prompt_tokens_total) * i128::from(self.prompt_token);
        let output = i128::from(tenant.output_tokens_total) * i128::from(self.output_token);
        (prompt + output) * PARTS / i128::from(tenant.weight.max(1))
    }
}
