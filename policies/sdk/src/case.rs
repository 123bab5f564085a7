//! One request before the fleet: the place an executor has for it, or the obstacle there.
//!
//! The host checks each placement by the same rules. A policy that asks here first is spared
//! refusals, and learns what stands in the way.

use crate::executor::Executor;
use crate::fleet::{Fleet, Place, Seat};
use crate::held::blocks_spared;
use crate::mirror::Mirror;
use crate::wire::routing::{Choice, Verdict};
use crate::wire::types::{Cached, ExecutorKind, Overlap, Request, RequestClass};

/// One request, and the fleet that it is to be placed in.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The fleet, with the earlier placements of the batch.
    pub fleet: Fleet<'a>,
    /// The request to be placed.
    pub request: &'a Request,
    /// Parts of its prompt that executors hold.
    pub cached: &'a Cached,
    /// Time of the question, in microseconds.
    pub now: u64,
    limit_reached: bool,
}

/// An obstacle to a request on one executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The model runs as often as it may in the whole host.
    ModelLimit,
    /// The executor is draining or down.
    NotLive,
    /// The executor does not serve the model.
    NotServed,
    /// The request is pinned to other executors.
    NotAllowed,
    /// The executor failed this request before.
    FailedBefore,
    /// All blocks of the device are fewer than the request may need.
    NeverFits,
    /// As many models run on the executor as may.
    ModelsMax,
    /// Neither a slot is free nor a place in the executor's queue.
    NoSlot,
    /// The device has too few blocks.
    NoBlocks,
    /// The executor has room, but another model is kept warm there.
    WarmHold {
        /// Time at which the hold ends, in microseconds.
        until: u64,
    },
}

static NOTHING_CACHED: Cached = Cached {
    request: 0,
    overlaps: None,
    floor_tokens: 0,
    shared_tokens: 0,
};

/// Blocks that a placement takes on an executor that reports paged KV, whose device has so many tokens of the prompt:
/// for the prompt and the first token, and for all that the request may generate where nobody could make room for it
/// later: by preempting, as the host does, or as a server elsewhere does for itself. Since the tokens of a prompt are a
/// guess there, nothing takes more than half of all.
#[inline]
pub(crate) fn blocks_for(
    mirror: &Mirror,
    request: &Request,
    executor: &Executor<'_>,
    cached_tokens: u64,
) -> Option<u64> {
    let tokens_per_block = u64::from(executor.tokens_per_block()?);
    let bound = tokens_bound(request);
    let start = tokens_at_start(request)
        .min(bound)
        .div_ceil(tokens_per_block);
    let spared = blocks_spared(mirror, request, executor, cached_tokens);
    if executor.info.kind == ExecutorKind::Remote {
        let device = mirror.device(executor.info.device);
        let half = device.map_or(u64::MAX, |device| {
            u64::from(device.blocks_total).div_ceil(2)
        });
        return Some(start.saturating_sub(spared).min(half));
    }
    let blocks = match executor.info.preempts {
        true => start,
        false => bound.div_ceil(tokens_per_block),
    };
    Some(blocks.saturating_sub(spared))
}

/// Tokens of the prompt and the first output token.
#[inline]
pub(crate) fn tokens_at_start(request: &Request) -> u64 {
    u64::from(request.prompt_tokens) + 1
}

/// Tokens of the prompt and of all that the request may generate.
#[inline]
fn tokens_bound(request: &Request) -> u64 {
    u64::from(request.prompt_tokens) + u64::from(request.output_tokens_max)
}

// === impl Case ===

impl<'a> Case<'a> {
    /// A request at the time `now`, of which nothing is cached.
    #[must_use]
    pub fn new(fleet: Fleet<'a>, request: &'a Request, now: u64) -> Self {
        let model = request.model.and_then(|model| fleet.mirror.model(model));
        let limit_reached = model.is_some_and(|model| {
            let placed = fleet.placed.running(fleet.mirror, model.id);
            let running = model.running.saturating_add(placed);
            model.running_max.is_some_and(|max| running >= max)
        });
        Self {
            fleet,
            request,
            cached: &NOTHING_CACHED,
            now,
            limit_reached,
        }
    }

    /// The same request, of which this is cached.
    #[must_use]
    pub fn with_cached(self, cached: &'a Cached) -> Self {
        Self { cached, ..self }
    }

    /// The place on an executor, if the executor is there and has one.
    #[must_use]
    #[inline]
    pub fn place(&self, executor: u32) -> Option<Place<'a>> {
        self.place_on(self.fleet.mirror.executor(executor)?)
    }

    /// The place on an executor, if it has one.
    #[must_use]
    #[inline]
    pub fn place_on(&self, executor: Executor<'a>) -> Option<Place<'a>> {
        Some(Place {
            fleet: self.fleet,
            executor,
            seat: self.fit(&executor).ok()?,
        })
    }

    /// The seat on an executor that the request can have now.
    ///
    /// # Errors
    ///
    /// The first obstacle: lasting ones are found before passing ones, and a warm hold last.
    #[inline]
    pub fn fit(&self, executor: &Executor<'_>) -> Result<Seat, Obstacle> {
        self.check_lasting(executor)?;
        self.check_models_max(executor)?;
        let seat = self.seat(executor)?;
        self.check_blocks(executor)?;
        self.check_warm_hold(executor)?;
        Ok(seat)
    }

    /// Tokens of the prompt and the first output token.
    #[must_use]
    #[inline]
    pub fn tokens(&self) -> u64 {
        tokens_at_start(self.request)
    }

    /// Tokens of the prompt and of all that the request may generate.
    #[inline]
    pub(crate) fn tokens_bound(&self) -> u64 {
        tokens_bound(self.request)
    }

    /// Blocks that a placement on an executor takes, if it reports paged KV: for
    /// [`Self::tokens`], and where sequences cannot be preempted for all that the request may
    /// generate. Those of the prompt that sequences hold there for certain, and at a server elsewhere all that it has of
    /// the prompt, are not taken again.
    #[must_use]
    #[inline]
    pub fn blocks_on(&self, executor: &Executor<'_>) -> Option<u64> {
        let cached_tokens = self.tokens_on(executor);
        blocks_for(self.fleet.mirror, self.request, executor, cached_tokens)
    }

    /// Tokens of the prompt that an executor is listed as holding in its device's memory.
    #[inline]
    fn tokens_on(&self, executor: &Executor<'_>) -> u64 {
        let overlap = self.overlap(executor.id());
        overlap.map_or(0, |overlap| u64::from(overlap.device_tokens))
    }

    /// Returns whether an executor has the blocks for the request only because it holds a part of the prompt. A
    /// shorter request may find none then.
    #[must_use]
    pub fn finds_blocks_by_sharing(&self) -> bool {
        let listed = self.cached.overlaps.iter().flatten();
        let mut holders = listed.filter_map(|row| self.fleet.mirror.executor(row.executor));
        holders.any(|holder| self.seat(&holder).is_ok() && self.tokens_shared(&holder) > 0)
    }

    /// Tokens of the prompt that an executor's device has, if the request finds blocks there only because of them;
    /// otherwise 0.
    pub(crate) fn tokens_shared(&self, executor: &Executor<'_>) -> u64 {
        self.check_blocks(executor).unwrap_or(0)
    }

    /// Tokens of the prompt that an executor is listed as holding.
    #[must_use]
    #[inline]
    pub fn overlap(&self, executor: u32) -> Option<&'a Overlap> {
        let mut listed = self.cached.overlaps.iter().flatten();
        listed.find(|row| row.executor == executor)
    }

    /// Checks for obstacles that waiting for room will not remove.
    ///
    /// # Errors
    ///
    /// The first such obstacle, or the model's limit.
    #[inline]
    pub fn check_lasting(&self, executor: &Executor<'_>) -> Result<(), Obstacle> {
        let request = self.request;
        if self.limit_reached {
            return Err(Obstacle::ModelLimit);
        }
        if !executor.is_live() {
            return Err(Obstacle::NotLive);
        }
        if let (Some(model), Some(serves)) = (request.model, &executor.info.serves)
            && !serves.contains(&model)
        {
            return Err(Obstacle::NotServed);
        }
        if let Some(allowed) = &request.allowed
            && !allowed.contains(&executor.id())
        {
            return Err(Obstacle::NotAllowed);
        }
        if let Some(failed) = &request.failed_on
            && failed.contains(&executor.id())
        {
            return Err(Obstacle::FailedBefore);
        }
        self.check_could_fit(executor)
    }

    /// Checks that the executor's device, were it empty, had the blocks for all that the request may
    /// need. A server elsewhere knows that for itself: the tokens of a prompt are a guess there.
    #[inline]
    fn check_could_fit(&self, executor: &Executor<'_>) -> Result<(), Obstacle> {
        let (Some(tokens_per_block), Some(device)) = (
            executor.tokens_per_block(),
            self.fleet.mirror.device(executor.info.device),
        ) else {
            return Ok(());
        };
        let room = u64::from(device.blocks_total) * u64::from(tokens_per_block);
        if tokens_bound(self.request) > room && executor.info.kind != ExecutorKind::Remote {
            return Err(Obstacle::NeverFits);
        }
        Ok(())
    }

    #[inline]
    fn check_models_max(&self, executor: &Executor<'_>) -> Result<(), Obstacle> {
        let (Some(model), Some(models_max)) = (self.request.model, executor.info.models_max) else {
            return Ok(());
        };
        let started = self.fleet.placed.started(executor);
        let active = executor.residencies.iter().filter(|row| row.sequences > 0);
        let mut models = active.count() + started.len();
        if !executor.runs(model) && !started.contains(&model) {
            models += 1;
        }
        // While one that has to make room is still there, there are more, and nobody enters.
        if models > usize::try_from(models_max).unwrap_or(usize::MAX) {
            return Err(Obstacle::ModelsMax);
        }
        Ok(())
    }

    #[inline]
    fn seat(&self, executor: &Executor<'_>) -> Result<Seat, Obstacle> {
        let counts = self.fleet.placed.counts(executor);
        let load = executor.load;
        if load.slots_used.saturating_add(counts.slots) < executor.info.slots_total {
            return Ok(Seat::Slot);
        }
        let queued = match self.request.class {
            RequestClass::LatencyCritical => {
                load.queued_critical.saturating_add(counts.queued_critical)
            }
            RequestClass::Throughput => load
                .queued_throughput
                .saturating_add(counts.queued_throughput),
        };
        if queued < executor.info.queue_limit {
            return Ok(Seat::Queue);
        }
        Err(Obstacle::NoSlot)
    }

    /// Checks that the executor's device has the blocks. Returns the tokens of the prompt there without which it has too
    /// few: 0 where the request needs none of them.
    #[inline]
    fn check_blocks(&self, executor: &Executor<'_>) -> Result<u64, Obstacle> {
        if !self.lacks_blocks(executor, 0) {
            return Ok(0);
        }
        // What is held of a prompt is looked up only where it matters: that takes longer than all else here.
        let tokens = self.tokens_on(executor);
        if self.lacks_blocks(executor, tokens) {
            return Err(Obstacle::NoBlocks);
        }
        Ok(tokens)
    }

    /// Returns whether an executor's device, which has so many tokens of the prompt, has too few blocks for the request.
    #[inline]
    fn lacks_blocks(&self, executor: &Executor<'_>, cached_tokens: u64) -> bool {
        let Fleet { mirror, placed } = self.fleet;
        let (Some(blocks), Some(device)) = (
            blocks_for(mirror, self.request, executor, cached_tokens),
            mirror.device(executor.info.device),
        ) else {
            return false;
        };
        let taken = placed.blocks(mirror, device.id);
        blocks.saturating_add(taken) > device.blocks_available()
    }

    /// The latest time until which the request can be held on purpose, in microseconds; absent: the
    /// host lets it be held no longer.
    #[must_use]
    #[inline]
    pub fn hold_end(&self) -> Option<u64> {
        let from_now = || self.now.saturating_add(self.fleet.mirror.bounds().held_max);
        let end = self.request.hold_end.unwrap_or_else(from_now);
        (end > self.now).then_some(end)
    }

    /// The verdict that the request waits on purpose, for this reason: until then at the latest, or
    /// for as long as the host lets it. A policy that is asked once that time is over should place
    /// the request somewhere else.
    #[must_use]
    pub fn hold(&self, until: Option<u64>, reason: u16) -> Verdict {
        let until = [until, self.hold_end()].into_iter().flatten().min();
        Verdict {
            choice: Choice::Hold(until),
            reason,
        }
    }

    /// A model kept warm for followers is not driven out by another, for as long as the request can
    /// be held on purpose. A placement of this batch that starts a model there has ended the hold
    /// already.
    #[inline]
    fn check_warm_hold(&self, executor: &Executor<'_>) -> Result<(), Obstacle> {
        let Some(model) = self.request.model else {
            return Ok(());
        };
        let held = executor.residencies.iter().find_map(|row| {
            let until = row.warm_until.filter(|&until| until > self.now)?;
            (row.sequences == 0 && row.model != model).then_some(until)
        });
        let started = self.fleet.placed.started(executor);
        match held {
            Some(until)
                if !executor.runs(model) && started.is_empty() && self.hold_end().is_some() =>
            {
                Err(Obstacle::WarmHold { until })
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
