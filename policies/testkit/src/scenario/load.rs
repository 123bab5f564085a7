//! The requests that a fleet has when the first step comes: some run, some wait.

use pointsman_notation::Time;
use serde::Deserialize;

use super::Name;
use super::step::Arrival;
use super::units::Many;

/// A `[[running]]` table: requests that an executor has.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RunningTable {
    pub(crate) executor: Name,
    /// Tokens that each has generated.
    #[serde(default)]
    pub(crate) generated: u32,
    pub(crate) request: Many<Arrival>,
}

/// A `[[waiting]]` table: requests that came before the first step, of which nobody was asked yet.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct WaitingTable {
    /// The time since they came.
    #[serde(rename = "for", default)]
    pub(crate) since: Time,
    pub(crate) request: Many<Arrival>,
}
