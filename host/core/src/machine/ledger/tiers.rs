//! Prompt blocks that are held outside the machine's own pools, as engines and caches report them.
//!
//! An engine that moves blocks to host memory or disk, or keeps its own books of its device, says
//! which it stores and removes; so does a cache that all executors share. Policies are told what a
//! prompt would be spared where; nothing is placed or refused by it.
//!
//! # Bounds
//! Each tier of each device, and the shared cache, keeps as many hashes as the configuration's
//! `tier-blocks-max`. What is stored past it is not known here, which costs a hit and no more.

use std::collections::BTreeSet;

use pointsman_events::{BlockHash, BlockKind, DeviceId, ExecutorId, KvSpec, PrefixEvent, Tier};

use super::super::count;
use super::super::requests::Request;
use super::Ledger;
use super::assumed::TOKENS_UNTOLD;
use super::device::{Device, Kv};
use super::executor::Executor;
use super::prefix::Prefix;
use super::reported::LeadingBlocks;

/// Blocks that one tier holds. The hashes come first: they differ where kinds seldom do.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Held(BTreeSet<(BlockHash, BlockKind)>);

/// Blocks that a device's engines hold elsewhere than in its memory.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Tiers {
    host: Held,
    disk: Held,
}

/// Leading blocks of a prompt by tier, each counting what the ones before it do not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hits {
    pub(super) device: u32,
    pub(super) host: u32,
    pub(super) disk: u32,
}

// === impl Held ===

impl Held {
    fn note(&mut self, event: PrefixEvent, max: u32) {
        match event {
            PrefixEvent::Stored(kind, hashes) => {
                let room = (max as usize).saturating_sub(self.0.len());
                let new = hashes.into_iter().map(|hash| (hash, kind));
                let new = new.filter(|key| !self.0.contains(key));
                let new: Vec<_> = new.take(room).collect();
                self.0.extend(new);
            }
            PrefixEvent::Removed(kind, hashes) => {
                for hash in hashes {
                    self.0.remove(&(hash, kind));
                }
            }
            PrefixEvent::Cleared => self.0.clear(),
        }
    }

    /// The number of a prompt's leading blocks that are held.
    pub(super) fn leading(&self, prefix: Prefix<'_>) -> u32 {
        let held = |hash: &&BlockHash| self.0.contains(&(**hash, prefix.kind));
        count(prefix.hashes.iter().take_while(held).count())
    }
}

// === impl Device ===

impl Device {
    /// The leading blocks that the device holds of a prompt, of which `reported` are in its memory by
    /// what was reported.
    fn hits(&self, prefix: Prefix<'_>, reported: impl FnOnce() -> u32) -> Hits {
        let device = match &self.kv {
            Kv::Owned(pool) => pool.leading_hits(prefix),
            Kv::Reported(_) => reported(),
        };
        let host = self.tiers.host.leading(prefix.after(device));
        let disk = self.tiers.disk.leading(prefix.after(device + host));
        Hits { device, host, disk }
    }
}

// === impl Ledger ===

impl Ledger {
    /// Looks at what executors that serve a request hold of its prompt, in attach order of the devices:
    /// at all that hold some, and at some that do not.
    pub(super) fn for_each_holder(&self, request: &Request, mut look: impl FnMut(&Executor, Hits)) {
        let all = Prefix::in_shared_cache(request);
        let leading = self.reported.leading(all);
        let holders = self.possible_holders(request, &leading);
        let mut reported = Some((all, leading));
        for device in holders.iter().map(|id| &self[*id]) {
            let mut last: Option<(Prefix<'_>, Hits)> = None;
            let executors = device.executors.iter().map(|id| &self[*id]);
            for executor in executors.filter(|executor| executor.serves(request.row.model)) {
                let prefix = Prefix::of(request, executor);
                let hits = match last {
                    Some((same, hits)) if same.is_same_as(prefix) => hits,
                    Some(_) | None => device.hits(prefix, || {
                        let leading = match reported.take() {
                            Some((same, leading)) if same.has_contents_of(prefix) => leading,
                            Some(_) | None => self.reported.leading(prefix),
                        };
                        let on_device = leading.on(device.id);
                        reported = Some((prefix, leading));
                        on_device
                    }),
                };
                last = Some((prefix, hits));
                look(executor, hits);
            }
        }
    }

    /// The devices that may hold some of a request's prompt, in attach order, where `leading` is what was
    /// reported of it. A look at each device of a large fleet takes longer than a decision.
    fn possible_holders(&self, request: &Request, leading: &LeadingBlocks) -> Vec<DeviceId> {
        let mut holders: Vec<DeviceId> = self.unreported.iter().copied().collect();
        match request.row.model {
            Some(_) => holders.extend(leading.devices()),
            // An executor of one model reads it with that one.
            None => {
                let first = request.prompt_blocks.hashes.first();
                holders.extend(
                    first
                        .into_iter()
                        .flat_map(|hash| self.reported.holding(*hash)),
                );
            }
        }
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    /// The leading blocks of a prompt that a device's memory holds.
    pub(super) fn hits_on(&self, device: &Device, prefix: Prefix<'_>) -> u32 {
        match &device.kv {
            Kv::Owned(pool) => pool.leading_hits(prefix),
            Kv::Reported(_) => self.reported.leading_on(device.id, prefix),
        }
    }

    /// Forgets all contents of a device: the engines have lost their memory. Only the disk outlives
    /// that.
    pub(super) fn forget_memory(&mut self, id: DeviceId) {
        let device = self.device_mut(id);
        if let Some(pool) = device.pool_mut() {
            pool.forget_contents();
        }
        device.tiers.host.note(PrefixEvent::Cleared, 0);
        // One by one: a search through the blocks of a whole fleet takes far longer.
        for event in device.assumed.clear() {
            self.reported.note(id, event, 0);
        }
        self.reported.note(id, PrefixEvent::Cleared, 0);
    }

    /// Assumes that a request's prompt will be cached on an executor where it is placed, if nobody tells
    /// what is: no more than `max` blocks of its device.
    pub(crate) fn assume_cached(&mut self, request: &Request, executor: ExecutorId, max: u32) {
        let executor = &self[executor];
        let (id, per_block) = (executor.spec.device, executor.spec.tokens_per_block);
        if self[id].spec.kv != KvSpec::Assumed || request.prompt_blocks.hashes.is_empty() {
            return;
        }
        let prefix = Prefix::of(request, executor);
        let device = &mut self.devices[id.0 as usize];
        let told = device.blocks_total().zip(per_block);
        let tokens = told.map(|(blocks, tokens)| u64::from(blocks) * u64::from(tokens));
        let blocks =
            tokens.unwrap_or(TOKENS_UNTOLD) / u64::from(prefix.kind.tokens_per_block.max(1));
        let max = max.min(u32::try_from(blocks).unwrap_or(u32::MAX));
        for event in device.assumed.use_prompt(prefix, max as usize) {
            self.reported.note(id, event, max);
        }
    }

    /// Forgets what a device is assumed to hold: its server may have begun anew.
    pub(crate) fn forget_assumed(&mut self, executor: ExecutorId) {
        let id = self[executor].spec.device;
        if self[id].spec.kv == KvSpec::Assumed {
            self.forget_memory(id);
        }
    }

    /// Notes which blocks an engine or a cache says that it holds, or no longer does. Reports of
    /// the device tier change nothing where the machine keeps the books itself: the pool knows.
    pub(crate) fn note_prefixes(&mut self, tier: Tier, event: PrefixEvent, max: u32) {
        match tier {
            Tier::Device(id) => {
                let device = self.find_device(id);
                if device.is_some_and(|device| matches!(device.kv, Kv::Reported(_))) {
                    self.reported.note(id, event, max);
                }
            }
            Tier::Host(id) => {
                if let Some(tiers) = tiers_of(&mut self.devices, id) {
                    tiers.host.note(event, max);
                    self.unreported.insert(id);
                }
            }
            Tier::Disk(id) => {
                if let Some(tiers) = tiers_of(&mut self.devices, id) {
                    tiers.disk.note(event, max);
                    self.unreported.insert(id);
                }
            }
            Tier::Shared => self.shared_cache.note(event, max),
        }
    }
}

fn tiers_of(devices: &mut [Device], id: DeviceId) -> Option<&mut Tiers> {
    devices
        .get_mut(id.0 as usize)
        .map(|device| &mut device.tiers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_events::{DeviceSpec, KvSpec};

    const HASHES: [BlockHash; 7] = [
        BlockHash(1),
        BlockHash(2),
        BlockHash(3),
        BlockHash(4),
        BlockHash(5),
        BlockHash(6),
        BlockHash(7),
    ];

    fn prompt(model: u32, hashes: &'static [BlockHash]) -> Prefix<'static> {
        Prefix::of_model(model, hashes)
    }

    fn hashes(numbers: &[u128]) -> Vec<BlockHash> {
        numbers.iter().copied().map(BlockHash).collect()
    }

    fn stored(numbers: &[u128]) -> PrefixEvent {
        PrefixEvent::Stored(prompt(0, &[]).kind, hashes(numbers))
    }

    fn removed(numbers: &[u128]) -> PrefixEvent {
        PrefixEvent::Removed(prompt(0, &[]).kind, hashes(numbers))
    }

    #[test]
    fn each_tier_counts_what_the_tiers_before_it_do_not_hold() {
        let mut ledger = Ledger::default();
        let spec = DeviceSpec {
            name: "d".to_owned(),
            kv: KvSpec::Remote,
            tokens_per_step: None,
        };
        let id = DeviceId(0);
        ledger.devices.push(Device::new(id, spec));
        ledger.note_prefixes(Tier::Device(id), stored(&[1, 2]), 8);
        ledger.note_prefixes(Tier::Host(id), stored(&[2, 3]), 8);
        ledger.note_prefixes(Tier::Disk(id), stored(&[1, 4, 5, 7]), 8);
        let hits = |ledger: &Ledger, prefix| {
            let device = &ledger.devices[0];
            let hits = device.hits(prefix, || ledger.hits_on(device, prefix));
            (hits.device, hits.host, hits.disk)
        };
        assert_eq!(hits(&ledger, prompt(0, &HASHES)), (2, 1, 2));
        let of_another = hits(&ledger, prompt(1, &HASHES));
        assert_eq!(of_another, (0, 0, 0), "another model");
        ledger.forget_memory(id);
        assert_eq!(hits(&ledger, prompt(0, &HASHES[..3])), (0, 0, 1));
    }

    #[test]
    fn a_tier_knows_a_bounded_number_of_blocks() {
        let mut held = Held::default();
        held.note(stored(&[1, 2, 3]), 2);
        held.note(stored(&[2, 4]), 2);
        assert_eq!(held.leading(prompt(0, &HASHES)), 2);
        held.note(removed(&[1]), 2);
        held.note(stored(&[3]), 2);
        assert_eq!(held.leading(prompt(0, &HASHES[1..])), 2);
        held.note(PrefixEvent::Cleared, 2);
        assert_eq!(held.leading(prompt(0, &HASHES[1..])), 0);
    }
}
