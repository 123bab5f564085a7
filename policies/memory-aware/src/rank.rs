//! The order of executors: which is the better place, for any request.

use std::cmp::Reverse;

use pointsman_sdk::{Executor, Fleet, Place, Readiness, Seat};

use crate::credit;
use crate::settings::{Balance, Settings};
use crate::waits::Waits;

/// The order of executors; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) grade: Grade,
    load: Load,
}

/// The part of a rank that no cached prefix outweighs, as one number: for each rank that is made, ten are
/// compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grade(u16);

/// A tier above those of all executors that report paged KV.
const UNPAGED: u8 = u8::MAX;

/// The load of an executor, as the operator balances it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Load {
    Memory {
        /// In permille of blocks.
        load: u64,
        depth: u64,
        blocks_free: Reverse<u64>,
        bytes_free: Reverse<u64>,
        placed: u64,
    },
    Slots(Share),
}

/// Slots in use of all slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Share {
    /// The quotient with 32 bits after the point.
    quotient: u64,
    /// The 32 bits after those. Shares of totals below 2^32 that differ at all differ there.
    rest: u64,
}

/// The KV pool of an executor that reports paged KV.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub(crate) free: u64,
    pub(crate) total: u64,
    block_bytes: u64,
}

// === impl Rank ===

impl Rank {
    #[inline]
    pub(crate) fn of(settings: &Settings, waits: &Waits, place: &Place<'_>) -> Self {
        let (tier, load) = match settings.balance {
            Balance::Slots => (0, Load::Slots(Share::of(place))),
            Balance::Memory => match Pool::of(place.fleet, &place.executor) {
                Some(pool) => (
                    settings.tier(pool.permille()),
                    Load::memory(settings, waits, place, pool.free, pool.block_bytes),
                ),
                None => (UNPAGED, Load::memory(settings, waits, place, 0, 0)),
            },
        };
        Self {
            grade: Grade::new(place.readiness(), tier),
            load,
        }
    }
}

// === impl Grade ===

impl Grade {
    /// The grade of an executor in a tier: the pressure tier of its KV pool, [`UNPAGED`] where no paged KV is reported, and 0
    /// where slots are balanced.
    #[inline]
    fn new(readiness: Readiness, tier: u8) -> Self {
        let Readiness { degraded, seat } = readiness;
        // Up goes before degraded, then by tier. Executors of one size have the lesser depth where a slot is free, so that
        // within a tier the seat matters between different sizes only.
        Self(u16::from(degraded) << 9 | u16::from(tier) << 1 | u16::from(seat == Seat::Queue))
    }
}

// === impl Load ===

impl Load {
    #[inline]
    fn memory(
        settings: &Settings,
        waits: &Waits,
        place: &Place<'_>,
        blocks_free: u64,
        block_bytes: u64,
    ) -> Self {
        Self::Memory {
            load: credit::load(settings, waits, place.fleet, &place.executor),
            depth: place.depth(),
            blocks_free: Reverse(blocks_free),
            // Neither is above 2^32: a block of more bytes counts as one of so many.
            bytes_free: Reverse(blocks_free * block_bytes.min(u32::MAX.into())),
            placed: place.placed_total(),
        }
    }
}

// === impl Share ===

impl Share {
    fn of(place: &Place<'_>) -> Self {
        let used = u64::from(place.executor.load.slots_used) + u64::from(place.counts().slots);
        match u64::from(place.executor.info.slots_total) {
            // Without slots there is only the queue, and nothing fuller.
            0 => Self::new(1, 1),
            total => Self::new(used, total),
        }
    }

    fn new(used: u64, total: u64) -> Self {
        let used = used.min(u64::from(u32::MAX)) << 32;
        Self {
            quotient: used / total,
            rest: ((used % total) << 32) / total,
        }
    }
}

// === impl Pool ===

impl Pool {
    #[inline]
    pub(crate) fn of(fleet: Fleet<'_>, executor: &Executor<'_>) -> Option<Self> {
        executor.tokens_per_block()?;
        let device = fleet.mirror.device(executor.info.device)?;
        let total = u64::from(device.blocks_total);
        if total == 0 {
            return None;
        }
        let taken = fleet.placed.blocks(fleet.mirror, device.id);
        Some(Self {
            free: device.blocks_available().saturating_sub(taken).min(total),
            total,
            block_bytes: device.block_bytes,
        })
    }

    /// Blocks in use, in permille of all blocks.
    #[inline]
    pub(crate) fn permille(&self) -> u64 {
        (self.total - self.free) * 1000 / self.total
    }
}

#[cfg(test)]
mod tests {
    use super::Share;
    use crate::settings::Settings;

    #[test]
    fn tiers_begin_at_700_850_and_950_permille() {
        let edges = [0, 699, 700, 849, 850, 949, 950, 1000];
        let settings = Settings::default();
        let tiers = edges.map(|permille| settings.tier(permille));
        assert_eq!(tiers, [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn shares_compare_exactly() {
        let totals = [1, 2, 3, 7, 100_000, u64::from(u32::MAX)];
        let shares = totals
            .into_iter()
            .flat_map(|total| [0, 1, 2, total / 3, total - 1, total].map(|used| (used, total)));
        let shares: Vec<(u64, u64)> = shares.collect();
        for &(used, total) in &shares {
            for &(other_used, other_total) in &shares {
                let exactly = (used * other_total).cmp(&(other_used * total));
                assert_eq!(
                    Share::new(used, total).cmp(&Share::new(other_used, other_total)),
                    exactly,
                    "{used}/{total} {other_used}/{other_total}"
                );
            }
        }
    }
}
