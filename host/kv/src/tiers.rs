//! Prompt blocks that are held outside the machine's own pools, as engines and caches report them.
//!
//! # Bounds
//! Each tier of each device, and the shared cache, keeps as many hashes as the configuration's
//! `tier-blocks-max`. What is stored past it is not known here, which costs a hit and no more.

use std::collections::BTreeSet;

use pointsman_events::{BlockHash, BlockKind, PrefixEvent};

use crate::count;
use crate::prefix::Prefix;

/// Blocks that one tier holds. The hashes come first: they differ where kinds seldom do.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Held(BTreeSet<(BlockHash, BlockKind)>);

/// Blocks that a device's engines hold elsewhere than in its memory.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Tiers {
    pub(crate) host: Held,
    pub(crate) disk: Held,
}

/// Leading blocks of a prompt by tier, each counting what the ones before it do not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Blocks in the device's memory.
    pub device: u32,
    /// Blocks in host memory.
    pub host: u32,
    /// Blocks on the disk, or in an outside store.
    pub disk: u32,
}

// === impl Held ===

impl Held {
    /// Notes what the tier was reported to hold, or no longer to hold: no more than `max` blocks.
    pub(crate) fn note(&mut self, event: PrefixEvent, max: u32) {
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
    pub(crate) fn leading(&self, prefix: Prefix<'_>) -> u32 {
        let held = |hash: &&BlockHash| self.0.contains(&(**hash, prefix.kind));
        count(prefix.hashes.iter().take_while(held).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{HASHES, prompt, removed, stored};

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
