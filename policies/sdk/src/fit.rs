//! Whether an executor can take a request now, as far as a policy can know.
//!
//! The host checks each placement by the same rules; a policy that asks here first is spared
//! refusals, and learns what stands in the way.

use crate::mirror::{Executor, Mirror};
use crate::tentative::Tentative;
use crate::wire::types::{Health, Request, RequestClass};

/// What a request needs, worked out once for all executors.
#[derive(Clone, Copy, Debug)]
pub struct Need<'a> {
    /// Whose.
    pub request: &'a Request,
    /// When.
    pub now: u64,
    limit_reached: bool,
}

/// Where on an executor a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seat {
    /// Into a free slot, at once.
    Slot,
    /// Into its queue.
    Queue,
}

/// What a policy may compare places by before anything else; the smaller is the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    /// Up before degraded.
    pub degraded: bool,
    /// A free slot before a place in the queue.
    pub seat: Seat,
}

/// What stands in the way on one executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The model runs as often as it may in the whole host.
    ModelLimit,
    /// It is draining or down.
    NotLive,
    /// It does not serve the model.
    NotServed,
    /// The request is pinned to others.
    NotAllowed,
    /// It failed this request before.
    FailedBefore,
    /// As many models run there as may.
    ModelsMax,
    /// No slot is free, nor a place in its queue.
    NoSlot,
    /// Its device has not blocks enough.
    NoBlocks,
    /// Nothing else stands in the way, but another model is kept warm there.
    WarmHold {
        /// For so long.
        until: u64,
    },
}

/// The place an executor has for a request, or what stands in the way.
pub type Fit = Result<Seat, Obstacle>;

/// Whether `executor` can take what is needed.
///
/// Lasting obstacles are found before passing ones, and a warm hold last.
///
/// # Errors
///
/// The first obstacle.
#[inline]
pub fn fit(
    mirror: &Mirror,
    tentative: &Tentative,
    need: &Need<'_>,
    executor: &Executor<'_>,
) -> Fit {
    need.check_lasting(executor)?;
    need.check_models_max(tentative, executor)?;
    let seat = need.seat(tentative, executor)?;
    need.check_blocks(mirror, tentative, executor)?;
    need.check_warm_hold(tentative, executor)?;
    Ok(seat)
}

/// The best place that an executor has for any request at all: for one in particular it may lack
/// something, but it has no better place. What an index of executors is kept by.
#[must_use]
#[inline]
pub fn open_seat(tentative: &Tentative, executor: &Executor<'_>) -> Option<Seat> {
    if !executor.is_live() {
        return None;
    }
    let (load, info) = (executor.load, executor.info);
    let counts = tentative.counts(executor);
    if load.slots_used.saturating_add(counts.slots) < info.slots_total {
        return Some(Seat::Slot);
    }
    let critical = load.queued_critical.saturating_add(counts.queued_critical);
    let throughput = load
        .queued_throughput
        .saturating_add(counts.queued_throughput);
    (critical.min(throughput) < info.queue_limit).then_some(Seat::Queue)
}

/// Tokens that the executor may have room for, of a prompt and the first that it makes: none where it
/// has no place at all, any number where it reports no paged KV. Blocks that this batch takes are
/// not counted, so that it may be fewer, but no more: what an index rules executors out by.
#[must_use]
#[inline]
pub fn open_tokens(mirror: &Mirror, tentative: &Tentative, executor: &Executor<'_>) -> u64 {
    match open_seat(tentative, executor) {
        Some(_) => tokens_free(mirror, executor).unwrap_or(u64::MAX),
        None => 0,
    }
}

/// Tokens that the blocks free on demand can hold, if the executor reports paged KV.
pub(crate) fn tokens_free(mirror: &Mirror, executor: &Executor<'_>) -> Option<u64> {
    let tokens_per_block = executor
        .info
        .tokens_per_block
        .filter(|&tokens| tokens > 0)?;
    let device = mirror.device(executor.info.device)?;
    let blocks = u64::from(device.blocks_free) + u64::from(device.blocks_cached);
    Some(blocks * u64::from(tokens_per_block))
}

// === impl Standing ===

impl Standing {
    /// Of this place on an executor.
    #[must_use]
    #[inline]
    pub fn new(executor: &Executor<'_>, seat: Seat) -> Self {
        Self {
            degraded: executor.load.health == Health::Degraded,
            seat,
        }
    }

    /// Of an executor's best place for any request, see [`open_seat`].
    #[must_use]
    #[inline]
    pub fn open(tentative: &Tentative, executor: &Executor<'_>) -> Option<Self> {
        Some(Self::new(executor, open_seat(tentative, executor)?))
    }

    /// Whether none can be better.
    #[must_use]
    pub fn is_best(self) -> bool {
        !self.degraded && self.seat == Seat::Slot
    }

    /// One bit, below those of all that are worse.
    pub(crate) fn bit(self) -> u8 {
        1 << (u8::from(self.degraded) << 1 | u8::from(self.seat == Seat::Queue))
    }
}

// === impl Need ===

impl<'a> Need<'a> {
    /// What `request` needs at `now`, after the placements in `tentative`.
    #[must_use]
    pub fn new(mirror: &Mirror, tentative: &Tentative, request: &'a Request, now: u64) -> Self {
        let limit_reached = request
            .model
            .and_then(|model| mirror.model(model))
            .is_some_and(|model| {
                let running = model
                    .running
                    .saturating_add(tentative.running(mirror, model.id));
                model.running_max.is_some_and(|max| running >= max)
            });
        Self {
            request,
            now,
            limit_reached,
        }
    }

    /// Tokens of the prompt and the first one made.
    #[must_use]
    #[inline]
    pub fn tokens(&self) -> u64 {
        u64::from(self.request.prompt_tokens) + 1
    }

    /// Tokens of the prompt and of all that may be generated.
    fn tokens_bound(&self) -> u64 {
        let request = self.request;
        u64::from(request.prompt_tokens) + u64::from(request.output_tokens_max)
    }

    /// Blocks that a placement on `executor` takes, if it reports paged KV: for these tokens, and
    /// where it does not preempt for all that the request may generate.
    #[must_use]
    #[inline]
    pub fn blocks_on(&self, executor: &Executor<'_>) -> Option<u64> {
        let tokens_per_block = executor
            .info
            .tokens_per_block
            .filter(|&tokens| tokens > 0)?;
        let tokens = if executor.info.preempts {
            self.tokens()
        } else {
            self.tokens_bound()
        };
        Some(tokens.div_ceil(u64::from(tokens_per_block)))
    }

    /// What waiting for room will not mend.
    ///
    /// # Errors
    ///
    /// The first such obstacle, and the model's limit.
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
        Ok(())
    }

    #[inline]
    fn check_models_max(
        &self,
        tentative: &Tentative,
        executor: &Executor<'_>,
    ) -> Result<(), Obstacle> {
        let (Some(model), Some(models_max)) = (self.request.model, executor.info.models_max) else {
            return Ok(());
        };
        let started = tentative.started(executor);
        if executor.runs(model) || started.contains(&model) {
            return Ok(());
        }
        let active = executor.residencies.iter().filter(|row| row.sequences > 0);
        let models = active.count() + started.len();
        if models >= usize::try_from(models_max).unwrap_or(usize::MAX) {
            return Err(Obstacle::ModelsMax);
        }
        Ok(())
    }

    #[inline]
    fn seat(&self, tentative: &Tentative, executor: &Executor<'_>) -> Fit {
        let counts = tentative.counts(executor);
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

    #[inline]
    fn check_blocks(
        &self,
        mirror: &Mirror,
        tentative: &Tentative,
        executor: &Executor<'_>,
    ) -> Result<(), Obstacle> {
        let (Some(blocks), Some(device)) = (
            self.blocks_on(executor),
            mirror.device(executor.info.device),
        ) else {
            return Ok(());
        };
        let free = u64::from(device.blocks_free) + u64::from(device.blocks_cached);
        if blocks.saturating_add(tentative.blocks(mirror, device.id)) > free {
            return Err(Obstacle::NoBlocks);
        }
        Ok(())
    }

    /// A model kept warm for followers is not driven out by another. A placement of this batch
    /// that starts a model there has ended the hold already.
    #[inline]
    fn check_warm_hold(
        &self,
        tentative: &Tentative,
        executor: &Executor<'_>,
    ) -> Result<(), Obstacle> {
        let Some(model) = self.request.model else {
            return Ok(());
        };
        let held = executor.residencies.iter().find_map(|row| {
            let until = row.warm_until.filter(|&until| until > self.now)?;
            (row.sequences == 0 && row.model != model).then_some(until)
        });
        match held {
            Some(until) if !executor.runs(model) && tentative.started(executor).is_empty() => {
                Err(Obstacle::WarmHold { until })
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
