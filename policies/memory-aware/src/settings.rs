//! The operator's settings.

use pointsman_sdk::{Overridable, Overrides, Setting};
use serde::Deserialize;

/// A thousand times over. More is a mistake of unit.
const WEIGHT_MAX: u64 = 1_000_000;

/// Settings; see the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// The load by which one executor is better than another.
    pub balance: Balance,
    /// Permille of blocks in use at which the pressure tiers after the first begin.
    pub pressure_tiers: [u32; 3],
    /// Preference for the executor that served a session last.
    pub session_preference: bool,
    /// Sessions without such an executor that are hashed to one.
    pub rendezvous: Rendezvous,
    /// Meaning of a request's topology group.
    pub group_hint: GroupHint,
    /// Points of a request whose model is warm, as in `aging`. 0: warmth does not count, and a model
    /// that is warm nowhere gets no help.
    pub affinity_bonus: u32,
    /// Help for a request whose model is warm nowhere.
    pub cold_models: ColdModels,
    /// Models warm nowhere that executors are kept free for, at most.
    pub cold_models_max: u32,
    /// Time that a model stays on an executor before it is drained for another, from its first token
    /// there on, in times of what came before that token.
    pub model_tenure: u32,
    /// Worth of a block held on the device, in permille of a block.
    pub device_credit: u32,
    /// Worth of a block held on the device for a request of a session, at most; in permille of a block.
    pub session_credit: u32,
    /// Worth of a block held in host memory, in permille of a block.
    pub host_credit: u32,
    /// Worth of a block held on disk or outside the executor, in permille of a block.
    pub disk_credit: u32,
    /// Worth of a block that a shared cache holds and the device does not, in permille of a block.
    pub shared_credit: u32,
    /// Cost of a block of prefill, in permille of a decode block.
    pub prefill_scale: u32,
    /// Cost of a request placed on the executor, in permille of a decode block.
    pub active_cost: u32,
    /// Cost of a block of the prompt's prefill for each request placed on the executor, which it
    /// stalls; in permille of that block.
    pub stall_cost: u32,
    /// Permille of an executor's slots that tenants beyond their share leave free. 0: none.
    pub share_reserve: u32,
    /// Tokens of pending prefill past which tenants beyond their share are not placed on an executor.
    pub share_prefill_max: u32,
    /// Tokens of pending prefill past which nobody is placed on an executor, unless it is known to prefill side by side.
    pub prefill_max: u32,
    /// Tokens of a block, for executors that do not report them.
    pub tokens_per_block: u32,
    /// Executors that an answer names, best first; the host takes the first that has room.
    pub candidates: u32,
    /// Looks at every executor that one answer may take to find out why requests have no place.
    pub looks_max: u32,
}

/// The load by which one executor is better than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// KV pressure tier, load, depth, free blocks, free bytes, placements so far.
    Memory,
    /// Share of slots in use, then round robin per model.
    Slots,
}

/// Sessions that are hashed to an executor, where none has served them yet that can take more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rendezvous {
    /// No session: load decides.
    Never,
    /// Sessions of requests that ask for a group.
    Groups,
    /// All sessions, group or not.
    Always,
}

/// Meaning of a request's topology group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupHint {
    /// The request waits for room in the group, as long as a live executor there serves it.
    Keep,
    /// The request goes to the group first, then wherever there is room.
    Prefer,
    /// The group means nothing.
    Ignore,
}

/// Help for a request whose model is warm nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColdModels {
    /// A hold is waived that is all that stands in the way.
    Start,
    /// A hold is waived, and where `models-max` alone stands in the way an executor is kept free.
    Drain,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            balance: Balance::Memory,
            pressure_tiers: [700, 850, 950],
            session_preference: true,
            rendezvous: Rendezvous::Groups,
            group_hint: GroupHint::Keep,
            affinity_bonus: 10,
            cold_models: ColdModels::Drain,
            cold_models_max: 8,
            model_tenure: 4,
            device_credit: 1800,
            session_credit: 300,
            host_credit: 750,
            disk_credit: 250,
            shared_credit: 0,
            prefill_scale: 64_000,
            active_cost: 230_000,
            stall_cost: 40,
            share_reserve: 200,
            share_prefill_max: 1024,
            prefill_max: 65_536,
            tokens_per_block: 16,
            candidates: 2,
            looks_max: 4,
        }
    }
}

/// Settings that a request may override: the worth of what is cached of its prompt. The order of executors
/// is the same for all requests.
const OVERRIDABLE: [Overridable<Settings>; 6] = [
    ("device-credit", |own| &mut own.device_credit),
    ("session-credit", |own| &mut own.session_credit),
    ("host-credit", |own| &mut own.host_credit),
    ("disk-credit", |own| &mut own.disk_credit),
    ("shared-credit", |own| &mut own.shared_credit),
    ("stall-cost", |own| &mut own.stall_cost),
];

impl Settings {
    /// The settings that a request may override.
    pub(crate) fn overrides() -> Overrides<Self> {
        Overrides::new("memory-aware", &Self::described(), &OVERRIDABLE)
    }

    /// The settings, described. A question or an `observe` must end in a fleet of any size, so what
    /// makes them longer is bounded.
    pub(crate) fn described() -> Vec<Setting> {
        let default = Self::default();
        let mut all = vec![
            Setting::choice(
                "balance",
                &["memory", "slots"],
                "The load by which one executor is better than another.",
            ),
            Setting::other(
                "pressure-tiers",
                "three numbers that ascend to at most 1000",
                "[700,850,950]",
                "Permille of blocks in use at which the pressure tiers after the first begin.",
            ),
            Setting::yes_or_no(
                "session-preference",
                default.session_preference,
                "Whether a session prefers the executor that served it last.",
            ),
            Setting::choice(
                "rendezvous",
                &["groups", "never", "always"],
                "Sessions without such an executor that are hashed to one.",
            ),
            Setting::choice(
                "group-hint",
                &["keep", "prefer", "ignore"],
                "Meaning of a request's topology group.",
            ),
        ];
        all.extend(default.described_help());
        all.extend([
            Setting::number(
                "share-reserve",
                0..=1000,
                default.share_reserve,
                "Permille of an executor's slots that tenants beyond their share leave free.",
            ),
            Setting::number(
                "share-prefill-max",
                0..=10_000_000,
                default.share_prefill_max,
                "Tokens of pending prefill past which tenants beyond their share are not placed on an executor.",
            ),
            Setting::number(
                "prefill-max",
                0..=10_000_000,
                default.prefill_max,
                "Tokens of pending prefill past which nobody is placed on an executor, unless it prefills side by side.",
            ),
            Setting::number(
                "candidates",
                1..=8,
                default.candidates,
                "Executors that an answer names, best first.",
            ),
            Setting::number(
                "looks-max",
                0..=64,
                default.looks_max,
                "Looks at every executor that an answer may take to find out why requests have no place.",
            ),
        ]);
        all.extend(default.described_weights());
        all
    }

    fn described_help(self) -> [Setting; 4] {
        [
            Setting::number(
                "affinity-bonus",
                0..=1_000_000,
                self.affinity_bonus,
                "Points of a request whose model is warm; 0: warmth does not count.",
            ),
            Setting::choice(
                "cold-models",
                &["drain", "start"],
                "Help for a request whose model is warm nowhere.",
            ),
            Setting::number(
                "cold-models-max",
                0..=64,
                self.cold_models_max,
                "Models warm nowhere that executors are kept free for, at most.",
            ),
            Setting::number(
                "model-tenure",
                0..=1000,
                self.model_tenure,
                "Time that a model stays before an executor drains for another, in times of what its start took.",
            ),
        ]
    }

    fn described_weights(self) -> [Setting; 9] {
        [
            Setting::number(
                "tokens-per-block",
                1..=1_000_000,
                self.tokens_per_block,
                "Tokens of a block, for executors that do not report them.",
            ),
            Setting::number(
                "device-credit",
                0..=WEIGHT_MAX,
                self.device_credit,
                "Worth of a block held on the device, in permille of a block.",
            ),
            Setting::number(
                "session-credit",
                0..=WEIGHT_MAX,
                self.session_credit,
                "Most that a block held on the device is worth to a request of a session, in permille of a block.",
            ),
            Setting::number(
                "host-credit",
                0..=WEIGHT_MAX,
                self.host_credit,
                "Worth of a block held in host memory, in permille of a block.",
            ),
            Setting::number(
                "disk-credit",
                0..=WEIGHT_MAX,
                self.disk_credit,
                "Worth of a block held on disk, in permille of a block.",
            ),
            Setting::number(
                "shared-credit",
                0..=WEIGHT_MAX,
                self.shared_credit,
                "Worth of a block that a shared cache holds, in permille of a block.",
            ),
            Setting::number(
                "prefill-scale",
                0..=WEIGHT_MAX,
                self.prefill_scale,
                "Cost of a block of prefill, in permille of a decode block.",
            ),
            Setting::number(
                "active-cost",
                0..=WEIGHT_MAX,
                self.active_cost,
                "Cost of a request placed on the executor, in permille of a decode block.",
            ),
            Setting::number(
                "stall-cost",
                0..=WEIGHT_MAX,
                self.stall_cost,
                "Cost of a block of prefill for each request that it stalls, in permille of that block.",
            ),
        ]
    }

    /// Checks what is more than a range.
    pub(crate) fn checked(self) -> Result<Self, String> {
        let tiers = self.pressure_tiers;
        if !tiers.is_sorted() || tiers[2] > 1000 {
            return Err(format!(
                "`pressure-tiers`: {tiers:?} do not ascend to at most 1000 permille"
            ));
        }
        Ok(self)
    }

    /// The help for a request whose model is warm nowhere; absent: none, and another model's warm
    /// hold binds it.
    pub(crate) fn help(&self) -> Option<ColdModels> {
        (self.affinity_bonus > 0).then_some(self.cold_models)
    }

    /// The pressure tier of a pool with so many permille of its blocks in use.
    #[inline]
    pub(crate) fn tier(&self, permille: u64) -> u8 {
        let begin = |from: u32| u8::from(permille >= u64::from(from));
        self.pressure_tiers.map(begin).into_iter().sum()
    }

    pub(crate) fn candidates(&self) -> usize {
        usize::try_from(self.candidates).unwrap_or(usize::MAX)
    }

    pub(crate) fn cold_models_max(&self) -> usize {
        usize::try_from(self.cold_models_max).unwrap_or(usize::MAX)
    }
}
