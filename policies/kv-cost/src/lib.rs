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
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Health, Request};
use pointsman_sdk::{
    Executor, Explanation, Mirror, Moment, Need, Policy, Routing, Seat, Tentative, export, fit,
};

use cost::{Added, Asked, cost};
pub use settings::{Settings, Ties};

/// Where requests go.
#[derive(Debug)]
pub struct KvCost {
    settings: Settings,
    added: Added,
}

const REASONS: [&str; 3] = ["least cost", "drawn by cost", "no room anywhere"];
const HOLD: Verdict = Verdict {
    choice: Choice::Hold(None),
    reason: 2,
};

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
        })
    }

    fn observed(&mut self, _: &Mirror) {
        self.added.clear();
    }
}

impl Routing for KvCost {
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

/// An executor that can take the request, and what it costs there.
struct Open<'a> {
    cost: u64,
    seat: Seat,
    executor: Executor<'a>,
}

impl KvCost {
    fn place(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        cached: &Cached,
    ) -> Verdict {
        let Some(request) = mirror.request(cached.request) else {
            return HOLD;
        };
        let need = Need::new(mirror, placed, request, at.now);
        let open = self.open(mirror, placed, &need, cached);
        let Some(Open { seat, executor, .. }) = self.choose(&open, request.id) else {
            return HOLD;
        };
        placed.place(mirror, &need, executor, *seat);
        self.added.place(&need, cached, executor);
        Verdict {
            choice: Choice::Place(vec![executor.id()]),
            reason: u16::from(self.settings.temperature > 0),
        }
    }

    /// The executors that can take the request: those that are up, or else the degraded ones.
    fn open<'a>(
        &self,
        mirror: &'a Mirror,
        placed: &Tentative,
        need: &Need<'_>,
        cached: &Cached,
    ) -> Vec<Open<'a>> {
        let asked = Asked {
            request: need.request,
            cached,
        };
        let open = mirror.executors().filter_map(|executor| {
            Some(Open {
                seat: fit(mirror, placed, need, &executor).ok()?,
                cost: cost(&self.settings, &asked, &executor, (placed, &self.added)),
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

    fn choose<'a, 'm>(&self, open: &'a [Open<'m>], request: u64) -> Option<&'a Open<'m>> {
        if open.is_empty()
            || (self.settings.temperature, self.settings.ties) == (0, Ties::AttachOrder)
        {
            return open.iter().min_by_key(|open| open.cost);
        }
        let costs: Vec<u64> = open.iter().map(|open| open.cost).collect();
        let weights = draw::weights(&costs, self.settings.temperature);
        // Mixed twice, so that two seeds do not deal the same numbers to other requests.
        let number = split_mix(split_mix(self.settings.seed) ^ request);
        open.get(draw::draw(&weights, number))
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
        let need = Need::new(mirror, &none, request, at.now);
        let asked = Asked { request, cached };
        let candidate = |executor: Executor<'_>| {
            let cost = cost(
                &self.settings,
                &asked,
                &executor,
                (&none, &Added::default()),
            );
            let load = executor.load;
            let fitted = fit(mirror, &none, &need, &executor);
            Candidate {
                executor: executor.id(),
                eligible: fitted.is_ok(),
                cost: i64::try_from(cost).unwrap_or(i64::MAX),
                note: format!(
                    "{}; {} tokens; {} to prefill before it, {} blocks, {} requests",
                    fitted.map_or("cannot take it", |_| "can take it"),
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
