//! The interlock for placements, and the one way into and out of an executor.
//!
//! Everything that puts a request on an executor goes through [`Machine::check_place`] and
//! [`Machine::place`], or through [`Machine::complete_reservation`] for room that was kept.
//! Everything that takes one off goes through [`Machine::take_out`]. Nothing else counts slots,
//! blocks or models.

use crate::effect::{Effect, StartOrder};
use crate::fact::{Decided, Fact, PlacedIn};
use crate::ids::{BlockHash, ExecutorId, Micros, ModelId, RequestId};
use crate::refusal::RefusalCause;
use crate::rows::Health;

use super::device::Kv;
use super::executor::{Attachment, Executor, SlotUse};
use super::pool::blocks_for;
use super::request::{InSlot, Phase, Placed, Request};
use super::{Machine, Step};

// === impl Machine: the interlock ===

impl Machine {
    /// Whether the executor may serve the request at all, its health and room aside.
    pub(super) fn check_eligible(
        &self,
        request: &Request,
        executor: &Executor,
    ) -> Result<(), RefusalCause> {
        let row = &request.row;
        if !executor.serves(row.model) {
            return Err(RefusalCause::NotServed);
        }
        if let Some(allowed) = &row.allowed
            && !allowed.contains(&executor.id)
        {
            return Err(RefusalCause::NotAllowed);
        }
        if row.failed_on.contains(&executor.id) {
            return Err(RefusalCause::FailedBefore);
        }
        self.check_fits(request, executor)
    }

    /// Whether prompt and output bound fit the executor's device when it is empty. What does not
    /// would run short of blocks that nobody's leaving could give it.
    fn check_fits(&self, request: &Request, executor: &Executor) -> Result<(), RefusalCause> {
        let pool = self.devices[executor.spec.device.0 as usize].pool();
        let Some((pool, tokens_per_block)) = pool.zip(executor.spec.tokens_per_block) else {
            return Ok(());
        };
        let needed = blocks_for(request.tokens_bound(), tokens_per_block);
        let total = pool.total();
        if needed > total {
            return Err(RefusalCause::NeverFits { needed, total });
        }
        Ok(())
    }

    /// Whether the executor takes anything new, and this request among it, room aside.
    pub(super) fn check_open_to(
        &self,
        request: &Request,
        executor: &Executor,
    ) -> Result<(), RefusalCause> {
        if !executor.takes_new() {
            let health = match executor.attachment {
                Attachment::Attached => executor.health,
                Attachment::Detaching => Health::Draining,
            };
            return Err(RefusalCause::Unavailable(health));
        }
        self.check_eligible(request, executor)
    }

    /// Whether a waiting request can be placed on an executor now, and whether in a slot or in
    /// its device queue.
    pub(super) fn check_place(
        &self,
        request: &Request,
        executor: &Executor,
    ) -> Result<PlacedIn, RefusalCause> {
        self.check_open_to(request, executor)?;
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
        self.check_running_max(request)?;
        self.check_blocks(request, executor)?;
        Ok(into)
    }

    pub(super) fn check_running_max(&self, request: &Request) -> Result<(), RefusalCause> {
        let model = request.row.model.and_then(|model| self.models.get(&model));
        match model.and_then(|model| Some((model.running_max?, model.running))) {
            Some((running_max, running)) if running >= running_max => Err(RefusalCause::RunningMax),
            Some(_) | None => Ok(()),
        }
    }

    fn check_blocks(&self, request: &Request, executor: &Executor) -> Result<(), RefusalCause> {
        let needed = blocks_at_start(request, executor);
        let device = &self.devices[executor.spec.device.0 as usize];
        let tokens_per_block = executor.spec.tokens_per_block.unwrap_or(0);
        match device.available_for(shareable(request, tokens_per_block)) {
            Some(available) if needed > available => {
                Err(RefusalCause::NoBlocks { needed, available })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Blocks a request takes when it is placed: for its prompt and its first token, and for all it
/// may ever generate where the executor could not be freed of it again.
pub(super) fn blocks_at_start(request: &Request, executor: &Executor) -> u32 {
    let Some(tokens_per_block) = executor.spec.tokens_per_block else {
        return 0;
    };
    let bound = request.tokens_bound();
    let tokens = if executor.spec.preempts {
        (u64::from(request.row.prompt_tokens) + 1).min(bound)
    } else {
        bound
    };
    blocks_for(tokens, tokens_per_block)
}

/// Hashes of the prompt blocks that a request may share with others: all before the one that its
/// last prompt token is in. That token is always computed, for its logits, and so is written.
fn shareable(request: &Request, tokens_per_block: u32) -> &[BlockHash] {
    let hashes = &request.prompt_hashes;
    let whole = request.row.prompt_tokens.saturating_sub(1) / tokens_per_block.max(1);
    &hashes[..hashes.len().min(whole as usize)]
}

// === impl Machine: in ===

impl Machine {
    /// Places a request for which [`Self::check_place`] said `into`.
    pub(super) fn place(
        &mut self,
        id: RequestId,
        executor: ExecutorId,
        into: PlacedIn,
        by: Decided,
    ) {
        self.drop_reservation(id);
        let (Some(request), Some(record)) = (self.requests.get(&id), self.executors.get(executor))
        else {
            return;
        };
        let model = request.row.model;
        let blocks = blocks_at_start(request, record);
        let tokens_per_block = record.spec.tokens_per_block.unwrap_or(0);
        let device = record.spec.device;
        let cached = self.reserve_blocks(id, executor, blocks);
        self.join_model(executor, model);
        let cached_tokens = cached.saturating_mul(tokens_per_block);
        self.enter(id, executor, cached_tokens, into);
        self.touch_blocks(device);
        self.fact(Fact::Placed {
            request: id,
            executor,
            into,
            by,
        });
        if into == PlacedIn::Slot {
            self.start(id);
        }
    }

    /// Opens the request's lease. Returns how many of its blocks already hold their tokens.
    fn reserve_blocks(&mut self, id: RequestId, executor: ExecutorId, blocks: u32) -> u32 {
        let (Some(request), Some(record)) = (self.requests.get(&id), self.executors.get(executor))
        else {
            return 0;
        };
        let hashes = shareable(request, record.spec.tokens_per_block.unwrap_or(0));
        match &mut self.devices[record.spec.device.0 as usize].kv {
            Kv::Owned(pool) => pool.reserve(id, hashes, blocks).blocks_cached,
            Kv::Reported(kv) => {
                kv.placed_since = kv.placed_since.saturating_add(blocks);
                0
            }
        }
    }

    /// Turns a waiting request into a placed one on `executor`, whose blocks and model place it
    /// has. `cached_tokens` of its prompt need no prefill; the last one always does, for its
    /// logits.
    pub(super) fn enter(
        &mut self,
        id: RequestId,
        executor: ExecutorId,
        cached_tokens: u32,
        into: PlacedIn,
    ) {
        self.count_waiting(id, Step::Down);
        self.queue.remove(&id);
        self.timers.disarm_request(id);
        let now = self.now;
        let held = self
            .pool_of(executor)
            .map_or(0, |pool| pool.lease(id).len());
        let (Some(request), Some(record)) =
            (self.requests.get_mut(&id), self.executors.get_mut(executor))
        else {
            return;
        };
        let cached_tokens = cached_tokens.min(request.row.prompt_tokens.saturating_sub(1));
        request.phase = Phase::Placed(Placed {
            executor,
            incarnation: record.incarnation,
            in_slot: InSlot::Queued,
            placed_at: now,
            started_at: None,
            cached_tokens,
            prefilled: cached_tokens,
            generated: 0,
            last_token_at: None,
            steps_without_token: 0,
            short: None,
        });
        record.placed_total += 1;
        record.blocks_used += held as u64;
        record.prefill_tokens_pending += u64::from(request.row.prompt_tokens - cached_tokens);
        match into {
            PlacedIn::Queue => record.queue.push(request.row.class, id),
            PlacedIn::Slot => {
                record.slots.insert(id, SlotUse::Running);
            }
        }
        if record.spec.preempts {
            self.preemptible.insert((request.urgency(), id));
        }
        let tenant = request.row.tenant;
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.running += 1;
        }
        self.touch_tenant(tenant);
        self.touch_waiting(id);
        self.touch_sequence(id);
        self.touch_load(executor);
        self.arm_request(id);
    }

    /// Orders the engine to take up a request that has its slot.
    pub(super) fn start(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let Phase::Placed(placed) = &mut request.phase else {
            return;
        };
        placed.in_slot = InSlot::Running;
        let Some(record) = self.executors.get_mut(placed.executor) else {
            return;
        };
        record.slots.insert(id, SlotUse::Running);
        let executor = record.id;
        let device = record.spec.device;
        let running = record.running();
        let is_below_floor = record.tokens_max.is_some_and(|max| max < running);
        let pool = self.devices[device.0 as usize].pool();
        let order = StartOrder {
            sequence: placed.sequence(id),
            device,
            model: request.row.model,
            prompt_tokens: request.row.prompt_tokens,
            cached_tokens: placed.cached_tokens,
            output_tokens_max: request.row.output_tokens_max,
            blocks: pool.map_or(Vec::new(), |pool| pool.lease(id).to_vec()),
        };
        if running == 1 {
            self.allot_due.insert(device);
            self.due = true;
        } else if is_below_floor {
            self.keep_floors(device);
        }
        self.effect(Effect::Start(order));
        self.touch_sequence(id);
        self.touch_load(executor);
    }
}

// === impl Machine: models on executors ===

impl Machine {
    /// Counts one more sequence of a model, placed or reserved, on an executor.
    pub(super) fn join_model(&mut self, executor: ExecutorId, model: Option<ModelId>) {
        let Some(model) = model else { return };
        let Some(record) = self.executors.get_mut(executor) else {
            return;
        };
        let presence = record.models.entry(model).or_default();
        presence.sequences += 1;
        presence.warm_until = None;
        let cooled = if presence.sequences == 1 {
            record.models_active += 1;
            // Starting a model ends the hold of the one that was kept warm.
            let warm = record.models.iter().filter(|(_, p)| p.sequences == 0);
            warm.map(|(model, _)| *model).collect()
        } else {
            Vec::new()
        };
        if let Some(record) = self.models.get_mut(&model) {
            record.running += 1;
        }
        self.touch_model(model);
        self.touch_presence(executor, model);
        self.cool(executor, &cooled);
    }

    /// Counts one sequence of a model less on an executor; after its last one the model stays
    /// warm for a while, if nothing else runs there.
    pub(super) fn leave_model(&mut self, executor: ExecutorId, model: Option<ModelId>) {
        let Some(model) = model else { return };
        let now = self.now;
        let Some(record) = self.executors.get_mut(executor) else {
            return;
        };
        let Some(presence) = record.models.get_mut(&model) else {
            return;
        };
        presence.sequences -= 1;
        if presence.sequences == 0 {
            record.models_active -= 1;
            let delay = record.spec.model_unload_delay;
            let stays =
                delay > Micros(0) && record.models_active == 0 && record.health != Health::Down;
            if stays {
                presence.warm_until = Some(now.after(delay));
            } else {
                record.models.remove(&model);
            }
        }
        if let Some(record) = self.models.get_mut(&model) {
            record.running -= 1;
        }
        self.touch_model(model);
        self.touch_presence(executor, model);
        self.arm_executor(executor);
    }

    /// These models are no longer held warm there.
    pub(super) fn cool(&mut self, executor: ExecutorId, models: &[ModelId]) {
        for model in models {
            if let Some(record) = self.executors.get_mut(executor) {
                record.models.remove(model);
            }
            self.touch_presence(executor, *model);
        }
        if !models.is_empty() {
            self.arm_executor(executor);
        }
    }
}

// === impl Machine: out ===

impl Machine {
    /// Takes a placed request off its executor: its slot or queue entry, its blocks and its
    /// model's place come free, and go to whoever has first claim. The request itself stays in
    /// its phase; the caller says what becomes of it.
    pub(super) fn take_out(&mut self, id: RequestId) {
        let Some(executor) = self.close_stay(id) else {
            return;
        };
        self.refill(executor);
        self.remove_if_detached(executor);
        self.due = true;
    }

    /// The books of [`Self::take_out`]. Returns the executor it was on.
    pub(super) fn close_stay(&mut self, id: RequestId) -> Option<ExecutorId> {
        let request = self.requests.get(&id)?;
        let placed = request.placed()?;
        let executor = placed.executor;
        let unfilled = request.row.prompt_tokens.saturating_sub(placed.prefilled);
        let (model, tenant, class) = (request.row.model, request.row.tenant, request.row.class);
        let urgency = request.urgency();
        self.preemptible.remove(&(urgency, id));
        let record = self.executors.get_mut(executor)?;
        let ran = record.slots.remove(&id).is_some();
        record.queue.remove(class, id);
        record.prefill_tokens_pending -= u64::from(unfilled);
        let device = record.spec.device;
        let idle = ran && record.running() == 0;
        let device_record = &mut self.devices[device.0 as usize];
        device_record.short.remove(&id);
        device_record.drop_claim(id);
        let held = device_record.pool().map_or(0, |pool| pool.lease(id).len());
        if let Some(pool) = device_record.pool_mut() {
            pool.close(id);
        }
        if let Some(record) = self.executors.get_mut(executor) {
            record.blocks_used -= held as u64;
        }
        if idle {
            self.allot_due.insert(device);
        }
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.running -= 1;
        }
        self.touch_tenant(tenant);
        self.leave_model(executor, model);
        self.touch_blocks(device);
        self.touch_load(executor);
        Some(executor)
    }

    /// Gives what is free on an executor and its device to those with first claim: reservations
    /// and claims in order, then running sequences that lack a block, then the device queue.
    pub(super) fn refill(&mut self, executor: ExecutorId) {
        let Some(device) = self.executors.get(executor).map(|e| e.spec.device) else {
            return;
        };
        self.serve_claims(device);
        self.serve_short(device);
        for id in self.devices[device.0 as usize].executors.clone() {
            self.start_queued(id);
        }
    }

    /// Starts what is in an executor's queue while slots are free.
    fn start_queued(&mut self, executor: ExecutorId) {
        while let Some(record) = self.executors.get_mut(executor)
            && record.has_slot()
            && record.health.works()
            && let Some(next) = record.queue.pop()
        {
            self.start(next);
        }
    }
}
