//! Routing by what a request costs: tokens to be prefilled, less what is cached, and tokens held by
//! those that decode.
//!
//! The executor with the least cost is chosen. With a temperature the choice is drawn, the cheaper
//! the likelier; what is drawn follows from the seed and the request alone.
//!
//! # Not here
//! Sessions and warm models: a session's prefix shows as what is cached.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod cost;
mod draw;
mod settings;

use pointsman_sdk::rendezvous::split_mix;
use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::{Cached, Change, Health, Overlap, Request};
use pointsman_sdk::{
    Case, Executor, Explanation, Mirror, Moment, Need, Pick, Policy, Ranking, Router, Seat,
    Tentative, explain, export, open_seat,
};

use cost::{Added, Asked, cost, credit, overlap};
pub use settings::{Settings, Ties};

/// Where requests go.
#[derive(Debug)]
pub struct KvCost {
    settings: Settings,
    added: Added,
    /// By what each would cost a request of no tokens: among executors that hold the same of a
    /// prompt that is the order for any request.
    ranking: Ranking<Rank>,
}

/// Whether it is degraded, and the cost; the smaller is the better.
type Rank = (bool, u64);

const REASONS: [&str; 3] = ["least cost", "drawn by cost", "no room anywhere"];

impl Policy for KvCost {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "kv-cost".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The least cost of prefill and decode, less what is cached.".into(),
            feed: Feed::WAITING,
            reasons: REASONS.map(str::to_owned).to_vec(),
            state_version: 1,
        }
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            settings: settings.checked()?,
            added: Added::default(),
            ranking: Ranking::default(),
        })
    }

    fn cleared(&mut self) {
        self.ranking.clear();
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.ranking.changed(mirror, change);
    }

    fn observed(&mut self, mirror: &Mirror) {
        self.added.clear();
        self.ranking.observed();
        self.refresh(mirror, &Tentative::default());
    }
}

impl Router for KvCost {
    const NO_ROOM: u16 = 2;

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        self.refresh(case.mirror, case.placed);
        let chosen = if self.is_ranked(case) {
            self.cheapest(case)
        } else {
            self.draw(self.open(case), case.need.request.id)
        };
        let Open { executor, seat, .. } = chosen.ok_or(Self::hold(Self::NO_ROOM))?;
        Ok(Pick {
            executor: executor.id(),
            seat,
            reason: u16::from(self.settings.temperature > 0),
        })
    }

    fn took(&mut self, case: &Case<'_>, pick: &Pick) {
        self.ranking.placed(pick.executor);
        if let Some(executor) = case.mirror.executor(pick.executor) {
            self.added.place(&case.need, case.cached, &executor);
        }
    }
}

/// An executor that can take the request, and what it costs there.
struct Open<'a> {
    cost: u64,
    seat: Seat,
    executor: Executor<'a>,
}

impl KvCost {
    fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        let (settings, added) = (&self.settings, &self.added);
        self.ranking.refresh(mirror, placed, |executor| {
            open_seat(placed, executor)?;
            let degraded = executor.load.health == Health::Degraded;
            let cost = cost(settings, Asked::default(), executor, (placed, added));
            Some((degraded, cost))
        });
    }

    /// Whether the least cost wins, and those that are not listed as holding a part of the prompt
    /// stand in the order of the ranking: what they hold is no more than the prompt.
    fn is_ranked(&self, case: &Case<'_>) -> bool {
        let prompt = u64::from(case.need.request.prompt_tokens);
        (self.settings.temperature, self.settings.ties) == (0, Ties::AttachOrder)
            && credit(&self.settings, None, case.cached) <= prompt * 1000
    }

    /// The executor of the least cost: one of those listed, or the first in the ranking that is
    /// not.
    fn cheapest<'a>(&self, case: &Case<'a>) -> Option<Open<'a>> {
        let mut listed: Vec<&Overlap> = case.cached.overlaps.iter().flatten().collect();
        listed.sort_unstable_by_key(|row| row.executor);
        let is_listed = |id: u32| listed.binary_search_by_key(&id, |row| row.executor).is_ok();
        let holders = listed.iter().copied();
        let holders = holders.filter_map(|row| self.opened(case, row.executor, Some(row)));
        let mut ranked = self.ranking.best_first(case.need.request, None);
        let other = ranked.find_map(|id| {
            if is_listed(id) {
                return None;
            }
            self.opened(case, id, None)
        });
        holders.chain(other).min_by_key(|open| {
            let degraded = open.executor.load.health == Health::Degraded;
            (degraded, open.cost, open.executor.position)
        })
    }

    /// An executor, if it can take the request.
    fn opened<'a>(&self, case: &Case<'a>, id: u32, held: Option<&Overlap>) -> Option<Open<'a>> {
        let executor = case.mirror.executor(id)?;
        let seat = case.fit(&executor).ok()?;
        let asked = Asked {
            prompt_tokens: case.need.request.prompt_tokens,
            credit: credit(&self.settings, held, case.cached),
        };
        Some(Open {
            seat,
            cost: cost(&self.settings, asked, &executor, (case.placed, &self.added)),
            executor,
        })
    }

    /// The executors that can take the request: those that are up, or else the degraded ones.
    fn open<'a>(&self, case: &Case<'a>) -> Vec<Open<'a>> {
        let executors = case.mirror.executors();
        let opened = executors.filter_map(|at| {
            let held = overlap(case.cached, at.id());
            self.opened(case, at.id(), held)
        });
        let mut open: Vec<_> = opened.collect();
        let up = |open: &Open<'_>| open.executor.load.health == Health::Up;
        if open.iter().any(up) {
            open.retain(up);
        }
        open
    }

    fn draw<'a>(&self, mut open: Vec<Open<'a>>, request: u64) -> Option<Open<'a>> {
        if (self.settings.temperature, self.settings.ties) == (0, Ties::AttachOrder) {
            return open.into_iter().min_by_key(|open| open.cost);
        }
        if open.is_empty() {
            return None;
        }
        let costs: Vec<u64> = open.iter().map(|open| open.cost).collect();
        let weights = draw::weights(&costs, self.settings.temperature);
        // Mixed twice, so that two seeds do not deal the same numbers to other requests.
        let number = split_mix(split_mix(self.settings.seed) ^ request);
        Some(open.swap_remove(draw::draw(&weights, number)))
    }
}

impl Explanation for KvCost {
    fn explain(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Vec<Candidate> {
        let none = Tentative::default();
        let case = Case {
            mirror,
            placed: &none,
            need: Need::new(mirror, &none, request, at.now),
            cached,
        };
        let is_up = |executor: &Executor<'_>| executor.load.health == Health::Up;
        let mut executors = mirror.executors();
        let another_is_up = executors.any(|at| is_up(&at) && case.fit(&at).is_ok());
        let candidate = |executor: Executor<'_>| {
            let held = overlap(cached, executor.id());
            let asked = Asked {
                prompt_tokens: request.prompt_tokens,
                credit: credit(&self.settings, held, cached),
            };
            let cost = cost(&self.settings, asked, &executor, (&none, &Added::default()));
            let fitted = case.fit(&executor);
            let place = match fitted {
                Ok(_) if another_is_up && !is_up(&executor) => "degraded, and another is up".into(),
                Ok(seat) => explain::seated(&executor, seat),
                Err(obstacle) => explain::obstructed(&case, &executor, obstacle),
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
        mirror.executors().map(candidate).collect()
    }
}

export!(KvCost: routing, explanation);

#[cfg(test)]
mod tests;
