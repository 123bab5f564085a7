//! A look at every executor, to find out why none can take a request.

use pointsman_sdk::{Obstacle, Place, Seat};

use super::{Choice, Hurdle, Search};
use crate::cold::is_cold;
use crate::rank::Rank;

/// The result of a look.
pub(super) struct Looked<'a> {
    /// A place where only a warm hold is in the way, which does not bind the request.
    pub(super) waived: Option<Choice<'a>>,
    pub(super) blocked: Blocked,
}

/// The obstacles on the executors that could not take a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// The earliest end of a warm hold that is all that stands in the way.
    pub(crate) warm_until: Option<u64>,
    /// The greatest lack of any executor.
    pub(crate) lack: Option<Lack>,
    /// The executor that it is held for, though there is room elsewhere.
    pub(crate) held_for: Option<u32>,
}

/// A passing lack. Where executors lack different things the greatest is reported, which is the
/// closest to being all that is lacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lack {
    Model,
    Slot,
    Blocks,
    /// The executor is kept free for a model that is warm nowhere.
    Drain,
    /// The request's model is being loaded, there or elsewhere.
    Loading,
    ModelLimit,
    /// As much prefill is pending as the request may wait for.
    Prefill,
    /// The slots left are kept free of the request's tenant, which is beyond its share.
    Reserved,
}

// === impl Search ===

impl<'a> Search<'a> {
    /// Looks at every executor of the scope, none of which can take the request.
    pub(super) fn look(&self) -> Looked<'a> {
        let mut blocked = Blocked::default();
        let mut held: Option<((Rank, _, _), Place<'_>)> = None;
        for executor in self.scope().executors(self.case.fleet.mirror) {
            match self.place_on(executor) {
                Ok(_) => {}
                Err(Hurdle::Drained) => blocked.lacks(Lack::Drain),
                Err(Hurdle::Reserved) => blocked.lacks(Lack::Reserved),
                Err(Hurdle::Prefilling) => blocked.lacks(Lack::Prefill),
                Err(Hurdle::Loading) => blocked.lacks(Lack::Loading),
                Err(Hurdle::Obstacle(obstacle)) => {
                    blocked.note(obstacle);
                    let is_held = matches!(obstacle, Obstacle::WarmHold { .. });
                    if is_held && self.case.fleet.slots_free(&executor) > 0 {
                        let place = self.seated(executor, Seat::Slot);
                        let key = self.key(&place);
                        if held.as_ref().is_none_or(|held| key < held.0) {
                            held = Some((key, place));
                        }
                    }
                }
            }
        }
        let held = held.filter(|_| self.waives_holds());
        Looked {
            waived: held.map(|(_, place)| Choice::waived(place)),
            blocked,
        }
    }

    /// Returns whether a warm hold does not bind the request: its model is warm nowhere.
    fn waives_holds(&self) -> bool {
        let model = self.request().model;
        self.policy.settings.help().is_some()
            && model.is_some_and(|model| is_cold(self.case.fleet, model, self.case.now))
    }
}

// === impl Blocked ===

impl Blocked {
    /// The index has no place, and no look was taken to find out why.
    pub(crate) const UNKNOWN: Self = Self {
        warm_until: None,
        lack: Some(Lack::Slot),
        held_for: None,
    };

    /// The best executor for it has the prompts of others to prefill first.
    pub(crate) fn behind(executor: u32) -> Self {
        Self {
            warm_until: None,
            lack: Some(Lack::Prefill),
            held_for: Some(executor),
        }
    }

    #[inline]
    fn note(&mut self, obstacle: Obstacle) {
        match obstacle {
            Obstacle::WarmHold { until } => {
                let earliest = self.warm_until.unwrap_or(until).min(until);
                self.warm_until = Some(earliest);
            }
            Obstacle::ModelLimit => self.lacks(Lack::ModelLimit),
            Obstacle::NoBlocks => self.lacks(Lack::Blocks),
            Obstacle::NoSlot => self.lacks(Lack::Slot),
            Obstacle::ModelsMax => self.lacks(Lack::Model),
            Obstacle::NotLive
            | Obstacle::NotServed
            | Obstacle::NotAllowed
            | Obstacle::FailedBefore
            | Obstacle::NeverFits => {}
        }
    }

    #[inline]
    fn lacks(&mut self, lack: Lack) {
        self.lack = self.lack.max(Some(lack));
    }

    /// Returns whether an obstacle on some executor passes.
    pub(crate) fn passes(self) -> bool {
        self != Self::default()
    }
}
