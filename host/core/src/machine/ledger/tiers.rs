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

use crate::input::{PrefixEvent, Tier};
use pointsman_interface::rows::{Cached, Overlap};
use pointsman_interface::{BlockHash, DeviceId};

use super::super::count;
use super::super::requests::Request;
use super::Ledger;
use super::device::{Device, Kv};
use super::executor::Executor;

/// Blocks that one tier holds.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Held(BTreeSet<BlockHash>);

/// Blocks that a device's engines hold beside the machine's pool.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Tiers {
    /// Used only where somebody else keeps the device's books.
    device: Held,
    host: Held,
    disk: Held,
}

/// A cache that any executor can read.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct SharedCache {
    tokens_per_block: u32,
    held: Held,
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
            PrefixEvent::Stored(hashes) => {
                let room = (max as usize).saturating_sub(self.0.len());
                let new = hashes.into_iter().filter(|hash| !self.0.contains(hash));
                let new: Vec<BlockHash> = new.take(room).collect();
                self.0.extend(new);
            }
            PrefixEvent::Removed(hashes) => {
                for hash in hashes {
                    self.0.remove(&hash);
                }
            }
            PrefixEvent::Cleared => self.0.clear(),
        }
    }

    /// The number of leading `hashes` that are held.
    fn leading(&self, hashes: &[BlockHash]) -> u32 {
        let held = hashes.iter().take_while(|hash| self.0.contains(hash));
        count(held.count())
    }
}

// === impl SharedCache ===

impl SharedCache {
    /// The number of leading tokens that it holds of a prompt with these hashes.
    fn tokens(&self, hashes: &[BlockHash]) -> u32 {
        let blocks = self.held.leading(hashes);
        blocks.saturating_mul(self.tokens_per_block)
    }
}

// === impl Hits ===

impl Hits {
    pub(super) fn total(self) -> u32 {
        self.device
            .saturating_add(self.host)
            .saturating_add(self.disk)
    }
}

// === impl Device ===

impl Device {
    /// The leading blocks that the device holds of a prompt with these hashes.
    pub(super) fn hits(&self, hashes: &[BlockHash]) -> Hits {
        let after = |n: u32| hashes.get(n as usize..).unwrap_or_default();
        let device = match &self.kv {
            Kv::Owned(pool) => pool.leading_hits(hashes),
            Kv::Reported(_) => self.tiers.device.leading(hashes),
        };
        let host = self.tiers.host.leading(after(device));
        let disk = self.tiers.disk.leading(after(device + host));
        Hits { device, host, disk }
    }

    /// Forgets all contents: the engines have lost their memory. Only the disk outlives that.
    pub(super) fn forget_contents(&mut self) {
        if let Some(pool) = self.pool_mut() {
            pool.forget_contents();
        }
        self.tiers.device.note(PrefixEvent::Cleared, 0);
        self.tiers.host.note(PrefixEvent::Cleared, 0);
    }
}

// === impl Ledger ===

impl Ledger {
    /// Notes which blocks an engine or a cache says that it holds, or no longer does. Reports of
    /// the device tier change nothing where the machine keeps the books itself: the pool knows.
    pub(crate) fn note_prefixes(&mut self, tier: Tier, event: PrefixEvent, max: u32) {
        let devices = &mut self.devices;
        let held = match tier {
            Tier::Device(id) => tiers_of(devices, id).map(|tiers| &mut tiers.device),
            Tier::Host(id) => tiers_of(devices, id).map(|tiers| &mut tiers.host),
            Tier::Disk(id) => tiers_of(devices, id).map(|tiers| &mut tiers.disk),
            Tier::Shared { tokens_per_block } => {
                self.shared_cache.tokens_per_block = tokens_per_block;
                Some(&mut self.shared_cache.held)
            }
        };
        if let Some(held) = held {
            held.note(event, max);
        }
    }

    /// The part of a request's prompt that is cached, for a request that need not have arrived.
    /// Names as many executors as `overlaps_max`.
    pub(crate) fn cached(&self, request: &Request, overlaps_max: u32) -> Cached {
        let mut cached = Cached {
            request: request.id(),
            overlaps: Vec::new(),
            floor_tokens: 0,
            shared_tokens: 0,
        };
        if !request.prompt_hashes.is_empty() {
            let shared = self.shared_cache.tokens(&request.prompt_hashes);
            cached.shared_tokens = shared.min(request.row.prompt_tokens);
            (cached.overlaps, cached.floor_tokens) = self.overlaps(request, overlaps_max);
        }
        cached
    }

    /// Most tokens of a request's prompt that one executor which serves it holds, all tiers
    /// together, or that the shared cache holds.
    pub(crate) fn longest_prefix(&self, request: &Request) -> u32 {
        let shared = self.shared_cache.tokens(&request.prompt_hashes);
        let mut longest = shared.min(request.row.prompt_tokens);
        for device in &self.devices {
            let executors = device.executors.iter().map(|id| &self[*id]);
            let mut serving = executors
                .filter(|executor| executor.serves(request.row.model))
                .peekable();
            if serving.peek().is_some() {
                let hits = device.hits(&request.prompt_hashes);
                let held = serving.map(|executor| tokens_held(&overlap(request, executor, hits)));
                longest = held.fold(longest, u32::max);
            }
        }
        longest
    }

    /// The executors that hold most of the prompt, and the tokens that each other one holds on its
    /// device at least.
    fn overlaps(&self, request: &Request, overlaps_max: u32) -> (Vec<Overlap>, u32) {
        let mut overlaps = Vec::new();
        let mut holds_nothing = false;
        for device in &self.devices {
            let hits = device.hits(&request.prompt_hashes);
            let ids = device.executors.iter();
            let mut serving = ids
                .map(|id| &self[*id])
                .filter(|executor| executor.serves(request.row.model));
            if hits.total() > 0 {
                overlaps.extend(serving.map(|executor| overlap(request, executor, hits)));
            } else if !holds_nothing {
                holds_nothing = serving.next().is_some();
            }
        }
        overlaps.sort_by_key(|it| std::cmp::Reverse((tokens_held(it), it.device_tokens)));
        let listed = overlaps.len().min(overlaps_max as usize);
        let unlisted = overlaps[listed..].iter().map(|it| it.device_tokens);
        let floor = unlisted.min().filter(|_| !holds_nothing);
        overlaps.truncate(listed);
        (overlaps, floor.unwrap_or(0))
    }
}

fn tiers_of(devices: &mut [Device], id: DeviceId) -> Option<&mut Tiers> {
    devices
        .get_mut(id.0 as usize)
        .map(|device| &mut device.tiers)
}

/// The tokens of an overlap, all tiers together: no more than its prompt has.
fn tokens_held(overlap: &Overlap) -> u32 {
    overlap.device_tokens + overlap.host_tokens + overlap.disk_tokens
}

/// The tokens of a request's prompt that `executor` holds, of which its device holds `hits`.
fn overlap(request: &Request, executor: &Executor, hits: Hits) -> Overlap {
    let prompt = request.row.prompt_tokens;
    let per_block = executor.spec.tokens_per_block.unwrap_or(0);
    let tokens = |blocks: u32| blocks.saturating_mul(per_block);
    let device = tokens(hits.device).min(prompt);
    let host = tokens(hits.host).min(prompt - device);
    Overlap {
        executor: executor.id,
        device_tokens: device,
        host_tokens: host,
        disk_tokens: tokens(hits.disk).min(prompt - device - host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::{DeviceSpec, KvSpec};

    fn hashes(numbers: &[u128]) -> Vec<BlockHash> {
        numbers.iter().copied().map(BlockHash).collect()
    }

    fn stored(numbers: &[u128]) -> PrefixEvent {
        PrefixEvent::Stored(hashes(numbers))
    }

    #[test]
    fn each_tier_counts_what_the_tiers_before_it_do_not_hold() {
        let mut device = Device::new(
            DeviceId(0),
            DeviceSpec {
                name: "d".to_owned(),
                kv: KvSpec::Remote,
                tokens_per_step: None,
            },
        );
        device.tiers.device.note(stored(&[1, 2]), 8);
        device.tiers.host.note(stored(&[2, 3]), 8);
        device.tiers.disk.note(stored(&[1, 4, 5, 7]), 8);
        let hits = device.hits(&hashes(&[1, 2, 3, 4, 5, 6, 7]));
        let expected = Hits {
            device: 2,
            host: 1,
            disk: 2,
        };
        assert_eq!((hits, hits.total()), (expected, 5));
        device.forget_contents();
        let hits = device.hits(&hashes(&[1, 2, 3]));
        assert_eq!((hits.device, hits.host, hits.disk), (0, 0, 1));
    }

    #[test]
    fn a_tier_knows_a_bounded_number_of_blocks() {
        let mut held = Held::default();
        held.note(stored(&[1, 2, 3]), 2);
        held.note(stored(&[2, 4]), 2);
        assert_eq!(held.leading(&hashes(&[1, 2, 3])), 2);
        held.note(PrefixEvent::Removed(hashes(&[1])), 2);
        held.note(stored(&[3]), 2);
        assert_eq!(held.leading(&hashes(&[2, 3])), 2);
        held.note(PrefixEvent::Cleared, 2);
        assert_eq!(held.leading(&hashes(&[2])), 0);
    }
}
