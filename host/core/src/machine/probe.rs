//! Looking without touching: what monitors and operators are shown besides what policies are told.
//!
//! # Invariants
//! 1. Nothing here changes the machine, which every method borrows immutably.

use std::sync::Arc;

use crate::fact::PlacedIn;
use crate::ids::{ExecutorId, Micros, RequestId};
use crate::input::NewRequest;
use crate::refusal::RefusalCause;
use crate::rows::{self, Cached, ExecutorInfo, ExecutorLoad, Stage};

use super::Machine;
use super::handle::new_request;

/// A request that has not arrived, as it would stand if it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// As a policy would see it, queued. Its id is that of the next request to arrive.
    pub request: Arc<rows::Request>,
    /// What is cached of its prompt.
    pub cached: Cached,
    /// What the interlock would say to each attached executor now, in attach order.
    pub executors: Vec<(ExecutorId, Result<PlacedIn, RefusalCause>)>,
}

impl Machine {
    /// How `new` would stand if it had arrived now and been let into the queue.
    #[must_use]
    pub fn probe(&self, now: Micros, new: NewRequest) -> Probe {
        let id = RequestId(self.next_request);
        let mut request = new_request(id, self.now.max(now), new);
        Arc::make_mut(&mut request.row).stage = Stage::Queued;
        let attached = self.executors.iter();
        Probe {
            cached: self.cached_of(&request),
            executors: attached
                .map(|executor| (executor.id, self.check_place(&request, executor)))
                .collect(),
            request: request.row,
        }
    }

    /// What rarely changes about an attached executor.
    #[must_use]
    pub fn executor_info(&self, id: ExecutorId) -> Option<ExecutorInfo> {
        Some(self.executors.get(id)?.info())
    }

    /// What changes all the time about an attached executor.
    #[must_use]
    pub fn executor_load(&self, id: ExecutorId) -> Option<ExecutorLoad> {
        Some(self.executors.get(id)?.load())
    }

    /// The KV pools that anybody counts, in attach order.
    pub fn devices(&self) -> impl Iterator<Item = rows::Device> {
        self.devices.iter().filter_map(super::Device::row)
    }

    /// A request without a place, shared with the machine.
    #[must_use]
    pub fn waiting_request(&self, id: RequestId) -> Option<Arc<rows::Request>> {
        let request = self.requests.get(&id)?;
        request.waiting().map(|_| Arc::clone(&request.row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::{DeviceSpec, ExecutorSpec};
    use crate::policies::NoPolicies;
    use crate::{Config, Fact, fixture};

    const AT: Micros = Micros(7);

    fn machine() -> Machine {
        let mut machine = Machine::new(Config::default()).unwrap();
        let device = DeviceSpec {
            tokens_per_step: Some(64),
            ..fixture::device_spec("cpu0")
        };
        let device = machine.handle_device_attached(AT, device).unwrap();
        for name in ["a", "b"] {
            let spec = ExecutorSpec {
                slots_total: 1,
                tokens_per_block: Some(4),
                ..fixture::executor_spec(name, device)
            };
            machine.handle_executor_attached(AT, spec).unwrap();
        }
        machine
    }

    #[test]
    fn a_probe_says_what_the_interlock_would_and_changes_nothing() {
        let mut machine = machine();
        let tenant = machine.intern_tenant(AT, "default");
        machine.handle_request_arrived(AT, NewRequest::new(tenant, 6, 2));
        machine.decide(AT, &mut NoPolicies);
        while machine.poll_fact().is_some() {}
        let before = format!("{machine:?}");
        let probe = machine.probe(AT, NewRequest::new(tenant, 6, 2));
        let (a, b) = (ExecutorId(0), ExecutorId(1));
        let said = [(a, Err(RefusalCause::NoSlot)), (b, Ok(PlacedIn::Slot))];
        assert_eq!(probe.executors, said);
        assert_eq!(probe.request.stage, Stage::Queued);
        let large = machine.probe(AT, NewRequest::new(tenant, 40, 2));
        let never = RefusalCause::NeverFits {
            needed: 11,
            total: 8,
        };
        assert_eq!(large.executors[1], (b, Err(never)));
        assert_eq!(format!("{machine:?}"), before);
        // The next one to arrive is none the wiser.
        let next = machine.handle_request_arrived(AT, NewRequest::new(tenant, 6, 2));
        assert_eq!(next, probe.request.id);
        machine.decide(AT, &mut NoPolicies);
        let facts = std::iter::from_fn(|| machine.poll_fact());
        let placed = |fact: &Fact| matches!(fact, Fact::Placed { executor, .. } if *executor == b);
        assert!(facts.into_iter().any(|stamped| placed(&stamped.fact)));
    }
}
