//! Routing to the executor that holds most of the prompt, unless too much waits there.
//!
//! A long prefix is worth a detour, but not any. An executor that is loaded far beyond the others
//! is left alone, and the next-longest prefix is looked at. Where no executor within the bound holds
//! enough of the prompt, the least loaded one takes it, which spreads new prompts.
//!
//! # Not here
//! The prefill that a prefix saves in comparison with the work that waits: `kv-cost` weighs that.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod bound;
mod loads;
mod settings;

use std::cmp::Reverse;

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::{
    Case, Description, Executor, ExecutorIndex, Explanation, Feed, Fleet, Pick, Place, Policy,
    Ranking, Readiness, Router, Setting, explain, export,
};

use bound::Bound;
use loads::Loads;
pub use settings::{Against, Settings};

/// A policy that prefers executors with a long cached prefix.
#[derive(Debug)]
pub struct PrefixBound {
    settings: Settings,
    ranking: Ranking<Rank>,
    loads: Loads,
}

/// The order of executors, whatever they hold; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    readiness: Readiness,
    load: u64,
    placements: u64,
}

/// The order of executors for one request; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    degraded: bool,
    draw: Draw,
    rank: Rank,
    position: usize,
}

/// The part of the prompt that speaks for an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Draw {
    /// The executor holds so many tokens of the prompt, which is enough, and its load is within
    /// the bound.
    Prefix(Reverse<u64>),
    /// The executor holds enough but is over the bound, or holds too little.
    Nothing,
}

/// A place for the request, and what speaks for it.
#[derive(Clone, Copy, Debug)]
struct Contender<'a> {
    preference: Preference,
    place: Place<'a>,
    /// True if the executor holds enough to draw the request, over the bound or not.
    holds_enough: bool,
}

pointsman_sdk::reasons! {
    /// Reasons for placing a request or holding it.
    enum Reason {
        Longest = "longest cached prefix",
        Overloaded = "least loaded: where the prefix is cached the load is over the bound",
        NotCached = "least loaded: too little of the prompt is cached",
        NoRoom = "no room anywhere",
    }
}

impl Policy for PrefixBound {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "prefix-bound".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The longest cached prefix, unless the load there is over a bound.".into(),
            reasons: Reason::texts(),
            state_version: 1,
        }
    }

    fn settings() -> Vec<Setting> {
        Settings::described()
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            settings,
            ranking: Ranking::default(),
            loads: Loads::new(settings.against),
        })
    }

    fn index(&mut self) -> Option<&mut dyn ExecutorIndex> {
        Some(self)
    }
}

impl ExecutorIndex for PrefixBound {
    fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
        self.ranking.update(fleet, executors, Rank::of);
        self.loads.update(fleet, executors);
    }
}

impl Router for PrefixBound {
    const UNKNOWN: u16 = Reason::NoRoom.index();

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        let bound = self.loads.bound(&self.settings, case);
        let mut contenders = self.unlisted(case, &bound);
        for listed in case.cached.overlaps.iter().flatten() {
            contenders.extend(self.contender(case, listed.executor, &bound));
        }
        let best = contenders
            .iter()
            .min_by_key(|contender| contender.preference);
        let best = best.ok_or_else(|| case.hold(None, Reason::NoRoom.index()))?;
        // Degraded ones are not looked at where another is up.
        let mut alike = contenders
            .iter()
            .filter(|other| other.preference.degraded == best.preference.degraded);
        let reason = match best.preference.draw {
            Draw::Prefix(_) => Reason::Longest,
            Draw::Nothing if alike.any(|other| other.holds_enough) => Reason::Overloaded,
            Draw::Nothing => Reason::NotCached,
        };
        Ok(Pick::new(&best.place, reason.index()))
    }
}

impl Explanation for PrefixBound {
    const NEEDS: Feed = Feed::FIT.union(Feed::NAMES);

    fn explain(&mut self, case: &Case<'_>) -> Vec<Candidate> {
        let bound = self.loads.bound(&self.settings, case);
        let prefers = |place: &Place<'_>| Ok(self.weigh(case, *place, &bound).preference);
        let note = |executor: &Executor<'_>| {
            let load = executor.depth();
            let over = if bound.holds(load) { "within" } else { "over" };
            let held = held(case, executor.id());
            format!("holds {held} tokens of the prompt; load {load}, {over} the bound")
        };
        explain::by_rank(case, prefers, note)
    }
}

impl PrefixBound {
    /// The best of the executors that are not listed as holding a part of the prompt. Where all
    /// executors hold enough, also the best of these that are within the bound.
    fn unlisted<'a>(&self, case: &Case<'a>, bound: &Bound) -> Vec<Contender<'a>> {
        let ranked = self.ranking.best_first(case.request);
        let unlisted = ranked.filter(|id| case.overlap(*id).is_none());
        let mut unlisted = unlisted.filter_map(|id| self.contender(case, id, bound));
        let mut found: Vec<Contender<'_>> = unlisted.next().into_iter().collect();
        let is_over = |contender: &Contender<'_>| {
            contender.holds_enough && contender.preference.draw == Draw::Nothing
        };
        if found.iter().any(is_over) {
            found.extend(unlisted.find(|contender| !is_over(contender)));
        }
        found
    }

    fn contender<'a>(&self, case: &Case<'a>, id: u32, bound: &Bound) -> Option<Contender<'a>> {
        Some(self.weigh(case, case.place(id)?, bound))
    }

    fn weigh<'a>(&self, case: &Case<'_>, place: Place<'a>, bound: &Bound) -> Contender<'a> {
        let rank = Rank::of(&place);
        let prompt = u64::from(case.request.prompt_tokens);
        let held = held(case, place.executor.id());
        let holds_enough = held * 1000 > prompt * u64::from(self.settings.cache_threshold);
        let draw = if holds_enough && bound.holds(rank.load) {
            Draw::Prefix(Reverse(held))
        } else {
            Draw::Nothing
        };
        Contender {
            preference: Preference {
                degraded: rank.readiness.degraded,
                draw,
                rank,
                position: place.executor.position,
            },
            place,
            holds_enough,
        }
    }
}

impl Rank {
    fn of(place: &Place<'_>) -> Self {
        Self {
            readiness: place.readiness(),
            load: place.depth(),
            placements: place.placed_total(),
        }
    }
}

/// Tokens of the prompt that an executor holds, in whatever tier: each leaves out those of the tiers
/// before it.
fn held(case: &Case<'_>, executor: u32) -> u64 {
    match case.overlap(executor) {
        Some(row) => [row.device_tokens, row.host_tokens, row.disk_tokens]
            .map(u64::from)
            .iter()
            .sum(),
        None => u64::from(case.cached.floor_tokens),
    }
}

export!(PrefixBound: routing, explanation);

#[cfg(test)]
mod tests;
