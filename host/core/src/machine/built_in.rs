//! The rules for when no policy answers: small, native, and enough to serve.
//!
//! Admission admits while there is room (`round`), order is arrival, routing takes the first
//! executor in attach order with room, preemption takes the newest among the least urgent, and
//! budgets are equal shares.

use crate::answer::{Allotment, EvictHow, Eviction, Victim};
use crate::fact::PlacedIn;
use crate::ids::{DeviceId, ExecutorId, RequestId};
use crate::question::Shortage;

use super::Machine;
use super::relieve::Insistence;
use super::request::{Phase, Request};

impl Machine {
    /// The first executor in attach order that could take a waiting request now.
    pub(super) fn first_with_room(&self, request: &Request) -> Option<(ExecutorId, PlacedIn)> {
        let allowed = request.row.allowed.as_deref();
        // A short list of allowed executors is quicker to walk than all open ones.
        let few: Option<Vec<ExecutorId>> = allowed.map(|allowed| {
            let mut few = allowed.to_vec();
            few.sort_unstable();
            few
        });
        let place_on = |id: ExecutorId| {
            let executor = self.executors.get(id)?;
            let into = self.check_place(request, executor).ok()?;
            Some((id, into))
        };
        match few {
            Some(few) => few.into_iter().find_map(place_on),
            None => self.open.iter().copied().find_map(place_on),
        }
    }

    /// The newest among the least urgent whose leaving covers the shortage, on the first executor
    /// in attach order where that is so. For a waiting request only less urgent ones give way; a
    /// running one that cannot grow also displaces equals that arrived later.
    pub(super) fn evict_built_in(
        &self,
        shortage: &Shortage,
        insistence: Insistence,
    ) -> Option<Eviction> {
        let needy = self.requests.get(&shortage.needy)?;
        let candidates: Vec<ExecutorId> = match shortage.executor {
            Some(executor) => vec![executor],
            None => self.executors.ids().collect(),
        };
        candidates
            .into_iter()
            .find_map(|executor| self.built_in_victims(needy, shortage, executor, insistence))
    }

    fn built_in_victims(
        &self,
        needy: &Request,
        shortage: &Shortage,
        executor: ExecutorId,
        insistence: Insistence,
    ) -> Option<Eviction> {
        let mut victims = Vec::new();
        for (_, id) in self.victims_on_device(needy, executor) {
            let victim = self.requests.get(&id)?;
            let how = EvictHow::Recompute;
            let gives_way = match insistence {
                Insistence::MoreUrgentOnly => victim.urgency() < needy.urgency(),
                Insistence::Arrival => needy.precedes(victim) || victim.is_queued_on_executor(),
            };
            if !gives_way || self.check_victim(needy, id, how, executor).is_err() {
                continue;
            }
            victims.push(Victim { request: id, how });
            let eviction = Eviction {
                executor,
                victims: std::mem::take(&mut victims),
                reason: 0,
            };
            if self.check_eviction(shortage, &eviction).is_ok() {
                return Some(self.without_idle_victims(shortage, eviction));
            }
            victims = eviction.victims;
        }
        None
    }

    /// Sequences that hold something on the executor's device: least urgent first, those on the
    /// executor itself before others of the same urgency, then the newest first.
    fn victims_on_device(
        &self,
        needy: &Request,
        executor: ExecutorId,
    ) -> Vec<(std::cmp::Reverse<RequestId>, RequestId)> {
        let Some(device) = self.device_of(executor) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for other in &device.executors {
            let Some(record) = self.executors.get(*other) else {
                continue;
            };
            for id in record.slots.keys().copied().chain(record.queue.iter()) {
                if let Some(request) = self.requests.get(&id)
                    && matches!(request.phase, Phase::Placed(_))
                    && id != needy.id()
                {
                    let elsewhere = *other != executor;
                    found.push((request.urgency(), elsewhere, std::cmp::Reverse(id), id));
                }
            }
        }
        found.sort_unstable();
        found
            .into_iter()
            .map(|(_, _, newest, id)| (newest, id))
            .collect()
    }

    /// Takes back victims without whom the shortage is covered as well.
    fn without_idle_victims(&self, shortage: &Shortage, mut eviction: Eviction) -> Eviction {
        let mut idx = 0;
        while idx < eviction.victims.len() && eviction.victims.len() > 1 {
            let victim = eviction.victims.remove(idx);
            if self.check_eviction(shortage, &eviction).is_err() {
                eviction.victims.insert(idx, victim);
                idx += 1;
            }
        }
        eviction
    }

    /// Equal shares for the busy engines of a device, or for all where none is busy; what
    /// rounding leaves goes to the first.
    pub(super) fn allot_built_in(&self, device: DeviceId, tokens_total: u32) -> Vec<Allotment> {
        let executors = &self.devices[device.0 as usize].executors;
        let is_busy = |id: &ExecutorId| self.executors.get(*id).is_some_and(|e| !e.is_idle());
        let busy: Vec<ExecutorId> = executors.iter().copied().filter(is_busy).collect();
        let sharing = if busy.is_empty() { executors } else { &busy };
        let n = super::executor::count(sharing.len()).max(1);
        let (share, rest) = (tokens_total / n, tokens_total % n);
        let extra = |idx: usize| u32::from(super::executor::count(idx) < rest);
        executors
            .iter()
            .map(|id| Allotment {
                executor: *id,
                tokens_max: sharing
                    .iter()
                    .position(|other| other == id)
                    .map_or(0, |idx| share + extra(idx)),
            })
            .collect()
    }
}
