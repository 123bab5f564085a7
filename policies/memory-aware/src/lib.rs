//! Routing by KV pressure, cached prefixes, load, sessions, topology groups and warm models.
//!
//! Executors are kept in order of how good a place they are, and a request goes to the first that
//! can take it. The executor of its session, and those that hold much of its prompt, are compared
//! with that one. Tenants beyond their share leave some slots to the others. A request that cannot
//! be placed is held, until a warm hold ends if that is all that stands in its way.
//!
//! # Not here
//! The order of requests, and the sequences that give way when nothing fits: those are other hooks.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod cold;
mod credit;
mod explain;
mod known;
mod loading;
mod rank;
mod reason;
mod roster;
mod search;
mod settings;
mod shares;
mod waits;

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::Change;
use pointsman_sdk::{
    BadOverride, Case, Description, Executor, ExecutorIndex, Explanation, Feed, Fleet, Mirror,
    Overrides, Pick, Policy, Ranking, Reach, Router, Setting, Turns, export,
};

use cold::Drains;
use known::Known;
use rank::Rank;
use reason::Reason;
use roster::Roster;
use search::{Blocked, Lack, MayLook, Search};
pub use settings::{Balance, ColdModels, GroupHint, Rendezvous, Settings};
use shares::Shares;
use waits::Waits;

/// A policy that prefers executors with room in their KV pools.
#[derive(Debug)]
pub struct MemoryAware {
    settings: Settings,
    overrides: Overrides<Settings>,
    turns: Turns,
    ranking: Ranking<Rank>,
    roster: Roster,
    shares: Shares,
    waits: Waits,
    /// Executors kept free, as of the last `observe`.
    drains: Drains,
    /// Requests found since then to have no place.
    known: Known,
}

impl Policy for MemoryAware {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "memory-aware".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The least pressed, least loaded executor, or one that holds the prompt; \
                      sessions and groups stay together, warm models are waited for, \
                      tenants beyond their share leave slots free."
                .into(),
            reasons: Reason::texts(),
            state_version: 4,
        }
    }

    fn settings() -> Vec<Setting> {
        Settings::described()
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            settings: settings.checked()?,
            overrides: Settings::overrides(),
            turns: Turns::default(),
            ranking: Ranking::default(),
            roster: Roster::default(),
            shares: Shares::default(),
            waits: Waits::default(),
            drains: Drains::default(),
            known: Known::default(),
        })
    }

    fn index(&mut self) -> Option<&mut dyn ExecutorIndex> {
        Some(self)
    }

    fn cleared(&mut self) {
        self.roster = Roster::default();
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.roster.note(mirror, change);
        if let Change::Tenant(row) = change {
            self.shares.changed(mirror.now(), row);
        } else if let Change::Completed(completion) = change {
            self.waits.learn(completion);
        } else if let Change::ExecutorGone(id) = change {
            self.waits.forget(*id);
        }
    }

    fn observed(&mut self, mirror: &Mirror) {
        self.shares.begin();
        let drains = self.settings.help() == Some(ColdModels::Drain) && self.roster.limits_models();
        self.drains = if drains {
            Drains::find(self, mirror)
        } else {
            Drains::default()
        };
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut state = self.shares.snapshot();
        state.extend(self.waits.snapshot());
        state.extend(self.turns.snapshot());
        state
    }

    fn restore(&mut self, mut state: &[u8]) -> Result<(), String> {
        self.shares = Shares::restore(&mut state)?;
        self.waits = Waits::restore(&mut state)?;
        self.turns = Turns::restore(state)?;
        Ok(())
    }
}

impl ExecutorIndex for MemoryAware {
    fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
        let Self {
            ranking,
            settings,
            waits,
            ..
        } = self;
        ranking.update(fleet, executors, |place| Rank::of(settings, waits, place));
    }

    fn reach(&self) -> Reach {
        match self.settings.balance {
            Balance::Memory => Reach::Device,
            Balance::Slots => Reach::Executor,
        }
    }
}

impl Router for MemoryAware {
    /// A session is hashed to an executor by its name; completions tell what was waited for.
    const NEEDS: Feed = Feed::FIT
        .union(Feed::NAMES)
        .union(Feed::TENANTS)
        .union(Feed::COMPLETED);

    const UNKNOWN: u16 = Reason::Unknown.index();

    fn begin(&mut self) {
        self.known.begin();
        self.shares.begin();
    }

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        let own = self.overrides.of(case, &self.settings);
        let search = Search::new(self, self.settings_of(&own), case);
        if let Some(blocked) = self.known.blocked(&search) {
            return Err(held(case, blocked));
        }
        let may_look = self.may_look(&search);
        let (_, choice) = search.choose(may_look);
        match choice {
            Ok(choice) if own.is_err() => Ok(Pick {
                reason: Reason::BadOverride.index(),
                ..choice.pick(self.settings.balance)
            }),
            Ok(choice) if search.may_wait => Ok(choice.pick(self.settings.balance)),
            Ok(choice) => Ok(Pick {
                reason: Reason::HeldOut.index(),
                ..choice.pick(self.settings.balance)
            }),
            Err(blocked) => {
                if let Some(id) = blocked.held_for {
                    let executor = case.fleet.mirror.executor(id);
                    let tokens =
                        executor.map_or(0, |executor| self.prefill_tokens(case, &executor));
                    self.known.holds(id, tokens);
                    return Err(held(case, blocked));
                }
                // Without a look it is not known what stands in the way of a shorter one.
                let entry = match may_look {
                    MayLook::Yes => Known::entry(&search, blocked),
                    MayLook::No => None,
                };
                self.known.note(entry);
                Err(held(case, blocked))
            }
        }
    }

    fn picked(&mut self, case: &Case<'_>, pick: &Pick) {
        self.known.placed();
        self.waits.picked(case, pick);
        self.turns.took(case.request.model, pick.executors[0]);
    }

    fn prefill_tokens(&self, case: &Case<'_>, executor: &Executor<'_>) -> u64 {
        credit::prefill_tokens(&self.settings, case, executor)
    }
}

impl Explanation for MemoryAware {
    const NEEDS: Feed = <Self as Router>::NEEDS;

    fn explain(&mut self, case: &Case<'_>) -> Vec<Candidate> {
        self.shares.begin();
        let own = self.overrides.of(case, &self.settings);
        explain::candidates(Search::new(self, self.settings_of(&own), case))
    }
}

impl MemoryAware {
    /// The settings for a request: its own, unless it has none or would override one and cannot.
    #[inline]
    fn settings_of<'a>(&'a self, own: &'a Result<Option<Settings>, BadOverride>) -> &'a Settings {
        match own {
            Ok(Some(own)) => own,
            Ok(None) | Err(BadOverride) => &self.settings,
        }
    }

    /// A look is always taken where a request is pinned, or hashed with a look anyway.
    fn may_look(&self, search: &Search<'_>) -> MayLook {
        let looks = search.request().allowed.is_some() || search.session.is_some();
        if looks || self.known.looks() < self.settings.looks_max {
            MayLook::Yes
        } else {
            MayLook::No
        }
    }
}

/// A warm hold is waited for where it is all that stands in the way; any other lack passes at a
/// time that no row tells.
fn held(case: &Case<'_>, blocked: Blocked) -> Verdict {
    let reason = match blocked.lack {
        _ if blocked.warm_until.is_some() => Reason::WarmHold,
        Some(Lack::ModelLimit) => Reason::ModelLimit,
        Some(Lack::Drain) => Reason::Drain,
        Some(Lack::Loading) => Reason::Loading,
        Some(Lack::Prefill) => Reason::Prefilling,
        Some(Lack::Reserved) => Reason::Reserved,
        Some(Lack::Slot) => Reason::NoSlot,
        Some(Lack::Blocks) => Reason::NoBlocks,
        Some(Lack::Model) => Reason::ModelsMax,
        None => Reason::Nowhere,
    };
    case.hold(blocked.warm_until, reason.index())
}

export!(MemoryAware: routing, explanation);

#[cfg(test)]
mod tests;
