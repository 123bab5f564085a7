//! Routing to where most of the prompt is cached, unless too much waits there.
//!
//! A long prefix is worth a detour, but not any: an executor that is loaded far beyond the others
//! is left alone, and the next-longest prefix is looked at. Where no executor within the bound holds
//! enough of the prompt, the least loaded one takes it, which spreads what is new.
//!
//! # Not here
//! How much prefill a prefix saves in comparison with what waits: `kv-cost` weighs that.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod bound;
mod loads;
mod settings;

use std::cmp::Reverse;

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::{Cached, Change, Request};
use pointsman_sdk::{
    Case, Executor, Explanation, Mirror, Moment, Pick, Policy, Ranking, Router, Seat, Standing,
    Tentative, explain, export, open_seat,
};

use bound::Bound;
use loads::{Loads, load};
pub use settings::{Against, Settings};

/// Where requests go. It keeps no state but orders and sums of what is in the mirror.
#[derive(Debug)]
pub struct PrefixBound {
    settings: Settings,
    ranking: Ranking<Rank>,
    loads: Loads,
}

/// How good a place an executor is but for what it holds; the smaller is the better. Of equals
/// the one attached first is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    standing: Standing,
    load: u64,
    placements: u64,
}

/// How good a place an executor is for one request; the smaller is the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    degraded: bool,
    draw: Draw,
    rank: Rank,
    position: usize,
}

/// What speaks for an executor but its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Draw {
    /// It holds so much of the prompt, which is enough, and its load is within the bound.
    Prefix(Reverse<u64>),
    /// It holds enough, but is over the bound; or not enough.
    Nothing,
}

/// An executor that can take the request.
#[derive(Clone, Copy, Debug)]
struct Open {
    preference: Preference,
    executor: u32,
    seat: Seat,
    /// Whether it holds enough to draw the request.
    holds_enough: bool,
}

/// Why a verdict is what it is; the texts are in [`REASONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Longest,
    Overloaded,
    NotCached,
    NoRoom,
}

const REASONS: [&str; 4] = [
    "longest cached prefix",
    "least loaded: where the prefix is cached the load is over the bound",
    "least loaded: too little of the prompt is cached",
    "no room anywhere",
];

impl Policy for PrefixBound {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "prefix-bound".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The longest cached prefix, unless the load there is over a bound.".into(),
            feed: Feed::WAITING,
            reasons: REASONS.map(str::to_owned).to_vec(),
            state_version: 1,
        }
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            settings: settings.checked()?,
            ranking: Ranking::default(),
            loads: Loads::new(settings.against),
        })
    }

    fn cleared(&mut self) {
        self.ranking.clear();
        self.loads.clear();
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.ranking.changed(mirror, change);
        self.loads.changed(mirror, change);
    }

    fn observed(&mut self, mirror: &Mirror) {
        self.ranking.observed();
        self.loads.observed();
        self.refresh(mirror, &Tentative::default());
    }
}

impl Router for PrefixBound {
    const NO_ROOM: u16 = Reason::NoRoom as u16;

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        self.refresh(case.mirror, case.placed);
        let bound = self.loads.bound(&self.settings, case);
        let mut open = self.unlisted(case, &bound);
        for listed in case.cached.overlaps.iter().flatten() {
            open.extend(self.open(case, listed.executor, &bound));
        }
        let best = open.iter().min_by_key(|open| open.preference);
        let best = best.ok_or(Self::hold(Self::NO_ROOM))?;
        // Degraded ones are not looked at where another is up.
        let mut alike = open
            .iter()
            .filter(|open| open.preference.degraded == best.preference.degraded);
        let reason = match best.preference.draw {
            Draw::Prefix(_) => Reason::Longest,
            Draw::Nothing if alike.any(|open| open.holds_enough) => Reason::Overloaded,
            Draw::Nothing => Reason::NotCached,
        };
        Ok(Pick {
            executor: best.executor,
            seat: best.seat,
            reason: reason as u16,
        })
    }

    fn took(&mut self, _: &Case<'_>, pick: &Pick) {
        self.ranking.placed(pick.executor);
        self.loads.placed(pick.executor);
    }
}

impl Explanation for PrefixBound {
    fn explain(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Vec<Candidate> {
        let prefers = |case: &Case<'_>, at: &Executor<'_>, seat| {
            let bound = self.loads.bound(&self.settings, case);
            Ok(self.opened(case, (at, seat), &bound).preference)
        };
        let note = |case: &Case<'_>, at: &Executor<'_>| {
            let bound = self.loads.bound(&self.settings, case);
            let load = load(case.placed, at);
            let over = if bound.holds(load) { "within" } else { "over" };
            let held = held(cached, at.id());
            format!("holds {held} tokens of the prompt; load {load}, {over} the bound")
        };
        explain::alone(mirror, at.now, (request, cached), prefers, note)
    }
}

impl PrefixBound {
    fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        self.ranking.refresh(mirror, placed, |executor| {
            Some(Rank::new(placed, executor, open_seat(placed, executor)?))
        });
        self.loads.refresh(mirror, placed);
    }

    /// The best of the executors that are not listed as holding a part of the prompt; and where
    /// what all hold is enough, the best of these that are within the bound.
    fn unlisted(&self, case: &Case<'_>, bound: &Bound) -> Vec<Open> {
        let is_listed = |id| {
            let mut listed = case.cached.overlaps.iter().flatten();
            listed.any(|row| row.executor == id)
        };
        let ranked = self.ranking.best_first(case.need.request, None);
        let unlisted = ranked.filter(|id| !is_listed(*id));
        let mut open = unlisted.filter_map(|id| self.open(case, id, bound));
        let mut found: Vec<Open> = open.next().into_iter().collect();
        let over = |open: &Open| open.holds_enough && open.preference.draw == Draw::Nothing;
        if found.iter().any(over) {
            found.extend(open.find(|open| !over(open)));
        }
        found
    }

    fn open(&self, case: &Case<'_>, id: u32, bound: &Bound) -> Option<Open> {
        let executor = case.mirror.executor(id)?;
        let seat = case.fit(&executor).ok()?;
        Some(self.opened(case, (&executor, seat), bound))
    }

    fn opened(
        &self,
        case: &Case<'_>,
        (executor, seat): (&Executor<'_>, Seat),
        bound: &Bound,
    ) -> Open {
        let rank = Rank::new(case.placed, executor, seat);
        let prompt = u64::from(case.need.request.prompt_tokens);
        let held = held(case.cached, executor.id());
        let holds_enough = held * 1000 > prompt * u64::from(self.settings.cache_threshold);
        let draw = if holds_enough && bound.holds(rank.load) {
            Draw::Prefix(Reverse(held))
        } else {
            Draw::Nothing
        };
        Open {
            preference: Preference {
                degraded: rank.standing.degraded,
                draw,
                rank,
                position: executor.position,
            },
            executor: executor.id(),
            seat,
            holds_enough,
        }
    }
}

impl Rank {
    fn new(placed: &Tentative, executor: &Executor<'_>, seat: Seat) -> Self {
        Self {
            standing: Standing::new(executor, seat),
            load: load(placed, executor),
            placements: executor.load.placed_total + placed.counts(executor).total(),
        }
    }
}

/// Tokens of the prompt that an executor holds, in whatever tier: each leaves out those of the ones
/// before it.
fn held(cached: &Cached, executor: u32) -> u64 {
    let mut listed = cached.overlaps.iter().flatten();
    match listed.find(|row| row.executor == executor) {
        Some(row) => [row.device_tokens, row.host_tokens, row.disk_tokens]
            .map(u64::from)
            .iter()
            .sum(),
        None => u64::from(cached.floor_tokens),
    }
}

export!(PrefixBound: routing, explanation);

#[cfg(test)]
mod tests;
