//! The state of a fleet when the first step comes: what it holds of prompts, the requests that run, and those
//! that wait.

use pointsman_notation::Time;
use serde::Deserialize;

use super::Name;
use super::prompt::Prompt;
use super::step::{Arrival, TierName};
use super::units::{Many, Names};

/// A `[[cached]]` table: the beginning of prompts that executors hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct CachedTable {
    pub(crate) executor: Names,
    pub(crate) prompt: Prompt,
    /// Memory that holds it, of the executor's device.
    #[serde(default = "device")]
    pub(crate) tier: TierName,
    /// Model of the blocks; absent where requests name none.
    pub(crate) model: Option<Name>,
}

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

fn device() -> TierName {
    TierName::Device
}
