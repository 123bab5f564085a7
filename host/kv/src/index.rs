//! The holders of prompts: the devices of a fleet that hold leading blocks of one, by what is known of each.
//!
//! An engine that moves blocks to host memory or disk, or keeps its own books of its device, says
//! which it stores and removes; so does a cache that all executors share. Policies are told what a
//! prompt would be spared where; nothing is placed or refused by it.

use std::collections::BTreeSet;

use pointsman_events::{DeviceId, PrefixEvent, Tier};

use crate::device::DeviceKv;
use crate::prefix::Prefix;
use crate::reported::{LeadingBlocks, ReportedBlocks};
use crate::tiers::{Held, Hits};

/// Everything known of cached prompt blocks beside the devices' own books.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PrefixIndex {
    /// A cache that any executor can read.
    shared_cache: Held,
    /// Blocks of devices whose books somebody else keeps.
    reported: ReportedBlocks,
    /// The devices that hold blocks which `reported` has not: those whose books the machine keeps, and
    /// those with blocks beside their memory.
    unreported: BTreeSet<DeviceId>,
}

/// A look at what several devices hold of one prompt. What was reported is looked up once for all of them.
#[derive(Debug)]
pub struct PrefixLookup<'a> {
    index: &'a PrefixIndex,
    /// The blocks looked up last, with those of them that each device was reported to hold.
    last: (Prefix<'a>, LeadingBlocks),
}

// === impl PrefixIndex: reading ===

impl PrefixIndex {
    /// Begins to look a prompt up, given as it would be in a cache that any executor can read. Returns the
    /// devices that may hold some of it, in attach order. A look at each device of a large fleet takes
    /// longer than a decision.
    #[inline]
    #[must_use]
    pub fn look_up<'a>(&'a self, prompt: Prefix<'a>) -> (Vec<DeviceId>, PrefixLookup<'a>) {
        let leading = self.reported.leading(prompt);
        let mut holders: Vec<DeviceId> = self.unreported.iter().copied().collect();
        match prompt.kind.model {
            Some(_) => holders.extend(leading.devices()),
            // An executor of one model reads it with that one.
            None => {
                let first = prompt.hashes.first().into_iter();
                holders.extend(first.flat_map(|hash| self.reported.holding(*hash)));
            }
        }
        holders.sort_unstable();
        holders.dedup();
        let lookup = PrefixLookup {
            index: self,
            last: (prompt, leading),
        };
        (holders, lookup)
    }

    /// The leading blocks of a prompt that a device's memory holds.
    #[inline]
    #[must_use]
    pub fn hits_on(&self, (id, device): (DeviceId, &DeviceKv), prefix: Prefix<'_>) -> u32 {
        device.hits_in_memory(prefix, || self.reported.leading_on(id, prefix))
    }

    /// The leading blocks of a prompt that the cache holds which any executor can read.
    #[inline]
    #[must_use]
    pub fn hits_in_shared_cache(&self, prefix: Prefix<'_>) -> u32 {
        self.shared_cache.leading(prefix)
    }
}

// === impl PrefixLookup ===

impl<'a> PrefixLookup<'a> {
    /// The leading blocks that a device holds of the prompt, as an executor reads them.
    #[inline]
    pub fn hits(&mut self, (id, device): (DeviceId, &DeviceKv), prefix: Prefix<'a>) -> Hits {
        device.hits(prefix, || {
            if !self.last.0.has_contents_of(prefix) {
                self.last = (prefix, self.index.reported.leading(prefix));
            }
            self.last.1.on(id)
        })
    }
}

// === impl PrefixIndex: writing ===

impl PrefixIndex {
    /// Takes in a device that is new.
    pub fn add(&mut self, id: DeviceId, device: &DeviceKv) {
        if device.pool().is_some() {
            self.unreported.insert(id);
        }
    }

    /// Notes which blocks of a tier an engine or a cache says that it holds, or no longer does: no more than
    /// `max`. `device` is the tier's, if it has one and that is there. Reports of the device tier change
    /// nothing where the machine keeps the books itself: the pool knows.
    pub fn note(
        &mut self,
        tier: Tier,
        device: Option<&mut DeviceKv>,
        event: PrefixEvent,
        max: u32,
    ) {
        match (tier, device) {
            (Tier::Shared, _) => self.shared_cache.note(event, max),
            (Tier::Device(id), Some(device)) => {
                if device.pool().is_none() {
                    self.reported.note(id, event, max);
                }
            }
            (Tier::Host(id), Some(device)) => {
                device.tiers.host.note(event, max);
                self.unreported.insert(id);
            }
            (Tier::Disk(id), Some(device)) => {
                device.tiers.disk.note(event, max);
                self.unreported.insert(id);
            }
            (Tier::Device(_) | Tier::Host(_) | Tier::Disk(_), None) => {}
        }
    }

    /// Assumes that a prompt which is sent to a device will be cached there: no more than `max` blocks of
    /// the device in all.
    pub fn assume(
        &mut self,
        (id, device): (DeviceId, &mut DeviceKv),
        prefix: Prefix<'_>,
        max: u32,
    ) {
        for event in device.assumed.use_prompt(prefix, max as usize) {
            self.reported.note(id, event, max);
        }
    }

    /// Assumes no longer that a device holds a prompt, of which it had the first `cached_tokens` before and has
    /// read no more.
    pub fn forget_unread(
        &mut self,
        (id, device): (DeviceId, &mut DeviceKv),
        prefix: Prefix<'_>,
        cached_tokens: u32,
    ) {
        let cached = cached_tokens / prefix.tokens_per_block().max(1);
        if let Some(event) = device.assumed.forget_unread(prefix.after(cached)) {
            self.reported.note(id, event, 0);
        }
    }

    /// Forgets all contents of a device: the engines have lost their memory. Only the disk outlives
    /// that.
    pub fn forget_memory(&mut self, id: DeviceId, device: &mut DeviceKv) {
        // One by one: a search through the blocks of a whole fleet takes far longer.
        for event in device.forget_contents() {
            self.reported.note(id, event, 0);
        }
        self.reported.note(id, PrefixEvent::Cleared, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{HASHES, prompt, stored};
    use pointsman_events::{BlockKind, KvSpec};

    #[test]
    fn each_tier_counts_what_the_tiers_before_it_do_not_hold() {
        let mut index = PrefixIndex::default();
        let mut device = DeviceKv::new(KvSpec::Remote);
        let id = DeviceId(0);
        index.add(id, &device);
        index.note(Tier::Device(id), Some(&mut device), stored(&[1, 2]), 8);
        index.note(Tier::Host(id), Some(&mut device), stored(&[2, 3]), 8);
        index.note(Tier::Disk(id), Some(&mut device), stored(&[1, 4, 5, 7]), 8);
        let hits = |index: &PrefixIndex, device: &DeviceKv, prefix| {
            let (holders, mut lookup) = index.look_up(prefix);
            assert_eq!(holders, [id]);
            let hits = lookup.hits((id, device), prefix);
            assert_eq!(hits.device, index.hits_on((id, device), prefix));
            (hits.device, hits.host, hits.disk)
        };
        assert_eq!(hits(&index, &device, prompt(0, &HASHES)), (2, 1, 2));
        let of_another = hits(&index, &device, prompt(1, &HASHES));
        assert_eq!(of_another, (0, 0, 0), "another model");
        index.forget_memory(id, &mut device);
        assert_eq!(hits(&index, &device, prompt(0, &HASHES[..3])), (0, 0, 1));
    }

    #[test]
    fn a_prompt_without_a_model_is_held_by_those_who_read_it_with_theirs() {
        let mut index = PrefixIndex::default();
        let mut device = DeviceKv::new(KvSpec::Remote);
        let id = DeviceId(0);
        index.note(Tier::Device(id), Some(&mut device), stored(&[1, 2]), 8);
        let named = prompt(0, &HASHES);
        let kind = BlockKind {
            model: None,
            ..named.kind
        };
        let nameless = Prefix::new(kind, None, &HASHES);
        let (holders, mut lookup) = index.look_up(nameless);
        assert_eq!(holders, [id]);
        let mut hits = |prefix| lookup.hits((id, &device), prefix).device;
        assert_eq!([nameless, named, nameless].map(&mut hits), [0, 2, 0]);
    }
}
