//! Devices and executors that come, change and go.

use pointsman_events::changes::RowKey;
use pointsman_events::rows::{Health, Presence};
use pointsman_events::{
    Arrangement, AttachError, Availability, Config, DeviceId, DeviceSpec, Effect, ExecutorId,
    ExecutorSpec, Fact, Incarnation, KvReport, KvSpec, ModelId, PlacementTerms, RequestId,
};

use super::super::CLASSES;
use super::super::outbox::Outbox;
use super::super::timers::Timer;
use super::executor::Surplus;
use super::{Attachment, Device, Executor, Freed, Ledger};

/// Slots of executors, taken together.
fn slots_of<'a>(executors: impl Iterator<Item = &'a Executor>) -> u64 {
    executors.map(|e| u64::from(e.spec.slots_total)).sum()
}

/// Checks that each running sequence can get a token in each step.
fn tokens_suffice(slots: u64, tokens_per_step: u32) -> Result<(), AttachError> {
    if slots <= u64::from(tokens_per_step) {
        return Ok(());
    }
    Err(AttachError::TooFewTokens {
        slots,
        tokens_per_step,
    })
}

// === impl Ledger: attaching ===

impl Ledger {
    /// Opens the books of a device, under the id that its name got.
    pub(crate) fn attach_device(&mut self, id: DeviceId, spec: DeviceSpec, out: &mut Outbox) {
        let device = Device::new(id, spec);
        self.index.add(id, &device.memory);
        self.devices.push(device);
        self.touch_device(id, out);
        out.fact(Fact::DeviceAttached(id));
    }

    /// The number of attached executors.
    pub(crate) fn attached(&self) -> u32 {
        self.executors.attached
    }

    /// Checks that an executor can work as it is described.
    pub(crate) fn can_attach(&self, spec: &ExecutorSpec) -> Result<(), AttachError> {
        let device = self.find_device(spec.device);
        let device = device.ok_or(AttachError::UnknownDevice(spec.device))?;
        if spec.slots_total == 0 {
            return Err(AttachError::NoSlots);
        }
        let owned = matches!(device.spec.kv, KvSpec::Owned { .. });
        if owned && spec.tokens_per_block.is_none_or(|tokens| tokens == 0) {
            return Err(AttachError::NoTokensPerBlock);
        }
        self.check_slots(device, None, spec.slots_total)
    }

    /// Checks that every sequence could get a token in each step if `changed`, or a new executor,
    /// had so many slots.
    fn check_slots(
        &self,
        device: &Device,
        changed: Option<ExecutorId>,
        slots_total: u32,
    ) -> Result<(), AttachError> {
        let Some(tokens_per_step) = device.spec.tokens_per_step else {
            return Ok(());
        };
        let others = self.executors_on(device.id);
        let others = others.filter(|executor| Some(executor.id) != changed);
        let slots = slots_of(others) + u64::from(slots_total);
        tokens_suffice(slots, tokens_per_step)
    }

    /// Opens the books of an executor that [`Self::can_attach`] let pass.
    pub(crate) fn attach(&mut self, spec: ExecutorSpec, out: &mut Outbox) -> ExecutorId {
        let device = spec.device;
        let id = self.executors.push(spec);
        self.device_mut(device).executors.push(id);
        self.sets.open.insert(id);
        self.sets.allot_due.insert(device);
        self.touch_info(id, out);
        self.touch_load(id, out);
        out.due = true;
        out.fact(Fact::ExecutorAttached(id, device));
        id
    }

    pub(super) fn touch_info(&mut self, id: ExecutorId, out: &mut Outbox) {
        let executor = self.executor_mut(id);
        out.mark(RowKey::Executor(id), &mut executor.info_stamp);
    }
}

// === impl Ledger: changing ===

impl Ledger {
    /// Notes the counts of a device whose blocks somebody else manages. Ignored for others.
    pub(crate) fn report_kv(&mut self, id: DeviceId, report: KvReport, out: &mut Outbox) {
        if let Some(device) = self.devices.get_mut(id.0 as usize)
            && let Some(kv) = device.memory.reported_mut()
        {
            let before = kv.blocks_total();
            kv.note(report);
            if kv.blocks_total() != before {
                out.fleet_changed();
            }
            out.due = true;
            self.touch_device(id, out);
        }
    }

    /// Sets the tokens that all engines of a device together may schedule in a step. Budgets that
    /// are too large for that shrink at once, and the next round sets all of them anew.
    pub(crate) fn set_tokens_per_step(
        &mut self,
        id: DeviceId,
        tokens_per_step: u32,
        out: &mut Outbox,
    ) -> Result<(), AttachError> {
        if self.find_device(id).is_none() {
            return Err(AttachError::UnknownDevice(id));
        }
        tokens_suffice(slots_of(self.executors_on(id)), tokens_per_step)?;
        self.device_mut(id).spec.tokens_per_step = Some(tokens_per_step);
        self.keep_floors(id, out);
        self.sets.allot_due.insert(id);
        out.due = true;
        Ok(())
    }

    /// Sets the number of an executor's slots. More of them are free room.
    pub(crate) fn set_slots(
        &mut self,
        id: ExecutorId,
        slots_total: u32,
        out: &mut Outbox,
    ) -> Result<Freed, AttachError> {
        if slots_total == 0 {
            return Err(AttachError::NoSlots);
        }
        let device = self.device_of(id);
        self.check_slots(device, Some(id), slots_total)?;
        let freed = Freed(device.id);
        self.update(id, |spec| spec.slots_total = slots_total, out);
        Ok(freed)
    }

    pub(crate) fn set_share_weight(&mut self, id: ExecutorId, weight: u32, out: &mut Outbox) {
        self.update(id, |spec| spec.share_weight = weight, out);
        self.sets.allot_due.insert(self[id].spec.device);
    }

    pub(crate) fn set_serves(
        &mut self,
        id: ExecutorId,
        serves: Option<Vec<ModelId>>,
        out: &mut Outbox,
    ) {
        self.update(id, |spec| spec.serves = serves, out);
    }

    /// Sets the tokens in a block of an executor, where the machine does not give the blocks out.
    pub(crate) fn set_tokens_per_block(
        &mut self,
        id: ExecutorId,
        tokens: Option<u32>,
        out: &mut Outbox,
    ) {
        if self.device_of(id).pool().is_none() {
            self.update(id, |spec| spec.tokens_per_block = tokens, out);
        }
    }

    /// Sets the terms on which requests are placed on an executor. More of it may be free room.
    pub(crate) fn set_terms(
        &mut self,
        id: ExecutorId,
        terms: PlacementTerms,
        out: &mut Outbox,
    ) -> Freed {
        let device = self[id].spec.device;
        let kv = if terms.assumes_prompts {
            KvSpec::Assumed
        } else {
            KvSpec::Remote
        };
        if self[device].pool().is_none() && self[device].spec.kv != kv {
            self.forget_assumed(id);
            self.device_mut(device).spec.kv = kv;
        }
        self.keep_surplus(id);
        let change = |spec: &mut ExecutorSpec| {
            spec.group = terms.group;
            spec.models_max = terms.models_max;
            spec.queue_limit = terms.queue_limit;
            spec.model_unload_delay = terms.model_unload_delay;
        };
        self.update(id, change, out);
        Freed(device)
    }

    /// Sets the number of models that may run on an executor at once. More of them are free room.
    pub(crate) fn set_models_max(
        &mut self,
        id: ExecutorId,
        models_max: Option<u32>,
        out: &mut Outbox,
    ) -> Freed {
        self.keep_surplus(id);
        self.update(id, |spec| spec.models_max = models_max, out);
        Freed(self[id].spec.device)
    }

    /// Lets what is on an executor stay there under whatever terms come.
    fn keep_surplus(&mut self, id: ExecutorId) {
        let executor = self.executor_mut(id);
        executor.kept = Surplus {
            models: executor.models_active,
            queued: CLASSES.map(|class| executor.queue.len(class)),
        };
    }

    /// Notes the answer of a server elsewhere to new work.
    pub(crate) fn set_availability(
        &mut self,
        id: ExecutorId,
        availability: Availability,
        out: &mut Outbox,
    ) -> Freed {
        let freed = Freed(self[id].spec.device);
        self.change_health(id, |executor| executor.availability = availability, out);
        self.touch_load(id, out);
        freed
    }

    fn update(&mut self, id: ExecutorId, change: impl FnOnce(&mut ExecutorSpec), out: &mut Outbox) {
        self.book(id, |executor| change(&mut executor.spec));
        self.touch_info(id, out);
        self.touch_load(id, out);
    }

    /// Sets the health that the owner of a working executor tells.
    pub(crate) fn set_health(&mut self, id: ExecutorId, health: Health, out: &mut Outbox) {
        if self[id].health == Health::Down {
            // Its next life knows nothing of what the last one was told.
            let executor = self.executor_mut(id);
            executor.tokens_max = None;
            executor.arrangement = Arrangement::default();
            self.sets.allot_due.insert(self[id].spec.device);
        }
        self.change_health(id, |executor| executor.health = health, out);
    }

    /// Counts a fault of an executor.
    pub(crate) fn fault(&mut self, id: ExecutorId, config: &Config, out: &mut Outbox) {
        let now = out.now();
        self.change_health(id, |executor| executor.faults.add(now, config), out);
        self.arm(id, out);
    }

    /// Forgives an executor its faults: it has served a sequence to its end.
    pub(crate) fn forgive(&mut self, id: ExecutorId, out: &mut Outbox) {
        if self[id].faults.is_empty() {
            return;
        }
        self.change_health(id, |executor| executor.faults.forgive(), out);
        self.arm(id, out);
    }

    /// Ends the rest of an executor, or the doubt about it, whose time is over. Absent: it has gone.
    pub(crate) fn end_rest(
        &mut self,
        id: ExecutorId,
        config: &Config,
        out: &mut Outbox,
    ) -> Option<Freed> {
        let freed = Freed(self.find(id)?.spec.device);
        let now = out.now();
        self.change_health(id, |executor| executor.faults.pass(now, config), out);
        self.arm(id, out);
        Some(freed)
    }

    /// Changes something that the health of an executor follows from. Another health is news to
    /// requests that nobody serves.
    fn change_health(
        &mut self,
        id: ExecutorId,
        change: impl FnOnce(&mut Executor),
        out: &mut Outbox,
    ) {
        let (before, closed_before) = self.openness(id);
        self.book(id, change);
        let (health, closed) = self.openness(id);
        if (health, closed) != (before, closed_before) {
            self.touch_load(id, out);
        }
        if health != before {
            out.fact(Fact::HealthChanged(id, health));
            out.fleet_changed();
        }
    }

    /// The health of an executor, and its slots that nobody can take.
    fn openness(&self, id: ExecutorId) -> (Health, u32) {
        (self[id].health_seen(), self[id].slots_used_or_closed())
    }

    /// Lets nothing new onto an executor from now on.
    pub(crate) fn detach(&mut self, id: ExecutorId, out: &mut Outbox) {
        self.change_health(id, |it| it.attachment = Attachment::Detaching, out);
    }
}

// === impl Ledger: losing ===

impl Ledger {
    /// Ends a life of an executor. Returns the requests that have a slot or queue entry there.
    pub(crate) fn lose(&mut self, id: ExecutorId) -> Vec<RequestId> {
        self.book(id, |executor| {
            executor.health = Health::Down;
            executor.incarnation = Incarnation(executor.incarnation.0 + 1);
            let slots = executor.slots.keys().copied();
            slots.chain(executor.queue.iter()).collect()
        })
    }

    /// Forgets what was in the memory of an executor that was lost.
    pub(crate) fn forget_contents(&mut self, id: ExecutorId, out: &mut Outbox) -> Freed {
        let executor = &self[id];
        let device = executor.spec.device;
        let models: Vec<ModelId> = executor.models.keys().copied().collect();
        self.forget_memory(device);
        self.drop_all_swapped(id, out);
        self.cool(id, &models, out);
        self.sets.allot_due.insert(device);
        self.touch_blocks(device, out);
        self.touch_load(id, out);
        out.due = true;
        Freed(device)
    }

    /// Removes the executors of a device that are being detached and have nothing left to do.
    pub(crate) fn remove_detached(&mut self, device: DeviceId, out: &mut Outbox) {
        let is_over = |id: &ExecutorId| {
            let executor = &self[*id];
            executor.attachment == Attachment::Detaching && executor.is_idle()
        };
        let over = self[device].executors.iter().copied().filter(is_over);
        for id in over.collect::<Vec<_>>() {
            self.remove(id, out);
        }
    }

    fn remove(&mut self, id: ExecutorId, out: &mut Outbox) {
        let device = self[id].spec.device;
        self.drop_all_swapped(id, out);
        self.forget_assumed(id);
        let removed = self.executors.remove(id);
        let Some(mut removed) = removed else { return };
        for (model, mut stamp) in std::mem::take(&mut removed.models_stamps) {
            let presence = Presence {
                executor: id,
                model,
            };
            out.gone(RowKey::Residency(presence), &mut stamp);
        }
        let left = self.device_mut(device);
        left.executors.retain(|other| *other != id);
        // Nobody would take back what the last server there has told.
        if left.executors.is_empty()
            && let Some(told) = left.memory.reported_mut()
        {
            let has_told = told.blocks_total().is_some();
            told.note(KvReport::default());
            if has_told {
                self.touch_device(device, out);
            }
        }
        self.sets.open.remove(&id);
        out.timers.arm(Timer::Executor(id), None);
        out.gone(RowKey::Executor(id), &mut removed.info_stamp);
        self.sets.allot_due.insert(device);
        out.effect(Effect::Detached { executor: id });
        out.fact(Fact::ExecutorDetached(id));
    }
}
