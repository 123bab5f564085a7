//! The executors that may have room, best first, kept current as rows change.
//!
//! # Invariants
//! Between [`Index::refresh`] and the next change the ranks are those of the mirror and of the
//! placements made in this batch (`tests::the_index_finds_what_a_scan_finds`).

use pointsman_sdk::wire::types::Change;
use pointsman_sdk::{Executor, Mirror, Ranking, Standing, Tentative, open_seat};

use crate::choose::Case;
use crate::rank::{Key, Load};
use crate::settings::Balance;

/// Executors by rank.
#[derive(Debug)]
pub(crate) struct Index {
    balance: Balance,
    ranking: Ranking<Key>,
}

// === impl Index ===

impl Index {
    pub(crate) fn new(balance: Balance) -> Self {
        Self {
            balance,
            ranking: Ranking::default(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.ranking.clear();
    }

    /// Notes what a row changes, before it does.
    pub(crate) fn note(&mut self, mirror: &Mirror, change: &Change) {
        self.ranking.changed(mirror, change);
    }

    /// The host has told what came of the last batch: what was placed in it is in the mirror, or
    /// void.
    pub(crate) fn observed(&mut self) {
        self.ranking.observed();
    }

    /// Something was placed on this executor.
    pub(crate) fn placed(&mut self, executor: &Executor<'_>) {
        match self.balance {
            Balance::Memory => self.ranking.placed_on_device(executor.info.device),
            Balance::Slots => self.ranking.placed(executor.id()),
        }
    }

    /// Brings the ranks up to date with the mirror and what was placed in this batch.
    pub(crate) fn refresh(&mut self, mirror: &Mirror, placed: &Tentative) {
        let balance = self.balance;
        self.ranking.refresh(mirror, placed, |executor| {
            let seat = open_seat(placed, executor)?;
            let load = Load::new(mirror, placed, executor, seat, balance);
            Some(Key::new(executor.load.health, &load))
        });
    }

    /// Executors of the request's group, if it is kept to one, that may take it, best first.
    pub(crate) fn best_first<'a>(&'a self, case: &Case<'a>) -> impl Iterator<Item = Executor<'a>> {
        let last = match self.balance {
            Balance::Memory => None,
            Balance::Slots => case.view.scale.last,
        };
        let request = case.need.request;
        let walk = match case.view.group {
            Some(group) => self.ranking.best_in_group(group, request, last),
            None => self.ranking.best_first(request, last),
        };
        let (mirror, group) = (case.mirror, case.view.group);
        walk.filter_map(move |id| mirror.executor(id))
            .filter(move |executor| group.is_none_or(|group| group == executor.info.group))
    }

    /// Whether some executor has a better place for the request than this one.
    pub(crate) fn has_above(&self, case: &Case<'_>, standing: Standing) -> bool {
        let mut walk = self.ranking.above(standing, case.need.request);
        walk.any(|id| {
            let executor = case.mirror.executor(id);
            let executor = executor.filter(|executor| case.is_in_group(executor));
            executor.is_some_and(|executor| {
                let seat = case.seat(&executor);
                seat.is_ok_and(|seat| Standing::new(&executor, seat) < standing)
            })
        })
    }
}
