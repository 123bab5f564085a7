//! Sequences under random schedules, whose rows of logits must be those of solo runs: bit by bit, but for a device
//! on which sums depend on the number of rows.

use fastrand::Rng;
use pointsman_events::{BlockCopy, BlockId, HostBlockId};

use crate::backend::{Backend, Chunk, KvShape, Logits, SwapDirection, SwapWait, to_usize};
use crate::cpu::CpuBackend;

/// A sequence and the bits of its logits after every token.
#[derive(Debug)]
pub struct Solo {
    tokens: Vec<u32>,
    rows: Vec<Vec<u32>>,
}

/// A sequence under a schedule.
struct Running<'a> {
    solo: &'a Solo,
    done: usize,
    blocks: Vec<BlockId>,
    /// Its KV in host memory, while it has no blocks.
    swapped: Vec<HostBlockId>,
    /// Tokens that its next turn has to compute again, before any that are new.
    again: usize,
    evictions_left: u32,
}

/// The blocks that nobody has.
struct Free {
    blocks: Vec<BlockId>,
    host_blocks: Vec<HostBlockId>,
    /// The number of sequences that have each block of the pool.
    holders: Vec<u32>,
}

/// The evictions of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evictions {
    /// Some sequence is evicted now and then, to be computed again.
    ToRecompute,
    /// All that are not at their ends are evicted after every step, and computed again with their next tokens.
    RecomputeAtEveryStep,
    /// As [`Self::ToRecompute`], but as often it is moved to host memory, which has so many blocks.
    ToEither(u32),
    /// All are moved to host memory after every step, which has so many blocks.
    SwapAtEveryStep(u32),
}

/// A sequence's part in a step.
struct Turn {
    index: usize,
    tokens: usize,
    logits: Logits,
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The largest difference between a row and its bits elsewhere, as a part of the largest logit.
fn deviation(row: &[f32], expected: &[u32]) -> f32 {
    if bits(row) == expected {
        return 0.0;
    }
    let largest =
        |numbers: &mut dyn Iterator<Item = f32>| numbers.map(f32::abs).fold(0.0, f32::max);
    let expected = || expected.iter().map(|bits| f32::from_bits(*bits));
    let differences = row.iter().zip(expected()).map(|(a, b)| a - b);
    // A difference that is no number is none to be found: there must be no such logit.
    match row.iter().all(|logit| logit.is_finite()) {
        true => largest(&mut differences.into_iter()) / largest(&mut expected()),
        false => f32::INFINITY,
    }
}

fn as_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap()
}

/// A backend with blocks that can be filled with NaN, so that logits show if a position is read before
/// it is written.
pub trait WithPoison: Backend {
    /// The part of a row's largest logit by which its logits may be others under another schedule; 0: the bits
    /// are the same.
    fn deviation_max(&self) -> f32 {
        0.0
    }

    /// Fills blocks with NaN.
    fn poison(&mut self, blocks: &[BlockId]);
}

impl WithPoison for CpuBackend {
    fn poison(&mut self, blocks: &[BlockId]) {
        self.poison(blocks);
    }
}

/// A maker of backends of one model, with an empty pool of the shape that is asked for.
pub type MakeBackend<'a> = &'a dyn Fn(KvShape) -> Box<dyn WithPoison>;

/// Runs a sequence alone, one token after the other.
fn run_alone(make: MakeBackend<'_>, tokens: Vec<u32>) -> Solo {
    let shape = KvShape {
        tokens_per_block: 16,
        blocks_total: as_u32(tokens.len().div_ceil(16)),
    };
    let mut backend = make(shape);
    let blocks: Vec<BlockId> = (0..shape.blocks_total).map(BlockId).collect();
    let mut logits = Vec::new();
    let rows = (0..tokens.len()).map(|position| {
        let chunk = Chunk {
            tokens: &tokens[position..=position],
            start: as_u32(position),
            blocks: &blocks,
            logits: Logits::Last,
        };
        backend.forward(&[chunk], &mut logits).unwrap();
        assert!(logits.iter().all(|logit| logit.is_finite()));
        bits(&logits)
    });
    let rows = rows.collect();
    Solo { tokens, rows }
}

/// Runs random sequences of these lengths, each alone.
pub fn run_all_alone(make: MakeBackend<'_>, lengths: &[usize], seed: u64) -> Vec<Solo> {
    run_all_alone_alike(make, lengths, 0, seed)
}

/// The same for sequences whose first `tokens_alike` tokens are those of all, so that they can share blocks.
pub fn run_all_alone_alike(
    make: MakeBackend<'_>,
    lengths: &[usize],
    tokens_alike: usize,
    seed: u64,
) -> Vec<Solo> {
    let mut rng = Rng::with_seed(seed);
    let one = KvShape {
        tokens_per_block: 16,
        blocks_total: 1,
    };
    let vocab_size = as_u32(make(one).vocab_size());
    let mut some = |n: usize| -> Vec<u32> { (0..n).map(|_| rng.u32(..vocab_size)).collect() };
    let beginning = some(tokens_alike);
    let sequences = lengths.iter().map(|length| {
        let mut tokens = beginning[..tokens_alike.min(*length)].to_vec();
        tokens.extend(some(*length - tokens.len()));
        run_alone(make, tokens)
    });
    sequences.collect()
}

/// Returns the shape of a pool with just enough blocks for all.
pub fn shape(solos: &[Solo], tokens_per_block: usize) -> KvShape {
    let needed = solos
        .iter()
        .map(|solo| solo.tokens.len().div_ceil(tokens_per_block));
    KvShape {
        tokens_per_block: as_u32(tokens_per_block),
        blocks_total: as_u32(needed.sum()),
    }
}

/// Runs `solos` together under a schedule, and compares every row that is asked for.
///
/// # Panics
/// With the first row that differs.
pub fn check(solos: &[Solo], backend: &mut dyn WithPoison, seed: u64) {
    check_evicting(solos, backend, Evictions::ToRecompute, seed);
}

/// The same with these evictions. Returns the number of blocks that sequences had from others with the same beginning.
///
/// # Panics
/// With the first row that differs.
pub fn check_evicting(
    solos: &[Solo],
    backend: &mut dyn WithPoison,
    evictions: Evictions,
    seed: u64,
) -> usize {
    let mut rng = Rng::with_seed(seed);
    let mut free = Free::new(backend, evictions, &mut rng);
    let running = solos.iter().map(|solo| Running {
        solo,
        done: 0,
        blocks: Vec::new(),
        swapped: Vec::new(),
        again: 0,
        evictions_left: 2,
    });
    let mut running: Vec<Running<'_>> = running.collect();
    let (mut shared, mut logits) = (0, Vec::new());
    while running
        .iter()
        .any(|sequence| sequence.done < sequence.solo.tokens.len())
    {
        evict(&mut running, backend, (&mut free, evictions), &mut rng);
        shared += share(&mut running, &mut free, backend.tokens_per_block());
        let turns = turns(&mut running, backend, &mut free, &mut rng);
        let chunks: Vec<Chunk<'_>> = turns.iter().map(|turn| turn.chunk(&running)).collect();
        backend.forward(&chunks, &mut logits).unwrap();
        let mut rows = logits.chunks_exact(backend.vocab_size());
        for turn in turns {
            let sequence = &mut running[turn.index];
            sequence.done += turn.tokens;
            if turn.logits == Logits::Last {
                let expected = &sequence.solo.rows[sequence.done - 1];
                let deviation = deviation(rows.next().unwrap(), expected);
                let (index, done) = (turn.index, sequence.done);
                assert!(
                    deviation <= backend.deviation_max(),
                    "schedule of seed {seed}, sequence {index}, after {done} tokens: {deviation}"
                );
            }
        }
        assert_eq!(rows.len(), 0);
    }
    shared
}

impl Free {
    /// All blocks of a backend, full of NaN.
    fn new(backend: &mut dyn WithPoison, evictions: Evictions, rng: &mut Rng) -> Self {
        let mut blocks: Vec<BlockId> = (0..backend.blocks_total()).map(BlockId).collect();
        backend.poison(&blocks);
        rng.shuffle(&mut blocks);
        let host_blocks = match evictions {
            Evictions::ToRecompute | Evictions::RecomputeAtEveryStep => 0,
            Evictions::ToEither(host_blocks) | Evictions::SwapAtEveryStep(host_blocks) => {
                host_blocks
            }
        };
        Self {
            blocks,
            host_blocks: (0..host_blocks).map(HostBlockId).collect(),
            holders: vec![0; to_usize(backend.blocks_total())],
        }
    }

    /// Gives a sequence a block of its own.
    fn give(&mut self, sequence: &mut Running<'_>) {
        let block = self.blocks.pop().unwrap();
        self.have(sequence, block);
    }

    /// Has a sequence have a block that others may have as well.
    fn have(&mut self, sequence: &mut Running<'_>, block: BlockId) {
        self.holders[to_usize(block.0)] += 1;
        sequence.blocks.push(block);
    }

    /// Takes back the blocks of a sequence. Those that nobody else has are full of NaN then.
    fn take_back(
        &mut self,
        sequence: &mut Running<'_>,
        backend: &mut dyn WithPoison,
        rng: &mut Rng,
    ) {
        let holders = &mut self.holders;
        sequence.blocks.retain(|block| {
            let holders = &mut holders[to_usize(block.0)];
            *holders -= 1;
            *holders == 0
        });
        backend.poison(&sequence.blocks);
        self.blocks.append(&mut sequence.blocks);
        rng.shuffle(&mut self.blocks);
    }
}

/// Takes the blocks of sequences, as the schedule says.
fn evict(
    running: &mut [Running<'_>],
    backend: &mut dyn WithPoison,
    (free, evictions): (&mut Free, Evictions),
    rng: &mut Rng,
) {
    match evictions {
        Evictions::SwapAtEveryStep(_) => {
            for sequence in running {
                swap_out(sequence, backend, free, rng);
            }
        }
        Evictions::RecomputeAtEveryStep => {
            for sequence in running {
                if sequence.done < sequence.solo.tokens.len() {
                    sequence.again = sequence.again.max(sequence.done);
                    sequence.done = 0;
                    free.take_back(sequence, backend, rng);
                }
            }
        }
        Evictions::ToRecompute | Evictions::ToEither(_) => {
            evict_one(running, backend, (free, evictions), rng);
        }
    }
}

/// Takes the blocks of some sequence, now and then.
fn evict_one(
    running: &mut [Running<'_>],
    backend: &mut dyn WithPoison,
    (free, evictions): (&mut Free, Evictions),
    rng: &mut Rng,
) {
    let victim = &mut running[rng.usize(..running.len())];
    if rng.u32(..4) > 0 || victim.evictions_left == 0 || victim.done <= 1 {
        return;
    }
    victim.evictions_left -= 1;
    if evictions != Evictions::ToRecompute && rng.bool() {
        swap_out(victim, backend, free, rng);
        return;
    }
    victim.done = 0;
    free.host_blocks.append(&mut victim.swapped);
    free.take_back(victim, backend, rng);
}

/// Moves a sequence to host memory, if it is not there and there is room.
fn swap_out(
    sequence: &mut Running<'_>,
    backend: &mut dyn WithPoison,
    free: &mut Free,
    rng: &mut Rng,
) {
    let held = sequence.blocks.len();
    if held == 0 || held > free.host_blocks.len() {
        return;
    }
    rng.shuffle(&mut free.host_blocks);
    sequence.swapped = free.host_blocks.split_off(free.host_blocks.len() - held);
    swap(sequence, backend, SwapDirection::Out);
    free.take_back(sequence, backend, rng);
}

/// Gives a sequence its blocks back that is in host memory.
fn swap_in(sequence: &mut Running<'_>, backend: &mut dyn WithPoison, free: &mut Free) {
    for _ in 0..sequence.swapped.len() {
        free.give(sequence);
    }
    if !sequence.swapped.is_empty() {
        swap(sequence, backend, SwapDirection::In);
        free.host_blocks.append(&mut sequence.swapped);
    }
}

fn swap(sequence: &Running<'_>, backend: &mut dyn WithPoison, direction: SwapDirection) {
    let copies = sequence.swapped.iter().zip(&sequence.blocks);
    let copies = copies.map(|(host, block)| BlockCopy {
        host: *host,
        block: *block,
    });
    let ticket = backend
        .swap(direction, &copies.collect::<Vec<_>>())
        .unwrap();
    while backend.swapped(SwapWait::ForNext).unwrap() < ticket {}
}

/// Gives each sequence that is at its beginning the full blocks of the one that has computed most of the same tokens,
/// as a prefix that is found in a cache. Returns the number of blocks.
fn share(running: &mut [Running<'_>], free: &mut Free, tokens_per_block: u32) -> usize {
    let mut shared = 0;
    for index in 0..running.len() {
        let beginner = &running[index];
        if beginner.done > 0 {
            continue;
        }
        // The last token always needs a pass.
        let tokens = beginner.solo.tokens.split_last().unwrap().1;
        let prefix = |other: &Running<'_>| {
            let pairs = other.solo.tokens[..other.done].iter().zip(tokens);
            let alike = pairs.take_while(|(a, b)| a == b).count();
            let full = alike / to_usize(tokens_per_block);
            other.blocks[..full.min(other.blocks.len())].to_vec()
        };
        let longest = running.iter().map(prefix).max_by_key(Vec::len);
        let beginner = &mut running[index];
        for block in longest.unwrap() {
            free.have(beginner, block);
        }
        shared += beginner.blocks.len();
        beginner.done = beginner.blocks.len() * to_usize(tokens_per_block);
    }
    shared
}

/// Chooses the turns of a step, and gives blocks for them.
fn turns(
    running: &mut [Running<'_>],
    backend: &mut dyn WithPoison,
    free: &mut Free,
    rng: &mut Rng,
) -> Vec<Turn> {
    let mut turns = Vec::new();
    for (index, sequence) in running.iter_mut().enumerate() {
        let left = sequence.solo.tokens.len() - sequence.done;
        if left == 0 || rng.u32(..4) == 0 {
            continue;
        }
        swap_in(sequence, backend, free);
        let most = if rng.u32(..6) == 0 { 60 } else { 7 };
        let tokens = (sequence.again + rng.usize(1..=most)).min(left);
        sequence.again = 0;
        let needed = as_u32(sequence.done + tokens).div_ceil(backend.tokens_per_block());
        while as_u32(sequence.blocks.len()) < needed {
            free.give(sequence);
        }
        let logits = if tokens == left || rng.bool() {
            Logits::Last
        } else {
            Logits::None
        };
        turns.push(Turn {
            index,
            tokens,
            logits,
        });
    }
    rng.shuffle(&mut turns);
    turns
}

impl Turn {
    fn chunk<'a>(&self, running: &'a [Running<'_>]) -> Chunk<'a> {
        let sequence = &running[self.index];
        Chunk {
            tokens: &sequence.solo.tokens[sequence.done..][..self.tokens],
            start: as_u32(sequence.done),
            blocks: &sequence.blocks,
            logits: self.logits,
        }
    }
}
