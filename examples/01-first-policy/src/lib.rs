//! A policy of a few lines: each request goes where the most slots are free.

use std::cmp::Reverse;

use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::Cached;
use pointsman_sdk::{Mirror, Moment, Need, Policy, Routing, Tentative, export, fit};

/// It has no settings; a key in its sidecar is an error.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {}

/// The policy. It keeps no state of its own: all it needs is in the mirror.
#[derive(Debug)]
pub struct MostFreeSlots;

impl Policy for MostFreeSlots {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "first-policy".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "Each request goes where the most slots are free.".into(),
            feed: Feed::WAITING,
            reasons: vec!["most free slots".into(), "no room anywhere".into()],
            state_version: 1,
        }
    }

    fn new(_: Settings) -> Result<Self, String> {
        Ok(Self)
    }
}

impl Routing for MostFreeSlots {
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let asked = requests.iter().map(|asked| asked.request);
        asked.map(|id| place(mirror, placed, at, id)).collect()
    }
}

/// Where one request goes. `placed` counts what this answer has placed before it.
fn place(mirror: &Mirror, placed: &mut Tentative, at: Moment, id: u64) -> Verdict {
    let hold = Verdict {
        choice: Choice::Hold(None),
        reason: 1,
    };
    let Some(request) = mirror.request(id) else {
        return hold;
    };
    let need = Need::new(mirror, placed, request, at.now);
    let open = mirror.executors().filter_map(|executor| {
        let seat = fit(mirror, placed, &need, &executor).ok()?;
        let used = executor.load.slots_used + placed.counts(&executor).slots;
        let free = executor.info.slots_total.saturating_sub(used);
        Some((executor, seat, free))
    });
    // Of equals the first.
    let best = open.min_by_key(|(executor, seat, free)| (*seat, Reverse(*free), executor.id()));
    match best {
        Some((executor, seat, _)) => {
            let id = executor.id();
            placed.place(mirror, &need, &executor, seat);
            Verdict {
                choice: Choice::Place(vec![id]),
                reason: 0,
            }
        }
        None => hold,
    }
}

export!(MostFreeSlots: routing);
