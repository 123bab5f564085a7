//! Routing by session: a session's requests go to the executor that its key belongs to by
//! rendezvous hash, and requests without a session go in turn.
//!
//! No table says where a session went: the answer follows from its key and the names of the
//! executors, after a restart too. One more executor takes over an equal part of the sessions, and
//! no other session moves.
//!
//! # Not here
//! The executor that served a session last (`preferred`): `memory-aware` goes by that.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod homes;

use pointsman_sdk::wire::explanation::Candidate;
use pointsman_sdk::wire::routing::Verdict;
use pointsman_sdk::wire::types::Health;
use pointsman_sdk::{
    Case, Description, Executor, ExecutorIndex, Explanation, Feed, Fleet, KnownGroups, Mirror,
    Pick, Place, Policy, Ranking, Readiness, Router, Setting, Turns, explain, export,
};

use homes::{Claimants, Homes, claim};

/// Settings; see the README.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// Fate of a request whose session's executor has no room.
    pub when_full: WhenFull,
}

impl Settings {
    /// The settings, described.
    pub(crate) fn described() -> Vec<Setting> {
        vec![Setting::choice(
            "when-full",
            &["next", "wait"],
            "Fate of a request whose session's executor has no room.",
        )]
    }
}

/// Fate of a request whose session's executor has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// The request goes to the executor that would have the session next.
    #[default]
    Next,
    /// The request waits.
    Wait,
}

/// A policy that keeps each session on one executor.
#[derive(Debug)]
pub struct Sticky {
    settings: Settings,
    turns: Turns,
    /// Executors for requests without a session, which take turns among equals.
    ranking: Ranking<Readiness>,
    /// Executors for requests with a session: the live ones, with room or without.
    homes: Homes,
    /// Groups that were found to serve models, or not to, since the last `observe`.
    groups: KnownGroups,
}

pointsman_sdk::reasons! {
    /// Reasons for placing a request or holding it.
    enum Reason {
        Home = "the session's executor",
        Next = "the session's executor has no room: the next for it",
        Turn = "no session: its turn",
        HomeFull = "waits for the session's executor",
        NoRoom = "no room where it may go",
    }
}

impl Policy for Sticky {
    type Settings = Settings;

    fn describe() -> Description {
        Description {
            name: "sticky".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "Each session on the executor it is hashed to; without one, in turn.".into(),
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
            turns: Turns::default(),
            ranking: Ranking::default(),
            homes: Homes::default(),
            groups: KnownGroups::default(),
        })
    }

    fn snapshot(&self) -> Vec<u8> {
        self.turns.snapshot()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        self.turns = Turns::restore(state)?;
        Ok(())
    }

    fn index(&mut self) -> Option<&mut dyn ExecutorIndex> {
        Some(self)
    }

    fn observed(&mut self, _: &Mirror) {
        self.groups.clear();
    }
}

impl ExecutorIndex for Sticky {
    fn update(&mut self, fleet: Fleet<'_>, executors: &[u32]) {
        let ranking = &mut self.ranking;
        ranking.update(fleet, executors, |place| place.readiness());
        self.homes.update(fleet, executors);
    }
}

impl Router for Sticky {
    const NEEDS: Feed = Feed::FIT.union(Feed::NAMES);

    const UNKNOWN: u16 = Reason::NoRoom.index();

    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
        let group = self.group(case);
        match case.request.session {
            Some(session) => self.by_session(case, session, group),
            None => self.in_turn(case, group),
        }
    }

    fn picked(&mut self, case: &Case<'_>, pick: &Pick) {
        if case.request.session.is_none() {
            self.turns.took(case.request.model, pick.executors[0]);
        }
    }
}

impl Explanation for Sticky {
    const NEEDS: Feed = Feed::FIT.union(Feed::NAMES);

    fn explain(&mut self, case: &Case<'_>) -> Vec<Candidate> {
        let (mirror, request) = (case.fleet.mirror, case.request);
        let group = self.group(case);
        let claimants = request
            .session
            .map(|session| self.homes.claimants(case, session, group));
        let home = claimants.and_then(|claimants| claimants.home);
        let turn = self.turns.of(request.model);
        let rank = |place: &Place<'_>| {
            let at = &place.executor;
            if group.is_some_and(|group| group != at.info.group) {
                return Err("it is of another group");
            }
            let waits = self.settings.when_full == WhenFull::Wait && case.hold_end().is_some();
            if waits && home.is_some_and(|id| id != at.id()) {
                return Err("the request waits for its session's executor");
            }
            let degraded = at.load.health == Health::Degraded;
            Ok(match request.session {
                // To a session its place in the order matters more than a free slot.
                Some(session) => (degraded, None, !claim(mirror, session, at.id())),
                None => (degraded, Some((place.seat, turn(at.id()))), 0),
            })
        };
        let note = |at: &Executor<'_>| match request.session {
            Some(_) if home == Some(at.id()) => "the session is hashed to it".to_owned(),
            Some(session) => format!("claim {:016x}", claim(mirror, session, at.id())),
            None => turn(at.id()).note().to_owned(),
        };
        explain::by_rank(case, rank, note)
    }
}

impl Sticky {
    fn by_session(
        &self,
        case: &Case<'_>,
        session: u64,
        group: Option<u32>,
    ) -> Result<Pick, Verdict> {
        let Claimants { home, next } = self.homes.claimants(case, session, group);
        let next_id = next.map(|place| place.executor.id());
        match (home, next, self.settings.when_full) {
            (Some(_), Some(next), _) if home == next_id => {
                Ok(Pick::new(&next, Reason::Home.index()))
            }
            (Some(_), _, WhenFull::Wait) if case.hold_end().is_some() => {
                Err(case.hold(None, Reason::HomeFull.index()))
            }
            (_, Some(next), _) => Ok(Pick::new(&next, Reason::Next.index())),
            (_, None, _) => Err(case.hold(None, Reason::NoRoom.index())),
        }
    }

    fn in_turn(&self, case: &Case<'_>, group: Option<u32>) -> Result<Pick, Verdict> {
        let request = case.request;
        let last = self.turns.last(request.model);
        let is_of = |id: &u32, group| {
            let executor = case.fleet.mirror.executor(*id);
            executor.is_some_and(|executor| executor.info.group == group)
        };
        let is_in_group = |id: &u32| group.is_none_or(|group| is_of(id, group));
        let walk = self.ranking.best_first(request).in_group(group).after(last);
        let next = case.first_of(walk.filter(is_in_group), Reason::Turn.index());
        next.ok_or_else(|| case.hold(None, Reason::NoRoom.index()))
    }

    /// The group that the request is kept to: the one it asks for, if that has an executor which
    /// may take it once there is room, for as long as the request can be held.
    fn group(&mut self, case: &Case<'_>) -> Option<u32> {
        let request = case.request;
        let group = request.group.filter(|_| case.hold_end().is_some())?;
        let find = || self.homes.has_group(case, group);
        self.groups.serves(case, group, find).then_some(group)
    }
}

export!(Sticky: routing, explanation);

#[cfg(test)]
mod tests;
