//! The hook `preemption`: placed sequences that give way.

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
        "package pointsman:sdk-preemption; world preemption { export pointsman:scheduling/preemption@0.1.0; }",
        "pointsman:scheduling/preemption@0.1.0"
    );
}

pub use world::exports::pointsman::scheduling::preemption as wire;

/// Decides which placed sequences give way.
///
/// ```
/// # use pointsman_sdk::wire::types::{Change, Extent, Sequence};
/// # use pointsman_sdk::{Description, Feed, Mirror, Moment, Policy, Preemption, export, fixture};
/// use pointsman_sdk::Urgency;
/// use pointsman_sdk::wire::preemption::{Cause, Eviction, How, Shortage, Victim};
///
/// # struct Newest;
/// impl Preemption for Newest {
///     const NEEDS: Feed = Feed::WAITING.union(Feed::SEQUENCES);
///
///     /// Where a slot is missing, the newest of the less urgent sequences gives its own.
///     fn evict(&mut self, mirror: &Mirror, _: Moment, shortage: &Shortage) -> Option<Eviction> {
///         let needy = Urgency::from(mirror.request(shortage.needy)?);
///         let gives = |row: &&Sequence| {
///             shortage.cause == Cause::Slots && row.preemptible && Urgency::from(*row) < needy
///         };
///         let newest = mirror.sequences().filter(gives).max_by_key(|row| row.request)?;
///         let victim = Victim { request: newest.request, how: How::Recompute };
///         Some(Eviction { executor: newest.executor, victims: vec![victim], reason: 0 })
///     }
/// }
/// # impl Policy for Newest {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> Description {
/// #         Description {
/// #             name: String::new(),
/// #             version: String::new(),
/// #             summary: String::new(),
/// #             reasons: Vec::new(),
/// #             state_version: 1,
/// #         }
/// #     }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # export!(Newest: preemption);
/// # let mut policy = instance();
/// # policy.configure("{}", fixture::bounds()).unwrap();
/// # let sequence = |request| Sequence { priority: -1, ..fixture::sequence(request, 0) };
/// # policy.observe(0, Extent::Everything, vec![
/// #     Change::Executor(fixture::executor(0)),
/// #     Change::Load(fixture::load(0)),
/// #     Change::Sequence(sequence(1)),
/// #     Change::Sequence(sequence(2)),
/// #     Change::Sequence(Sequence { preemptible: false, ..sequence(3) }),
/// #     Change::Waiting(fixture::request(4)),
/// # ]);
/// # let shortage = |cause| Shortage { cause, needy: 4, executor: None, blocks: 0 };
/// # let eviction = policy.evict(fixture::at(0), shortage(Cause::Slots)).unwrap();
/// # assert_eq!((eviction.executor, eviction.victims[0].request), (0, 2));
/// # assert!(policy.evict(fixture::at(0), shortage(Cause::Blocks)).is_none());
/// ```
pub trait Preemption: Policy {
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// Names victims that cover the whole shortage when they leave. Without an answer the needy
    /// request keeps waiting.
    fn evict(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        shortage: &wire::Shortage,
    ) -> Option<wire::Eviction>;
}

impl<P: Ranked + Preemption> Preemption for ByRank<P> {
    const NEEDS: Feed = <P as Preemption>::NEEDS;

    fn evict(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        shortage: &wire::Shortage,
    ) -> Option<wire::Eviction> {
        self.inner().evict(mirror, at, shortage)
    }
}

/// The wishes of the hook.
#[must_use]
pub const fn ask<P: Preemption>() -> Ask {
    Ask::new(Hook::Preemption, P::NEEDS)
}

impl<P: Preemption> Runtime<P> {
    /// See [`Preemption::evict`].
    pub fn evict(&mut self, at: Moment, shortage: &wire::Shortage) -> Option<wire::Eviction> {
        let (policy, mirror, _) = self.reading(P::NEEDS);
        policy.evict(mirror, at, shortage)
    }
}

impl<H: Host<Policy: Preemption>> wire::Guest for H {
    fn evict(at: Moment, shortage: wire::Shortage) -> Option<wire::Eviction> {
        H::with(|runtime| runtime.evict(at, &shortage))
    }
}

/// The calls of the hook to an [`Instance`](crate::Instance) that holds a [`Runtime`].
#[doc(hidden)]
#[macro_export]
macro_rules! __preemption_calls {
    () => {
        fn evict(
            &mut self,
            at: $crate::Moment,
            shortage: $crate::wire::preemption::Shortage,
        ) -> ::core::option::Option<$crate::wire::preemption::Eviction> {
            self.0.evict(at, &shortage)
        }
    };
}

pub use __preemption_calls as calls;
