//! The hook `priority`: the order of waiting requests.

use crate::export::component::Host;
use crate::mirror::Mirror;
use crate::needs::Ask;
use crate::policy::Policy;
use crate::ranked::{ByRank, Ranked};
use crate::runtime::Runtime;
use crate::wire::lifecycle::{Feed, Hook};
use crate::wire::types::{AskedRequest, Moment};

/// The generated types of the interface.
pub mod world {
    crate::wire::world!(
        "package pointsman:sdk-priority; world priority { export pointsman:scheduling/priority@0.1.0; }",
        "pointsman:scheduling/priority@0.1.0"
    );
}

pub use world::exports::pointsman::scheduling::priority as wire;

/// Decides in which order waiting requests are tried.
///
/// ```
/// # use pointsman_sdk::{Description, Feed, Mirror, Moment, Policy, Priority};
/// use pointsman_sdk::wire::types::AskedRequest;
///
/// # struct Shortest;
/// impl Priority for Shortest {
///     const NEEDS: Feed = Feed::WAITING;
///
///     fn order(&mut self, mirror: &Mirror, _: Moment, requests: &[AskedRequest]) -> Vec<u64> {
///         let known = requests.iter().filter_map(|asked| {
///             let prompt_tokens = mirror.request(asked.request)?.prompt_tokens;
///             Some((prompt_tokens.saturating_sub(asked.cached_tokens), asked.request))
///         });
///         let mut order: Vec<_> = known.collect();
///         order.sort_unstable();
///         order.into_iter().map(|(_, id)| id).collect()
///     }
/// }
/// # impl Policy for Shortest {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # let asked = [AskedRequest { request: 1, cached_tokens: 0, overtaken: 0 }];
/// # assert!(Shortest.order(&Mirror::default(), Moment { now: 0, round: 0 }, &asked).is_empty());
/// ```
pub trait Priority: Policy {
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// True if the policy is asked about a single request too. There is nothing to order; but one that
    /// learns from what it is told before each question needs the question.
    const ORDERS_ONE: bool = false;

    /// Orders these requests, most urgent first. Requests left out come after, by arrival.
    fn order(&mut self, mirror: &Mirror, at: Moment, requests: &[AskedRequest]) -> Vec<u64>;
}

impl<P: Ranked + Priority> Priority for ByRank<P> {
    const NEEDS: Feed = <P as Priority>::NEEDS;
    const ORDERS_ONE: bool = <P as Priority>::ORDERS_ONE;

    fn order(&mut self, mirror: &Mirror, at: Moment, requests: &[AskedRequest]) -> Vec<u64> {
        self.inner().order(mirror, at, requests)
    }
}

/// The wishes of the hook.
#[must_use]
pub const fn ask<P: Priority>() -> Ask {
    Ask {
        orders_one: P::ORDERS_ONE,
        ..Ask::new(Hook::Priority, P::NEEDS)
    }
}

impl<P: Priority> Runtime<P> {
    /// See [`Priority::order`].
    pub fn order(&mut self, at: Moment, requests: &[AskedRequest]) -> Vec<u64> {
        let (policy, mirror, _) = self.reading(P::NEEDS);
        policy.order(mirror, at, requests)
    }
}

impl<H: Host<Policy: Priority>> wire::Guest for H {
    fn order(at: Moment, requests: Vec<AskedRequest>) -> Vec<u64> {
        H::with(|runtime| runtime.order(at, &requests))
    }
}

/// The calls of the hook to an [`Instance`](crate::Instance) that holds a [`Runtime`].
#[doc(hidden)]
#[macro_export]
macro_rules! __priority_calls {
    () => {
        fn order(
            &mut self,
            at: $crate::Moment,
            requests: ::std::vec::Vec<$crate::wire::types::AskedRequest>,
        ) -> ::std::vec::Vec<u64> {
            self.0.order(at, &requests)
        }
    };
}

pub use __priority_calls as calls;
