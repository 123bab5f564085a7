//! Cached prompt blocks, wherever they are: the executors that hold some of a request's prompt, and the news
//! of what devices and caches hold.

use pointsman_events::{DeviceId, ExecutorId, KvSpec, PrefixEvent, Tier};
use pointsman_kv::{Hits, Prefix};

use super::super::requests::Request;
use super::prefix::{prefix_in_shared_cache, prefix_on};
use super::{Device, Executor, Ledger};

// === impl Ledger: reading ===

impl Ledger {
    /// Looks at what executors that serve a request hold of its prompt, in attach order of the devices:
    /// at all that hold some, and at some that do not.
    pub(super) fn for_each_holder(&self, request: &Request, mut look: impl FnMut(&Executor, Hits)) {
        let (holders, mut lookup) = self.index.look_up(prefix_in_shared_cache(request));
        for device in holders.iter().map(|id| &self[*id]) {
            let mut last: Option<(Prefix<'_>, Hits)> = None;
            let executors = device.executors.iter().map(|id| &self[*id]);
            for executor in executors.filter(|executor| executor.serves(request.row.model)) {
                let prefix = prefix_on(request, executor);
                let hits = match last {
                    Some((same, hits)) if same.is_same_as(prefix) => hits,
                    Some(_) | None => lookup.hits((device.id, &device.memory), prefix),
                };
                last = Some((prefix, hits));
                look(executor, hits);
            }
        }
    }

    /// The tokens of the leading blocks of a prompt that a device's memory holds.
    pub(super) fn tokens_on(&self, device: &Device, prefix: Prefix<'_>) -> u32 {
        let blocks = self.index.hits_on((device.id, &device.memory), prefix);
        blocks.saturating_mul(prefix.tokens_per_block())
    }
}

// === impl Ledger: writing ===

impl Ledger {
    /// Forgets all contents of a device: the engines have lost their memory. Only the disk outlives
    /// that.
    pub(super) fn forget_memory(&mut self, id: DeviceId) {
        let device = &mut self.devices[id.0 as usize];
        self.index.forget_memory(id, &mut device.memory);
    }

    /// Assumes that a request's prompt will be cached on an executor where it is placed, if nobody tells
    /// what is: no more than `max` blocks of its device.
    pub(crate) fn assume_cached(&mut self, request: &Request, executor: ExecutorId, max: u32) {
        let executor = &self[executor];
        let (id, per_block) = (executor.spec.device, executor.spec.tokens_per_block);
        if self[id].spec.kv != KvSpec::Assumed || request.prompt_blocks.hashes.is_empty() {
            return;
        }
        let prefix = prefix_on(request, executor);
        let memory = &mut self.devices[id.0 as usize].memory;
        let max = memory.assumed_max(prefix, per_block, max);
        self.index.assume((id, memory), prefix, max);
    }

    /// Forgets what a device is assumed to hold: its server may have begun anew.
    pub(crate) fn forget_assumed(&mut self, executor: ExecutorId) {
        let id = self[executor].spec.device;
        if self[id].spec.kv == KvSpec::Assumed {
            self.forget_memory(id);
        }
    }

    /// Notes which blocks an engine or a cache says that it holds, or no longer does.
    pub(crate) fn note_prefixes(&mut self, tier: Tier, event: PrefixEvent, max: u32) {
        let device = match tier {
            Tier::Device(id) | Tier::Host(id) | Tier::Disk(id) => {
                self.devices.get_mut(id.0 as usize)
            }
            Tier::Shared => None,
        };
        let memory = device.map(|device| &mut device.memory);
        self.index.note(tier, memory, event, max);
    }
}
