//! Places ahead of the order: on the executor of the session, on the one that the session is hashed
//! to, on those that hold enough of the prompt to be cheaper than the first of all others, and on the first where
//! its model need not be loaded.

use std::cmp::Reverse;

use pointsman_sdk::wire::types::NameKind;
use pointsman_sdk::{Executor, Place, Turn, rendezvous};

use super::Search;
use crate::credit::{Credit, cost};
use crate::rank::{Grade, Rank};

/// Places ahead of the order, and the reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lead<'a> {
    pub(crate) why: Why,
    pub(crate) places: Vec<Place<'a>>,
}

/// The reason for the first executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Why {
    /// It is the first in order.
    #[default]
    Rank,
    /// It served the session last.
    Session,
    /// The session is hashed to it.
    Hash,
    /// It holds much of the prompt.
    Overlap,
    /// Its model is loaded there, and would have to be loaded on the first in order.
    Loaded,
    /// A warm hold is waived there.
    Waiver,
}

/// The order of holders of the prompt: within a grade the cost goes before the rank.
type Price = (Grade, u64, (Rank, Turn, usize));

// === impl Why ===

impl Why {
    /// Returns whether a request rather waits for the executor than goes to another one.
    pub(crate) fn is_worth_waiting(self) -> bool {
        match self {
            Self::Session | Self::Hash | Self::Overlap | Self::Loaded => true,
            Self::Rank | Self::Waiver => false,
        }
    }
}

// === impl Lead ===

impl<'a> Lead<'a> {
    /// The place on an executor, if it goes ahead of the order.
    pub(crate) fn place_on(&self, executor: &Executor<'_>) -> Option<Place<'a>> {
        self.places.get(self.ahead_of(executor)).copied()
    }

    /// The number of places that go ahead of an executor.
    pub(crate) fn ahead_of(&self, executor: &Executor<'_>) -> usize {
        let places = self.places.iter();
        let ahead = places.take_while(|place| place.executor.id() != executor.id());
        ahead.count()
    }
}

// === impl Search ===

impl<'a> Search<'a> {
    /// The places that go before the order, of which `first` is the first, by the first scorer that has any.
    pub(super) fn lead(&self, first: &Place<'a>) -> Lead<'a> {
        let one = |why| {
            move |place| Lead {
                why,
                places: vec![place],
            }
        };
        let by_session = self.by_session().map(one(Why::Session));
        let lead = by_session.or_else(|| self.by_hash().map(one(Why::Hash)));
        let lead = lead.or_else(|| self.by_overlap());
        let by_loaded = || self.by_loaded(first).map(one(Why::Loaded));
        lead.or_else(by_loaded).unwrap_or_default()
    }

    /// The executor that served the session last, unless another has a better place: the request
    /// would queue where another has a free slot, or the executor is degraded and another is not.
    fn by_session(&self) -> Option<Place<'a>> {
        let counts = self.settings.session_preference;
        let preferred = self.request().preferred.filter(|_| counts)?;
        let place = self.place(preferred)?;
        // With the model, what was cached of it has gone.
        if self.lacks(&place.executor) {
            return None;
        }
        let readiness = place.readiness();
        (readiness.is_best() || !self.has_better(readiness)).then_some(place)
    }

    /// The executor with the greatest claim to the session, under the same conditions.
    fn by_hash(&self) -> Option<Place<'a>> {
        let session = self.session?;
        let scope = self.scope();
        let executors = scope.executors(self.case.fleet.mirror);
        let places = executors.filter_map(|executor| self.place_on(executor).ok());
        places.min_by_key(|place| {
            let claim = self.claim(session, place.executor.id());
            (place.readiness(), Reverse(claim))
        })
    }

    /// The claim of an executor to the session, which belongs to the executor with the greatest.
    fn claim(&self, session: u64, executor: u32) -> u64 {
        // An executor's name outlives its id.
        let name = self.case.fleet.mirror.name(NameKind::Executor, executor);
        let node = name.map_or(u64::from(executor), rendezvous::node);
        rendezvous::weight(session, node)
    }

    /// The executors that hold more of the prompt than others, where they are better for it than
    /// the best of these, and that one: by grade, then by cost.
    fn by_overlap(&self) -> Option<Lead<'a>> {
        let settings = self.settings;
        let listed = self.case.cached.overlaps.iter().flatten();
        let mut holders: Vec<(Price, Place<'_>)> = listed
            .filter_map(|held| {
                let place = self.place(held.executor)?;
                let place = (!self.lacks(&place.executor)).then_some(place)?;
                let credit = |held| Credit::new(settings, self.case, &place.executor, held);
                let saves = credit(Some(held)) > credit(None);
                saves.then(|| (self.price(&place), place))
            })
            .collect();
        if holders.is_empty() {
            return None;
        }
        let is_holder = |place: &Place<'_>| {
            let id = place.executor.id();
            holders.iter().any(|(_, holder)| holder.executor.id() == id)
        };
        let other = self.best_first().find(|place| !is_holder(place));
        let other = other.map(|place| (self.price(&place), place));
        holders.retain(|holder| other.as_ref().is_none_or(|other| holder.0 < other.0));
        if holders.is_empty() {
            return None;
        }
        holders.sort_unstable_by_key(|holder| holder.0);
        holders.dedup_by_key(|holder| holder.1.executor.id());
        holders.extend(other);
        Some(Lead {
            why: Why::Overlap,
            places: holders.into_iter().map(|holder| holder.1).collect(),
        })
    }

    /// The best place where the model need not be loaded, unless `first` in order is such a place or has the better
    /// readiness.
    fn by_loaded(&self, first: &Place<'a>) -> Option<Place<'a>> {
        if !self.lacks(&first.executor) {
            return None;
        }
        let place = self.best_first().find(|it| !self.lacks(&it.executor))?;
        (place.readiness() <= first.readiness()).then_some(place)
    }

    fn price(&self, place: &Place<'_>) -> Price {
        let key = self.key(place);
        let cost = cost(
            self.settings,
            &self.policy.waits,
            self.case,
            &place.executor,
            self.policy.known.held_for(place.executor.id()),
        );
        (key.0.grade, cost, key)
    }
}
