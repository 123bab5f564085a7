//! The hooks: what a policy may be asked, with a file for each.
//!
//! The file of a hook has its types on the wire, the trait that a policy implements, the call of a
//! [`Runtime`](crate::Runtime), the same as a component exports it, and what
//! [`export!`](crate::export) takes from it: `ask`, `calls` and `world`. Here are the list of them
//! and [`Instance`], which has the calls of all.

#![expect(
    clippy::mem_forget,
    reason = "generated: what is returned is freed after the call"
)]

pub mod admission;
pub mod budget;
pub mod explanation;
pub mod preemption;
pub mod priority;
pub mod routing;

use crate::wire::lifecycle::{Bounds, Description, Hook};
use crate::wire::types::{AskedRequest, Cached, Change, Extent, Moment, Request};

/// The trait of each hook. The crate's root has them all.
pub mod traits {
    pub use super::admission::Admission;
    pub use super::budget::Budget;
    pub use super::explanation::Explanation;
    pub use super::preemption::Preemption;
    pub use super::priority::Priority;
    pub use super::routing::Routing;
}

/// The generated types of each hook, under its name.
pub mod wire {
    pub use super::admission::wire as admission;
    pub use super::budget::wire as budget;
    pub use super::explanation::wire as explanation;
    pub use super::preemption::wire as preemption;
    pub use super::priority::wire as priority;
    pub use super::routing::wire as routing;
}

/// One instance of a policy, called as the host calls a component: `configure`, then `observe`
/// before each question. [`export!`](crate::export) makes the function that returns one.
///
/// # Panics
///
/// Everything but `hooks`, `describe` and `configure` panics before `configure`; a hook that the
/// policy does not export panics always.
pub trait Instance: Send {
    /// The hooks it exports.
    fn hooks(&self) -> Vec<Hook>;

    /// Its name, and the rows it wants to be told.
    fn describe(&self) -> Description;

    /// Sets the policy up, once, for a host with these bounds.
    ///
    /// # Errors
    ///
    /// A sentence about the setting that is wrong.
    fn configure(&mut self, settings: &str, bounds: Bounds) -> Result<(), String>;

    /// Brings the mirror up to date, and forgets the placements of the last batch.
    fn observe(&mut self, now: u64, extent: Extent, changes: Vec<Change>);

    /// State worth carrying over a reload or a fault.
    fn snapshot(&mut self) -> Vec<u8>;

    /// Takes over a snapshot.
    ///
    /// # Errors
    ///
    /// A sentence about the bytes that are of no use.
    fn restore(&mut self, state: Vec<u8>) -> Result<(), String>;

    /// See [`Admission::admit`](traits::Admission::admit).
    fn admit(
        &mut self,
        at: Moment,
        arrivals: Vec<AskedRequest>,
        room: u32,
    ) -> Vec<wire::admission::Verdict> {
        let _ = (at, arrivals, room);
        panic!("the policy does not export admission")
    }

    /// See [`Priority::order`](traits::Priority::order).
    fn order(&mut self, at: Moment, requests: Vec<AskedRequest>) -> Vec<u64> {
        let _ = (at, requests);
        panic!("the policy does not export priority")
    }

    /// See [`Routing::route`](traits::Routing::route).
    fn route(&mut self, at: Moment, requests: Vec<Cached>) -> Vec<wire::routing::Verdict> {
        let _ = (at, requests);
        panic!("the policy does not export routing")
    }

    /// See [`Preemption::evict`](traits::Preemption::evict).
    fn evict(
        &mut self,
        at: Moment,
        shortage: wire::preemption::Shortage,
    ) -> Option<wire::preemption::Eviction> {
        let _ = (at, shortage);
        panic!("the policy does not export preemption")
    }

    /// See [`Budget::allot`](traits::Budget::allot).
    fn allot(
        &mut self,
        at: Moment,
        tokens: wire::budget::DeviceTokens,
    ) -> wire::budget::Allotments {
        let _ = (at, tokens);
        panic!("the policy does not export budget")
    }

    /// See [`Budget::arrange`](traits::Budget::arrange).
    fn arrange(
        &mut self,
        at: Moment,
        executor: u32,
        sequences: Vec<u64>,
    ) -> wire::budget::Arrangement {
        let _ = (at, executor, sequences);
        panic!("the policy does not export budget")
    }

    /// See [`Explanation::explain`](traits::Explanation::explain).
    fn explain(
        &mut self,
        at: Moment,
        request: Request,
        cached: Cached,
    ) -> Vec<wire::explanation::Candidate> {
        let _ = (at, request, cached);
        panic!("the policy does not export explanation")
    }
}
