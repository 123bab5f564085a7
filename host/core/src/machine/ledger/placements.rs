//! Placements: room taken, grown and given back.

use std::collections::BTreeSet;

use pointsman_events::rows::{ExecutorKind, RequestClass};
use pointsman_events::{
    BlockId, DeviceId, ExecutorId, PlacedIn, PotentialLoad, RefusalCause, RequestId,
};
use pointsman_kv::blocks_for;

use super::super::outbox::Outbox;
use super::super::requests::{Advance, Placed, Request};
use super::super::{CLASSES, count};
use super::executor::{Executor, SlotUse};
use super::models::Step;
use super::prefix::{prefix_on, shareable_prefix};
use super::{Freed, Ledger};

/// The outcome of [`Ledger::grow`].
#[derive(Debug)]
pub(crate) struct Grown {
    /// The new blocks.
    pub(crate) blocks: Vec<BlockId>,
    /// True if the sequence has all it needs.
    pub(crate) is_enough: bool,
}

/// The number of blocks that a request takes when it is placed: for its prompt and its first token,
/// and for all it may ever generate where the executor could not be freed of it again.
pub(crate) fn blocks_at_start(request: &Request, executor: &Executor) -> u32 {
    let Some(tokens_per_block) = executor.spec.tokens_per_block else {
        return 0;
    };
    let bound = request.tokens_bound();
    // A server elsewhere makes room for itself.
    let grows = executor.spec.preempts || executor.spec.kind == ExecutorKind::Remote;
    let tokens = if grows {
        (u64::from(request.row.prompt_tokens) + 1).min(bound)
    } else {
        bound
    };
    blocks_for(tokens, tokens_per_block)
}

// === impl Ledger: room there is ===

impl Ledger {
    /// Checks that prompt and output bound fit the executor's device when it is empty. A request
    /// that does not fit would run short of blocks that nobody's leaving could give it. A server
    /// elsewhere knows for itself: the tokens of a prompt are a guess there.
    pub(crate) fn could_ever_place(
        &self,
        request: &Request,
        executor: &Executor,
    ) -> Result<(), RefusalCause> {
        let total = self[executor.spec.device].memory.blocks_total();
        let Some((total, tokens_per_block)) = total.zip(executor.spec.tokens_per_block) else {
            return Ok(());
        };
        let needed = blocks_for(request.tokens_bound(), tokens_per_block);
        if needed > total && executor.spec.kind != ExecutorKind::Remote {
            return Err(RefusalCause::NeverFits { needed, total });
        }
        Ok(())
    }

    /// Finds room for a waiting request on an executor, in a slot or in its device queue.
    pub(crate) fn can_place(
        &self,
        request: &Request,
        executor: &Executor,
    ) -> Result<PlacedIn, RefusalCause> {
        let into = if executor.has_slot() {
            PlacedIn::Slot
        } else if executor.has_queue_room(request.row.class) {
            PlacedIn::Queue
        } else {
            return Err(RefusalCause::NoSlot);
        };
        if !executor.has_model_place(request.row.model) {
            return Err(RefusalCause::ModelsMax);
        }
        self.can_run(request.row.model)?;
        let device = &self[executor.spec.device];
        let prefix = shareable_prefix(request, executor);
        let needed = blocks_at_start(request, executor);
        // What is held of a prompt is looked up only where it matters: that takes longer than all else here.
        let fits_elsewhere = |available| {
            let held = || self.tokens_on(device, prefix);
            device.pool().is_none() && self.blocks_elsewhere(request, executor, held()) <= available
        };
        match device.available_for(prefix) {
            Some(available) if needed > available && !fits_elsewhere(available) => {
                Err(RefusalCause::NoBlocks { needed, available })
            }
            Some(_) | None => Ok(into),
        }
    }

    /// The number of blocks that a request takes at a server elsewhere which has so many leading tokens of its
    /// prompt. The tokens of a prompt are a guess there: beyond half of all blocks it waits for no more of them.
    fn blocks_elsewhere(&self, request: &Request, executor: &Executor, held_tokens: u32) -> u32 {
        let per_block = executor.spec.tokens_per_block.unwrap_or(u32::MAX).max(1);
        let cached = held_tokens / per_block;
        let total = self[executor.spec.device].memory.blocks_total();
        let most = total.map_or(u32::MAX, |total| total.div_ceil(2));
        let blocks = blocks_at_start(request, executor);
        blocks.saturating_sub(cached).min(most)
    }
}

// === impl Ledger: room there could be ===

impl Ledger {
    /// The number of blocks that a waiting request could have on an executor once these have left,
    /// those that others share with it included; absent where the machine does not keep the books.
    pub(crate) fn available_after(
        &self,
        request: &Request,
        executor: &Executor,
        leaving: &BTreeSet<RequestId>,
    ) -> Option<u32> {
        let pool = self[executor.spec.device].pool()?;
        Some(pool.available_after(leaving, shareable_prefix(request, executor)))
    }

    /// The load of an executor if a request were placed there.
    pub(crate) fn potential_load(&self, request: &Request, executor: &Executor) -> PotentialLoad {
        let device = &self[executor.spec.device];
        let prefix = shareable_prefix(request, executor);
        let blocks = blocks_at_start(request, executor);
        let used = match device.pool() {
            Some(pool) => u64::from(pool.used_with(executor.id, prefix, blocks)),
            None => executor.blocks_reckoned() + u64::from(blocks),
        };
        let swapped = self.swapped_tokens(request.id(), executor.id);
        let cached = self.tokens_on(device, prefix).max(swapped);
        let uncached = request.row.prompt_tokens.saturating_sub(cached);
        PotentialLoad {
            blocks_used: used,
            prefill_tokens_pending: executor.prefill_tokens_pending + u64::from(uncached),
        }
    }

    /// The number of blocks that a waiting request would share with others on an executor, whoever of
    /// `victims` leaves.
    pub(crate) fn shared_whatever_leaves(
        &self,
        request: &Request,
        executor: &Executor,
        victims: impl Iterator<Item = RequestId>,
    ) -> u32 {
        let pool = self[executor.spec.device].pool();
        let prefix = shareable_prefix(request, executor);
        pool.map_or(0, |pool| pool.shared_whatever_leaves(prefix, victims))
    }
}

// === impl Ledger: in ===

impl Ledger {
    /// Takes the blocks and the model's place of a request for which [`Self::can_place`] found
    /// room. Returns the leading tokens of its prompt that the blocks hold already; on a device whose
    /// books somebody else keeps, those that were reported.
    pub(crate) fn place(
        &mut self,
        request: &Request,
        executor: ExecutorId,
        out: &mut Outbox,
    ) -> u32 {
        let record = &self[executor];
        let device = record.spec.device;
        let prefix = shareable_prefix(request, record);
        let lease = (request.id(), executor);
        let is_reported = self[device].pool().is_none();
        let reported = is_reported.then(|| self.tokens_on(&self[device], prefix));
        let blocks = match reported {
            Some(tokens) => self.blocks_elsewhere(request, record, tokens),
            None => blocks_at_start(request, record),
        };
        self.device_mut(device).memory.lease(lease, prefix, blocks);
        if reported.is_some() {
            self.touch_device(device, out);
        }
        self.join_model(executor, request, out);
        reported.unwrap_or_else(|| self.cached_tokens(request.id(), executor))
    }

    /// The leading tokens of a request's prompt that its blocks on an executor held when they were
    /// taken, or that are there in host memory.
    pub(crate) fn cached_tokens(&self, request: RequestId, executor: ExecutorId) -> u32 {
        let record = &self[executor];
        let pool = self[record.spec.device].pool();
        let blocks = pool.map_or(0, |pool| pool.cached_of(request));
        let tokens = blocks.saturating_mul(record.spec.tokens_per_block.unwrap_or(0));
        tokens.max(self.swapped_tokens(request, executor))
    }

    /// Puts a request whose blocks and model's place are taken into its slot or the device queue.
    pub(crate) fn enter(
        &mut self,
        request: &Request,
        placed: &Placed,
        into: PlacedIn,
        out: &mut Outbox,
    ) {
        let (id, row) = (request.id(), &request.row);
        self.count_waiting(row, Step::Down, out);
        self.drop_swapped_elsewhere(id, placed.executor, out);
        let preempts = self.book(placed.executor, |record| {
            record.placed_total += 1;
            record.prefill_tokens_pending += u64::from(row.prompt_tokens - placed.cached_tokens);
            record.tokens_placed += u64::from(row.prompt_tokens);
            match into {
                PlacedIn::Queue => record.queue.push(row.class, id),
                PlacedIn::Slot => {
                    record.take_slot(id, SlotUse::Running);
                }
            }
            record.spec.preempts
        });
        if preempts {
            self.sets.preemptible.insert((request.urgency(), id));
        }
        if into == PlacedIn::Queue {
            self.order_soon(placed.executor, row.class);
        }
        self.count_running(row.tenant, Step::Up, out);
    }

    /// Has a class in a device queue that somebody joined or left put in order, if there is a choice.
    fn order_soon(&mut self, executor: ExecutorId, class: RequestClass) {
        if self[executor].queue.len(class) > 1 {
            self.sets.queue_due.insert((executor, class));
        }
    }

    /// Has the device queues of all executors put in order anew. False if there is no choice in any.
    pub(crate) fn order_queues_anew(&mut self) -> bool {
        let executors: Vec<ExecutorId> = self.executors().map(|executor| executor.id).collect();
        for executor in executors {
            for class in CLASSES {
                self.order_soon(executor, class);
            }
        }
        !self.sets.queue_due.is_empty()
    }

    /// Takes the list of classes of device queues that are to be put in order.
    pub(crate) fn take_queue_due(&mut self) -> BTreeSet<(ExecutorId, RequestClass)> {
        std::mem::take(&mut self.sets.queue_due)
    }

    /// Puts the requests of a class in an executor's device queue in another order.
    pub(crate) fn order_queue(
        &mut self,
        executor: ExecutorId,
        class: RequestClass,
        ordered: Vec<RequestId>,
    ) {
        self.executor_mut(executor).queue.order(class, ordered);
    }

    /// Moves the next request of an executor's device queue into a slot, if one is free.
    pub(crate) fn pop_queued(&mut self, executor: ExecutorId) -> Option<RequestId> {
        let record = &self[executor];
        if record.queue.is_empty() || !record.has_slot() || !record.health.works() {
            return None;
        }
        let (class, next) = self.book(executor, |record| {
            let (class, next) = record.queue.pop()?;
            record.take_slot(next, SlotUse::Running);
            Some((class, next))
        })?;
        self.order_soon(executor, class);
        Some(next)
    }

    /// Has the budgets of a device set anew, or raised, for a sequence that begins to run, and the
    /// sequences of its engine put in order.
    pub(crate) fn start(&mut self, executor: ExecutorId, out: &mut Outbox) {
        let record = &self[executor];
        let device = record.spec.device;
        let is_alone = record.running().nth(1).is_none();
        let is_above = |max| max < count(record.running().count());
        if is_alone {
            self.sets.allot_due.insert(device);
            out.due = true;
        } else if record.tokens_max.is_some_and(is_above) {
            self.keep_floors(device, out);
        }
        self.arrange(executor);
    }
}

// === impl Ledger: room kept for the needy ===

impl Ledger {
    /// Takes a model's place on an executor for a waiting request, and opens its lease with what is
    /// cached of its prompt: the rest follows by [`Self::fill`].
    pub(crate) fn reserve(&mut self, request: &Request, executor: ExecutorId, out: &mut Outbox) {
        self.join_model(executor, request, out);
        let record = &self[executor];
        let (device, prefix) = (record.spec.device, shareable_prefix(request, record));
        let memory = &mut self.device_mut(device).memory;
        memory.lease((request.id(), executor), prefix, 0);
    }

    /// Gives a request first claim on room of a device. Some may be free already.
    pub(crate) fn claim(&mut self, device: DeviceId, needy: RequestId) -> Freed {
        let claims = &mut self.device_mut(device).claims;
        if !claims.contains(&needy) {
            claims.push(needy);
        }
        Freed(device)
    }

    /// Takes free room for a reservation. True if all of its room is there: then the claim ends.
    pub(crate) fn fill(
        &mut self,
        request: &Request,
        executor: ExecutorId,
        out: &mut Outbox,
    ) -> bool {
        let id = request.id();
        let needed = blocks_at_start(request, &self[executor]);
        let (has_slot, has_place) = self.book(executor, |record| {
            if !record.slots.contains_key(&id) && record.has_slot() {
                record.take_slot(id, SlotUse::Reserved);
            }
            let models_max = record.spec.models_max;
            let has_place = models_max.is_none_or(|max| record.models_active <= max);
            (record.slots.contains_key(&id), has_place)
        });
        let device = self[executor].spec.device;
        let pool = self.device_mut(device).memory.pool_mut();
        let has_blocks = pool.is_none_or(|pool| {
            pool.grow(id, needed);
            pool.lease(id).len() >= needed as usize
        });
        self.touch_blocks(device, out);
        self.touch_load(executor, out);
        let is_whole = has_slot && has_place && has_blocks;
        if is_whole {
            self.device_mut(device).settle(id);
        }
        is_whole
    }
}

// === impl Ledger: while it runs ===

impl Ledger {
    /// Books the tokens of a step.
    pub(crate) fn advance(&mut self, request: &Request, made: &Advance, out: &mut Outbox) {
        let record = self.executor_mut(request.placement().executor);
        record.prefill_tokens_pending -= u64::from(made.prefilled);
        record.tokens_placed += u64::from(made.generated);
        record.tokens_used += u64::from(made.tokens_used());
        if let Some(ttft) = made.ttft {
            record.measured_ttft(ttft);
        }
        if let Some(itl) = made.itl {
            record.measured_itl(itl);
        }
        if made.has_first_token() {
            let executor = request.placement().executor;
            self.begin_model(executor, request.row.model, out);
        }
        self.count_tokens(request.row.tenant, (made.prefilled, made.generated), out);
    }

    /// Makes the full prompt blocks whose KV is there available to others.
    pub(crate) fn publish(&mut self, request: &Request) {
        let placed = request.placement();
        let executor = &self[placed.executor];
        let (device, prefix) = (executor.spec.device, prefix_on(request, executor));
        let full = placed.prefilled / prefix.tokens_per_block().max(1);
        if let Some(pool) = self.device_mut(device).memory.pool_mut() {
            pool.publish(request.id(), prefix, full);
        }
    }

    /// The number of blocks that a running sequence must have in all for its next token; absent
    /// where it has them.
    pub(crate) fn blocks_lacked(&self, request: &Request) -> Option<u32> {
        let executor = &self[request.placement().executor];
        let tokens_per_block = executor.spec.tokens_per_block?;
        let pool = self[executor.spec.device].pool()?;
        let tokens = request.tokens_ahead().min(request.tokens_bound());
        let needed = blocks_for(tokens, tokens_per_block);
        (needed > count(pool.lease(request.id()).len())).then_some(needed)
    }

    /// Notes that a running sequence lacks a block.
    pub(crate) fn lack(&mut self, id: RequestId, executor: ExecutorId) {
        let device = self[executor].spec.device;
        self.device_mut(device).short.insert(id);
        self.sets.short.insert(device);
    }

    /// Takes a device off the list of short ones, if nothing lacks a block there any more.
    pub(crate) fn is_short(&mut self, device: DeviceId) -> bool {
        let is_short = !self[device].short.is_empty();
        if !is_short {
            self.sets.short.remove(&device);
        }
        is_short
    }

    /// Gives a sequence free blocks until it has `blocks` in all. Its shortage and its claim end
    /// when it has them.
    pub(crate) fn grow(&mut self, id: RequestId, executor: ExecutorId, blocks: u32) -> Grown {
        let device = self[executor].spec.device;
        let device = self.device_mut(device);
        let pool = device.memory.pool_mut();
        let pool = pool.expect("blocks are lacking only where the machine hands them out");
        let new = pool.grow(id, blocks);
        let is_enough = pool.lease(id).len() >= blocks as usize;
        if is_enough {
            device.settle(id);
        }
        Grown {
            blocks: new,
            is_enough,
        }
    }
}

// === impl Ledger: out ===

impl Ledger {
    /// Notes that a running sequence was told to leave. Its slot and blocks stay its own until
    /// [`Self::release`].
    pub(crate) fn leave(&mut self, request: &Request) {
        let (id, executor) = (request.id(), request.placement().executor);
        self.sets.preemptible.remove(&(request.urgency(), id));
        self.book(executor, |record| record.slots.insert(id, SlotUse::Leaving));
        let device = self[executor].spec.device;
        self.device_mut(device).settle(id);
    }

    /// Closes a placement, whose room comes free. A prompt of which nothing was read is not assumed to be there any more.
    pub(crate) fn release(&mut self, request: &Request, out: &mut Outbox) -> Freed {
        let (id, row, placed) = (request.id(), &request.row, request.placement());
        let unfilled = row.prompt_tokens.saturating_sub(placed.prefilled);
        self.sets.preemptible.remove(&(request.urgency(), id));
        self.count_running(row.tenant, Step::Down, out);
        let record = self.executor_mut(placed.executor);
        record.prefill_tokens_pending -= u64::from(unfilled);
        record.tokens_placed -= u64::from(row.prompt_tokens) + u64::from(placed.generated);
        record.queue.remove(row.class, id);
        let ran = record.slots.contains_key(&id);
        let freed = self.vacate(request, placed.executor, out);
        let prompt = placed.prompt();
        if prompt.tokens <= prompt.cached && placed.generated == 0 {
            let prefix = prefix_on(request, &self[placed.executor]);
            let memory = &mut self.devices[freed.0.0 as usize].memory;
            self.index
                .forget_unread((freed.0, memory), prefix, placed.cached_tokens);
        }
        if ran {
            if self[placed.executor].running().next().is_none() {
                self.sets.allot_due.insert(freed.0);
            }
            self.arrange(placed.executor);
        }
        freed
    }

    /// Gives up the room that a placed request has on an executor, or that is kept for a waiting one.
    pub(crate) fn vacate(
        &mut self,
        request: &Request,
        executor: ExecutorId,
        out: &mut Outbox,
    ) -> Freed {
        let (id, prefix) = (request.id(), prefix_on(request, &self[executor]));
        self.book(executor, |record| record.slots.remove(&id));
        let device = self[executor].spec.device;
        let record = self.device_mut(device);
        record.settle(id);
        if record.memory.close(id, prefix) {
            self.touch_device(device, out);
        }
        self.leave_model(executor, request, out);
        self.touch_load(executor, out);
        out.due = true;
        Freed(device)
    }
}
