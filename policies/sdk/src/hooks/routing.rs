//! The hook `routing`: executors for requests.

use crate::export::component::Host;
use crate::mirror::Mirror;
use crate::needs::Ask;
use crate::placements::BatchPlacements;
use crate::policy::Policy;
use crate::runtime::Runtime;
use crate::wire::lifecycle::{Feed, Hook};
use crate::wire::types::{Cached, Moment};

/// The generated types of the interface.
pub mod world {
    crate::wire::world!(
        "package pointsman:sdk-routing; world routing { export pointsman:scheduling/routing@0.1.0; }",
        "pointsman:scheduling/routing@0.1.0"
    );
}

pub use world::exports::pointsman::scheduling::routing as wire;

/// Decides where requests run.
///
/// Most policies implement [`Ranked`](crate::Ranked) or [`Router`](crate::Router) instead, which
/// are asked about one request at a time.
///
/// ```
/// # use pointsman_sdk::{BatchPlacements, Description, Feed, Mirror, Moment, Policy, Routing};
/// use pointsman_sdk::wire::{routing::{Choice, Verdict}, types::Cached};
/// use pointsman_sdk::{Case, Fleet};
///
/// # struct First;
/// impl Routing for First {
///     const NEEDS: Feed = Feed::FIT;
///
///     fn route(
///         &mut self,
///         mirror: &Mirror,
///         placed: &mut BatchPlacements,
///         at: Moment,
///         requests: &[Cached],
///     ) -> Vec<Verdict> {
///         let mut verdicts = Vec::with_capacity(requests.len());
///         for asked in requests {
///             let mut choice = Choice::Hold(None);
///             if let Some(request) = mirror.request(asked.request) {
///                 let case = Case::new(Fleet { mirror, placed }, request, at.now);
///                 let fits = |executor| Some((executor, case.fit(&executor).ok()?));
///                 if let Some((executor, seat)) = mirror.executors().find_map(fits) {
///                     placed.place(mirror, request, &executor, seat);
///                     choice = Choice::Place(vec![executor.id()]);
///                 }
///             }
///             verdicts.push(Verdict { choice, reason: 0 });
///         }
///         verdicts
///     }
/// }
/// # impl Policy for First {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # let asked = Cached { request: 1, overlaps: None, floor_tokens: 0, shared_tokens: 0 };
/// # let at = Moment { now: 0, round: 0 };
/// # let mut placed = BatchPlacements::default();
/// # let verdicts = First.route(&Mirror::default(), &mut placed, at, &[asked]);
/// # assert_eq!(verdicts[0].choice, Choice::Hold(None));
/// ```
pub trait Routing: Policy {
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// Gives one verdict per request, in the same order. Placements are counted in `placed`, which
    /// the SDK clears at every `observe`.
    fn route(
        &mut self,
        mirror: &Mirror,
        placed: &mut BatchPlacements,
        at: Moment,
        requests: &[Cached],
    ) -> Vec<wire::Verdict>;
}

/// The wishes of the hook.
#[must_use]
pub const fn ask<P: Routing>() -> Ask {
    Ask::new(Hook::Routing, P::NEEDS)
}

impl<P: Routing> Runtime<P> {
    /// See [`Routing::route`].
    pub fn route(&mut self, at: Moment, requests: &[Cached]) -> Vec<wire::Verdict> {
        let (policy, mirror, placed) = self.reading(P::NEEDS);
        policy.route(mirror, placed, at, requests)
    }
}

impl<H: Host<Policy: Routing>> wire::Guest for H {
    fn route(at: Moment, requests: Vec<Cached>) -> Vec<wire::Verdict> {
        H::with(|runtime| runtime.route(at, &requests))
    }
}

/// The calls of the hook to an [`Instance`](crate::Instance) that holds a [`Runtime`].
#[doc(hidden)]
#[macro_export]
macro_rules! __routing_calls {
    () => {
        fn route(
            &mut self,
            at: $crate::Moment,
            requests: ::std::vec::Vec<$crate::wire::types::Cached>,
        ) -> ::std::vec::Vec<$crate::wire::routing::Verdict> {
            self.0.route(at, &requests)
        }
    };
}

pub use __routing_calls as calls;
