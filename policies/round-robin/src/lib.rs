//! Routing in turn: each request goes to the next executor that can take it.
//!
//! Each model has a turn of its own: models served in different places do not push each other's
//! on.
//!
//! # Not here
//! How much an executor has to do: `least-loaded` looks at that.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

use pointsman_sdk::rendezvous::Turns;
use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::{Cached, Change, Request};
use pointsman_sdk::{
    Case, Executor, Explanation, Mirror, Moment, Pick, Policy, Ranking, Router, Standing,
    Tentative, explain, export,
};

/// It has no settings; a key in its sidecar is an error.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {}

/// Where requests go.
#[derive(Debug)]
pub struct RoundRobin {
    turns: Turns,
    /// By what goes before the turn.
    ranking: Ranking<Standing>,
}

const REASONS: [&str; 2] = ["its turn", "no room anywhere"];

impl Policy for RoundRobin {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "round-robin".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "The next executor in turn that can take the request, per model.".into(),
            feed: Feed::WAITING,
            reasons: REASONS.map(str::to_owned).to_vec(),
            state_version: 1,
        }
    }

    fn new(_: Settings) -> Result<Self, String> {
        Ok(Self {
            turns: Turns::default(),
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
        self.ranking.observed();
        self.refresh(mirror, &Tentative::default());
    }

    fn snapshot(&self) -> Vec<u8> {
        self.turns.snapshot()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.turns = Turns::restore(state)?;
        Ok(())
    }
}

impl Router for RoundRobin {
    const NO_ROOM: u16 = 1;

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        self.refresh(case.mirror, case.placed);
        let request = case.need.request;
        let last = self.turns.last(request.model);
        let next = case.first_of(self.ranking.best_first(request, last), 0);
        next.ok_or(Self::hold(Self::NO_ROOM))
    }

    fn took(&mut self, case: &Case<'_>, pick: &Pick) {
        self.ranking.placed(pick.executor);
        self.turns.took(case.need.request.model, pick.executor);
    }
}

impl Explanation for RoundRobin {
    fn explain(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Vec<Candidate> {
        let turn = self.turns.places(request.model);
        let rank = |_: &Case<'_>, executor: &Executor<'_>, seat| {
            Ok((Standing::new(executor, seat), turn(executor.id())))
        };
        let note = |_: &Case<'_>, executor: &Executor<'_>| match turn(executor.id()) {
            (false, _) => "its turn is still to come".to_owned(),
            (true, _) => "had its turn".to_owned(),
        };
        explain::alone(mirror, at.now, (request, cached), rank, note)
    }
}

impl RoundRobin {
    fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        self.ranking
            .refresh(mirror, placed, |executor| Standing::open(placed, executor));
    }
}

export!(RoundRobin: routing, explanation);
