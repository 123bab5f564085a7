//! The blocks that devices hold whose books somebody else keeps, by their contents.
//!
//! A router asks which of many devices hold the leading blocks of a prompt. So blocks are found by
//! their hash first, and the devices by the block: a question costs as much as the prompt's blocks that
//! somebody holds, however many devices hold none.

use std::collections::BTreeMap;

use pointsman_events::{BlockHash, BlockKind, DeviceId, PrefixEvent};

use crate::count;
use crate::prefix::Prefix;
use crate::table::{Entry, Table};

/// Blocks that devices were reported to hold.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct ReportedBlocks {
    blocks: BTreeMap<BlockKind, Table<BlockHash, DevicesHolding>>,
    /// The number of blocks of each device that holds any.
    counts: BTreeMap<DeviceId, u32>,
}

/// Devices that hold one block: at least one, in the order of their ids.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
enum DevicesHolding {
    One(DeviceId),
    Several(Vec<DeviceId>),
}

/// The leading blocks of one prompt that each device holds; those without any are left out.
#[derive(Debug, Default)]
pub(crate) struct LeadingBlocks(Vec<(DeviceId, u32)>);

// === impl DevicesHolding ===

impl DevicesHolding {
    fn as_slice(&self) -> &[DeviceId] {
        match self {
            DevicesHolding::One(device) => std::slice::from_ref(device),
            DevicesHolding::Several(devices) => devices,
        }
    }

    fn holds(&self, device: DeviceId) -> bool {
        self.as_slice().binary_search(&device).is_ok()
    }

    /// Adds a device that does not hold the block.
    fn add(&mut self, device: DeviceId) {
        match self {
            DevicesHolding::One(first) => {
                let (low, high) = (device.min(*first), device.max(*first));
                *self = DevicesHolding::Several(vec![low, high]);
            }
            DevicesHolding::Several(devices) => {
                let idx = devices.partition_point(|it| *it < device);
                devices.insert(idx, device);
            }
        }
    }

    /// Takes a device out. Returns true if no other holds the block.
    fn remove(&mut self, device: DeviceId) -> bool {
        match self {
            DevicesHolding::One(only) => *only == device,
            DevicesHolding::Several(devices) => {
                devices.retain(|it| *it != device);
                if let [only] = devices[..] {
                    *self = DevicesHolding::One(only);
                }
                false
            }
        }
    }
}

// === impl ReportedBlocks ===

impl ReportedBlocks {
    /// Notes what a device was reported to hold, or no longer to hold: no more than `max` blocks.
    pub(crate) fn note(&mut self, device: DeviceId, event: PrefixEvent, max: u32) {
        match event {
            PrefixEvent::Stored(kind, hashes) => self.store(device, kind, hashes, max),
            PrefixEvent::Removed(kind, hashes) => self.remove(device, kind, &hashes),
            PrefixEvent::Cleared => self.clear(device),
        }
    }

    fn store(&mut self, device: DeviceId, kind: BlockKind, hashes: Vec<BlockHash>, max: u32) {
        let mut held = self.count(device);
        let blocks = self.blocks.entry(kind).or_default();
        for hash in hashes {
            if held >= max {
                break;
            }
            match blocks.entry(hash) {
                Entry::Vacant(entry) => {
                    entry.insert(DevicesHolding::One(device));
                    held += 1;
                }
                Entry::Occupied(mut entry) => {
                    if !entry.get().holds(device) {
                        entry.get_mut().add(device);
                        held += 1;
                    }
                }
            }
        }
        self.set_count(device, held);
        self.forget_kind_if_empty(kind);
    }

    fn remove(&mut self, device: DeviceId, kind: BlockKind, hashes: &[BlockHash]) {
        let mut held = self.count(device);
        let Some(blocks) = self.blocks.get_mut(&kind) else {
            return;
        };
        for hash in hashes {
            let Some(devices) = blocks.get_mut(hash).filter(|it| it.holds(device)) else {
                continue;
            };
            held -= 1;
            if devices.remove(device) {
                blocks.remove(hash);
            }
        }
        self.set_count(device, held);
        self.forget_kind_if_empty(kind);
    }

    fn count(&self, device: DeviceId) -> u32 {
        self.counts.get(&device).copied().unwrap_or(0)
    }

    fn set_count(&mut self, device: DeviceId, held: u32) {
        if held == 0 {
            self.counts.remove(&device);
        } else {
            self.counts.insert(device, held);
        }
    }

    fn forget_kind_if_empty(&mut self, kind: BlockKind) {
        if self.blocks.get(&kind).is_some_and(Table::is_empty) {
            self.blocks.remove(&kind);
        }
    }

    /// Forgets what a device holds.
    fn clear(&mut self, device: DeviceId) {
        if self.counts.remove(&device).is_none() {
            return;
        }
        for blocks in self.blocks.values_mut() {
            blocks.retain(|devices| !devices.holds(device) || !devices.remove(device));
        }
        self.blocks.retain(|_, blocks| !blocks.is_empty());
    }

    /// The number of a prompt's leading blocks that each device holds.
    pub(crate) fn leading(&self, prefix: Prefix<'_>) -> LeadingBlocks {
        let mut leading = LeadingBlocks::default();
        let (Some(blocks), [first, others @ ..]) = (self.blocks.get(&prefix.kind), prefix.hashes)
        else {
            return leading;
        };
        let mut held = 1;
        let mut holding: Vec<DeviceId> = match blocks.get(first) {
            Some(devices) => devices.as_slice().to_vec(),
            None => return leading,
        };
        for hash in others {
            let Some(devices) = blocks.get(hash) else {
                break;
            };
            holding.retain(|device| {
                let goes_on = devices.holds(*device);
                if !goes_on {
                    leading.0.push((*device, held));
                }
                goes_on
            });
            if holding.is_empty() {
                break;
            }
            held += 1;
        }
        leading.0.extend(holding.into_iter().map(|it| (it, held)));
        leading.0.sort_unstable();
        leading
    }

    /// The devices that hold a block, of whatever kind.
    pub(crate) fn holding(&self, hash: BlockHash) -> impl Iterator<Item = DeviceId> + '_ {
        let kinds = self.blocks.values();
        let found = kinds.filter_map(move |blocks| blocks.get(&hash));
        found.flat_map(|devices| devices.as_slice().iter().copied())
    }

    /// The number of a prompt's leading blocks that one device holds.
    pub(crate) fn leading_on(&self, device: DeviceId, prefix: Prefix<'_>) -> u32 {
        let Some(blocks) = self.blocks.get(&prefix.kind) else {
            return 0;
        };
        let held = |hash: &&BlockHash| blocks.get(*hash).is_some_and(|it| it.holds(device));
        count(prefix.hashes.iter().take_while(held).count())
    }
}

// === impl LeadingBlocks ===

impl LeadingBlocks {
    /// The devices that hold some.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.0.iter().map(|(device, _)| *device)
    }

    /// The number of leading blocks that a device holds.
    pub(crate) fn on(&self, device: DeviceId) -> u32 {
        let found = self.0.binary_search_by_key(&device, |(id, _)| *id);
        found.map_or(0, |idx| self.0[idx].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASHES: [BlockHash; 5] = [
        BlockHash(1),
        BlockHash(2),
        BlockHash(3),
        BlockHash(4),
        BlockHash(5),
    ];

    fn prompt(model: u32, blocks: usize) -> Prefix<'static> {
        Prefix::of_model(model, &HASHES[..blocks])
    }

    fn hashes(numbers: &[u128]) -> Vec<BlockHash> {
        numbers.iter().copied().map(BlockHash).collect()
    }

    /// A world in which devices 0, 1, … were reported to hold these blocks of model 0.
    fn holding(devices: &[&[u128]], max: u32) -> ReportedBlocks {
        let mut reported = ReportedBlocks::default();
        for (id, numbers) in (0..).zip(devices) {
            let event = PrefixEvent::Stored(prompt(0, 0).kind, hashes(numbers));
            reported.note(DeviceId(id), event, max);
        }
        reported
    }

    /// The answer of both questions about a prompt of five blocks, which must agree.
    fn leading(reported: &ReportedBlocks, devices: u32) -> Vec<u32> {
        let all = reported.leading(prompt(0, 5));
        let each = (0..devices).map(DeviceId).map(|device| {
            let alone = reported.leading_on(device, prompt(0, 5));
            assert_eq!(all.on(device), alone, "{device:?}");
            alone
        });
        each.collect()
    }

    #[test]
    fn devices_are_found_by_the_leading_blocks_they_hold() {
        let mut reported = holding(&[&[1, 2], &[2, 3], &[1, 2, 3, 5], &[], &[1, 2, 3]], 8);
        assert_eq!(leading(&reported, 5), [2, 0, 3, 0, 3]);
        let of_another = reported.leading(prompt(1, 5));
        assert_eq!(of_another.on(DeviceId(0)), 0, "another model");

        let kind = prompt(0, 0).kind;
        reported.note(DeviceId(2), PrefixEvent::Removed(kind, hashes(&[2, 9])), 8);
        assert_eq!(leading(&reported, 5), [2, 0, 1, 0, 3]);
        reported.note(DeviceId(4), PrefixEvent::Cleared, 8);
        assert_eq!(leading(&reported, 5), [2, 0, 1, 0, 0]);
        reported.note(DeviceId(0), PrefixEvent::Removed(kind, hashes(&[1, 1])), 8);
        assert_eq!(leading(&reported, 5), [0, 0, 1, 0, 0]);
    }

    #[test]
    fn a_device_has_a_bounded_number_of_blocks() {
        let mut reported = holding(&[&[1, 2, 3], &[1, 1, 2]], 2);
        assert_eq!(leading(&reported, 2), [2, 2]);
        let kind = prompt(0, 0).kind;
        reported.note(DeviceId(0), PrefixEvent::Removed(kind, hashes(&[1])), 2);
        reported.note(DeviceId(0), PrefixEvent::Stored(kind, hashes(&[3, 1])), 2);
        assert_eq!(leading(&reported, 2), [0, 2]);
    }

    #[test]
    fn nothing_is_kept_of_what_nobody_holds() {
        let mut reported = holding(&[&[1, 2], &[2, 3]], 8);
        reported.note(DeviceId(0), PrefixEvent::Cleared, 8);
        let kind = prompt(0, 0).kind;
        reported.note(DeviceId(1), PrefixEvent::Removed(kind, hashes(&[3, 2])), 8);
        assert!(reported.blocks.is_empty() && reported.counts.is_empty());
    }
}
