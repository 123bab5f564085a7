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

mod homes;

use std::collections::BTreeMap;

use pointsman_sdk::rendezvous::Turns;
use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::lifecycle::{Description, Feed};
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::{Cached, Change, Health, Request};
use pointsman_sdk::{
    Case, Executor, Explanation, Mirror, Moment, Need, Pick, Policy, Ranking, Router, Standing,
    Tentative, explain, export,
};

use homes::{Claimants, Homes, claim};

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
    /// For what has no session, by what goes before the turn.
    ranking: Ranking<Standing>,
    /// For what has one: whoever is live, with room or without.
    homes: Homes,
    /// Whether a live executor of the group serves the model, as found since the last `observe`.
    groups: BTreeMap<(u32, Option<u32>), bool>,
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
            ranking: Ranking::default(),
            homes: Homes::default(),
            groups: BTreeMap::new(),
        })
    }

    fn cleared(&mut self) {
        self.ranking.clear();
        self.homes.clear();
    }

    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.ranking.changed(mirror, change);
        self.homes.changed(mirror, change);
    }

    fn observed(&mut self, mirror: &Mirror) {
        self.groups.clear();
        self.ranking.observed();
        self.homes.observed();
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

impl Router for Sticky {
    const NO_ROOM: u16 = Reason::NoRoom as u16;

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        self.refresh(case.mirror, case.placed);
        let group = self.group(&case.need, case.mirror);
        match case.need.request.session {
            Some(session) => self.by_session(case, session, group),
            None => self.in_turn(case, group),
        }
    }

    fn took(&mut self, case: &Case<'_>, pick: &Pick) {
        self.ranking.placed(pick.executor);
        self.homes.placed(pick.executor);
        let request = case.need.request;
        if request.session.is_none() {
            self.turns.took(request.model, pick.executor);
        }
    }
}

impl Explanation for Sticky {
    fn explain(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Vec<Candidate> {
        let none = Tentative::default();
        let need = Need::new(mirror, &none, request, at.now);
        let group = self.group(&need, mirror);
        let claimants = request
            .session
            .map(|session| self.homes.claimants(mirror, (&need, &none), session, group));
        let home = claimants.and_then(|claimants| claimants.home);
        let turn = self.turns.places(request.model);
        let rank = |_: &Case<'_>, at: &Executor<'_>, seat| {
            if group.is_some_and(|group| group != at.info.group) {
                return Err("it is of another group");
            }
            if self.settings.when_full == WhenFull::Wait && home.is_some_and(|id| id != at.id()) {
                return Err("the request waits for its session's executor");
            }
            let degraded = at.load.health == Health::Degraded;
            Ok(match request.session {
                // To a session its place in the order matters more than a free slot.
                Some(session) => (degraded, None, !claim(mirror, session, at.id())),
                None => {
                    let (again, id) = turn(at.id());
                    (degraded, Some(seat), u64::from(again) << 32 | u64::from(id))
                }
            })
        };
        let note = |_: &Case<'_>, at: &Executor<'_>| match (request.session, turn(at.id())) {
            (Some(_), _) if home == Some(at.id()) => "the session is hashed to it".to_owned(),
            (Some(session), _) => format!("claim {:016x}", claim(mirror, session, at.id())),
            (None, (false, _)) => "its turn is still to come".to_owned(),
            (None, (true, _)) => "had its turn".to_owned(),
        };
        explain::alone(mirror, at.now, (request, cached), rank, note)
    }
}

impl Sticky {
    fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        self.ranking
            .refresh(mirror, placed, |executor| Standing::open(placed, executor));
        self.homes.refresh(mirror, placed);
    }

    fn by_session(
        &self,
        case: &Case<'_>,
        session: u64,
        group: Option<u32>,
    ) -> Result<Pick, Verdict> {
        let needed = (&case.need, case.placed);
        let Claimants { home, next } = self.homes.claimants(case.mirror, needed, session, group);
        match (home, next, self.settings.when_full) {
            (Some(home), Some((next, seat)), _) if home == next => Ok(Pick {
                executor: next,
                seat,
                reason: Reason::Home as u16,
            }),
            (Some(_), _, WhenFull::Wait) => Err(Self::hold(Reason::HomeFull as u16)),
            (_, Some((executor, seat)), _) => Ok(Pick {
                executor,
                seat,
                reason: Reason::Next as u16,
            }),
            (_, None, _) => Err(Self::hold(Self::NO_ROOM)),
        }
    }

    fn in_turn(&self, case: &Case<'_>, group: Option<u32>) -> Result<Pick, Verdict> {
        let request = case.need.request;
        let last = self.turns.last(request.model);
        let turn = Reason::Turn as u16;
        let next = match group {
            None => case.first_of(self.ranking.best_first(request, last), turn),
            Some(group) => {
                let walk = self.ranking.best_in_group(group, request, last);
                let of_group = |id: &u32| {
                    let executor = case.mirror.executor(*id);
                    executor.is_some_and(|executor| executor.info.group == group)
                };
                case.first_of(walk.filter(of_group), turn)
            }
        };
        next.ok_or(Self::hold(Self::NO_ROOM))
    }

    /// The group that the request is kept to: the one it asks for, if that has an executor which
    /// may take it once there is room.
    fn group(&mut self, need: &Need<'_>, mirror: &Mirror) -> Option<u32> {
        let request = need.request;
        let group = request.group?;
        let found = || self.homes.has_group(mirror, need, group);
        // Found once for all that differ in nothing else.
        let serves = if request.allowed.is_none() && request.failed_on.is_none() {
            let known = self.groups.entry((group, request.model));
            *known.or_insert_with(found)
        } else {
            found()
        };
        serves.then_some(group)
    }
}

export!(Sticky: routing, explanation);

#[cfg(test)]
mod tests;
