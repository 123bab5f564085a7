//! The hook `explanation`: reasons for a placement.

use crate::case::Case;
use crate::export::component::Host;
use crate::fleet::Fleet;
use crate::held::roomy_holders;
use crate::index::update_held;
use crate::needs::Ask;
use crate::policy::Policy;
use crate::runtime::Runtime;
use crate::wire::lifecycle::{Feed, Hook};
use crate::wire::types::{Cached, Moment, Request};

/// The generated types of the interface.
pub mod world {
    crate::wire::world!(
        "package pointsman:sdk-explanation; world explanation { export pointsman:scheduling/explanation@0.1.0; }",
        "pointsman:scheduling/explanation@0.1.0"
    );
}

pub use world::exports::pointsman::scheduling::explanation as wire;

/// Explains where a request would go.
///
/// ```
/// # use pointsman_sdk::{Case, Description, Explanation, Feed, Policy};
/// use pointsman_sdk::wire::explanation::Candidate;
///
/// # struct Open;
/// impl Explanation for Open {
///     const NEEDS: Feed = Feed::FIT;
///
///     fn explain(&mut self, case: &Case<'_>) -> Vec<Candidate> {
///         let candidate = |executor: pointsman_sdk::Executor<'_>| Candidate {
///             executor: executor.id(),
///             eligible: case.fit(&executor).is_ok(),
///             cost: i64::from(executor.load.slots_used),
///             note: "slots in use".into(),
///         };
///         case.fleet.mirror.executors().map(candidate).collect()
///     }
/// }
/// # impl Policy for Open {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// ```
pub trait Explanation: Policy {
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// Lists every executor, for a request that comes alone. The request need not be in the
    /// mirror.
    fn explain(&mut self, case: &Case<'_>) -> Vec<wire::Candidate>;
}

/// The wishes of the hook.
#[must_use]
pub const fn ask<P: Explanation>() -> Ask {
    Ask::new(Hook::Explanation, P::NEEDS)
}

impl<P: Explanation> Runtime<P> {
    /// See [`Explanation::explain`].
    pub fn explain(
        &mut self,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Vec<wire::Candidate> {
        let (policy, mirror, placed) = self.reading(P::NEEDS);
        if let Some(index) = policy.index() {
            let held = roomy_holders(mirror, request, cached);
            update_held(index, mirror, placed, held);
        }
        let case = Case::new(Fleet::from(mirror), request, at.now);
        let candidates = policy.explain(&case.with_cached(cached));
        if let Some(index) = policy.index() {
            update_held(index, mirror, placed, Vec::new());
        }
        candidates
    }
}

impl<H: Host<Policy: Explanation>> wire::Guest for H {
    fn explain(at: Moment, request: Request, cached: Cached) -> Vec<wire::Candidate> {
        H::with(|runtime| runtime.explain(at, &request, &cached))
    }
}

/// The calls of the hook to an [`Instance`](crate::Instance) that holds a [`Runtime`].
#[doc(hidden)]
#[macro_export]
macro_rules! __explanation_calls {
    () => {
        fn explain(
            &mut self,
            at: $crate::Moment,
            request: $crate::wire::types::Request,
            cached: $crate::wire::types::Cached,
        ) -> ::std::vec::Vec<$crate::wire::explanation::Candidate> {
            self.0.explain(at, &request, &cached)
        }
    };
}

pub use __explanation_calls as calls;
