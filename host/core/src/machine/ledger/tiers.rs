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

use crate::input::{BlockKind, PrefixEvent, Tier};
use pointsman_interface::{BlockHash, DeviceId};

use super::super::count;
use super::Ledger;
use super::device::{Device, Kv};
use super::prefix::Prefix;

/// Blocks that one tier holds.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Held(BTreeSet<(BlockKind, BlockHash)>);

/// Blocks that a device's engines hold beside the machine's pool.
#[derive(Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Tiers {
    /// Used only where somebody else keeps the device's books.
    device: Held,
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
                let new = hashes.into_iter().map(|hash| (kind, hash));
                let new = new.filter(|key| !self.0.contains(key));
                let new: Vec<_> = new.take(room).collect();
                self.0.extend(new);
            }
            PrefixEvent::Removed(kind, hashes) => {
                for hash in hashes {
                    self.0.remove(&(kind, hash));
                }
            }
            PrefixEvent::Cleared => self.0.clear(),
        }
    }

    /// The number of a prompt's leading blocks that are held.
    pub(super) fn leading(&self, prefix: Prefix<'_>) -> u32 {
        let held = |hash: &&BlockHash| self.0.contains(&(prefix.kind, **hash));
        count(prefix.hashes.iter().take_while(held).count())
    }
}

// === impl Device ===

impl Device {
    /// The leading blocks that the device holds of a prompt.
    pub(super) fn hits(&self, prefix: Prefix<'_>) -> Hits {
        let device = match &self.kv {
            Kv::Owned(pool) => pool.leading_hits(prefix),
            Kv::Reported(_) => self.tiers.device.leading(prefix),
        };
        let host = self.tiers.host.leading(prefix.after(device));
        let disk = self.tiers.disk.leading(prefix.after(device + host));
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
            Tier::Shared => Some(&mut self.shared_cache),
        };
        if let Some(held) = held {
            held.note(event, max);
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
    use crate::input::{DeviceSpec, KvSpec};

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
        let hits = device.hits(prompt(0, &HASHES));
        let expected = Hits {
            device: 2,
            host: 1,
            disk: 2,
        };
        assert_eq!(hits, expected);
        assert_eq!(
            device.hits(prompt(1, &HASHES)),
            Hits::default(),
            "another model"
        );
        device.forget_contents();
        let hits = device.hits(prompt(0, &HASHES[..3]));
        assert_eq!((hits.device, hits.host, hits.disk), (0, 0, 1));
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
