//! Inputs about devices and executors.

use std::collections::BTreeMap;

use pointsman_events::rows::{Health, NameKind};
use pointsman_events::{
    AttachError, Availability, DeviceId, DeviceSpec, ExecutorId, ExecutorSpec, ExecutorUpdate,
    Fact, Kept, RequestId, RequeuedWhy, RetryClass,
};

use super::super::Machine;
use super::super::ledger::Freed;
use super::super::requests::{AfterLeaving, Phase};
use super::sequences::Ended;

impl Machine {
    pub(super) fn attach_device(&mut self, spec: DeviceSpec) -> Result<DeviceId, AttachError> {
        if self.names.find(NameKind::Device, &spec.name).is_some() {
            return Err(AttachError::NameTaken(spec.name));
        }
        let id = DeviceId(self.name_new(NameKind::Device, &spec.name));
        self.ledger.attach_device(id, spec, &mut self.out);
        Ok(id)
    }

    /// Attaches an executor, which serves at once. Nothing is changed by one that cannot work.
    pub(super) fn attach_executor(
        &mut self,
        spec: ExecutorSpec,
    ) -> Result<ExecutorId, AttachError> {
        let attached = self.ledger.attached();
        if attached >= self.config.executors_max {
            return Err(AttachError::TooMany(attached));
        }
        let taken = self.names.find(NameKind::Executor, &spec.name);
        if taken.is_some_and(|id| self.ledger.find(ExecutorId(id)).is_some()) {
            return Err(AttachError::NameTaken(spec.name));
        }
        self.ledger.can_attach(&spec)?;
        let named = self.name_new(NameKind::Executor, &spec.name);
        let id = self.ledger.attach(spec, &mut self.out);
        self.out.fleet_changed();
        debug_assert_eq!(named, id.0, "executors are named in the order of their ids");
        Ok(id)
    }

    /// Changes something about an executor. Nothing is changed where the new value cannot work, or
    /// the executor is gone.
    pub(super) fn update_executor(
        &mut self,
        id: ExecutorId,
        update: ExecutorUpdate,
    ) -> Result<(), AttachError> {
        if self.ledger.find(id).is_none() {
            return Ok(());
        }
        let (ledger, out) = (&mut self.ledger, &mut self.out);
        match update {
            ExecutorUpdate::Health(health) => self.set_health(id, health),
            ExecutorUpdate::SlotsTotal(slots_total) => {
                let freed = ledger.set_slots(id, slots_total, out)?;
                self.refill(freed);
            }
            ExecutorUpdate::ShareWeight(weight) => ledger.set_share_weight(id, weight, out),
            ExecutorUpdate::Serves(serves) => ledger.set_serves(id, serves, out),
            ExecutorUpdate::Detach => self.detach(id),
            ExecutorUpdate::Availability(availability) => self.set_availability(id, availability),
            ExecutorUpdate::TokensPerBlock(tokens) => ledger.set_tokens_per_block(id, tokens, out),
            ExecutorUpdate::Terms(terms) => {
                let freed = ledger.set_terms(id, terms, out);
                self.refill(freed);
            }
            ExecutorUpdate::ModelsMax(max) => {
                let freed = ledger.set_models_max(id, max, out);
                self.refill(freed);
            }
            ExecutorUpdate::Replaced => self.replace_server(id),
            ExecutorUpdate::Loaded(models) => ledger.set_loaded(id, models, out),
        }
        self.turn_back_stranded(id);
        self.out.fleet_changed();
        Ok(())
    }

    fn set_health(&mut self, id: ExecutorId, health: Health) {
        if self.ledger[id].health == health {
            return;
        }
        if health == Health::Down {
            self.lose_executor(id, &[]);
            return;
        }
        self.ledger.set_health(id, health, &mut self.out);
        if health == Health::Draining {
            self.drop_reservations_on(id);
        }
    }

    /// Notes the answer of a server elsewhere. One that is open again takes what waits in its queue; for
    /// one that is silent nobody waits.
    fn set_availability(&mut self, id: ExecutorId, availability: Availability) {
        let before = self.ledger[id].availability;
        if before == availability {
            return;
        }
        let out = &mut self.out;
        let freed = self.ledger.set_availability(id, availability, out);
        if before == Availability::Silent {
            // It was away, and is back: its faults were of the time before.
            self.ledger.forgive(id, out);
        }
        match availability {
            Availability::Open => {}
            Availability::Busy => self.drop_reservations_on(id),
            Availability::Silent => {
                self.drop_reservations_on(id);
                self.ledger.forget_assumed(id);
            }
        }
        self.refill(freed);
    }

    /// Puts what waits in the queue of an executor in vain back into the host's.
    fn turn_back_stranded(&mut self, id: ExecutorId) {
        let Some(executor) = self.ledger.find(id) else {
            return;
        };
        let is_stranded = |it: &RequestId| executor.strands(self.requests[*it].row.model);
        let stranded: Vec<RequestId> = executor.queue.iter().filter(is_stranded).collect();
        for request in stranded {
            let freed = self.release(request);
            self.requeue(request, RequeuedWhy::TurnedBack);
            self.refill(freed);
        }
    }

    /// Takes note of another server behind an executor, which nobody has heard yet.
    fn replace_server(&mut self, id: ExecutorId) {
        self.ledger.forget_assumed(id);
        self.ledger.forgive(id, &mut self.out);
        self.ledger.set_loaded(id, None, &mut self.out);
        self.set_availability(id, Availability::Busy);
    }

    /// Takes nothing new onto an executor, and removes it as soon as it is idle.
    fn detach(&mut self, id: ExecutorId) {
        let device = self.ledger[id].spec.device;
        self.ledger.detach(id, &mut self.out);
        self.drop_reservations_on(id);
        self.ledger.remove_detached(device, &mut self.out);
    }

    /// Ends a life of an executor: everything that ran there is gone, and its next life begins when
    /// it is up again. `kept` is the part of the answers that is left.
    pub(super) fn lose_executor(&mut self, id: ExecutorId, kept: &[Kept]) {
        let placed = self.ledger.lose(id);
        self.out.fact(Fact::ExecutorLost(id));
        self.fault(id);
        let kept: BTreeMap<_, _> = kept.iter().map(|k| (k.request, k.generated)).collect();
        let left = placed.into_iter().filter_map(|request| {
            let kept = kept.get(&request).copied().unwrap_or_default();
            self.lose_sequence(request, id, kept)
        });
        let left = left.reduce(Freed::and);
        let freed = self.ledger.forget_contents(id, &mut self.out);
        self.refill(left.into_iter().fold(freed, Freed::and));
        self.out.fleet_changed();
    }

    /// Counts a fault of an executor, which may take nothing new after it.
    pub(super) fn fault(&mut self, id: ExecutorId) {
        self.ledger.fault(id, &self.config, &mut self.out);
        if self.ledger[id].health_seen() == Health::Down {
            self.drop_reservations_on(id);
        }
    }

    /// Takes a request, of whose answer `kept` tokens are left, off an executor that was lost. Absent
    /// where its room was only reserved.
    fn lose_sequence(&mut self, id: RequestId, executor: ExecutorId, kept: u32) -> Option<Freed> {
        let is_evicted = match &self.requests[id].phase {
            Phase::Leaving(_, after) => *after == AfterLeaving::Requeue,
            Phase::Placed(_) => false,
            Phase::Waiting(_) => return None,
        };
        self.complete(id, Ended::Badly);
        let freed = self.release(id);
        self.requests.keep(id, kept);
        if is_evicted {
            // On its way out, and has not failed.
            self.requeue(id, RequeuedWhy::Evicted);
        } else {
            self.retry_or_fail(id, executor, RequeuedWhy::Lost, RetryClass::Elsewhere);
        }
        Some(freed)
    }
}
