//! Looks at the machine that change nothing, for monitors and operators.
//!
//! # Invariants
//! 1. Nothing here changes the machine, which every method borrows immutably.

use std::sync::Arc;

use pointsman_events::rows::{self, ExecutorInfo, ExecutorLoad, Stage};
use pointsman_events::{
    DeviceId, ExecutorId, Micros, NewRequest, Probe, ProbedExecutor, RequestId,
};

use super::Machine;
use super::interlock::check_place;
use super::ledger::{Device, Executor};
use super::requests::Request;

impl Machine {
    /// The state in which `new` would be if it had arrived now and been let into the queue.
    #[must_use]
    pub fn probe(&self, now: Micros, new: NewRequest) -> Probe {
        let now = self.out.now().max(now);
        let mut request = Request::new(self.requests.next_id(), now, new);
        Arc::make_mut(&mut request.row).stage = Stage::Queued;
        let ledger = &self.ledger;
        let probed = |executor: &Executor| ProbedExecutor {
            id: executor.id,
            verdict: check_place(ledger, &request, executor),
            load: ledger.potential_load(&request, executor),
        };
        Probe {
            cached: ledger.cached(&request, self.config.overlaps_max),
            executors: ledger.executors().map(probed).collect(),
            request: request.row,
        }
    }

    /// The lasting facts of an attached executor.
    #[must_use]
    pub fn executor_info(&self, id: ExecutorId) -> Option<ExecutorInfo> {
        Some(self.ledger.find(id)?.info())
    }

    /// The load of an attached executor.
    #[must_use]
    pub fn executor_load(&self, id: ExecutorId) -> Option<ExecutorLoad> {
        Some(self.ledger.load(self.ledger.find(id)?))
    }

    /// The KV pools that anybody counts, in attach order.
    pub fn devices(&self) -> impl Iterator<Item = rows::Device> {
        self.ledger.devices().iter().filter_map(Device::row)
    }

    /// The tokens that all engines of a device together may schedule in a step; absent: each engine
    /// sets a number of its own.
    #[must_use]
    pub fn tokens_per_step(&self, device: DeviceId) -> Option<u32> {
        self.ledger.find_device(device)?.spec.tokens_per_step
    }

    /// The models that are on an executor: with sequences, kept loaded, or loaded by a server's word.
    pub fn residencies(&self, executor: ExecutorId) -> impl Iterator<Item = rows::Residency> {
        let executor = self.ledger.find(executor);
        executor.into_iter().flat_map(Executor::residencies)
    }

    /// The models that were ever named, in the order of their ids.
    pub fn models(&self) -> impl Iterator<Item = rows::Model> {
        self.ledger.model_rows()
    }

    /// The tenants that are configured or have asked, in the order of their ids.
    pub fn tenants(&self) -> impl Iterator<Item = rows::Tenant> {
        self.ledger.tenant_rows()
    }

    /// The requests in the queue, then those outside it, each in order of arrival.
    pub fn waiting_requests(&self) -> impl Iterator<Item = &Arc<rows::Request>> {
        let ids = self.requests.queue().iter().chain(self.requests.parking());
        ids.map(|id| &self.requests[*id].row)
    }

    /// A request without a place, shared with the machine.
    #[must_use]
    pub fn waiting_request(&self, id: RequestId) -> Option<Arc<rows::Request>> {
        self.waiting_row(id).map(Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::NoPolicies;
    use crate::{Config, Fact, Input, fixture};
    use pointsman_events::{DeviceSpec, ExecutorSpec, KvSpec, PlacedIn, RefusalCause};

    const AT: Micros = Micros(7);

    fn machine() -> Machine {
        let mut machine = Machine::new(Config::default()).unwrap();
        let device = DeviceSpec {
            kv: KvSpec::Owned {
                block_bytes: 1,
                blocks_total: 8,
                host_blocks: 0,
            },
            tokens_per_step: Some(64),
            ..fixture::device_spec("cpu0")
        };
        let device = machine.handle(AT, Input::DeviceAttached(device));
        let device = device.device().unwrap();
        for name in ["a", "b"] {
            let spec = ExecutorSpec {
                slots_total: 1,
                tokens_per_block: Some(4),
                ..fixture::executor_spec(name, device)
            };
            let attached = machine.handle(AT, Input::ExecutorAttached(spec));
            attached.executor().unwrap();
        }
        machine
    }

    #[test]
    fn a_probe_says_what_the_interlock_would_and_changes_nothing() {
        let mut machine = machine();
        let tenant = machine.intern(AT, "default");
        machine.handle(AT, Input::arrival(NewRequest::new(tenant, 6, 2)));
        machine.decide(AT, &mut NoPolicies);
        while machine.poll_fact().is_some() {}
        let before = format!("{machine:?}");
        let probe = machine.probe(AT, NewRequest::new(tenant, 6, 2));
        let (a, b) = (ExecutorId(0), ExecutorId(1));
        let said = [(a, Err(RefusalCause::NoSlot)), (b, Ok(PlacedIn::Slot))];
        let verdicts = probe.executors.iter().map(|it| (it.id, it.verdict));
        assert_eq!(verdicts.collect::<Vec<_>>(), said);
        let loads = probe.executors.iter().map(|it| it.load);
        let loads = loads.map(|load| (load.blocks_used, load.prefill_tokens_pending));
        assert_eq!(loads.collect::<Vec<_>>(), [(4, 12), (2, 6)]);
        assert_eq!(probe.request.stage, Stage::Queued);
        let large = machine.probe(AT, NewRequest::new(tenant, 40, 2));
        let never = RefusalCause::NeverFits {
            needed: 11,
            total: 8,
        };
        assert_eq!(large.executors[1].verdict, Err(never));
        assert_eq!(format!("{machine:?}"), before);
        // The next one to arrive is none the wiser.
        let next = machine.handle(AT, Input::arrival(NewRequest::new(tenant, 6, 2)));
        assert_eq!(next.request(), probe.request.id);
        machine.decide(AT, &mut NoPolicies);
        let facts = std::iter::from_fn(|| machine.poll_fact());
        let placed = |fact: &Fact| matches!(fact, Fact::Placed { executor, .. } if *executor == b);
        assert!(facts.into_iter().any(|stamped| placed(&stamped.fact)));
    }
}
