//! A row of logits is the same, bit by bit, whatever else happens in the engine.
//!
//! Each sequence runs alone first, one token after the other. Then all run together under a random
//! schedule: prompts cut at random, any of them together in a step, blocks from all over the pool, blocks that they
//! share, and sequences that lose their blocks and begin anew. Blocks that nobody has are full of NaN.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pointsman_engine::backend::{Backend, Chunk, KvBlocks, KvShape, Logits};
use pointsman_engine::cpu::{Cores, CpuBackend, KvMemory, Processors, kv_bytes_per_token};
use pointsman_engine::test_util::schedules::{
    Evictions, Solo, WithPoison, check, check_evicting, run_all_alone, run_all_alone_alike, shape,
};
use pointsman_engine::test_util::{logits, logits_on};
use pointsman_events::BlockId;
use pointsman_model::host::HostModel;
use pointsman_model::test_util::models;
use safetensors::Dtype;
use serde_json::json;

fn backend(model: &Arc<HostModel>, shape: KvShape, threads: usize) -> CpuBackend {
    let processors = match NonZeroUsize::new(threads).unwrap() {
        NonZeroUsize::MIN => Processors::of_caller(),
        threads => Processors::start("cpu", threads, None).unwrap(),
    };
    CpuBackend::new(Arc::clone(model), shape, processors)
}

/// A backend whose device has so many blocks of host memory.
fn backend_with_arena(model: &Arc<HostModel>, shape: KvShape, host_blocks: u32) -> CpuBackend {
    let blocks = KvBlocks {
        host: host_blocks,
        ..shape.blocks(kv_bytes_per_token(model.config()))
    };
    let memory = KvMemory::new(blocks);
    CpuBackend::on(memory, Arc::clone(model), shape, Processors::of_caller())
}

/// Runs random sequences of these lengths alone.
fn alone(model: &Arc<HostModel>, lengths: &[usize], seed: u64) -> Vec<Solo> {
    let make = |shape| Box::new(backend(model, shape, 1)) as Box<dyn WithPoison>;
    run_all_alone(&make, lengths, seed)
}

#[test]
fn the_demo_model_under_any_schedule_gives_the_rows_of_solo_runs() {
    let model = models::demo();
    let solos = alone(&model, &[1, 9, 16, 17, 40, 64, 90, 130], 0);
    for (seed, tokens_per_block) in [(1, 16), (2, 16), (3, 7)] {
        let mut backend = backend(&model, shape(&solos, tokens_per_block), 1);
        check(&solos, &mut backend, seed);
    }
}

#[test]
fn models_of_every_shape_under_any_schedule_give_the_rows_of_solo_runs() {
    for (config, seed) in models::shapes().iter().zip(10..) {
        let model = models::load(config, &models::tensors(config, seed), Dtype::BF16);
        let solos = alone(&model, &[5, 16, 33, 70], seed);
        check(&solos, &mut backend(&model, shape(&solos, 16), 1), seed);
        check(
            &solos,
            &mut backend(&model, shape(&solos, 3), 1),
            seed + 100,
        );
    }
}

#[test]
fn sequences_that_come_back_from_host_memory_give_the_rows_of_solo_runs() {
    let model = models::demo();
    let solos = alone(&model, &[1, 9, 16, 40, 90, 130], 40);
    let host_blocks = 40;
    for (seed, tokens_per_block) in [(41, 16), (42, 7)] {
        for evictions in [
            Evictions::SwapAtEveryStep(host_blocks),
            Evictions::ToEither(host_blocks),
        ] {
            let shape = shape(&solos, tokens_per_block);
            let mut backend = backend_with_arena(&model, shape, host_blocks);
            check_evicting(&solos, &mut backend, evictions, seed);
        }
    }
}

#[test]
fn sequences_that_are_computed_again_at_every_step_give_the_rows_of_solo_runs() {
    let model = models::demo();
    let solos = alone(&model, &[1, 9, 16, 40, 90, 130], 50);
    for (seed, tokens_per_block) in [(51, 16), (52, 7)] {
        let mut backend = backend(&model, shape(&solos, tokens_per_block), 1);
        check_evicting(&solos, &mut backend, Evictions::RecomputeAtEveryStep, seed);
    }
}

#[test]
fn sequences_that_find_their_beginning_in_a_cache_give_the_rows_of_solo_runs() {
    let model = models::demo();
    let make = |shape| Box::new(backend(&model, shape, 1)) as Box<dyn WithPoison>;
    let (host_blocks, mut shared) = (40, 0);
    // They part within a block.
    let solos = run_all_alone_alike(&make, &[5, 33, 40, 60, 90, 130], 38, 60);
    for (seed, tokens_per_block) in [(61, 16), (62, 7), (63, 3)] {
        for evictions in [Evictions::ToRecompute, Evictions::ToEither(host_blocks)] {
            let shape = shape(&solos, tokens_per_block);
            let mut backend = backend_with_arena(&model, shape, host_blocks);
            shared += check_evicting(&solos, &mut backend, evictions, seed);
        }
    }
    assert!(shared > 20, "{shared} blocks were shared");
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let model = models::demo();
    let solos = alone(&model, &[250, 120, 180], 20);
    check(&solos, &mut backend(&model, shape(&solos, 16), 3), 20);
}

#[test]
fn vector_instructions_change_nothing() {
    let model = models::demo();
    let solos = alone(&model, &[12, 30], 30);
    let backend_of = |shape| backend(&model, shape, 1).without_vector_instructions();
    check(&solos, &mut backend_of(shape(&solos, 16)), 30);
    for (config, seed) in models::shapes().iter().zip(31..) {
        let model = models::load(config, &models::tensors(config, seed), Dtype::F32);
        let solos = alone(&model, &[21, 13], seed);
        let backend = backend(&model, shape(&solos, 5), 1);
        check(&solos, &mut backend.without_vector_instructions(), seed);
    }
}

#[test]
fn a_token_takes_memory_for_keys_and_values_in_every_layer() {
    let config = models::config(json!({}));
    let model = models::load(&config, &models::tensors(&config, 0), Dtype::BF16);
    assert_eq!(kv_bytes_per_token(model.config()), 2 * 2 * 2 * 12 * 4);
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

#[test]
#[cfg(target_os = "linux")]
fn steps_on_some_cores_give_the_same_rows_and_run_nowhere_else() {
    let first = Cores::usable().unwrap().to_string();
    let first: Cores = first.split(['-', ',']).next().unwrap().parse().unwrap();
    let (model, cores) = (models::demo(), Some(first.clone()));
    let processors = Processors::start("held", NonZeroUsize::MIN, cores).unwrap();
    let (rows, held) = std::thread::scope(|scope| {
        let computed = || (logits_on(processors, Arc::clone(&model)), Cores::usable());
        scope.spawn(computed).join().unwrap()
    });
    assert_eq!(rows, logits(model));
    // Steps this small are computed on the caller's own thread.
    assert_eq!(held, Some(first));
}
