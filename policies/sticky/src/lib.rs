//! Routing by session: a session's requests go to the executor that its key belongs to by
//! rendezvous hash, and those without a session go in turn.
//!
//! Nobody needs to remember where a session went: the answer follows from its key and the names of
//! the executors, after a restart too. One more executor takes over an equal part of the sessions,
//! and no other session moves.
//!
//! # Not here
//! The executor that served a session last (`preferred`): `memory-aware` goes by that.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

use pointsman_sdk::rendezvous::{Turns, node, weight};
use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::{Choice, Verdict};
use pointsman_sdk::wire::types::{Cached, Health, NameKind};
use pointsman_sdk::{Executor, Mirror, Moment, Need, Policy, Routing, Tentative, export, fit};

/// Settings; see the README.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// What becomes of a request whose session's executor has no room.
    pub when_full: WhenFull,
}

/// What becomes of a request whose session's executor has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// It goes to the executor that would have the session next.
    #[default]
    Next,
    /// It waits.
    Wait,
}

/// Where requests go.
#[derive(Debug)]
pub struct Sticky {
    settings: Settings,
    turns: Turns,
}

/// An executor's place in the order of choice; the least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    degraded: bool,
    /// The less the greater the session's weight; or the turn.
    order: u64,
}

/// Why a verdict is what it is; the texts are in [`REASONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Home,
    Next,
    Turn,
    HomeFull,
    NoRoom,
}

const REASONS: [&str; 5] = [
    "the session's executor",
    "the session's executor has no room: the next for it",
    "no session: its turn",
    "waits for the session's executor",
    "no room where it may go",
];

impl Policy for Sticky {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "sticky".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "Each session on the executor it is hashed to; without one, in turn.".into(),
            feed: Feed::WAITING,
            reasons: REASONS.map(str::to_owned).to_vec(),
            state_version: 1,
        }
    }

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self {
            settings,
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

impl Routing for Sticky {
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

impl Sticky {
    fn place(&mut self, mirror: &Mirror, placed: &mut Tentative, at: Moment, id: u64) -> Verdict {
        let Some(request) = mirror.request(id) else {
            return hold(Reason::NoRoom);
        };
        let need = Need::new(mirror, placed, request, at.now);
        let serving = serving(mirror, &need);
        let turn = self.turns.places(request.model);
        let rank = |executor: &Executor<'_>| Rank {
            degraded: executor.load.health == Health::Degraded,
            order: match request.session {
                Some(session) => !weight(session, node(name(mirror, executor))),
                None => {
                    let (again, id) = turn(executor.id());
                    u64::from(again) << 32 | u64::from(id)
                }
            },
        };
        let seated = |executor| Some((fit(mirror, placed, &need, executor).ok()?, executor));
        let home = request
            .session
            .and(serving.iter().min_by_key(|at| rank(at)));
        let chosen = match (home.and_then(seated), home, self.settings.when_full) {
            (Some(chosen), ..) => Ok((chosen, Reason::Home)),
            (None, Some(_), WhenFull::Wait) => Err(Reason::HomeFull),
            (None, home, _) => serving
                .iter()
                .filter_map(seated)
                // To a session its place in the order matters more than a free slot.
                .min_by_key(|(seat, at)| (home.is_none().then_some(*seat), rank(at)))
                .map(|chosen| (chosen, home.map_or(Reason::Turn, |_| Reason::Next)))
                .ok_or(Reason::NoRoom),
        };
        let ((seat, executor), reason) = match chosen {
            Ok(chosen) => chosen,
            Err(reason) => return hold(reason),
        };
        placed.place(mirror, &need, executor, seat);
        if request.session.is_none() {
            self.turns.took(request.model, executor.id());
        }
        Verdict {
            choice: Choice::Place(vec![executor.id()]),
            reason: reason as u16,
        }
    }
}

/// The executors that the request may go to once they have room: those of its group, if it asks
/// for one that has any.
fn serving<'a>(mirror: &'a Mirror, need: &Need<'_>) -> Vec<Executor<'a>> {
    let serves = |executor: &Executor<'_>| need.check_lasting(executor).is_ok();
    let mut serving: Vec<_> = mirror.executors().filter(serves).collect();
    if let Some(group) = need.request.group
        && serving.iter().any(|at| at.info.group == group)
    {
        serving.retain(|at| at.info.group == group);
    }
    serving
}

/// Names outlast a restart, ids do not.
fn name<'a>(mirror: &'a Mirror, executor: &Executor<'_>) -> &'a str {
    let name = mirror.name(NameKind::Executor, executor.id());
    name.unwrap_or_default()
}

fn hold(reason: Reason) -> Verdict {
    Verdict {
        choice: Choice::Hold(None),
        reason: reason as u16,
    }
}

export!(Sticky: routing);

#[cfg(test)]
mod tests;
