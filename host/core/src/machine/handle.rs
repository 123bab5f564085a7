//! What happened to executors, devices, names and requests.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::effect::Effect;
use crate::fact::{ExpiredWhy, Fact, Outcome, RefusedWhy};
use crate::ids::{AdapterId, DeviceId, ExecutorId, LabelId, Micros, ModelId, RequestId, TenantId};
use crate::input::{DeviceSpec, ExecutorSpec, ExecutorUpdate, Input, KvReport, KvSpec, NewRequest};
use crate::log::RowKey;
use crate::refusal::RefusalCause;
use crate::rows::{Health, NameKind, Request as RequestRow, Stage};

use super::device::{Device, Kv, ReportedKv};
use super::executor::{Attachment, Executor, SlotUse};
use super::names::Interned;
use super::request::{AfterLeaving, InSlot, Phase, Request, Waiting};
use super::{Machine, Model, Step, Tenant};

/// Why a device or an executor cannot be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Another one has that name.
    #[error("{0:?} is attached already")]
    NameTaken(String),
    /// As many executors as the configuration allows.
    #[error("{0} executors are attached, which is executors-max")]
    TooMany(u32),
    /// An executor on a device that was never attached.
    #[error("device {0} is not attached")]
    UnknownDevice(DeviceId),
    /// An executor without slots could never run anything.
    #[error("slots-total must be at least 1")]
    NoSlots,
    /// An executor that takes its blocks from the device's pool must say how many tokens of its
    /// model a block holds.
    #[error("an executor on a device with KV blocks must set tokens-per-block to at least 1")]
    NoTokensPerBlock,
    /// Each running sequence must get a token in each step.
    #[error("{slots} slots on a device that schedules {tokens_per_step} tokens in a step")]
    TooFewTokens {
        /// Slots of all executors on the device, the new one's included.
        slots: u64,
        /// The device's tokens per step.
        tokens_per_step: u32,
    },
}

// === impl Machine: names ===

impl Machine {
    /// The id of a model, made at its first use.
    pub fn intern_model(&mut self, now: Micros, name: &str) -> ModelId {
        let id = ModelId(self.intern(now, NameKind::Model, name));
        if let Entry::Vacant(entry) = self.models.entry(id) {
            entry.insert(Model::default());
            self.touch_model(id);
        }
        id
    }

    /// The id of a tenant, made at its first use with weight 1 and no limit.
    pub fn intern_tenant(&mut self, now: Micros, name: &str) -> TenantId {
        let id = TenantId(self.intern(now, NameKind::Tenant, name));
        if let Entry::Vacant(entry) = self.tenants.entry(id) {
            entry.insert(Tenant {
                weight: 1,
                tokens_per_minute: None,
                running: 0,
                waiting: 0,
                prompt_tokens_total: 0,
                output_tokens_total: 0,
                stamp: crate::log::Stamp::default(),
            });
            self.touch_tenant(id);
        }
        id
    }

    /// The id of an adapter, made at its first use.
    pub fn intern_adapter(&mut self, now: Micros, name: &str) -> AdapterId {
        AdapterId(self.intern(now, NameKind::Adapter, name))
    }

    /// The id of a `key=value` label, made at its first use.
    pub fn intern_label(&mut self, now: Micros, text: &str) -> LabelId {
        LabelId(self.intern(now, NameKind::Label, text))
    }

    fn intern(&mut self, now: Micros, kind: NameKind, text: &str) -> u32 {
        self.now = self.now.max(now);
        let (id, interned) = self.names.intern(kind, text);
        if interned == Interned::New {
            self.log.note(RowKey::Name(kind, id));
        }
        id
    }

    fn name_new(&mut self, kind: NameKind, text: &str) -> u32 {
        let id = self.names.push(kind, text);
        self.log.note(RowKey::Name(kind, id));
        id
    }

    /// Sets how many requests of a model may run at once; absent: unlimited.
    pub fn handle_model_limit(&mut self, now: Micros, model: ModelId, running_max: Option<u32>) {
        self.now = self.now.max(now);
        if let Some(record) = self.models.get_mut(&model) {
            record.running_max = running_max;
            self.due = true;
            self.touch_model(model);
        }
    }

    /// Sets a tenant's weight (at least 1) and tokens per minute; absent: unlimited.
    pub fn handle_tenant_set(
        &mut self,
        now: Micros,
        tenant: TenantId,
        weight: u32,
        tokens_per_minute: Option<u64>,
    ) {
        self.now = self.now.max(now);
        if let Some(record) = self.tenants.get_mut(&tenant) {
            record.weight = weight.max(1);
            record.tokens_per_minute = tokens_per_minute;
            self.touch_tenant(tenant);
        }
    }
}

// === impl Machine: devices and executors ===

impl Machine {
    /// A device was attached.
    ///
    /// # Errors
    /// If another device has its name.
    pub fn handle_device_attached(
        &mut self,
        now: Micros,
        spec: DeviceSpec,
    ) -> Result<DeviceId, AttachError> {
        self.now = self.now.max(now);
        if self.names.find(NameKind::Device, &spec.name).is_some() {
            return Err(AttachError::NameTaken(spec.name));
        }
        let id = DeviceId(self.name_new(NameKind::Device, &spec.name));
        self.devices.push(Device::new(id, spec));
        self.touch_device(id);
        self.fact(Fact::DeviceAttached(id));
        Ok(id)
    }

    /// A device whose blocks somebody else manages reported its counts. Ignored for others.
    pub fn handle_kv_report(&mut self, now: Micros, device: DeviceId, report: KvReport) {
        self.now = self.now.max(now);
        if let Some(record) = self.device_mut(device)
            && let Kv::Reported(kv) = &mut record.kv
        {
            *kv = ReportedKv {
                report: Some(report),
                placed_since: 0,
            };
            self.due = true;
            self.touch_device(device);
        }
    }

    /// An executor was attached and serves.
    ///
    /// # Errors
    /// If what it says of itself cannot work; nothing is changed then.
    pub fn handle_executor_attached(
        &mut self,
        now: Micros,
        spec: ExecutorSpec,
    ) -> Result<ExecutorId, AttachError> {
        self.now = self.now.max(now);
        self.check_attach(&spec)?;
        let device = spec.device;
        let id = self.executors.next_id();
        let named = self.name_new(NameKind::Executor, &spec.name);
        debug_assert_eq!(named, id.0, "executors are named in the order of their ids");
        self.executors.push(Executor::new(id, spec));
        if let Some(record) = self.device_mut(device) {
            record.executors.push(id);
        }
        self.touch_info(id);
        self.touch_load(id);
        self.allot_due.insert(device);
        self.due = true;
        self.fact(Fact::ExecutorAttached(id, device));
        Ok(id)
    }

    fn check_attach(&self, spec: &ExecutorSpec) -> Result<(), AttachError> {
        if self.executors.attached >= self.config.executors_max {
            return Err(AttachError::TooMany(self.executors.attached));
        }
        let taken = self.names.find(NameKind::Executor, &spec.name);
        if taken.is_some_and(|id| self.executors.get(ExecutorId(id)).is_some()) {
            return Err(AttachError::NameTaken(spec.name.clone()));
        }
        let device = self.devices.get(spec.device.0 as usize);
        let device = device.ok_or(AttachError::UnknownDevice(spec.device))?;
        if spec.slots_total == 0 {
            return Err(AttachError::NoSlots);
        }
        let owned = matches!(device.spec.kv, KvSpec::Owned { .. });
        if owned && spec.tokens_per_block.is_none_or(|tokens| tokens == 0) {
            return Err(AttachError::NoTokensPerBlock);
        }
        self.check_tokens(device, None, spec.slots_total)
    }

    /// Whether every sequence could get a token in each step if `changed`, or a new executor,
    /// had so many slots.
    fn check_tokens(
        &self,
        device: &Device,
        changed: Option<ExecutorId>,
        slots_total: u32,
    ) -> Result<(), AttachError> {
        let Some(tokens_per_step) = device.spec.tokens_per_step else {
            return Ok(());
        };
        let others = device.executors.iter().filter(|id| Some(**id) != changed);
        let others = others.filter_map(|id| self.executors.get(*id));
        let slots: u64 = others.map(|e| u64::from(e.spec.slots_total)).sum();
        let slots = slots + u64::from(slots_total);
        if slots > u64::from(tokens_per_step) {
            return Err(AttachError::TooFewTokens {
                slots,
                tokens_per_step,
            });
        }
        Ok(())
    }

    /// Something about an attached executor changed. Ignored for one that is gone.
    ///
    /// # Errors
    /// If the new value cannot work; nothing is changed then.
    pub fn handle_executor_update(
        &mut self,
        now: Micros,
        id: ExecutorId,
        update: ExecutorUpdate,
    ) -> Result<(), AttachError> {
        self.now = self.now.max(now);
        let Some(executor) = self.executors.get(id) else {
            return Ok(());
        };
        let device = executor.spec.device;
        match update {
            ExecutorUpdate::Health(health) => self.set_health(id, health),
            ExecutorUpdate::SlotsTotal(slots_total) => {
                if slots_total == 0 {
                    return Err(AttachError::NoSlots);
                }
                self.check_tokens(&self.devices[device.0 as usize], Some(id), slots_total)?;
                self.update_spec(id, |spec| spec.slots_total = slots_total);
                self.refill(id);
            }
            ExecutorUpdate::ShareWeight(share_weight) => {
                self.update_spec(id, |spec| spec.share_weight = share_weight);
                self.allot_due.insert(device);
            }
            ExecutorUpdate::Serves(serves) => self.update_spec(id, |spec| spec.serves = serves),
            ExecutorUpdate::Detach => {
                if let Some(executor) = self.executors.get_mut(id) {
                    executor.attachment = Attachment::Detaching;
                }
                self.drop_reservations_on(id);
                self.touch_load(id);
                self.remove_if_detached(id);
            }
        }
        self.due = true;
        Ok(())
    }

    fn update_spec(&mut self, id: ExecutorId, change: impl FnOnce(&mut ExecutorSpec)) {
        if let Some(executor) = self.executors.get_mut(id) {
            change(&mut executor.spec);
        }
        self.touch_info(id);
        self.touch_load(id);
    }

    fn set_health(&mut self, id: ExecutorId, health: Health) {
        let Some(executor) = self.executors.get_mut(id) else {
            return;
        };
        if executor.health == health {
            return;
        }
        if health == Health::Down {
            let incarnation = executor.incarnation;
            self.handle_executor_lost(self.now, id, incarnation);
            return;
        }
        if executor.health == Health::Down {
            // Its next life knows nothing of the budget of the last one.
            executor.tokens_max = None;
            self.allot_due.insert(executor.spec.device);
        }
        executor.health = health;
        if health == Health::Draining {
            self.drop_reservations_on(id);
        }
        self.touch_load(id);
        self.fact(Fact::HealthChanged(id, health));
    }

    /// Removes a detaching executor once nothing is placed there.
    pub(super) fn remove_if_detached(&mut self, id: ExecutorId) {
        let Some(executor) = self.executors.get(id) else {
            return;
        };
        if executor.attachment != Attachment::Detaching || !executor.is_idle() {
            return;
        }
        let device = executor.spec.device;
        let models: Vec<ModelId> = executor.models.keys().copied().collect();
        self.executors.remove(id);
        for model in models {
            let presence = crate::rows::Presence {
                executor: id,
                model,
            };
            self.log.note(RowKey::Residency(presence));
        }
        if let Some(record) = self.device_mut(device) {
            record.executors.retain(|other| *other != id);
        }
        self.open.remove(&id);
        self.timers.disarm_executor(id);
        self.log.note(RowKey::Executor(id));
        self.allot_due.insert(device);
        self.effect(Effect::Detached { executor: id });
        self.fact(Fact::ExecutorDetached(id));
    }
}

// === impl Machine: requests ===

impl Machine {
    /// A request arrived. It is decided in the next round; one whose prompt and output bound can
    /// fit nowhere is refused at once.
    pub fn handle_request_arrived(&mut self, now: Micros, new: NewRequest) -> RequestId {
        self.now = self.now.max(now);
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let request = new_request(id, self.now, new);
        self.fact(Fact::Arrived {
            request: id,
            tenant: request.row.tenant,
            model: request.row.model,
        });
        let never_fits = self.never_fits(&request);
        self.requests.insert(id, request);
        self.count_waiting(id, Step::Up);
        self.touch_waiting(id);
        match never_fits {
            Some(why) => self.end(id, Outcome::Refused(why)),
            None => self.arrivals.push(id),
        }
        self.due = true;
        id
    }

    /// Whether all that keeps a new request from every attached executor is that it could never
    /// fit there; the one where it comes closest.
    fn never_fits(&self, request: &Request) -> Option<RefusedWhy> {
        let mut closest: Option<(u32, u32)> = None;
        let attached = self.executors.iter();
        for executor in attached.filter(|e| e.attachment == Attachment::Attached) {
            match self.check_eligible(request, executor) {
                Ok(()) => return None,
                Err(RefusalCause::NeverFits { needed, total }) => {
                    let nearer = closest.is_none_or(|(n, t)| needed - total < n - t);
                    closest = if nearer {
                        Some((needed, total))
                    } else {
                        closest
                    };
                }
                Err(_) => {}
            }
        }
        closest.map(|(blocks_needed, blocks_total)| RefusedWhy::NeverFits {
            blocks_needed,
            blocks_total,
        })
    }

    /// Whether a request may be served by an executor at all, health and room aside.
    pub(super) fn may_serve(&self, request: &Request, executor: &Executor) -> bool {
        executor.attachment == Attachment::Attached
            && self.check_eligible(request, executor).is_ok()
    }

    /// A client left. Its room comes free when the executor has let go.
    pub fn handle_request_cancelled(&mut self, now: Micros, id: RequestId) {
        self.now = self.now.max(now);
        self.end(id, Outcome::Cancelled);
    }

    /// Sets a request's outcome, unless it has one. If it is on an executor it is told to leave;
    /// otherwise it is forgotten at once.
    pub(super) fn end(&mut self, id: RequestId, outcome: Outcome) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        match &request.phase {
            Phase::Waiting(_) => self.forget_waiting(id),
            Phase::Leaving(_, AfterLeaving::Gone) => return,
            Phase::Leaving(_, AfterLeaving::Requeue) => self.set_gone(id),
            Phase::Placed(placed) if placed.in_slot == InSlot::Queued => {
                self.take_out(id);
                self.requests.remove(&id);
                self.touch_sequence(id);
            }
            Phase::Placed(placed) => {
                let cancel = Effect::Cancel(placed.sequence(id));
                self.start_leaving(id, AfterLeaving::Gone);
                self.effect(cancel);
            }
        }
        self.timers.disarm_request(id);
        self.due = true;
        self.effect(Effect::Finish {
            request: id,
            outcome,
        });
        self.fact(Fact::Ended(id, outcome));
    }

    fn set_gone(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id)
            && let Phase::Leaving(_, after) = &mut request.phase
        {
            *after = AfterLeaving::Gone;
        }
    }

    /// Turns a running sequence into a leaving one. Its slot and blocks stay its own until it
    /// has left.
    pub(super) fn start_leaving(&mut self, id: RequestId, after: AfterLeaving) {
        let Some(mut request) = self.requests.remove(&id) else {
            return;
        };
        let urgency = request.urgency();
        if let Phase::Placed(mut placed) = request.phase {
            self.preemptible.remove(&(urgency, id));
            let device = self.executors.get_mut(placed.executor).map(|executor| {
                executor.slots.insert(id, SlotUse::Leaving);
                executor.spec.device
            });
            if let Some(device) = device.and_then(|device| self.device_mut(device)) {
                device.short.remove(&id);
                device.drop_claim(id);
            }
            placed.short = None;
            request.phase = Phase::Leaving(placed, after);
        }
        self.requests.insert(id, request);
        self.arm_request(id);
        self.touch_sequence(id);
    }

    /// Forgets a request that has no place, wherever it waits.
    fn forget_waiting(&mut self, id: RequestId) {
        self.drop_reservation(id);
        self.count_waiting(id, Step::Down);
        self.arrivals.retain(|arrival| *arrival != id);
        self.parking.remove(&id);
        self.queue.remove(&id);
        self.requests.remove(&id);
        self.touch_waiting(id);
    }

    /// Time has passed: deadlines and bounds on waiting run out, holds fall due, models cool.
    pub fn handle_time_passed(&mut self, now: Micros) {
        self.now = self.now.max(now);
        self.fire_timers();
    }

    /// The outcome that is due for a request at this time, if any.
    pub(super) fn expiry(&self, request: &Request) -> Option<ExpiredWhy> {
        if request.is_gone() {
            return None;
        }
        if request.row.deadline.is_some_and(|at| at <= self.now) {
            return Some(ExpiredWhy::Deadline);
        }
        let waiting = request.waiting()?;
        let waited = self.now.since(waiting.since);
        (waited >= self.config.wait_max).then_some(ExpiredWhy::Wait)
    }
}

// === impl Machine: replay ===

impl Machine {
    /// Takes a recorded input, as its `handle_*` method did. What that method refused then, it
    /// refuses now.
    pub fn handle(&mut self, now: Micros, input: Input) {
        match input {
            Input::NameInterned { kind, text } => self.handle_name(now, kind, &text),
            Input::ModelLimitSet(model, max) => self.handle_model_limit(now, model, max),
            Input::TenantSet(id, weight, limit) => self.handle_tenant_set(now, id, weight, limit),
            Input::DeviceAttached(spec) => drop(self.handle_device_attached(now, spec)),
            Input::KvReported(device, report) => self.handle_kv_report(now, device, report),
            Input::PrefixesReported(tier, event) => self.handle_prefix_event(now, tier, event),
            Input::ExecutorAttached(spec) => drop(self.handle_executor_attached(now, spec)),
            Input::ExecutorUpdated(id, update) => {
                drop(self.handle_executor_update(now, id, update));
            }
            Input::ExecutorLost(id, life) => self.handle_executor_lost(now, id, life),
            Input::RequestArrived(new) => {
                self.handle_request_arrived(now, *new);
            }
            Input::RequestCancelled(id) => self.handle_request_cancelled(now, id),
            Input::SequenceStarted(sequence) => self.handle_sequence_started(now, sequence),
            Input::StepFinished(report) => self.handle_step(now, &report),
            Input::SequenceFinished(sequence) => self.handle_sequence_finished(now, sequence),
            Input::SequenceFailed(sequence, retry) => {
                self.handle_sequence_failed(now, sequence, retry);
            }
            Input::SequenceLeft(sequence) => self.handle_sequence_left(now, sequence),
            Input::TimePassed => self.handle_time_passed(now),
        }
    }

    fn handle_name(&mut self, now: Micros, kind: NameKind, text: &str) {
        match kind {
            NameKind::Model => {
                self.intern_model(now, text);
            }
            NameKind::Tenant => {
                self.intern_tenant(now, text);
            }
            NameKind::Adapter => {
                self.intern_adapter(now, text);
            }
            NameKind::Label => {
                self.intern_label(now, text);
            }
            // Named when they are attached.
            NameKind::Executor | NameKind::Device => {}
        }
    }
}

pub(super) fn new_request(id: RequestId, now: Micros, new: NewRequest) -> Request {
    let row = RequestRow {
        id,
        model: new.model,
        adapter: new.adapter,
        tenant: new.tenant,
        session: new.session,
        class: new.class,
        priority: new.priority,
        head_start: new.head_start,
        stage: Stage::Arrived,
        labels: new.labels,
        arrived: now,
        deadline: new.deadline,
        may_wait: new.may_wait,
        prompt_tokens: new.prompt_tokens,
        output_tokens_max: new.output_tokens_max,
        output_tokens_expected: new.output_tokens_expected,
        group: new.group,
        allowed: new.allowed,
        failed_on: Vec::new(),
        preferred: new.preferred,
        attempts: 0,
    };
    Request {
        row: Arc::new(row),
        prompt_hashes: new.prompt_hashes,
        phase: Phase::Waiting(Waiting::new(now)),
        generated: 0,
        first_token_at: None,
        preemptions: 0,
        failures: 0,
        evicted_for: std::collections::BTreeSet::new(),
        waiting_stamp: crate::log::Stamp::default(),
        sequence_stamp: crate::log::Stamp::default(),
    }
}
