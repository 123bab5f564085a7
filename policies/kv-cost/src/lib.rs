//! Routing by the cost of a request: tokens to be prefilled, less those cached, and tokens held by
//! the sequences that decode.
//!
//! The executor with the least cost is chosen, and of several the one with the fewest requests. With a
//! temperature the choice is drawn, and cheaper executors are likelier. The draw follows from the seed and the
//! request alone.
//!
//! # Not here
//! Sessions and warm models: a session's prefix counts as far as it is cached.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod cost;
mod draw;
mod settings;

use pointsman_sdk::rendezvous::split_mix;
use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::Health;
use pointsman_sdk::{
    BadOverride, Case, Description, Executor, ExecutorIndex, Explanation, Feed, Fleet, Overrides,
    Pick, Place, Policy, Ranking, Router, Setting, explain, export,
};

use cost::{Prompt, cost, credit_unlisted};
pub use settings::{Settings, Ties};

/// A policy that prefers executors where a request costs little.
#[derive(Debug)]
pub struct KvCost {
    settings: Settings,
    overrides: Overrides<Settings>,
    /// Executors by the cost of a request of no tokens. Among executors that hold the same of a
    /// prompt this is the order for any request.
    ranking: Ranking<Rank>,
}

/// The order of executors; the least is the best, and of equals the one attached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    degraded: bool,
    /// Cost of a request, in thousandths of a token.
    cost: u64,
    /// Requests running, and placed but not started. At a server that tells of no blocks they cost nothing any more
    /// once their prompts are prefilled.
    depth: u64,
}

pointsman_sdk::reasons! {
    /// Reasons for placing a request or holding it.
    enum Reason {
        LeastCost = "least cost",
        Drawn = "drawn by cost",
        Own = "cost by settings of its own",
        BadOverride = "cost by the operator's settings: a label that would override one is of no use",
        NoRoom = "no room anywhere",
    }
}

impl Policy for KvCost {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "kv-cost".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The least cost of prefill and decode, less what is cached.".into(),
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
            overrides: Settings::overrides(),
            ranking: Ranking::default(),
        })
    }

    fn index(&mut self) -> Option<&mut dyn ExecutorIndex> {
        Some(self)
    }
}

impl ExecutorIndex for KvCost {
    fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
        let Self {
            settings, ranking, ..
        } = self;
        ranking.update(fleet, executors, |place| {
            let cost = cost(settings, Prompt::default(), fleet, &place.executor);
            Rank::of(place, cost)
        });
    }
}

impl Router for KvCost {
    /// A request overrides settings by names of labels.
    const NEEDS: Feed = Feed::FIT.union(Feed::NAMES);

    const UNKNOWN: u16 = Reason::NoRoom.index();

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        let (settings, reason) = self.terms(case);
        let chosen = if self.is_ranked(&settings, case) {
            self.cheapest(case)
        } else {
            drawn(&settings, case)
        };
        let place = chosen.ok_or_else(|| case.hold(None, Reason::NoRoom.index()))?;
        Ok(Pick::new(&place, reason.index()))
    }

    /// As the host's own counts will have it.
    fn prefill_tokens(&self, case: &Case<'_>, executor: &Executor<'_>) -> u64 {
        let held = case.overlap(executor.id());
        let device = held.map_or(case.cached.floor_tokens, |row| row.device_tokens);
        u64::from(case.request.prompt_tokens.saturating_sub(device))
    }
}

impl KvCost {
    /// The settings for a request, and the reason for a place that they find it.
    fn terms(&self, case: &Case<'_>) -> (Settings, Reason) {
        let settings = self.settings;
        match self.overrides.of(case, &settings) {
            Ok(Some(own)) => (own, Reason::Own),
            Err(BadOverride) => (settings, Reason::BadOverride),
            Ok(None) if settings.temperature > 0 => (settings, Reason::Drawn),
            Ok(None) => (settings, Reason::LeastCost),
        }
    }

    /// Returns whether the least cost wins, and executors that are not listed as holding a part of
    /// the prompt stand in the order of the ranking: they hold no more than the prompt.
    fn is_ranked(&self, settings: &Settings, case: &Case<'_>) -> bool {
        let prompt = u64::from(case.request.prompt_tokens);
        *settings == self.settings
            && settings.least_wins()
            && credit_unlisted(settings, case.cached) <= prompt * 1000
    }

    /// The place of the least cost: on a listed executor, or on the first in the ranking that is
    /// not listed.
    fn cheapest<'a>(&self, case: &Case<'a>) -> Option<Place<'a>> {
        let listed = case.cached.overlaps.iter().flatten();
        let mut listed: Vec<u32> = listed.map(|row| row.executor).collect();
        listed.sort_unstable();
        let ranked = self.ranking.best_first(case.request);
        let mut others = ranked.filter(|id| listed.binary_search(id).is_err());
        let other = others.find_map(|id| case.place(id));
        let holders = listed.iter().filter_map(|id| case.place(*id));
        holders.chain(other).min_by_key(|place| {
            let cost = cost_of(&self.settings, case, &place.executor);
            (Rank::of(place, cost), place.executor.position)
        })
    }
}

impl Rank {
    fn of(place: &Place<'_>, cost: u64) -> Self {
        Self {
            degraded: place.readiness().degraded,
            cost,
            depth: place.depth(),
        }
    }
}

/// A place drawn among executors that are up, or else among the degraded ones.
fn drawn<'a>(settings: &Settings, case: &Case<'a>) -> Option<Place<'a>> {
    let executors = case.fleet.mirror.executors();
    let mut open: Vec<Place<'_>> = executors.filter_map(|at| case.place_on(at)).collect();
    if open.iter().any(|place| is_up(&place.executor)) {
        open.retain(|place| is_up(&place.executor));
    }
    let costs = open
        .iter()
        .map(|place| cost_of(settings, case, &place.executor));
    let costs: Vec<u64> = costs.collect();
    if settings.least_wins() {
        let least = (0..open.len()).min_by_key(|&at| (costs[at], open[at].depth()))?;
        return Some(open[least]);
    }
    if open.is_empty() {
        return None;
    }
    let weights = draw::weights(&costs, settings.temperature);
    // Mixed twice, so that two seeds do not deal the same numbers to other requests.
    let number = split_mix(split_mix(settings.seed) ^ case.request.id);
    Some(open[draw::draw(&weights, number)])
}

fn cost_of(settings: &Settings, case: &Case<'_>, executor: &Executor<'_>) -> u64 {
    let prompt = Prompt::on(settings, case, executor.id());
    cost(settings, prompt, case.fleet, executor)
}

fn is_up(executor: &Executor<'_>) -> bool {
    executor.load.health == Health::Up
}

impl Explanation for KvCost {
    const NEEDS: Feed = Feed::FIT.union(Feed::NAMES);

    fn explain(&mut self, case: &Case<'_>) -> Vec<Candidate> {
        let mut executors = case.fleet.mirror.executors();
        let (settings, _) = self.terms(case);
        let another_is_up = executors.any(|at| is_up(&at) && case.fit(&at).is_ok());
        let candidate = |executor: Executor<'_>| {
            let cost = cost_of(&settings, case, &executor);
            let fitted = case.fit(&executor);
            let place = match fitted {
                Ok(_) if another_is_up && !is_up(&executor) => "degraded, and another is up".into(),
                Ok(seat) => explain::seated(&executor, seat),
                Err(obstacle) => explain::obstructed(case, &executor, obstacle),
            };
            let load = executor.load;
            Candidate {
                executor: executor.id(),
                eligible: fitted.is_ok() && (is_up(&executor) || !another_is_up),
                cost: i64::try_from(cost).unwrap_or(i64::MAX),
                note: format!(
                    "{place}; {} tokens; {} to prefill before it, {} blocks, {} requests",
                    cost / 1000,
                    load.prefill_tokens_pending,
                    load.blocks_used,
                    executor.depth()
                ),
            }
        };
        case.fleet.mirror.executors().map(candidate).collect()
    }
}

export!(KvCost: routing, explanation);

#[cfg(test)]
mod tests;
