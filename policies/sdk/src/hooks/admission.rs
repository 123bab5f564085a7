//! The hook `admission`: requests that may wait at all.

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
        "package pointsman:sdk-admission; world admission { export pointsman:scheduling/admission@0.1.0; }",
        "pointsman:scheduling/admission@0.1.0"
    );
}

pub use world::exports::pointsman::scheduling::admission as wire;

/// Decides whether requests may wait at all.
///
/// ```
/// # use pointsman_sdk::{Admission, Description, Feed, Mirror, Moment, Policy};
/// use pointsman_sdk::wire::admission::{Choice, Verdict};
/// use pointsman_sdk::wire::types::AskedRequest;
///
/// # struct Doorman;
/// impl Admission for Doorman {
///     const NEEDS: Feed = Feed::empty();
///
///     fn admit(
///         &mut self,
///         _: &Mirror,
///         _: Moment,
///         arrivals: &[AskedRequest],
///         room: u32,
///     ) -> Vec<Verdict> {
///         let room = usize::try_from(room).unwrap_or(usize::MAX);
///         let verdict = |index| Verdict {
///             choice: if index < room { Choice::Admit } else { Choice::Park },
///             reason: 0,
///         };
///         (0..arrivals.len()).map(verdict).collect()
///     }
/// }
/// # impl Policy for Doorman {
/// #     type Settings = serde_json::Value;
/// #     fn describe() -> Description { unreachable!() }
/// #     fn new(_: serde_json::Value) -> Result<Self, String> { Ok(Self) }
/// # }
/// # let asked = |request| AskedRequest { request, cached_tokens: 0, overtaken: 0 };
/// # let at = Moment { now: 0, round: 0 };
/// # let verdicts = Doorman.admit(&Mirror::default(), at, &[asked(1), asked(2)], 1);
/// # assert_eq!(verdicts[0].choice, Choice::Admit);
/// # assert_eq!(verdicts[1].choice, Choice::Park);
/// ```
pub trait Admission: Policy {
    /// The kinds of rows that the hook reads.
    const NEEDS: Feed;

    /// Gives one verdict per arrival, in order. `room` is the number of requests that may still
    /// enter the queue.
    fn admit(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        arrivals: &[AskedRequest],
        room: u32,
    ) -> Vec<wire::Verdict>;
}

impl<P: Ranked + Admission> Admission for ByRank<P> {
    const NEEDS: Feed = <P as Admission>::NEEDS;

    fn admit(
        &mut self,
        mirror: &Mirror,
        at: Moment,
        arrivals: &[AskedRequest],
        room: u32,
    ) -> Vec<wire::Verdict> {
        self.inner().admit(mirror, at, arrivals, room)
    }
}

/// The wishes of the hook.
#[must_use]
pub const fn ask<P: Admission>() -> Ask {
    Ask::new(Hook::Admission, P::NEEDS)
}

impl<P: Admission> Runtime<P> {
    /// See [`Admission::admit`].
    pub fn admit(
        &mut self,
        at: Moment,
        arrivals: &[AskedRequest],
        room: u32,
    ) -> Vec<wire::Verdict> {
        let (policy, mirror, _) = self.reading(P::NEEDS);
        policy.admit(mirror, at, arrivals, room)
    }
}

impl<H: Host<Policy: Admission>> wire::Guest for H {
    fn admit(at: Moment, arrivals: Vec<AskedRequest>, room: u32) -> Vec<wire::Verdict> {
        H::with(|runtime| runtime.admit(at, &arrivals, room))
    }
}

/// The calls of the hook to an [`Instance`](crate::Instance) that holds a [`Runtime`].
#[doc(hidden)]
#[macro_export]
macro_rules! __admission_calls {
    () => {
        fn admit(
            &mut self,
            at: $crate::Moment,
            arrivals: ::std::vec::Vec<$crate::wire::types::AskedRequest>,
            room: u32,
        ) -> ::std::vec::Vec<$crate::wire::admission::Verdict> {
            self.0.admit(at, &arrivals, room)
        }
    };
}

pub use __admission_calls as calls;
