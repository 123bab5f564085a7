//! The operator's settings.

use serde::Deserialize;

use crate::credit::Weights;

/// Most candidates an answer may name.
pub(crate) const CANDIDATES_MAX: usize = 8;
/// A thousand times over. More is a mistake of unit.
const WEIGHT_MAX: u32 = 1_000_000;

/// Settings; see the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// What makes one executor better than another.
    pub balance: Balance,
    /// Whether the executor that served a session last is tried first.
    pub session_preference: bool,
    /// Which sessions without such an executor are hashed to one.
    pub rendezvous: Rendezvous,
    /// What a request's topology group means.
    pub group_hint: GroupHint,
    /// What is done for a request whose model is warm nowhere.
    pub cold_models: ColdModels,
    /// Permille of a block that one held on the device is worth.
    pub device_credit: u32,
    /// The same for one in host memory.
    pub host_credit: u32,
    /// The same for one on disk or outside the executor.
    pub disk_credit: u32,
    /// The same for one that a shared cache holds and the device does not.
    pub shared_credit: u32,
    /// Permille of a decode block that a block of prefill costs.
    pub prefill_scale: u32,
    /// Permille of a decode block that a request placed there costs.
    pub active_cost: u32,
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

/// Which sessions that no executor has served yet, or not one that can take more, are hashed to
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rendezvous {
    /// None: load decides.
    Never,
    /// Those of requests that ask for a group.
    Groups,
    /// All.
    Always,
}

/// What a request's topology group means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupHint {
    /// The request waits for room in the group, as long as a live executor there serves it.
    Keep,
    /// The group first, then wherever there is room.
    Prefer,
    /// Nothing.
    Ignore,
}

/// What is done for a request whose model is warm nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColdModels {
    /// Nothing: another model's warm hold binds it.
    Wait,
    /// A hold that is all that stands in its way is waived.
    Start,
    /// That, and where `models-max` alone stands in its way an executor is kept free for it.
    Drain,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            balance: Balance::Memory,
            session_preference: true,
            rendezvous: Rendezvous::Groups,
            group_hint: GroupHint::Keep,
            cold_models: ColdModels::Drain,
            device_credit: 1000,
            host_credit: 750,
            disk_credit: 250,
            shared_credit: 0,
            prefill_scale: 1000,
            active_cost: 0,
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

    /// What overlaps and load are worth.
    pub(crate) fn weights(self) -> Result<Weights, String> {
        let weight = |key: &str, value: u32| {
            if value <= WEIGHT_MAX {
                return Ok(u64::from(value));
            }
            Err(format!("`{key}`: {value} permille is above {WEIGHT_MAX}"))
        };
        Ok(Weights {
            device: weight("device-credit", self.device_credit)?,
            host: weight("host-credit", self.host_credit)?,
            disk: weight("disk-credit", self.disk_credit)?,
            shared: weight("shared-credit", self.shared_credit)?,
            prefill: weight("prefill-scale", self.prefill_scale)?,
            active: weight("active-cost", self.active_cost)?,
        })
    }
}
