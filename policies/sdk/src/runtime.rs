//! A policy with its mirror, as a component exports it and native tests drive it.

use std::fmt;

use crate::fleet::Fleet;
use crate::index::Touched;
use crate::mirror::Mirror;
use crate::needs::Ask;
use crate::placements::BatchPlacements;
use crate::policy::Policy;
use crate::settings;
use crate::wire::lifecycle::{Bounds, Feed};
use crate::wire::types::{Change, Extent};

/// A policy with its mirror. The component's exports and [`Instance`](crate::Instance) are both
/// this; the calls of a hook are in its file in `hooks`.
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
    pub fn new(asks: &[Ask]) -> Self {
        let needs = asks.iter().map(|ask| ask.feed);
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
    /// See [`Instance::configure`](crate::Instance::configure).
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

    /// See [`Instance::observe`](crate::Instance::observe).
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

    /// See [`Instance::snapshot`](crate::Instance::snapshot).
    pub fn snapshot(&mut self) -> Vec<u8> {
        configured(&mut self.policy).snapshot()
    }

    /// See [`Instance::restore`](crate::Instance::restore).
    ///
    /// # Errors
    ///
    /// A sentence about the bytes that are of no use.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        configured(&mut self.policy).restore(state)
    }

    /// The policy, the mirror in which a hook with these needs may read, and the placements of the
    /// batch.
    pub(crate) fn reading(&mut self, needs: Feed) -> (&mut P, &Mirror, &mut BatchPlacements) {
        self.mirror.let_read(needs);
        let policy = configured(&mut self.policy);
        (policy, &self.mirror, &mut self.placed)
    }
}
