//! Steps of models of any shape, with numbers that look random.

use std::ops::Range;

use fastrand::Rng;
use half::bf16;
use pointsman_cuda::ops_case::{OpsCase, OpsDevice};
use pointsman_engine::backend::{Chunk, KvShape, Logits};
use pointsman_events::BlockId;
use pointsman_model::config::LlamaConfig;
use pointsman_model::test_util::models;
use pointsman_model::weights::{Matrix, Values};
use serde_json::{Value, json};

/// Longest sequence of a model, in tokens.
const CONTEXT: u32 = 2048;

/// A step of a model.
pub(crate) struct Step {
    pub(crate) config: LlamaConfig,
    pub(crate) sequences: Vec<Sequence>,
    shape: KvShape,
    /// Numbers in a block of the pool.
    block_size: usize,
}

/// A sequence with its tokens in the step.
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<u32>,
    pub(crate) start: u32,
    pub(crate) logits: Logits,
    blocks: Vec<BlockId>,
}

/// The keys of a head, or its values, in a layer.
#[derive(Clone, Copy)]
pub(crate) struct HeadAt {
    pub(crate) layer: usize,
    pub(crate) half: Half,
    pub(crate) head: usize,
}

#[derive(Clone, Copy)]
pub(crate) enum Half {
    Keys,
    Values,
}

// === Models ===

/// A model that is small where it is not changed.
pub(crate) fn config(changes: Value) -> LlamaConfig {
    let mut config = models::config(changes);
    config["max_position_embeddings"] = json!(CONTEXT);
    LlamaConfig::parse(config.to_string().as_bytes()).unwrap()
}

/// A layer of Llama 3.2 1B, and one of Llama 3.1 8B.
pub(crate) fn llamas() -> [LlamaConfig; 2] {
    [(2048, 8192, 64), (4096, 14_336, 128)].map(|(hidden, inner, head_dim)| {
        config(json!({
            "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": head_dim, "num_hidden_layers": 1,
        }))
    })
}

/// A model with any number of heads, of which any number share one of keys. Heads are as wide as one of the kernels of
/// attention has them, another in each round.
pub(crate) fn any_heads(rng: &mut Rng, round: usize) -> LlamaConfig {
    let kv_heads = rng.usize(1..4);
    let group = *rng
        .choice(&[1_usize, 2, 3, 4, 5, 7, 8, 16, 17, 33])
        .unwrap();
    let eights = [1..=4, 5..=8, 9..=16][round % 3].clone();
    config(json!({
        "num_attention_heads": kv_heads * group, "num_key_value_heads": kv_heads,
        "head_dim": 8 * rng.usize(eights), "num_hidden_layers": rng.usize(1..4),
    }))
}

// === Numbers ===

/// The nearest number that bf16 has.
pub(crate) fn rounded(number: f32) -> f32 {
    bf16::from_f32(number).to_f32()
}

/// Numbers up to so large, which bf16 has.
pub(crate) fn numbers(rng: &mut Rng, count: usize, largest: f32) -> Vec<f32> {
    let any = std::iter::repeat_with(|| rounded((rng.f32() * 2.0 - 1.0) * largest));
    any.take(count).collect()
}

/// A matrix of numbers up to 1.
pub(crate) fn matrix(rng: &mut Rng, rows: usize, cols: usize) -> Matrix {
    let any = std::iter::repeat_with(|| bf16::from_f32(rng.f32() * 2.0 - 1.0));
    let values = Values::Bf16(any.take(rows * cols).collect());
    Matrix { cols, values }
}

/// The rows of such a matrix.
pub(crate) fn rows_of(matrix: &Matrix) -> Vec<&[bf16]> {
    match &matrix.values {
        Values::Bf16(numbers) => numbers.chunks_exact(matrix.cols).collect(),
        Values::F32(_) => panic!("matrices are made in bf16"),
    }
}

// === impl Step ===

impl Step {
    /// A step with so many tokens of each sequence, from a position on. Blocks of sequences lie anywhere in the pool, and
    /// may have more room than the model needs.
    pub(crate) fn new(rng: &mut Rng, config: LlamaConfig, parts: &[(u32, u32)]) -> Self {
        let slots = *rng.choice(&[16_u32, 16, 32, 5]).unwrap();
        let needed = |(start, count): (u32, u32)| (start + count).div_ceil(slots);
        // Some are nobody's.
        let total = parts.iter().map(|part| needed(*part)).sum::<u32>() + 2;
        let mut free: Vec<BlockId> = (0..total).map(BlockId).collect();
        rng.shuffle(&mut free);
        let vocab_size = u32::try_from(config.vocab_size).unwrap();
        let any_logits = [Logits::None, Logits::Last, Logits::Kept, Logits::Hidden];
        let sequences = parts.iter().map(|(start, count)| Sequence {
            tokens: (0..*count).map(|_| rng.u32(..vocab_size)).collect(),
            start: *start,
            logits: rng.choice(any_logits).unwrap(),
            blocks: free.split_off(free.len() - needed((*start, *count)) as usize),
        });
        let sequences: Vec<Sequence> = sequences.collect();
        let block_size = slots as usize * config.kv_numbers_per_token() + 8 * rng.usize(..3);
        let shape = KvShape {
            tokens_per_block: slots,
            blocks_total: total,
        };
        Self {
            config,
            sequences,
            shape,
            block_size,
        }
    }

    /// Has the operations of the step do something. Its pool is not a number anywhere.
    pub(crate) fn on<T>(&self, device: &OpsDevice, does: impl FnOnce(&mut OpsCase<'_>) -> T) -> T {
        let chunks = self.sequences.iter().map(|sequence| Chunk {
            tokens: &sequence.tokens,
            start: sequence.start,
            blocks: &sequence.blocks,
            logits: sequence.logits,
        });
        let chunks: Vec<Chunk<'_>> = chunks.collect();
        does(&mut OpsCase {
            device,
            config: &self.config,
            shape: self.shape,
            chunks: &chunks,
            pool: self.empty_pool(),
            angles: self.angles(),
        })
    }

    /// The rows of the step: each a sequence and a position in it.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&Sequence, u32)> {
        self.sequences.iter().flat_map(|sequence| {
            let positions = sequence.positions();
            positions.map(move |position| (sequence, position))
        })
    }

    /// For each position the cosines of its angles, then their sines.
    pub(crate) fn angles(&self) -> Vec<f32> {
        let rotation = self.config.rope.rotation(self.config.head_dim);
        let mut angles = Vec::new();
        (0..CONTEXT).for_each(|position| rotation.push(position, &mut angles));
        angles
    }

    /// The place of a head in the pool, at a position of a sequence.
    pub(crate) fn place(&self, sequence: &Sequence, position: u32, at: HeadAt) -> Range<usize> {
        let slots = self.shape.tokens_per_block;
        let block = sequence.blocks[(position / slots) as usize].0 as usize;
        let (slot, slots) = ((position % slots) as usize, slots as usize);
        let half = match at.half {
            Half::Keys => 0,
            Half::Values => 1,
        };
        let head = (at.layer * 2 + half) * self.config.kv_heads + at.head;
        let width = self.config.head_dim;
        let start = block * self.block_size + (head * slots + slot) * width;
        start..start + width
    }

    /// A pool, by the bits of bf16, with keys and values up to 1 in a layer at all positions of the sequences. All else is
    /// not a number.
    pub(crate) fn filled_pool(&self, rng: &mut Rng, layer: usize) -> Vec<u16> {
        let mut pool = self.empty_pool();
        for sequence in &self.sequences {
            for position in (0..sequence.start).chain(sequence.positions()) {
                for half in [Half::Keys, Half::Values] {
                    for head in 0..self.config.kv_heads {
                        let at = HeadAt { layer, half, head };
                        for bits in &mut pool[self.place(sequence, position, at)] {
                            *bits = bf16::from_f32(rng.f32() * 2.0 - 1.0).to_bits();
                        }
                    }
                }
            }
        }
        pool
    }

    fn empty_pool(&self) -> Vec<u16> {
        vec![u16::MAX; self.shape.blocks_total as usize * self.block_size]
    }
}

impl Sequence {
    /// The positions of its tokens in the step.
    fn positions(&self) -> impl Iterator<Item = u32> + use<> {
        (self.start..).take(self.tokens.len())
    }
}
