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
mod settings;

use std::cmp::Reverse;

use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Health};
use pointsman_sdk::{
    Executor, Mirror, Moment, Need, Policy, Routing, Seat, Tentative, export, fit,
};

use bound::Bound;
pub use settings::{Against, Settings};

/// Where requests go. It keeps no state: all it needs is in the mirror.
#[derive(Debug)]
pub struct PrefixBound {
    settings: Settings,
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
        })
    }
}

impl Routing for PrefixBound {
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let asked = requests.iter();
        asked
            .map(|asked| self.place(mirror, placed, at, asked))
            .collect()
    }
}

/// An executor that can take the request.
struct Open<'a> {
    executor: Executor<'a>,
    seat: Seat,
    load: u64,
    /// Tokens of the prompt it holds.
    cached: u64,
}

impl PrefixBound {
    fn place(
        &self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        cached: &Cached,
    ) -> Verdict {
        let Some(request) = mirror.request(cached.request) else {
            return hold();
        };
        let need = Need::new(mirror, placed, request, at.now);
        let open = open(mirror, placed, &need, cached);
        let serving = mirror
            .executors()
            .filter(|executor| need.check_lasting(executor).is_ok());
        let bound = Bound::new(&self.settings, serving.map(|at| load(placed, &at)));

        let prompt = u64::from(request.prompt_tokens);
        let enough = |open: &&Open<'_>| {
            open.cached * 1000 > prompt * u64::from(self.settings.cache_threshold)
        };
        let longest = open
            .iter()
            .filter(enough)
            .filter(|open| bound.holds(open.load))
            .min_by_key(|open| (Reverse(open.cached), open.load));
        let reason = match longest {
            Some(_) => Reason::Longest,
            None if open.iter().any(|open| enough(&open)) => Reason::Overloaded,
            None => Reason::NotCached,
        };
        let least = || open.iter().min_by_key(|open| least_loaded(placed, open));
        let Some(Open { executor, seat, .. }) = longest.or_else(least) else {
            return hold();
        };
        placed.place(mirror, &need, executor, *seat);
        Verdict {
            choice: Choice::Place(vec![executor.id()]),
            reason: reason as u16,
        }
    }
}

/// The executors that can take the request: those that are up, or else the degraded ones.
fn open<'a>(
    mirror: &'a Mirror,
    placed: &Tentative,
    need: &Need<'_>,
    cached: &Cached,
) -> Vec<Open<'a>> {
    let open = mirror.executors().filter_map(|executor| {
        Some(Open {
            seat: fit(mirror, placed, need, &executor).ok()?,
            load: load(placed, &executor),
            cached: held(cached, executor.id()),
            executor,
        })
    });
    let mut open: Vec<_> = open.collect();
    let up = |open: &Open<'_>| open.executor.load.health == Health::Up;
    if open.iter().any(up) {
        open.retain(up);
    }
    open
}

/// A free slot, the smaller load, fewer placements; of equals the one attached first is taken.
fn least_loaded(placed: &Tentative, open: &Open<'_>) -> (Seat, u64, u64) {
    let placements = open.executor.load.placed_total + placed.counts(&open.executor).total();
    (open.seat, open.load, placements)
}

/// Requests placed there: running, and placed but not started.
fn load(placed: &Tentative, executor: &Executor<'_>) -> u64 {
    executor.depth() + placed.counts(executor).total()
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

fn hold() -> Verdict {
    Verdict {
        choice: Choice::Hold(None),
        reason: Reason::NoRoom as u16,
    }
}

export!(PrefixBound: routing);

#[cfg(test)]
mod tests;
