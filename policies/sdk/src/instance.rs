//! A policy behind plain calls, as a component exports it and native tests drive it.

use std::fmt;

use crate::case::Case;
use crate::fleet::Fleet;
use crate::index::Touched;
use crate::mirror::Mirror;
use crate::needs::Asks;
use crate::placements::BatchPlacements;
use crate::policy::{Admission, Budget, Explanation, Policy, Preemption, Priority, Routing};
use crate::settings;
use crate::wire::lifecycle::{Bounds, Description, Feed};
use crate::wire::types::{AskedRequest, Cached, Change, Extent, Moment, Request};
use crate::wire::{admission, budget, explanation, preemption, routing};

/// A decision that a policy may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Requests that may wait at all: [`Admission`](crate::Admission).
    Admission,
    /// The order of waiting requests: [`Priority`](crate::Priority).
    Priority,
    /// Executors for requests: [`Routing`](crate::Routing).
    Routing,
    /// Placed sequences that give way: [`Preemption`](crate::Preemption).
    Preemption,
    /// Tokens of each engine in a step: [`Budget`](crate::Budget).
    Budget,
    /// Reasons for a placement: [`Explanation`](crate::Explanation).
    Explanation,
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

    /// See [`Admission::admit`].
    fn admit(
        &mut self,
        at: Moment,
        arrivals: Vec<AskedRequest>,
        room: u32,
    ) -> Vec<admission::Verdict> {
        let _ = (at, arrivals, room);
        panic!("the policy does not export admission")
    }

    /// See [`Priority::order`].
    fn order(&mut self, at: Moment, requests: Vec<AskedRequest>) -> Vec<u64> {
        let _ = (at, requests);
        panic!("the policy does not export priority")
    }

    /// See [`Routing::route`].
    fn route(&mut self, at: Moment, requests: Vec<Cached>) -> Vec<routing::Verdict> {
        let _ = (at, requests);
        panic!("the policy does not export routing")
    }

    /// See [`Preemption::evict`].
    fn evict(
        &mut self,
        at: Moment,
        shortage: preemption::Shortage,
    ) -> Option<preemption::Eviction> {
        let _ = (at, shortage);
        panic!("the policy does not export preemption")
    }

    /// See [`Budget::allot`].
    fn allot(&mut self, at: Moment, tokens: budget::DeviceTokens) -> budget::Allotments {
        let _ = (at, tokens);
        panic!("the policy does not export budget")
    }

    /// See [`Budget::arrange`].
    fn arrange(&mut self, at: Moment, executor: u32, sequences: Vec<u64>) -> budget::Arrangement {
        let _ = (at, executor, sequences);
        panic!("the policy does not export budget")
    }

    /// See [`Explanation::explain`].
    fn explain(
        &mut self,
        at: Moment,
        request: Request,
        cached: Cached,
    ) -> Vec<explanation::Candidate> {
        let _ = (at, request, cached);
        panic!("the policy does not export explanation")
    }
}

/// A policy with its mirror. The component's exports and [`Instance`] are both this.
pub struct Runtime<P> {
    policy: Option<P>,
    /// The kinds of rows that any hook of the policy reads.
    needs: Feed,
    mirror: Mirror,
    placed: BatchPlacements,
    touched: Touched,
}

// === impl Runtime ===

impl<P> Runtime<P> {
    /// Makes the runtime of a policy whose hooks have these wishes.
    #[must_use]
    pub fn new(asks: Asks) -> Self {
        let needs = asks.needs.iter().map(|(_, feed)| *feed);
        Self {
            policy: None,
            needs: needs.fold(Feed::empty(), Feed::union),
            mirror: Mirror::default(),
            placed: BatchPlacements::default(),
            touched: Touched::default(),
        }
    }
}

impl<P> fmt::Debug for Runtime<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("configured", &self.policy.is_some())
            .field("mirror", &self.mirror)
            .field("placed", &self.placed)
            .finish()
    }
}

fn configured<P>(policy: &mut Option<P>) -> &mut P {
    policy
        .as_mut()
        .expect("the host calls configure before anything else")
}

impl<P: Policy> Runtime<P> {
    /// See [`Instance::configure`].
    ///
    /// # Errors
    ///
    /// A sentence about the setting that is wrong.
    pub fn configure(&mut self, text: &str, bounds: Bounds) -> Result<(), String> {
        if self.policy.is_some() {
            return Err("already configured".to_owned());
        }
        self.policy = Some(P::new(settings::parse(text, &P::settings())?)?);
        self.mirror.bind(bounds);
        Ok(())
    }

    /// See [`Instance::observe`].
    pub fn observe(&mut self, now: u64, extent: Extent, mut changes: Vec<Change>) {
        self.mirror.let_read(self.needs);
        let policy = configured(&mut self.policy);
        // Known when compiled: a policy without an index pays nothing for one.
        let has_index = policy.index().is_some();
        if let Some(index) = policy.index() {
            let reach = index.reach();
            self.touched.placed(&self.mirror, &self.placed, reach);
            if extent == Extent::Everything {
                self.touched.cleared(&self.mirror);
            }
        }
        self.placed.clear();
        self.mirror.begin(now, extent);
        if extent == Extent::Everything {
            policy.cleared();
        }
        for change in &mut changes {
            policy.changed(&self.mirror, change);
            if has_index {
                self.touched.changed(&self.mirror, change);
            }
            self.mirror.apply(change);
        }
        if let Some(index) = policy.index() {
            self.touched.update(index, Fleet::from(&self.mirror));
        }
        policy.observed(&self.mirror);
    }

    /// See [`Instance::snapshot`].
    pub fn snapshot(&mut self) -> Vec<u8> {
        configured(&mut self.policy).snapshot()
    }

    /// See [`Instance::restore`].
    ///
    /// # Errors
    ///
    /// A sentence about the bytes that are of no use.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        configured(&mut self.policy).restore(state)
    }

    /// See [`Admission::admit`].
    pub fn admit(
        &mut self,
        at: Moment,
        arrivals: &[AskedRequest],
        room: u32,
    ) -> Vec<admission::Verdict>
    where
        P: Admission,
    {
        self.mirror.let_read(<P as Admission>::NEEDS);
        configured(&mut self.policy).admit(&self.mirror, at, arrivals, room)
    }

    /// See [`Priority::order`].
    pub fn order(&mut self, at: Moment, requests: &[AskedRequest]) -> Vec<u64>
    where
        P: Priority,
    {
        self.mirror.let_read(<P as Priority>::NEEDS);
        configured(&mut self.policy).order(&self.mirror, at, requests)
    }

    /// See [`Routing::route`].
    pub fn route(&mut self, at: Moment, requests: &[Cached]) -> Vec<routing::Verdict>
    where
        P: Routing,
    {
        self.mirror.let_read(<P as Routing>::NEEDS);
        configured(&mut self.policy).route(&self.mirror, &mut self.placed, at, requests)
    }

    /// See [`Preemption::evict`].
    pub fn evict(
        &mut self,
        at: Moment,
        shortage: &preemption::Shortage,
    ) -> Option<preemption::Eviction>
    where
        P: Preemption,
    {
        self.mirror.let_read(<P as Preemption>::NEEDS);
        configured(&mut self.policy).evict(&self.mirror, at, shortage)
    }

    /// See [`Budget::allot`].
    pub fn allot(&mut self, at: Moment, tokens: &budget::DeviceTokens) -> budget::Allotments
    where
        P: Budget,
    {
        self.mirror.let_read(<P as Budget>::NEEDS);
        configured(&mut self.policy).allot(&self.mirror, at, tokens)
    }

    /// See [`Budget::arrange`].
    pub fn arrange(&mut self, at: Moment, executor: u32, sequences: &[u64]) -> budget::Arrangement
    where
        P: Budget,
    {
        configured(&mut self.policy).arrange(&self.mirror, at, executor, sequences)
    }

    /// See [`Explanation::explain`].
    pub fn explain(
        &mut self,
        at: Moment,
        request: &Request,
        cached: &Cached,
    ) -> Vec<explanation::Candidate>
    where
        P: Explanation,
    {
        self.mirror.let_read(<P as Explanation>::NEEDS);
        let case = Case::new(Fleet::from(&self.mirror), request, at.now);
        configured(&mut self.policy).explain(&case.with_cached(cached))
    }
}
