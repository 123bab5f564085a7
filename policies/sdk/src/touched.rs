//! Which executors an index has to look at again, and which models an executor serves in one word.

use crate::wire::types::{Change, ExecutorInfo};

/// Executors whose entry in an index may be out of date.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched {
    dirty: Vec<u32>,
    /// Placed on since the last `observe`; a placement that is refused changes them back.
    placed_on: Vec<u32>,
}

/// A set of models, as a superset: model *m* is bit *m* mod 64. What it rules out is ruled out, and
/// what it does not has to be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served(u64);

// === impl Touched ===

impl Touched {
    pub(crate) fn changed(&mut self, change: &Change) {
        match change {
            Change::Load(load) => self.touch(load.id),
            Change::Executor(info) => self.touch(info.id),
            Change::ExecutorGone(id) => self.touch(*id),
            Change::Name(_)
            | Change::Residency(_)
            | Change::ResidencyGone(_)
            | Change::Device(_)
            | Change::Model(_)
            | Change::Tenant(_)
            | Change::Waiting(_)
            | Change::WaitingGone(_)
            | Change::Sequence(_)
            | Change::SequenceGone(_)
            | Change::Completed(_) => {}
        }
    }

    #[inline]
    pub(crate) fn touch(&mut self, executor: u32) {
        self.dirty.push(executor);
    }

    pub(crate) fn placed(&mut self, executor: u32) {
        self.touch(executor);
        self.placed_on.push(executor);
    }

    pub(crate) fn observed(&mut self) {
        self.dirty.append(&mut self.placed_on);
    }

    /// Each once. The list goes back by [`Self::done`], so that its memory is used again.
    pub(crate) fn take(&mut self) -> Vec<u32> {
        let mut dirty = std::mem::take(&mut self.dirty);
        if dirty.len() > 1 {
            dirty.sort_unstable();
            dirty.dedup();
        }
        dirty
    }

    pub(crate) fn done(&mut self, mut dirty: Vec<u32>) {
        dirty.clear();
        self.dirty = dirty;
    }
}

// === impl Served ===

impl Served {
    const ALL: Self = Self(u64::MAX);

    /// What an executor serves.
    pub(crate) fn by(info: &ExecutorInfo) -> Self {
        match &info.serves {
            Some(models) => models
                .iter()
                .fold(Self::default(), |all, &model| all.or(Self::one(model))),
            None => Self::ALL,
        }
    }

    /// What a request asks for: any executor will do for one that names no model.
    pub(crate) fn wanted(model: Option<u32>) -> Self {
        model.map_or(Self::ALL, Self::one)
    }

    fn one(model: u32) -> Self {
        Self(1 << (model % u64::BITS))
    }

    #[inline]
    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline]
    pub(crate) fn meets(self, wanted: Self) -> bool {
        self.0 & wanted.0 != 0
    }
}
