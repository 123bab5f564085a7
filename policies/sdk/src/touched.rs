//! Which executors an index has to look at again, and what requests ask of one in a few words.

use std::collections::BTreeMap;

use crate::fit::{Standing, tokens_free};
use crate::mirror::{Executor, Mirror};
use crate::tentative::Tentative;
use crate::wire::types::{Change, Request};

/// Executors whose entry in an index may be out of date.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched {
    dirty: Vec<u32>,
    /// Placed on since the last `observe`; a placement that is refused changes them back.
    placed_on: Vec<u32>,
    sharing: Sharing,
}

/// Executor ids by device, in attach order: they share its blocks.
#[derive(Clone, Debug, Default)]
struct Sharing {
    by_device: BTreeMap<u32, Vec<u32>>,
}

/// A set of ids, as a superset: id *n* is bit *n* mod 64. What it rules out is ruled out, and what
/// it does not has to be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ids(u64);

/// What some executors offer, or a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    models: Ids,
    groups: Ids,
    /// Bits of [`Standing`]; the last is for those without a place.
    standings: u8,
    /// Tokens that find room: no fewer than do.
    tokens: u64,
}

// === impl Touched ===

impl Touched {
    /// Notes whom a row changes, before it does: a device's, all executors on it.
    pub(crate) fn changed(&mut self, mirror: &Mirror, change: &Change) {
        self.sharing.changed(mirror, change);
        match change {
            Change::Load(load) => self.touch(load.id),
            Change::Executor(info) => self.touch(info.id),
            Change::ExecutorGone(id) => self.touch(*id),
            Change::Device(device) => self.dirty.extend(self.sharing.on(device.id)),
            Change::Name(_)
            | Change::Residency(_)
            | Change::ResidencyGone(_)
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
    fn touch(&mut self, executor: u32) {
        self.dirty.push(executor);
    }

    pub(crate) fn placed(&mut self, executor: u32) {
        self.touch(executor);
        self.placed_on.push(executor);
    }

    pub(crate) fn placed_on_device(&mut self, device: u32) {
        let ids = self.sharing.on(device);
        self.dirty.extend(ids);
        self.placed_on.extend(ids);
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

// === impl Sharing ===

impl Sharing {
    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        match change {
            Change::Executor(info) => {
                self.leave(mirror, info.id);
                self.by_device.entry(info.device).or_default().push(info.id);
            }
            Change::ExecutorGone(id) => self.leave(mirror, *id),
            Change::Load(_)
            | Change::Name(_)
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

    fn leave(&mut self, mirror: &Mirror, id: u32) {
        let device = mirror.executor(id).map(|executor| executor.info.device);
        if let Some(ids) = device.and_then(|device| self.by_device.get_mut(&device)) {
            ids.retain(|other| *other != id);
        }
    }

    fn on(&self, device: u32) -> &[u32] {
        self.by_device.get(&device).map_or(&[], Vec::as_slice)
    }
}

// === impl Ids ===

impl Ids {
    const ALL: Self = Self(u64::MAX);

    fn one(id: u32) -> Self {
        Self(1 << (id % u64::BITS))
    }

    fn of(ids: Option<&[u32]>) -> Self {
        let all = |ids: &[u32]| ids.iter().fold(0, |all, &id| all | Self::one(id).0);
        ids.map_or(Self::ALL, |ids| Self(all(ids)))
    }
}

// === impl Kinds ===

impl Kinds {
    const NO_PLACE: u8 = 1 << 4;

    /// Of an executor.
    pub(crate) fn of(mirror: &Mirror, placed: &Tentative, executor: &Executor<'_>) -> Self {
        let info = executor.info;
        let standing = Standing::open(placed, executor);
        Self {
            models: Ids::of(info.serves.as_deref()),
            groups: Ids::one(info.group),
            standings: standing.map_or(Self::NO_PLACE, Standing::bit),
            tokens: tokens_free(mirror, executor).unwrap_or(u64::MAX),
        }
    }

    /// What a request asks for: any executor will do for one that names no model.
    pub(crate) fn wanted(request: &Request) -> Self {
        Self {
            models: request.model.map_or(Ids::ALL, Ids::one),
            groups: Ids::ALL,
            standings: u8::MAX,
            // And the first that it makes.
            tokens: u64::from(request.prompt_tokens) + 1,
        }
    }

    /// The same of any size: for what asks about room now or later.
    pub(crate) fn whatever_its_size(self) -> Self {
        Self { tokens: 0, ..self }
    }

    /// The same in a group.
    pub(crate) fn in_group(self, group: u32) -> Self {
        Self {
            groups: Ids::one(group),
            ..self
        }
    }

    /// The same where the place is a better one than this.
    pub(crate) fn above(self, standing: Standing) -> Self {
        Self {
            standings: standing.bit() - 1,
            ..self
        }
    }

    #[inline]
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            models: Ids(self.models.0 | other.models.0),
            groups: Ids(self.groups.0 | other.groups.0),
            standings: self.standings | other.standings,
            tokens: self.tokens.max(other.tokens),
        }
    }

    /// Whether there may be somebody among them who offers what is wanted.
    #[inline]
    pub(crate) fn meets(self, wanted: Self) -> bool {
        self.models.0 & wanted.models.0 != 0
            && self.groups.0 & wanted.groups.0 != 0
            && self.standings & wanted.standings != 0
            && self.tokens >= wanted.tokens
    }
}
