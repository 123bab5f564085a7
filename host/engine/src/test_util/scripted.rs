//! A backend without a model, whose logits are yet a function of all it was given.
//!
//! Its KV is a number per position, in a paged pool like a real one's. A row of logits is made of
//! every number from the sequence's beginning, read through the block table: a wrong table, a
//! position that was not written or was overwritten by another sequence change the answer or
//! panic.

use std::sync::{Arc, Mutex};

use std::collections::VecDeque;

use crate::backend::{
    Backend, Chunk, DeviceError, Logits, SwapDirection, SwapTicket, SwapWait, SwapsAtOnce,
};
use pointsman_events::{BlockCopy, BlockId};

/// A token whose prompts, if they begin with it, have rows without a number.
pub const POISON: u32 = 1023;

/// Numbers in a hidden state.
const HIDDEN_SIZE: usize = 6;

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub tokens_per_block: u32,
    pub blocks_total: u32,
    pub context_tokens: u32,
    pub vocab_size: usize,
    /// First of the ids that are likelier than any other.
    pub favoured_from: u64,
    /// The model: another seed gives other answers.
    pub seed: u64,
    /// Blocks of host memory.
    pub host_blocks: u32,
    /// Looks at a swap under way before it is done. Contents are copied at the last of them, so that
    /// whoever does not wait gets others.
    pub swap_looks: u32,
}

pub const SHAPE: Shape = Shape {
    tokens_per_block: 4,
    blocks_total: 48,
    context_tokens: 128,
    vocab_size: 1024,
    favoured_from: 1024,
    seed: 0,
    host_blocks: 24,
    swap_looks: 0,
};

/// Faults to come, each with the number of steps until then, from 1. Shared by all lives.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Vec<(u32, StepFault)>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepFault {
    Error,
    Panic,
}

impl Faults {
    pub fn after(steps: &[(u32, StepFault)]) -> Self {
        Self(Arc::new(Mutex::new(steps.to_vec())))
    }

    fn next(&self) -> Option<StepFault> {
        let mut faults = self.0.lock().unwrap();
        let (steps, fault) = faults.first_mut()?;
        *steps -= 1;
        if *steps > 0 {
            return None;
        }
        let fault = *fault;
        faults.remove(0);
        Some(fault)
    }
}

pub struct ScriptedBackend {
    shape: Shape,
    /// A number for each position of each block.
    pool: Vec<Option<u64>>,
    /// The same of host memory.
    arena: Vec<Option<u64>>,
    /// The hidden states that the last step was asked for.
    hidden: Vec<f32>,
    swaps: SwapsAtOnce,
    begun: SwapTicket,
    under_way: VecDeque<Swap>,
    faults: Faults,
}

/// A swap under way.
struct Swap {
    direction: SwapDirection,
    copies: Vec<BlockCopy>,
    looks_left: u32,
}

impl ScriptedBackend {
    pub fn new(shape: Shape) -> Self {
        Self::failing(shape, Faults::default())
    }

    pub fn failing(shape: Shape, faults: Faults) -> Self {
        let positions = |blocks| vec![None; (blocks * shape.tokens_per_block) as usize];
        Self {
            shape,
            pool: positions(shape.blocks_total),
            arena: positions(shape.host_blocks),
            hidden: Vec::new(),
            swaps: SwapsAtOnce::default(),
            begun: SwapTicket::default(),
            under_way: VecDeque::new(),
            faults,
        }
    }

    /// Makes the copies of a swap.
    fn copy(&mut self, swap: &Swap) {
        let per_block = self.shape.tokens_per_block as usize;
        let range = |block: u32| block as usize * per_block..(block as usize + 1) * per_block;
        for BlockCopy { host, block } in &swap.copies {
            let pool = &mut self.pool[range(block.0)];
            let arena = &mut self.arena[range(host.0)];
            match swap.direction {
                SwapDirection::Out => arena.copy_from_slice(pool),
                SwapDirection::In => pool.copy_from_slice(arena),
            }
        }
    }

    fn place(&self, blocks: &[BlockId], position: u32) -> usize {
        let per_block = self.shape.tokens_per_block;
        let block = blocks[(position / per_block) as usize];
        assert!(block.0 < self.shape.blocks_total, "{block} is no block");
        (block.0 * per_block + position % per_block) as usize
    }

    fn write(&mut self, chunk: &Chunk<'_>) {
        assert!(!chunk.tokens.is_empty(), "a chunk without tokens");
        let end = chunk.start + count(chunk.tokens);
        assert!(end <= self.shape.context_tokens, "beyond the context");
        for (position, token) in (chunk.start..).zip(chunk.tokens) {
            let place = self.place(chunk.blocks, position);
            self.pool[place] = Some(self.kv(*token, position));
        }
    }

    fn kv(&self, token: u32, position: u32) -> u64 {
        mix(u64::from(token) << 32 | u64::from(position)) ^ self.shape.seed
    }

    /// The number of a position in KV.
    fn read(&self, chunk: &Chunk<'_>, position: u32) -> u64 {
        let kv = self.pool[self.place(chunk.blocks, position)];
        kv.unwrap_or_else(|| panic!("position {position} is read and was not written"))
    }

    /// A number made of all positions of a sequence.
    fn all(&self, chunk: &Chunk<'_>) -> u64 {
        let last = chunk.start + count(chunk.tokens);
        let all = (0..last).map(|position| self.read(chunk, position));
        all.fold(0, |all, kv| mix(all ^ kv))
    }

    fn hidden_state(&self, chunk: &Chunk<'_>) -> impl Iterator<Item = f32> + use<> {
        let all = self.all(chunk);
        let is_poisoned = self.read(chunk, 0) == self.kv(POISON, 0);
        (0..HIDDEN_SIZE as u64).map(move |idx| match is_poisoned {
            true => f32::NAN,
            false => (mix(all ^ idx) >> 40) as f32 - (1 << 23) as f32,
        })
    }

    fn row(&self, chunk: &Chunk<'_>) -> impl Iterator<Item = f32> + use<> {
        let all = self.all(chunk);
        let is_poisoned = self.read(chunk, 0) == self.kv(POISON, 0);
        let Shape { favoured_from, .. } = self.shape;
        (0..self.shape.vocab_size as u64).map(move |id| match id {
            _ if is_poisoned => f32::NAN,
            // The demo model's end of sequence, now and then.
            4 if all.is_multiple_of(13) => 9.0,
            _ if id >= favoured_from => 20.0,
            _ => (mix(all ^ (id << 32)) >> 40) as f32 / (1 << 21) as f32,
        })
    }
}

impl Backend for ScriptedBackend {
    fn vocab_size(&self) -> usize {
        self.shape.vocab_size
    }

    fn tokens_per_block(&self) -> u32 {
        self.shape.tokens_per_block
    }

    fn blocks_total(&self) -> u32 {
        self.shape.blocks_total
    }

    fn context_tokens(&self) -> u32 {
        self.shape.context_tokens
    }

    fn forward(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        match self.faults.next() {
            Some(StepFault::Error) => {
                return Err(DeviceError("the device fell off the bus".into()));
            }
            Some(StepFault::Panic) => burn(),
            None => {}
        }
        logits.clear();
        for chunk in chunks {
            self.write(chunk);
        }
        // Read after everything was written: so what one chunk writes into another's blocks shows.
        for chunk in chunks.iter().filter(|c| c.logits == Logits::Last) {
            logits.extend(self.row(chunk));
        }
        self.hidden.clear();
        for chunk in chunks.iter().filter(|c| c.logits == Logits::Hidden) {
            let hidden = self.hidden_state(chunk);
            self.hidden.extend(hidden);
        }
        Ok(())
    }

    fn hidden_size(&self) -> usize {
        HIDDEN_SIZE
    }

    fn hidden(&mut self, hidden: &mut Vec<f32>) -> Result<(), DeviceError> {
        hidden.clone_from(&self.hidden);
        Ok(())
    }

    fn swap(
        &mut self,
        direction: SwapDirection,
        copies: &[BlockCopy],
    ) -> Result<SwapTicket, DeviceError> {
        self.under_way.push_back(Swap {
            direction,
            copies: copies.to_vec(),
            looks_left: self.shape.swap_looks,
        });
        self.begun.0 += 1;
        Ok(self.begun)
    }

    fn swapped(&mut self, wait: SwapWait) -> Result<SwapTicket, DeviceError> {
        while let Some(swap) = self.under_way.front_mut() {
            if swap.looks_left > 0 && wait == SwapWait::No {
                swap.looks_left -= 1;
                break;
            }
            if let Some(swap) = self.under_way.pop_front() {
                self.copy(&swap);
                self.swaps.count();
            }
            if wait == SwapWait::ForNext {
                break;
            }
        }
        Ok(self.swaps.last())
    }
}

fn burn() {
    panic!("the kernel met a NaN")
}

fn count(tokens: &[u32]) -> u32 {
    u32::try_from(tokens.len()).unwrap()
}

/// Scatters: any such function would do.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    let x = (x ^ (x >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d);
    x ^ (x >> 33)
}
