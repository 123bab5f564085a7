//! The hook `budget`: tokens of each engine in a step, and what they are spent on.

use crate::export::component::Host;
use crate::mirror::Mirror;
use crate::needs::Ask;
use crate::policy::Policy;
use crate::ranked::{ByRank, Ranked};
use crate::runtime::Runtime;
use crate::wire::lifecycle::{Feed, Hook};
use crate::wire::types::Moment;

/// The generated types of the interface.
pub mod world {
    crate::wire::world!(
        "package pointsman:sdk-budget; world budget { export pointsman:scheduling/budget@0.1.0; }",
        "pointsman:scheduling/budget@0.1.0"
    );
}

pub use world::exports::pointsman::scheduling::budget as wire;

/// Decides how many tokens each engine of a device may schedule in a step, and on what it spends
/// them.
///
/// ```
/// # use pointsman_sdk::{Budget, Description, Feed, Mirror, Moment, Policy};
/// use pointsman_sdk::wire::budget::{Allotment, Allotments, DeviceTokens};
///
/// # struct Equal;
/// impl Budget for Equal {
///     const NEEDS: Feed = Feed::empty();
///
///     fn allot(&mut self, _: &Mirror, _: Moment, tokens: &DeviceTokens) -> Allotments {
///         let engines = u32::try_from(tokens.used.len()).unwrap_or(u32::MAX).max(1);
///         let tokens_max = tokens.tokens_total / engines;
///         let allotment = |executor| Allotment { executor, tokens_max };
///         let engines = tokens.used.iter().map(|used| allotment(used.executor)).collect();
///         Allotments { engines, again: None }
///     }
/// }
/// # impl Policy for Equal {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # let tokens = DeviceTokens { device: 0, tokens_total: 100, used: Vec::new() };
/// # let said = Equal.allot(&Mirror::default(), Moment { now: 0, round: 0 }, &tokens);
/// # assert!(said.engines.is_empty());
/// ```
pub trait Budget: Policy {
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// Shares the tokens of a step among the engines of a device.
    fn allot(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        tokens: &wire::DeviceTokens,
    ) -> wire::Allotments;

    /// Says how an engine spends its steps on these sequences, which it runs. By default the most
    /// urgent ones come first, and prompts take what they can.
    fn arrange(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        executor: u32,
        sequences: &[u64],
    ) -> wire::Arrangement {
        let _ = (mirror, at, executor, sequences);
        wire::Arrangement {
            prefill_max: None,
            first: Vec::new(),
        }
    }
}

impl<P: Ranked + Budget> Budget for ByRank<P> {
    const NEEDS: Feed = <P as Budget>::NEEDS;

    fn allot(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        tokens: &wire::DeviceTokens,
    ) -> wire::Allotments {
        self.inner().allot(mirror, at, tokens)
    }

    fn arrange(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        executor: u32,
        sequences: &[u64],
    ) -> wire::Arrangement {
        self.inner().arrange(mirror, at, executor, sequences)
    }
}

/// The wishes of the hook.
#[must_use]
pub const fn ask<P: Budget>() -> Ask {
    Ask::new(Hook::Budget, P::NEEDS)
}

impl<P: Budget> Runtime<P> {
    /// See [`Budget::allot`].
    pub fn allot(&mut self, at: Moment, tokens: &wire::DeviceTokens) -> wire::Allotments {
        let (policy, mirror, _) = self.reading(P::NEEDS);
        policy.allot(mirror, at, tokens)
    }

    /// See [`Budget::arrange`].
    pub fn arrange(&mut self, at: Moment, executor: u32, sequences: &[u64]) -> wire::Arrangement {
        let (policy, mirror, _) = self.reading(P::NEEDS);
        policy.arrange(mirror, at, executor, sequences)
    }
}

impl<H: Host<Policy: Budget>> wire::Guest for H {
    fn allot(at: Moment, tokens: wire::DeviceTokens) -> wire::Allotments {
        H::with(|runtime| runtime.allot(at, &tokens))
    }

    fn arrange(at: Moment, executor: u32, sequences: Vec<u64>) -> wire::Arrangement {
        H::with(|runtime| runtime.arrange(at, executor, &sequences))
    }
}

/// The calls of the hook to an [`Instance`](crate::Instance) that holds a [`Runtime`].
#[doc(hidden)]
#[macro_export]
macro_rules! __budget_calls {
    () => {
        fn allot(
            &mut self,
            at: $crate::Moment,
            tokens: $crate::wire::budget::DeviceTokens,
        ) -> $crate::wire::budget::Allotments {
            self.0.allot(at, &tokens)
        }

        fn arrange(
            &mut self,
            at: $crate::Moment,
            executor: u32,
            sequences: ::std::vec::Vec<u64>,
        ) -> $crate::wire::budget::Arrangement {
            self.0.arrange(at, executor, &sequences)
        }
    };
}

pub use __budget_calls as calls;
