//! Which prompt blocks are held outside the machine's own pools, as engines and caches report it.
//!
//! An engine that moves blocks to host memory or disk, or keeps its own books of its device, says
//! which it stores and removes; so does a cache that all executors share. The machine only counts
//! on it to tell policies what a prompt would be spared where: nothing is placed or refused by it.
//!
//! # Bounds
//! Each tier of each device, and the shared cache, keeps as many hashes as the configuration's
//! `tier-blocks-max`. What is stored past it is not known here, which costs a hit and no more.

use std::collections::BTreeSet;

use crate::ids::{BlockHash, DeviceId, Micros};
use crate::input::{PrefixEvent, Tier};

use super::Machine;
use super::device::{Device, Kv};
use super::executor::count;

/// Blocks that one tier holds.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Held(BTreeSet<BlockHash>);

/// What a device's engines hold beside the machine's pool.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Tiers {
    /// Only where somebody else keeps the device's books.
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

    /// How many of the first `hashes` are held.
    fn leading(&self, hashes: &[BlockHash]) -> u32 {
        let held = hashes.iter().take_while(|hash| self.0.contains(hash));
        count(held.count())
    }
}

// === impl SharedCache ===

impl SharedCache {
    /// Leading tokens of a prompt with these hashes.
    pub(super) fn tokens(&self, hashes: &[BlockHash]) -> u32 {
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
    /// What it holds of a prompt with these hashes.
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

    /// Its engines have lost their memory. What is on disk outlives that.
    pub(super) fn forget_contents(&mut self) {
        if let Some(pool) = self.pool_mut() {
            pool.forget_contents();
        }
        self.tiers.device.note(PrefixEvent::Cleared, 0);
        self.tiers.host.note(PrefixEvent::Cleared, 0);
    }
}

// === impl Machine ===

impl Machine {
    /// An engine or a cache says which blocks it holds, or no longer does. Of a device whose
    /// blocks the machine keeps itself, what is said of the device tier is ignored: the pool
    /// knows.
    pub fn handle_prefix_event(&mut self, now: Micros, tier: Tier, event: PrefixEvent) {
        self.now = self.now.max(now);
        let max = self.config.tier_blocks_max;
        let held = match tier {
            Tier::Device(id) => self.tiers_of(id).map(|tiers| &mut tiers.device),
            Tier::Host(id) => self.tiers_of(id).map(|tiers| &mut tiers.host),
            Tier::Disk(id) => self.tiers_of(id).map(|tiers| &mut tiers.disk),
            Tier::Shared { tokens_per_block } => {
                self.shared_cache.tokens_per_block = tokens_per_block;
                Some(&mut self.shared_cache.held)
            }
        };
        if let Some(held) = held {
            held.note(event, max);
        }
    }

    fn tiers_of(&mut self, id: DeviceId) -> Option<&mut Tiers> {
        let device = self.devices.get_mut(id.0 as usize)?;
        Some(&mut device.tiers)
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
