//! Routing request by request.
//!
//! Most policies look at one request after the other and name one executor for each. What is the
//! same in all of them is here: who asks, the placements of the batch, the verdict.

use crate::fit::{Fit, Need, Seat, fit};
use crate::mirror::{Executor, Mirror};
use crate::policy::{Policy, Routing};
use crate::tentative::Tentative;
use crate::wire::routing::{Choice, Verdict};
use crate::wire::types::{Cached, Moment};

/// One request, and what it is looked at with.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The fleet.
    pub mirror: &'a Mirror,
    /// Earlier placements of the batch.
    pub placed: &'a Tentative,
    /// What the request needs.
    pub need: Need<'a>,
    /// What is cached of it.
    pub cached: &'a Cached,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// There.
    pub executor: u32,
    /// Where on it.
    pub seat: Seat,
    /// An index into the policy's reasons.
    pub reason: u16,
}

/// A policy that routes request by request; it has [`Routing`] from this.
///
/// ```
/// # use pointsman_sdk::{Policy, wire::lifecycle};
/// use pointsman_sdk::{Case, Pick, Router, wire::routing::Verdict};
///
/// # struct First;
/// impl Router for First {
///     const NO_ROOM: u16 = 1;
///
///     fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict> {
///         let ids = case.mirror.executors().map(|executor| executor.id());
///         case.first_of(ids, 0).ok_or(Self::hold(Self::NO_ROOM))
///     }
/// }
/// # impl Policy for First {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> lifecycle::Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// ```
pub trait Router: Policy {
    /// The reason for holding what has no room anywhere.
    const NO_ROOM: u16;

    /// The reason for holding what it was not told about.
    const UNKNOWN: u16 = Self::NO_ROOM;

    /// Where the request goes, or else the verdict on it.
    ///
    /// # Errors
    ///
    /// The verdict on what is not placed.
    fn choose(&mut self, case: &Case<'_>) -> Result<Pick, Verdict>;

    /// The request goes there. For a policy that keeps an index or takes turns.
    fn took(&mut self, case: &Case<'_>, pick: &Pick) {
        let _ = (case, pick);
    }

    /// The verdict that a request waits for this reason.
    #[must_use]
    fn hold(reason: u16) -> Verdict {
        Verdict {
            choice: Choice::Hold(None),
            reason,
        }
    }
}

impl<R: Router> Routing for R {
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut Tentative,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<Verdict> {
        let verdict = |cached: &Cached| {
            let Some(request) = mirror.request(cached.request) else {
                return Self::hold(Self::UNKNOWN);
            };
            let need = Need::new(mirror, placed, request, at.now);
            let case = Case {
                mirror,
                placed,
                need,
                cached,
            };
            let pick = match self.choose(&case) {
                Ok(pick) => pick,
                Err(verdict) => return verdict,
            };
            self.took(&case, &pick);
            if let Some(executor) = mirror.executor(pick.executor) {
                placed.place(mirror, &need, &executor, pick.seat);
            }
            Verdict {
                choice: Choice::Place(vec![pick.executor]),
                reason: pick.reason,
            }
        };
        requests.iter().map(verdict).collect()
    }
}

// === impl Case ===

impl Case<'_> {
    /// The place that an executor has for the request.
    ///
    /// # Errors
    ///
    /// What stands in the way.
    #[inline]
    pub fn fit(&self, executor: &Executor<'_>) -> Fit {
        fit(self.mirror, self.placed, &self.need, executor)
    }

    /// The place on an executor, if it is there and has one.
    #[must_use]
    #[inline]
    pub fn seat(&self, executor: u32) -> Option<Seat> {
        self.fit(&self.mirror.executor(executor)?).ok()
    }

    /// The first of some executors that can take the request.
    pub fn first_of(&self, executors: impl IntoIterator<Item = u32>, reason: u16) -> Option<Pick> {
        executors.into_iter().find_map(|executor| {
            Some(Pick {
                executor,
                seat: self.seat(executor)?,
                reason,
            })
        })
    }
}
