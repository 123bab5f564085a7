//! The fleet as an answer leaves it: the mirror, with the placements of the batch on top.

use crate::executor::Executor;
use crate::mirror::Mirror;
use crate::placements::{BatchPlacements, NOTHING_PLACED, PlacementCounts};
use crate::wire::types::{ExecutorKind, Health};

/// The fleet, with the earlier placements of the batch counted.
#[derive(Clone, Copy, Debug)]
pub struct Fleet<'a> {
    /// Rows of the host, as of the last `observe`.
    pub mirror: &'a Mirror,
    /// Placements that the answer has made since.
    pub placed: &'a BatchPlacements,
}

/// A place for a request: an executor, and where on it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The fleet that the executor belongs to.
    pub fleet: Fleet<'a>,
    /// The executor of the place.
    pub executor: Executor<'a>,
    /// A slot or the queue.
    pub seat: Seat,
}

/// The part of an executor that a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seat {
    /// Into a free slot, at once.
    Slot,
    /// Into the executor's queue.
    Queue,
}

/// Health and seat, which most policies compare places by before all else; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Readiness {
    /// An executor that is up goes before one that is degraded.
    pub degraded: bool,
    /// A free slot goes before a place in the queue.
    pub seat: Seat,
}

// === impl Fleet ===

impl<'a> Fleet<'a> {
    /// The best place that an executor has for any request at all. A particular request may find
    /// an obstacle there, but no better place; an index of executors is kept by it.
    #[must_use]
    #[inline]
    pub fn place(self, executor: Executor<'a>) -> Option<Place<'a>> {
        Some(Place {
            fleet: self,
            executor,
            seat: self.open_seat(&executor)?,
        })
    }

    #[inline]
    fn open_seat(self, executor: &Executor<'_>) -> Option<Seat> {
        if !executor.is_live() {
            return None;
        }
        let (load, info) = (executor.load, executor.info);
        let counts = self.placed.counts(executor);
        if load.slots_used.saturating_add(counts.slots) < info.slots_total {
            return Some(Seat::Slot);
        }
        let critical = load.queued_critical.saturating_add(counts.queued_critical);
        let throughput = load
            .queued_throughput
            .saturating_add(counts.queued_throughput);
        (critical.min(throughput) < info.queue_limit).then_some(Seat::Queue)
    }

    /// Tokens of prompt and first output token that an executor may have room for: 0 where it has
    /// no place at all, `u64::MAX` where it reports no paged KV, and at a server elsewhere that has a block to give: it
    /// may hold the rest. Blocks that the batch takes are not counted, so a request with more tokens has no room there,
    /// and one with fewer may have. While an index is asked where a request goes, the tokens of its prompt that are held
    /// there are room, too.
    #[must_use]
    #[inline]
    pub fn open_tokens(self, executor: &Executor<'_>) -> u64 {
        match self.open_seat(executor) {
            Some(_) => self.tokens_free(executor).unwrap_or(u64::MAX),
            None => 0,
        }
    }

    /// Tokens that the free and cached blocks of an executor's device hold, and those that the request
    /// which is being placed may share, where it reports paged KV and these are all that a request can have there.
    pub(crate) fn tokens_free(self, executor: &Executor<'_>) -> Option<u64> {
        let device = self.mirror.device(executor.info.device)?;
        let tokens_per_block = executor.tokens_per_block()?;
        let available = device.blocks_available();
        let is_all = available == 0 || executor.info.kind != ExecutorKind::Remote;
        let blocks = available + self.placed.held_on(executor.id());
        is_all.then(|| blocks * u64::from(tokens_per_block))
    }

    /// Requests placed on an executor: running, and placed but not started.
    #[must_use]
    #[inline]
    pub fn depth(self, executor: &Executor<'_>) -> u64 {
        executor.depth() + self.placed.counts(executor).requests()
    }

    /// Free slots of an executor.
    #[must_use]
    #[inline]
    pub fn slots_free(self, executor: &Executor<'_>) -> u32 {
        let used = executor.load.slots_used;
        let used = used.saturating_add(self.placed.counts(executor).slots);
        executor.info.slots_total.saturating_sub(used)
    }
}

impl<'a> From<&'a Mirror> for Fleet<'a> {
    /// The fleet without placements.
    fn from(mirror: &'a Mirror) -> Self {
        Self {
            mirror,
            placed: &NOTHING_PLACED,
        }
    }
}

// === impl Place ===

impl Place<'_> {
    /// Health and seat.
    #[must_use]
    #[inline]
    pub fn readiness(&self) -> Readiness {
        Readiness {
            degraded: self.executor.load.health == Health::Degraded,
            seat: self.seat,
        }
    }

    /// Earlier placements of the batch on the executor.
    #[must_use]
    #[inline]
    pub fn counts(&self) -> PlacementCounts {
        self.fleet.placed.counts(&self.executor)
    }

    /// Requests placed on the executor: running, and placed but not started.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> u64 {
        self.fleet.depth(&self.executor)
    }

    /// Free slots of the executor.
    #[must_use]
    #[inline]
    pub fn slots_free(&self) -> u32 {
        self.fleet.slots_free(&self.executor)
    }

    /// Placements on the executor so far, failed ones too.
    #[must_use]
    #[inline]
    pub fn placed_total(&self) -> u64 {
        let placed = self.executor.load.placed_total;
        placed.saturating_add(self.counts().requests())
    }
}

// === impl Readiness ===

impl Readiness {
    /// Returns whether no place can be better.
    #[must_use]
    pub fn is_best(self) -> bool {
        !self.degraded && self.seat == Seat::Slot
    }

    /// One bit, below those of all that are worse.
    pub(crate) fn bit(self) -> u8 {
        1 << (u8::from(self.degraded) << 1 | u8::from(self.seat == Seat::Queue))
    }
}
