//! Models that are split over several emulated CUDA devices, against the whole on one and on processors.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::sync::Arc;
use std::thread;

use fastrand::Rng;
use pointsman_cuda::{CudaBackend, CudaRanks, RanksBackend, emulation, kv_bytes_per_token};
use pointsman_engine::backend::{Backend, Chunk, KvBlocks, KvShape, Logits};
use pointsman_engine::cpu::{CpuBackend, Processors};
use pointsman_engine::test_util::schedules::{
    Evictions, WithPoison, check, check_evicting, run_all_alone, shape,
};
use pointsman_engine::test_util::subjects::{KV_SHAPE, Stepped, Threaded, with_arena};
use pointsman_engine::test_util::{largest, last_row};
use pointsman_events::BlockId;
use pointsman_executor::contract_suite;
use pointsman_model::host::HostModel;
use pointsman_model::open::LoadProgress;
use pointsman_model::test_util::models;
use safetensors::Dtype;
use serde_json::{Value, json};

const SHAPE: KvShape = KvShape {
    tokens_per_block: 16,
    blocks_total: 16,
};

/// So many devices, with these blocks. All tests here have four, and none changes that.
fn devices(count: usize, blocks: KvBlocks) -> CudaRanks {
    emulation::install().set_devices(4);
    let ordinals: Vec<usize> = (0..count).collect();
    CudaRanks::new(&ordinals, blocks).unwrap()
}

fn blocks(model: &HostModel, shape: KvShape) -> KvBlocks {
    shape.blocks(kv_bytes_per_token(model.config()))
}

fn on(ranks: &CudaRanks, model: &Arc<HostModel>, shape: KvShape) -> RanksBackend {
    RanksBackend::load(ranks, Arc::clone(model.open()), shape, &mut |_| ()).unwrap()
}

/// A backend of `model` that is alone on so many devices.
fn split(model: &Arc<HostModel>, shape: KvShape, count: usize) -> RanksBackend {
    on(&devices(count, blocks(model, shape)), model, shape)
}

/// The same on one device.
fn whole(model: &Arc<HostModel>, shape: KvShape) -> CudaBackend {
    emulation::install();
    CudaBackend::alone(model.open(), shape).unwrap()
}

/// Configurations that together have everything that a model on devices may have, each with the numbers of devices
/// over which it can be split.
fn shapes() -> Vec<(Value, &'static [usize])> {
    let base = |changes: Value| {
        let mut config = models::config(json!({"head_dim": 16, "intermediate_size": 64}));
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    };
    let four = json!({
        "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": true,
    });
    let biased = json!({"attention_bias": true, "mlp_bias": true});
    let normed = json!({"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 8});
    let wide = json!({"num_attention_heads": 34, "head_dim": 8});
    vec![
        (base(json!({})), &[2]),
        (base(four), &[2, 4]),
        (base(biased), &[2]),
        (base(normed), &[2]),
        (base(wide), &[2]),
    ]
}

/// Compares the logits of random sequences with those of the processors, and with those of one device: the sums are
/// rounded to 8 bits once more for each rank.
fn close(model: &Arc<HostModel>, count: usize, seed: u64, bound: f32) {
    let mut rng = Rng::with_seed(seed);
    let vocab_size = u32::try_from(model.config().vocab_size).unwrap();
    for length in [1, 2, 40, 150] {
        let tokens: Vec<u32> = (0..length).map(|_| rng.u32(..vocab_size)).collect();
        let mut cpu = CpuBackend::new(Arc::clone(model), SHAPE, Processors::of_caller());
        let found = last_row(&mut split(model, SHAPE, count), &tokens);
        for expected in [
            last_row(&mut cpu, &tokens),
            last_row(&mut whole(model, SHAPE), &tokens),
        ] {
            let differences = expected.iter().zip(&found).map(|(a, b)| a - b);
            let part = largest(differences) / largest(expected.iter().copied());
            assert!(part < bound, "{length} tokens on {count}: {part}");
        }
    }
}

#[test]
fn logits_of_the_split_demo_model_are_those_of_the_whole() {
    close(&models::demo(), 2, 1, 0.03);
}

#[test]
fn logits_of_split_models_of_every_shape_are_those_of_the_whole() {
    for ((config, counts), seed) in shapes().iter().zip(1..) {
        for dtype in [Dtype::BF16, Dtype::F32] {
            let model = models::load(config, &models::tensors(config, seed), dtype);
            for count in *counts {
                close(&model, *count, seed, 0.05);
            }
        }
    }
}

/// The likeliest token after each of so many, from the prompt on.
fn greedy(backend: &mut dyn Backend, prompt: &[u32], count: usize) -> Vec<u32> {
    greedy_in(backend, 0, prompt, count)
}

/// The same in the blocks from this one on.
fn greedy_in(backend: &mut dyn Backend, first: u32, prompt: &[u32], count: usize) -> Vec<u32> {
    let table: Vec<BlockId> = (first..backend.blocks_total()).map(BlockId).collect();
    let (mut tokens, mut done, mut logits) = (prompt.to_vec(), 0, Vec::new());
    for _ in 0..count {
        let chunk = Chunk {
            tokens: &tokens[done..],
            start: u32::try_from(done).unwrap(),
            blocks: &table,
            logits: Logits::Last,
        };
        backend.forward(&[chunk], &mut logits).unwrap();
        done = tokens.len();
        let likeliest = (0_u32..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1));
        tokens.push(likeliest.unwrap().0);
    }
    tokens
}

#[test]
fn the_split_demo_model_says_what_the_whole_says() {
    let model = models::demo();
    for prompt in [&[5, 6, 7, 8][..], &[0, 20, 300], &[900, 41, 3, 77, 512]] {
        let together = greedy(&mut split(&model, SHAPE, 2), prompt, 40);
        assert_eq!(together, greedy(&mut whole(&model, SHAPE), prompt, 40));
        assert_eq!(together, greedy(&mut split(&model, SHAPE, 2), prompt, 40));
    }
}

fn make(model: &Arc<HostModel>, count: usize) -> impl Fn(KvShape) -> Box<dyn WithPoison> + use<> {
    let model = Arc::clone(model);
    move |shape| Box::new(split(&model, shape, count))
}

#[test]
fn split_sequences_under_any_schedule_give_the_rows_of_solo_runs() {
    let demo = models::demo();
    let solos = run_all_alone(&make(&demo, 2), &[1, 17, 40, 100], 0);
    check(&solos, &mut split(&demo, shape(&solos, 16), 2), 1);
    check(&solos, &mut split(&demo, shape(&solos, 7), 2), 2);
    for ((config, counts), seed) in shapes().iter().zip(10..) {
        let model = models::load(config, &models::tensors(config, seed), Dtype::BF16);
        for count in *counts {
            let solos = run_all_alone(&make(&model, *count), &[5, 16, 33], seed);
            let mut together = split(&model, shape(&solos, 16), *count);
            check(&solos, &mut together, seed);
        }
    }
}

#[test]
fn split_sequences_that_are_evicted_come_back_from_either_place() {
    let model = models::demo();
    let solos = run_all_alone(&make(&model, 2), &[1, 17, 40], 30);
    for evictions in [
        Evictions::SwapAtEveryStep(8),
        Evictions::ToEither(8),
        Evictions::ToRecompute,
    ] {
        let shape = shape(&solos, 16);
        let with_arena = KvBlocks {
            host: 8,
            ..blocks(&model, shape)
        };
        let mut backend = on(&devices(2, with_arena), &model, shape);
        check_evicting(&solos, &mut backend, evictions, 31);
    }
}

#[test]
fn models_on_the_same_devices_make_their_steps_beside_each_other() {
    let config = models::config(json!({"head_dim": 16, "intermediate_size": 64}));
    let small = models::load(&config, &models::tensors(&config, 3), Dtype::BF16);
    let all = [models::demo(), small];
    let widest = all.each_ref().map(|model| blocks(model, SHAPE));
    let widest = widest
        .into_iter()
        .max_by_key(|blocks| blocks.bytes)
        .unwrap();
    let ranks = devices(2, widest);
    let prompt = [3, 1, 4, 1, 5];
    thread::scope(|scope| {
        // Each has blocks of its own, the first or the last ones.
        for (model, first) in all.iter().zip([0, SHAPE.blocks_total / 2]) {
            let ranks = &ranks;
            scope.spawn(move || {
                let alone = greedy(&mut split(model, SHAPE, 2), &prompt, 60);
                let together = greedy_in(&mut on(ranks, model, SHAPE), first, &prompt, 60);
                assert_eq!(together, alone);
            });
        }
    });
}

#[test]
fn loading_is_told_of_all_ranks_together() {
    let model = models::demo();
    let ranks = devices(2, blocks(&model, SHAPE));
    let mut told: Vec<LoadProgress> = Vec::new();
    let mut tell = |progress| told.push(progress);
    let first = RanksBackend::load(&ranks, Arc::clone(model.open()), SHAPE, &mut tell).unwrap();
    let last = *told.last().unwrap();
    assert_eq!(
        (last.bytes, last.tensors),
        (last.bytes_total, last.tensors_total)
    );
    let all = model.open().to_load();
    // What is not split comes twice.
    assert!(last.bytes_total > all.bytes_total && last.bytes_total < 2 * all.bytes_total);
    assert!(told.iter().all(|it| it.bytes_total == last.bytes_total));
    // The second backend has the same weights.
    let mut tell = |progress| panic!("{progress:?}");
    let second = RanksBackend::load(&ranks, Arc::clone(model.open()), SHAPE, &mut tell).unwrap();
    drop((first, second));
}

/// Makes a backend of the demo model on two devices.
fn in_two() -> Box<dyn Backend> {
    let model = models::demo();
    let blocks = with_arena(kv_bytes_per_token(model.config()));
    Box::new(on(&devices(2, blocks), &model, KV_SHAPE))
}

contract_suite!(cuda_in_two_ranks, Stepped::new(&[in_two]), 2);
contract_suite!(cuda_in_two_ranks_on_its_thread, Threaded::new(&[in_two]), 1);
