//! How good an executor is for a request that fits it.

use std::cmp::Ordering;

use pointsman_sdk::wire::types::Health;
use pointsman_sdk::{Executor, Mirror, Seat, Tentative};

use crate::settings::Balance;

/// The smaller is the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Up before degraded.
    pub(crate) degraded: bool,
    pub(crate) load: Load,
    /// Attach order, in `Balance::Slots` going round from the one chosen last.
    pub(crate) turn: (bool, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Load {
    Memory(Memory),
    Slots(Slots),
}

/// Lexicographic: `tier`, `depth`, more free blocks, more free bytes, fewer placed. An executor that reports
/// no paged KV comes after all that do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Memory {
    pub(crate) unpaged: bool,
    pub(crate) tier: u8,
    /// Within a tier, a free slot before a place in the queue. Executors of one size have the
    /// lesser depth where a slot is free, so that this matters between different sizes only.
    pub(crate) seat: Seat,
    pub(crate) depth: u64,
    pub(crate) blocks_free: MoreIsBetter,
    pub(crate) bytes_free: MoreIsBetter,
    pub(crate) placed: u64,
}

/// Slots in use of all slots, compared without division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    pub(crate) seat: Seat,
    pub(crate) used: u64,
    pub(crate) total: u64,
}

/// Orders the greater first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MoreIsBetter(pub(crate) u64);

// === impl Rank ===

impl Rank {
    #[inline]
    pub(crate) fn new(
        mirror: &Mirror,
        placed: &Tentative,
        executor: &Executor<'_>,
        seat: Seat,
        scale: Scale,
    ) -> Self {
        let (load, turn) = match scale.balance {
            Balance::Memory => (
                Load::Memory(Memory::new(mirror, placed, executor, seat)),
                (false, executor.position),
            ),
            Balance::Slots => {
                let before = scale.last.is_some_and(|last| executor.id() <= last);
                let slots = Slots::new(placed, executor, seat);
                (Load::Slots(slots), (before, executor.position))
            }
        };
        Self {
            degraded: executor.load.health == Health::Degraded,
            load,
            turn,
        }
    }

    pub(crate) fn grade(&self) -> Grade {
        let (tier, seat) = match self.load {
            Load::Memory(memory) if memory.unpaged => (u8::MAX, memory.seat),
            Load::Memory(memory) => (memory.tier, memory.seat),
            Load::Slots(slots) => (0, slots.seat),
        };
        Grade {
            degraded: self.degraded,
            tier,
            seat,
        }
    }

    #[inline]
    pub(crate) fn standing(&self) -> Standing {
        let Grade { degraded, seat, .. } = self.grade();
        Standing { degraded, seat }
    }
}

/// What a cached prefix does not outweigh; the smaller is the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grade {
    degraded: bool,
    /// Of pressure; above all tiers where no paged KV is reported.
    tier: u8,
    seat: Seat,
}

/// What a session's preference does not override; the smaller is the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Standing {
    degraded: bool,
    seat: Seat,
}

/// What executors are ranked by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) balance: Balance,
    /// The executor chosen last for this model.
    pub(crate) last: Option<u32>,
}

/// A rank in four words, which compare as the rank does but for ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key([u64; 4]);

impl Key {
    /// Of a rank by memory. The first word holds the small parts and the depth, which no host
    /// lets grow beyond the 58 bits that are left.
    pub(crate) fn new(health: Health, memory: &Memory) -> Self {
        const DEPTH_BITS: u32 = 58;
        let depth = memory.depth.min((1 << DEPTH_BITS) - 1);
        let small = u64::from(health == Health::Degraded) << 5
            | u64::from(memory.unpaged) << 4
            | u64::from(memory.tier) << 2
            | u64::from(memory.seat == Seat::Queue);
        Self([
            small << DEPTH_BITS | depth,
            !memory.blocks_free.0,
            !memory.bytes_free.0,
            memory.placed,
        ])
    }
}

impl Standing {
    pub(crate) fn new(executor: &Executor<'_>, seat: Seat) -> Self {
        Self {
            degraded: executor.load.health == Health::Degraded,
            seat,
        }
    }

    /// Whether none can be better.
    pub(crate) fn is_best(self) -> bool {
        !self.degraded && self.seat == Seat::Slot
    }
}

// === impl Memory ===

impl Memory {
    #[inline]
    pub(crate) fn new(
        mirror: &Mirror,
        placed: &Tentative,
        executor: &Executor<'_>,
        seat: Seat,
    ) -> Self {
        let counts = placed.counts(executor).total();
        let mut memory = Self {
            unpaged: true,
            tier: 0,
            seat,
            depth: executor.depth() + counts,
            blocks_free: MoreIsBetter(0),
            bytes_free: MoreIsBetter(0),
            placed: executor.load.placed_total.saturating_add(counts),
        };
        if let Some(pool) = Pool::of(mirror, placed, executor) {
            memory.unpaged = false;
            memory.tier = tier(pool.permille());
            memory.blocks_free = MoreIsBetter(pool.free);
            memory.bytes_free = MoreIsBetter(pool.free.saturating_mul(pool.block_bytes));
        }
        memory
    }
}

/// The KV pool of an executor that reports paged KV.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub(crate) free: u64,
    pub(crate) total: u64,
    block_bytes: u64,
}

impl Pool {
    #[inline]
    pub(crate) fn of(mirror: &Mirror, placed: &Tentative, executor: &Executor<'_>) -> Option<Self> {
        executor
            .info
            .tokens_per_block
            .filter(|&tokens| tokens > 0)?;
        let device = mirror.device(executor.info.device)?;
        let total = u64::from(device.blocks_total);
        if total == 0 {
            return None;
        }
        // Cached blocks are free on demand.
        let free = u64::from(device.blocks_free) + u64::from(device.blocks_cached);
        Some(Self {
            free: free
                .saturating_sub(placed.blocks(mirror, device.id))
                .min(total),
            total,
            block_bytes: device.block_bytes,
        })
    }

    /// Used of all blocks.
    #[inline]
    pub(crate) fn permille(&self) -> u64 {
        (self.total - self.free) * 1000 / self.total
    }
}

/// Pressure tier of a pool.
#[inline]
pub(crate) fn tier(permille: u64) -> u8 {
    match permille {
        0..=699 => 0,
        700..=849 => 1,
        850..=949 => 2,
        _ => 3,
    }
}

// === impl Slots ===

impl Slots {
    #[inline]
    fn new(placed: &Tentative, executor: &Executor<'_>, seat: Seat) -> Self {
        let counts = placed.counts(executor);
        let used = u64::from(executor.load.slots_used) + u64::from(counts.slots);
        match u64::from(executor.info.slots_total) {
            // Without slots there is only the queue, and nothing fuller.
            0 => Self {
                seat,
                used: 1,
                total: 1,
            },
            total => Self { seat, used, total },
        }
    }
}

impl Ord for Slots {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        // Both factors are below 2^33: the products fit.
        self.seat
            .cmp(&other.seat)
            .then_with(|| (self.used * other.total).cmp(&(other.used * self.total)))
    }
}

impl PartialOrd for Slots {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Slots {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Slots {}

// === impl MoreIsBetter ===

impl Ord for MoreIsBetter {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.cmp(&self.0)
    }
}

impl PartialOrd for MoreIsBetter {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::tier;

    #[test]
    fn tiers_begin_at_700_850_and_950_permille() {
        let edges = [0, 699, 700, 849, 850, 949, 950, 1000];
        assert_eq!(edges.map(tier), [0, 0, 1, 1, 2, 2, 3, 3]);
    }
}
