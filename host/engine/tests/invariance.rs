//! A row of logits is the same, bit by bit, whatever else happens in the engine.
//!
//! Each sequence runs alone first, one token after the other. Then all run together under a random
//! schedule: prompts cut at random, any of them together in a step, blocks from all over the pool,
//! and sequences that lose their blocks and begin anew. Blocks that nobody has are full of NaN.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot set itself up has failed, and one that fails shows its seed"
)]

mod models;

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fastrand::Rng;
use pointsman_core::BlockId;
use pointsman_engine::cpu::{CpuBackend, CpuModel, KvShape, Processors};
use pointsman_engine::model::backend::{Backend, Chunk, Logits};
use safetensors::Dtype;
use serde_json::json;

/// A sequence and the bits of its logits after every token.
struct Solo {
    tokens: Vec<u32>,
    rows: Vec<Vec<u32>>,
}

/// A sequence under a schedule.
struct Running<'a> {
    solo: &'a Solo,
    done: usize,
    blocks: Vec<BlockId>,
    evictions_left: u32,
}

/// A sequence's part in a step.
struct Turn {
    index: usize,
    tokens: usize,
    logits: Logits,
}

fn backend(model: &Arc<CpuModel>, shape: KvShape, threads: usize) -> CpuBackend {
    let processors = match NonZeroUsize::new(threads).unwrap() {
        NonZeroUsize::MIN => Processors::of_caller(),
        threads => Processors::start("cpu", threads).unwrap(),
    };
    CpuBackend::new(Arc::clone(model), shape, processors)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn as_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap()
}

fn run_alone(model: &Arc<CpuModel>, tokens: Vec<u32>) -> Solo {
    let shape = KvShape {
        tokens_per_block: 16,
        blocks_total: as_u32(tokens.len().div_ceil(16)),
    };
    let mut backend = backend(model, shape, 1);
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

fn run_all_alone(model: &Arc<CpuModel>, lengths: &[usize], rng: &mut Rng) -> Vec<Solo> {
    let vocab_size = as_u32(model.config().vocab_size);
    let sequences = lengths.iter().map(|length| {
        let tokens = (0..*length).map(|_| rng.u32(..vocab_size)).collect();
        run_alone(model, tokens)
    });
    sequences.collect()
}

/// Returns the shape of a pool with just enough blocks for all.
fn shape(solos: &[Solo], tokens_per_block: usize) -> KvShape {
    let needed = solos
        .iter()
        .map(|solo| solo.tokens.len().div_ceil(tokens_per_block));
    KvShape {
        tokens_per_block: as_u32(tokens_per_block),
        blocks_total: as_u32(needed.sum()),
    }
}

/// Runs `solos` together, and compares every row that is asked for.
fn check(solos: &[Solo], mut backend: CpuBackend, seed: u64) {
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let mut free: Vec<BlockId> = (0..backend.blocks_total()).map(BlockId).collect();
    backend.poison(&free);
    rng.shuffle(&mut free);
    let running = solos.iter().map(|solo| Running {
        solo,
        done: 0,
        blocks: Vec::new(),
        evictions_left: 2,
    });
    let mut running: Vec<Running<'_>> = running.collect();
    let mut logits = Vec::new();
    while running
        .iter()
        .any(|sequence| sequence.done < sequence.solo.tokens.len())
    {
        evict(&mut running, &mut backend, &mut free, &mut rng);
        let turns = turns(
            &mut running,
            backend.tokens_per_block(),
            &mut free,
            &mut rng,
        );
        let chunks: Vec<Chunk<'_>> = turns.iter().map(|turn| turn.chunk(&running)).collect();
        backend.forward(&chunks, &mut logits).unwrap();
        let mut rows = logits.chunks_exact(backend.vocab_size());
        for turn in turns {
            let sequence = &mut running[turn.index];
            sequence.done += turn.tokens;
            if turn.logits == Logits::Last {
                let expected = &sequence.solo.rows[sequence.done - 1];
                let same = bits(rows.next().unwrap()) == *expected;
                let (index, done) = (turn.index, sequence.done);
                assert!(same, "seed {seed}, sequence {index}, after {done} tokens");
            }
        }
        assert_eq!(rows.len(), 0);
    }
}

/// Takes the blocks of some sequence, now and then.
fn evict(
    running: &mut [Running<'_>],
    backend: &mut CpuBackend,
    free: &mut Vec<BlockId>,
    rng: &mut Rng,
) {
    let victim = &mut running[rng.usize(..running.len())];
    if rng.u32(..4) == 0 && victim.evictions_left > 0 && victim.done > 1 {
        victim.evictions_left -= 1;
        victim.done = 0;
        backend.poison(&victim.blocks);
        free.append(&mut victim.blocks);
        rng.shuffle(free);
    }
}

/// Chooses the turns of a step, and gives blocks for them.
fn turns(
    running: &mut [Running<'_>],
    tokens_per_block: u32,
    free: &mut Vec<BlockId>,
    rng: &mut Rng,
) -> Vec<Turn> {
    let mut turns = Vec::new();
    for (index, sequence) in running.iter_mut().enumerate() {
        let left = sequence.solo.tokens.len() - sequence.done;
        if left == 0 || rng.u32(..4) == 0 {
            continue;
        }
        let most = if rng.u32(..6) == 0 { 60 } else { 7 };
        let tokens = rng.usize(1..=most).min(left);
        let needed = as_u32(sequence.done + tokens).div_ceil(tokens_per_block);
        while as_u32(sequence.blocks.len()) < needed {
            sequence.blocks.push(free.pop().unwrap());
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

#[test]
fn the_demo_model_under_any_schedule_gives_the_rows_of_solo_runs() {
    let model = models::demo();
    let solos = run_all_alone(
        &model,
        &[1, 9, 16, 17, 40, 64, 90, 130],
        &mut Rng::with_seed(0),
    );
    for (seed, tokens_per_block) in [(1, 16), (2, 16), (3, 7)] {
        check(
            &solos,
            backend(&model, shape(&solos, tokens_per_block), 1),
            seed,
        );
    }
}

#[test]
fn models_of_every_shape_under_any_schedule_give_the_rows_of_solo_runs() {
    for (config, seed) in models::shapes().iter().zip(10..) {
        let model = models::load(config, &models::tensors(config, seed), Dtype::BF16);
        let solos = run_all_alone(&model, &[5, 16, 33, 70], &mut Rng::with_seed(seed));
        check(&solos, backend(&model, shape(&solos, 16), 1), seed);
        check(&solos, backend(&model, shape(&solos, 3), 1), seed + 100);
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let model = models::demo();
    let solos = run_all_alone(&model, &[250, 120, 180], &mut Rng::with_seed(20));
    check(&solos, backend(&model, shape(&solos, 16), 3), 20);
}

#[test]
fn vector_instructions_change_nothing() {
    let model = models::demo();
    let solos = run_all_alone(&model, &[12, 30], &mut Rng::with_seed(30));
    let backend_of = |shape| backend(&model, shape, 1).without_vector_instructions();
    check(&solos, backend_of(shape(&solos, 16)), 30);
    for (config, seed) in models::shapes().iter().zip(31..) {
        let model = models::load(config, &models::tensors(config, seed), Dtype::F32);
        let solos = run_all_alone(&model, &[21, 13], &mut Rng::with_seed(seed));
        let backend = backend(&model, shape(&solos, 5), 1);
        check(&solos, backend.without_vector_instructions(), seed);
    }
}

#[test]
fn a_token_takes_memory_for_keys_and_values_in_every_layer() {
    let config = models::config(json!({}));
    let model = models::load(&config, &models::tensors(&config, 0), Dtype::BF16);
    assert_eq!(model.kv_bytes_per_token(), 2 * 2 * 2 * 12 * 4);
}

#[test]
fn a_sequence_that_reads_a_block_it_did_not_write_gets_nan() {
    let config = models::config(json!({}));
    let model = models::load(&config, &models::tensors(&config, 0), Dtype::BF16);
    let mut backend = backend(
        &model,
        KvShape {
            tokens_per_block: 4,
            blocks_total: 3,
        },
        1,
    );
    backend.poison(&[BlockId(1)]);
    let mut run = |blocks: &[BlockId]| {
        let mut logits = Vec::new();
        let chunk = Chunk {
            tokens: &[7, 8],
            start: 4,
            blocks,
            logits: Logits::Last,
        };
        backend.forward(&[chunk], &mut logits).unwrap();
        logits
    };
    assert!(
        run(&[BlockId(1), BlockId(2)])
            .iter()
            .all(|logit| logit.is_nan())
    );
    assert!(
        run(&[BlockId(0), BlockId(2)])
            .iter()
            .all(|logit| logit.is_finite())
    );
}

#[test]
fn a_step_of_nothing_gives_nothing() {
    let config = models::config(json!({}));
    let model = models::load(&config, &models::tensors(&config, 0), Dtype::BF16);
    let mut backend = backend(
        &model,
        KvShape {
            tokens_per_block: 4,
            blocks_total: 3,
        },
        1,
    );
    let mut logits = vec![1.0];
    backend.forward(&[], &mut logits).unwrap();
    assert!(logits.is_empty());
}

#[test]
fn a_chunk_that_breaks_the_contract_is_a_bug() {
    let config = models::config(json!({"max_position_embeddings": 10}));
    let model = models::load(&config, &models::tensors(&config, 0), Dtype::BF16);
    let (zero, two, nine) = (BlockId(0), BlockId(2), BlockId(9));
    let cases: [(&[u32], u32, &[BlockId], &str); 5] = [
        (&[], 0, &[zero], "a chunk has tokens"),
        (
            &[1, 1],
            9,
            &[zero, zero, two],
            "position 11 is beyond the context of 10 tokens",
        ),
        (
            &[1],
            4,
            &[zero],
            "5 tokens need 2 blocks, and the block table has 1",
        ),
        (&[99], 0, &[zero], "token 99 is not in the vocabulary of 99"),
        (&[1], 0, &[nine], "block 9 is not in the pool of 3"),
    ];
    for (tokens, start, blocks, expected) in cases {
        let mut backend = backend(
            &model,
            KvShape {
                tokens_per_block: 4,
                blocks_total: 3,
            },
            1,
        );
        let logits = Logits::None;
        let chunk = Chunk {
            tokens,
            start,
            blocks,
            logits,
        };
        let run = AssertUnwindSafe(|| backend.forward(&[chunk], &mut Vec::new()));
        let panic = catch_unwind(run).unwrap_err();
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or(panic.downcast_ref::<&str>().copied());
        assert_eq!(said, Some(expected));
    }
}
