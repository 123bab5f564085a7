//! The operator's settings.

use serde::Deserialize;

/// Most candidates an answer may name.
pub(crate) const CANDIDATES_MAX: usize = 8;

/// Settings; see the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// What makes one executor better than another.
    pub balance: Balance,
    /// Whether the executor that served a session last is tried first.
    pub session_preference: bool,
    /// Executors an answer names, best first; the host takes the first it finds in order.
    pub candidates: u32,
}

/// What makes one executor better than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// KV pressure tier, depth, free blocks, free bytes, placements so far.
    Memory,
    /// Share of slots in use, then round robin per model.
    Slots,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            balance: Balance::Memory,
            session_preference: true,
            candidates: 3,
        }
    }
}

impl Settings {
    /// How many candidates an answer names.
    pub(crate) fn candidates(self) -> Result<usize, String> {
        let candidates = usize::try_from(self.candidates).unwrap_or(usize::MAX);
        if (1..=CANDIDATES_MAX).contains(&candidates) {
            return Ok(candidates);
        }
        Err(format!(
            "`candidates`: {candidates} is not between 1 and {CANDIDATES_MAX}"
        ))
    }
}
