//! How good an executor is for a request that fits it.

use std::cmp::Ordering;

use pointsman_sdk::wire::types::Health;
use pointsman_sdk::{Executor, Mirror, Seat, Standing, Tentative};

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
        let before = match scale.balance {
            Balance::Memory => false,
            Balance::Slots => scale.last.is_some_and(|last| executor.id() <= last),
        };
        Self {
            degraded: executor.load.health == Health::Degraded,
            load: Load::new(mirror, placed, executor, seat, scale.balance),
            turn: (before, executor.position),
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
    /// The first word holds the small parts and, by memory, the depth, which no host lets grow
    /// beyond the 58 bits that are left.
    pub(crate) fn new(health: Health, load: &Load) -> Self {
        const DEPTH_BITS: u32 = 58;
        let degraded = u64::from(health == Health::Degraded) << 5;
        match load {
            Load::Memory(memory) => {
                let depth = memory.depth.min((1 << DEPTH_BITS) - 1);
                let small = degraded
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
            Load::Slots(slots) => {
                let small = degraded | u64::from(slots.seat == Seat::Queue);
                let [whole, rest] = slots.share();
                Self([small << DEPTH_BITS, whole, rest, 0])
            }
        }
    }
}

// === impl Load ===

impl Load {
    #[inline]
    pub(crate) fn new(
        mirror: &Mirror,
        placed: &Tentative,
        executor: &Executor<'_>,
        seat: Seat,
        balance: Balance,
    ) -> Self {
        match balance {
            Balance::Memory => Self::Memory(Memory::new(mirror, placed, executor, seat)),
            Balance::Slots => Self::Slots(Slots::new(placed, executor, seat)),
        }
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

    /// The share in use in two words: with 32 bits after the point, and what that leaves with 32
    /// more. Shares of totals below 2^32 that differ at all differ there.
    fn share(&self) -> [u64; 2] {
        let used = self.used.min(u64::from(u32::MAX)) << 32;
        [used / self.total, ((used % self.total) << 32) / self.total]
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
    use pointsman_sdk::Seat;
    use pointsman_sdk::wire::types::Health;

    use super::{Key, Load, Slots, tier};

    #[test]
    fn tiers_begin_at_700_850_and_950_permille() {
        let edges = [0, 699, 700, 849, 850, 949, 950, 1000];
        assert_eq!(edges.map(tier), [0, 0, 1, 1, 2, 2, 3, 3]);
    }
    #[test]
    fn keys_by_slots_compare_as_the_shares_do() {
        let seats = [Seat::Slot, Seat::Queue];
        let totals = [1, 2, 3, 7, 100_000, u64::from(u32::MAX)];
        let shares = totals
            .into_iter()
            .flat_map(|total| [0, 1, 2, total / 3, total - 1, total].map(|used| (used, total)));
        let slots = |(used, total)| seats.map(|seat| Slots { seat, used, total });
        let slots: Vec<Slots> = shares.flat_map(slots).collect();
        let key = |slots: &Slots| Key::new(Health::Up, &Load::Slots(*slots));
        for one in &slots {
            for other in &slots {
                assert_eq!(
                    key(one).cmp(&key(other)),
                    one.cmp(other),
                    "{one:?} {other:?}"
                );
            }
        }
    }
}
