//! Routing request by request, with the placements of the batch counted and the index current.

use crate::case::Case;
use crate::executor::Executor;
use crate::fleet::{Fleet, Place, Seat};
use crate::held::roomy_holders;
use crate::hooks::routing::Routing;
use crate::index::{update_held, update_placed};
use crate::mirror::Mirror;
use crate::placements::BatchPlacements;
use crate::policy::Policy;
use crate::wire::lifecycle::Feed;
use crate::wire::routing::{Choice, Verdict};
use crate::wire::types::{Cached, Moment};

/// The executors that a request goes to, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Executors, best first, at least one. The request is counted as placed on the first.
    pub executors: Vec<u32>,
    /// The seat on the first executor.
    pub seat: Seat,
    /// An index into the policy's reasons.
    pub reason: u16,
}

/// A policy that routes request by request. It has [`Routing`] from this.
///
/// ```
/// # use pointsman_sdk::{Description, Policy};
/// use pointsman_sdk::{Case, Pick, Router, wire::routing::Verdict};
///
/// # struct First;
/// impl Router for First {
///     const UNKNOWN: u16 = 1;
///
///     fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
///         let executors = case.fleet.mirror.executors();
///         let ids = executors.map(|executor| executor.id());
///         case.first_of(ids, 0).ok_or(case.hold(None, 1))
///     }
/// }
/// # impl Policy for First {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// ```
pub trait Router: Policy {
    /// The reason for holding a request that is not in the mirror.
    const UNKNOWN: u16;

    /// The kinds of rows that the policy reads: what finds a request its place, and what else it
    /// names.
    const NEEDS: Feed = Feed::FIT;

    /// Begins a question, which is about one or more requests.
    fn begin(&mut self) {}

    /// Picks where the request goes, or else gives the verdict on it.
    ///
    /// # Errors
    ///
    /// The verdict on a request that is not placed.
    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict>;

    /// Takes note of a pick before it is counted, as a policy does that takes turns.
    fn picked(&mut self, case: &Case<'_>, pick: &Pick) {
        let _ = (case, pick);
    }

    /// Tokens of the prompt to be prefilled on an executor. Later requests of the batch find them
    /// in [`PlacementCounts`](crate::PlacementCounts).
    fn prefill_tokens(&self, case: &Case<'_>, executor: &Executor<'_>) -> u64 {
        let _ = executor;
        u64::from(case.request.prompt_tokens)
    }
}

impl<R: Router> Routing for R {
    const NEEDS: Feed = <R as Router>::NEEDS;

    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut BatchPlacements,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        self.begin();
        let verdict = |cached: &Cached| {
            let Some(request) = mirror.request(cached.request) else {
                return Verdict {
                    choice: Choice::Hold(None),
                    reason: Self::UNKNOWN,
                };
            };
            if let Some(index) = self.index() {
                update_placed(index, mirror, placed);
                let held = roomy_holders(mirror, request, cached);
                update_held(index, mirror, placed, held);
            }
            let fleet = Fleet { mirror, placed };
            let case = Case::new(fleet, request, at.now).with_cached(cached);
            let pick = match self.choose(&case) {
                Ok(pick) => pick,
                Err(verdict) => return verdict,
            };
            self.picked(&case, &pick);
            let first = pick.executors.first();
            if let Some(executor) = first.and_then(|id| mirror.executor(*id)) {
                let prefill_tokens = self.prefill_tokens(&case, &executor);
                let shared = case.tokens_shared(&executor);
                placed.place_sharing((mirror, request), &executor, pick.seat, shared);
                placed.add_prefill(&executor, prefill_tokens);
            }
            Verdict {
                choice: Choice::Place(pick.executors),
                reason: pick.reason,
            }
        };
        let verdicts = requests.iter().map(verdict).collect();
        if let Some(index) = self.index() {
            // What was held of the last prompt is no room for others.
            update_held(index, mirror, placed, Vec::new());
        }
        verdicts
    }
}

// === impl Pick ===

impl Pick {
    /// Picks one place.
    #[must_use]
    pub fn new(place: &Place<'_>, reason: u16) -> Self {
        Self {
            executors: vec![place.executor.id()],
            seat: place.seat,
            reason,
        }
    }
}

// === impl Case ===

impl Case<'_> {
    /// The first of some executors that can take the request.
    pub fn first_of(&self, executors: impl IntoIterator<Item = u32>, reason: u16) -> Option<Pick> {
        let place = executors.into_iter().find_map(|id| self.place(id))?;
        Some(Pick::new(&place, reason))
    }
}
