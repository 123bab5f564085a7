//! The KV blocks of a device of processors: its pool, and its host arena.
//!
//! All backends of a device share one [`KvMemory`]. Which block is whose, the core's ledger knows: a block
//! that is written is nobody else's, and one that several read is written no more. A step borrows its
//! blocks for as long as it takes ([`StepBlocks`]), so that whatever breaks this rule is seen at once.
//!
//! Memory comes from the system when a block is first written.

use std::ops::Deref;
use std::sync::{
    Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult,
};

use pointsman_events::{BlockCopy, BlockId};

use crate::backend::{KvBlocks, SwapDirection, to_usize};

/// The numbers of a block; none before they are first written.
type Numbers = Vec<f32>;

/// The KV memory of a device. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct KvMemory(Arc<Blocks>);

#[derive(Debug)]
struct Blocks {
    /// Numbers in a block.
    block_size: usize,
    pool: Vec<RwLock<Numbers>>,
    arena: Vec<RwLock<Numbers>>,
}

/// A block of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepBlock {
    pub(super) id: BlockId,
    pub(super) access: Access,
}

/// The use that a step makes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// The blocks of a step, borrowed from the memory, by their places in the step's list.
pub(super) struct StepBlocks<'a>(Vec<Borrowed<'a>>);

enum Borrowed<'a> {
    Read(RwLockReadGuard<'a, Numbers>),
    Write(RwLockWriteGuard<'a, Numbers>),
}

// === impl KvMemory ===

impl KvMemory {
    /// Memory of so many blocks, which hold nothing.
    #[must_use]
    pub fn new(blocks: KvBlocks) -> Self {
        let numbers = blocks.bytes / size_of::<f32>() as u64;
        let empty = |n: u32| (0..n).map(|_| RwLock::default()).collect();
        Self(Arc::new(Blocks {
            block_size: usize::try_from(numbers).unwrap_or(usize::MAX),
            pool: empty(blocks.total),
            arena: empty(blocks.host),
        }))
    }

    /// Numbers in a block.
    pub(super) fn block_size(&self) -> usize {
        self.0.block_size
    }

    /// Number of blocks in the pool.
    pub(super) fn blocks_total(&self) -> usize {
        self.0.pool.len()
    }

    /// Borrows the blocks of a step.
    ///
    /// # Panics
    /// If somebody else has one that this step writes, or writes one that this step reads.
    pub(super) fn borrow(&self, blocks: &[StepBlock]) -> StepBlocks<'_> {
        let borrowed = blocks.iter().map(|block| {
            let lock = &self.0.pool[to_usize(block.id.0)];
            match block.access {
                Access::Read => {
                    let numbers = own(lock.try_read(), block.id);
                    if !numbers.is_empty() {
                        return Borrowed::Read(numbers);
                    }
                    drop(numbers);
                    drop(self.write(block.id));
                    Borrowed::Read(own(lock.try_read(), block.id))
                }
                Access::Write => Borrowed::Write(self.write(block.id)),
            }
        });
        StepBlocks(borrowed.collect())
    }

    /// A block to be written, which has zeros where nothing was written yet.
    fn write(&self, block: BlockId) -> RwLockWriteGuard<'_, Numbers> {
        let mut numbers = own(self.0.pool[to_usize(block.0)].try_write(), block);
        if numbers.is_empty() {
            *numbers = vec![0.0; self.0.block_size];
        }
        numbers
    }

    /// Copies blocks between pool and arena.
    ///
    /// # Panics
    /// If there is no such block.
    pub(super) fn swap(&self, direction: SwapDirection, copies: &[BlockCopy]) {
        for BlockCopy { host, block } in copies {
            let pool = self.0.pool.get(to_usize(block.0));
            let pool = pool.unwrap_or_else(|| panic!("block {block} is not in the pool"));
            let arena = self.0.arena.get(to_usize(host.0));
            let arena = arena.unwrap_or_else(|| panic!("block {host} is not in the arena"));
            let (from, to) = match direction {
                SwapDirection::Out => (pool, arena),
                SwapDirection::In => (arena, pool),
            };
            let from = from.read().unwrap_or_else(PoisonError::into_inner);
            let mut to = to.write().unwrap_or_else(PoisonError::into_inner);
            to.clone_from(&from);
        }
    }

    pub(super) fn fill(&self, block: BlockId, number: f32) {
        self.write(block).fill(number);
    }
}

/// A block that nobody else has. An engine that panicked in the middle of a step has left numbers of its
/// own there, which are nobody's any more.
fn own<G>(tried: TryLockResult<G>, block: BlockId) -> G {
    match tried {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => panic!("block {block} is somebody else's"),
    }
}

// === impl StepBlocks ===

impl StepBlocks<'_> {
    /// The numbers of the block at a place.
    pub(super) fn at(&self, place: usize) -> &[f32] {
        match &self.0[place] {
            Borrowed::Read(numbers) => numbers.deref(),
            Borrowed::Write(numbers) => numbers.deref(),
        }
    }

    /// The numbers of the block at a place, which the step writes.
    pub(super) fn at_mut(&mut self, place: usize) -> &mut [f32] {
        match &mut self.0[place] {
            Borrowed::Read(_) => panic!("a step writes only blocks that it has borrowed to write"),
            Borrowed::Write(numbers) => numbers,
        }
    }
}

#[cfg(test)]
mod tests {
    use pointsman_events::HostBlockId;

    use super::*;

    const BLOCKS: KvBlocks = KvBlocks {
        bytes: 16,
        total: 3,
        host: 2,
    };

    fn block(id: u32, access: Access) -> StepBlock {
        StepBlock {
            id: BlockId(id),
            access,
        }
    }

    #[test]
    fn what_is_swapped_out_comes_back_into_any_block() {
        let memory = KvMemory::new(BLOCKS);
        memory.fill(BlockId(0), 7.0);
        let copy = |block, host| BlockCopy {
            host: HostBlockId(host),
            block: BlockId(block),
        };
        memory.swap(SwapDirection::Out, &[copy(0, 1)]);
        memory.fill(BlockId(0), f32::NAN);
        memory.swap(SwapDirection::In, &[copy(2, 1)]);
        let step = memory.borrow(&[block(2, Access::Read)]);
        assert_eq!(step.at(0), [7.0; 4]);
    }

    #[test]
    fn steps_share_what_they_read() {
        let memory = KvMemory::new(BLOCKS);
        memory.fill(BlockId(1), 5.0);
        let one = memory.borrow(&[block(1, Access::Read)]);
        let other = memory.borrow(&[block(0, Access::Write), block(1, Access::Read)]);
        assert_eq!(
            (one.at(0), other.at(1)),
            ([5.0; 4].as_slice(), [5.0; 4].as_slice())
        );
        assert_eq!(other.at(0), [0.0; 4]);
    }

    #[test]
    #[should_panic(expected = "block 1 is somebody else's")]
    fn a_block_that_somebody_reads_is_not_written() {
        let memory = KvMemory::new(BLOCKS);
        let _reads = memory.borrow(&[block(1, Access::Read)]);
        memory.borrow(&[block(1, Access::Write)]);
    }
}
