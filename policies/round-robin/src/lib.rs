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
use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Health};
use pointsman_sdk::{Mirror, Moment, Need, Policy, Routing, Tentative, export, fit};

/// It has no settings; a key in its sidecar is an error.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {}

/// Where requests go.
#[derive(Debug)]
pub struct RoundRobin {
    turns: Turns,
}

const REASONS: [&str; 2] = ["its turn", "no room anywhere"];
const HOLD: Verdict = Verdict {
    choice: Choice::Hold(None),
    reason: 1,
};

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
        })
    }

    fn snapshot(&self) -> Vec<u8> {
        self.turns.snapshot()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.turns = Turns::restore(state)?;
        Ok(())
    }
}

impl Routing for RoundRobin {
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let asked = requests.iter().map(|asked| asked.request);
        asked.map(|id| self.place(mirror, placed, at, id)).collect()
    }
}

impl RoundRobin {
    fn place(&mut self, mirror: &Mirror, placed: &mut Tentative, at: Moment, id: u64) -> Verdict {
        let Some(request) = mirror.request(id) else {
            return HOLD;
        };
        let need = Need::new(mirror, placed, request, at.now);
        let turn = self.turns.places(request.model);
        let open = mirror
            .executors()
            .filter_map(|executor| Some((fit(mirror, placed, &need, &executor).ok()?, executor)));
        let next = open.min_by_key(|(seat, executor)| {
            let degraded = executor.load.health == Health::Degraded;
            (degraded, *seat, turn(executor.id()))
        });
        let Some((seat, executor)) = next else {
            return HOLD;
        };
        placed.place(mirror, &need, &executor, seat);
        self.turns.took(request.model, executor.id());
        Verdict {
            choice: Choice::Place(vec![executor.id()]),
            reason: 0,
        }
    }
}

export!(RoundRobin: routing);
