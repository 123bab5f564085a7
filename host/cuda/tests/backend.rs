//! The arithmetic of an emulated CUDA device against that of the processors.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::sync::Arc;

use fastrand::Rng;
use pointsman_cuda::emulation::{self, Emulation};
use pointsman_cuda::module::{Kernel, ptx};
use pointsman_cuda::{CudaBackend, CudaDevice, kv_bytes_per_token};
use pointsman_engine::backend::{Backend, Chunk, DeviceError, KvBlocks, KvShape, Logits};
use pointsman_engine::cpu::{CpuBackend, Processors};
use pointsman_engine::test_util::schedules::{
    Evictions, WithPoison, check, check_evicting, run_all_alone, shape,
};
use pointsman_engine::test_util::{largest, last_row};
use pointsman_events::BlockId;
use pointsman_model::host::HostModel;
use pointsman_model::test_util::models;
use safetensors::Dtype;
use serde_json::{Value, json};

/// A backend of `model` that is alone on its device.
fn backend(model: &Arc<HostModel>, shape: KvShape) -> CudaBackend {
    backend_with_arena(model, shape, 0)
}

/// The same with so many blocks of host memory.
fn backend_with_arena(model: &Arc<HostModel>, shape: KvShape, host: u32) -> CudaBackend {
    emulation::provide();
    let blocks = KvBlocks {
        host,
        ..shape.blocks(kv_bytes_per_token(model.config()))
    };
    let device = CudaDevice::new(0, blocks).unwrap();
    CudaBackend::new(&device, Arc::clone(model.open()), shape).unwrap()
}

/// Configurations that together have everything that a model on a device may have.
fn shapes() -> Vec<Value> {
    let base = |changes: Value| {
        let mut config = models::config(json!({"head_dim": 16}));
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    };
    let llama3 = json!({
        "rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    });
    vec![
        base(json!({})),
        base(json!({"num_key_value_heads": 4, "tie_word_embeddings": true})),
        base(json!({"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64})),
        base(json!({"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 128})),
        base(json!({"num_attention_heads": 17, "num_key_value_heads": 1, "head_dim": 8})),
        base(json!({"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 96})),
        base(json!({"attention_bias": true, "mlp_bias": true, "rope_parameters": llama3})),
        base(json!({"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 1})),
    ]
}

/// Compares the logits of random sequences with those of the processors. Each number on a device has
/// 8 bits, and as many roundings in a row as the model has operations: so the bound is wide, and it is
/// in proportion to the largest logit.
fn close(model: &Arc<HostModel>, lengths: &[usize], seed: u64, bound: f32) {
    let shape = KvShape {
        tokens_per_block: 16,
        blocks_total: 16,
    };
    let mut rng = Rng::with_seed(seed);
    let vocab_size = u32::try_from(model.config().vocab_size).unwrap();
    for length in lengths {
        let tokens: Vec<u32> = (0..*length).map(|_| rng.u32(..vocab_size)).collect();
        let mut cpu = CpuBackend::new(Arc::clone(model), shape, Processors::of_caller());
        let expected = last_row(&mut cpu, &tokens);
        let found = last_row(&mut backend(model, shape), &tokens);
        let differences = expected.iter().zip(&found).map(|(a, b)| a - b);
        let part = largest(differences) / largest(expected.iter().copied());
        assert!(part < bound, "{length} tokens: {part}");
    }
}

#[test]
fn logits_of_the_demo_model_are_those_of_the_processors() {
    close(&models::demo(), &[1, 2, 31, 150], 1, 0.03);
}

#[test]
fn logits_of_models_of_every_shape_are_those_of_the_processors() {
    for (config, seed) in shapes().iter().zip(1..) {
        for dtype in [Dtype::BF16, Dtype::F32] {
            let model = models::load(config, &models::tensors(config, seed), dtype);
            close(&model, &[1, 40, 200], seed, 0.05);
        }
    }
}

#[test]
fn sequences_under_any_schedule_give_the_rows_of_solo_runs() {
    let demo = models::demo();
    let make = |model: &Arc<HostModel>| {
        let model = Arc::clone(model);
        move |shape| Box::new(backend(&model, shape)) as Box<dyn WithPoison>
    };
    let solos = run_all_alone(&make(&demo), &[1, 17, 40, 140], 0);
    check(&solos, &mut backend(&demo, shape(&solos, 16)), 1);
    check(&solos, &mut backend(&demo, shape(&solos, 7)), 2);
    for (config, seed) in shapes().iter().zip(10..) {
        let model = models::load(config, &models::tensors(config, seed), Dtype::BF16);
        let solos = run_all_alone(&make(&model), &[5, 16, 33], seed);
        check(&solos, &mut backend(&model, shape(&solos, 16)), seed);
    }
}

#[test]
fn sequences_that_come_back_from_host_memory_give_the_rows_of_solo_runs() {
    let model = models::demo();
    let make = |shape| Box::new(backend(&model, shape)) as Box<dyn WithPoison>;
    let solos = run_all_alone(&make, &[1, 17, 40], 30);
    for evictions in [Evictions::SwapAtEveryStep(8), Evictions::ToEither(8)] {
        let mut backend = backend_with_arena(&model, shape(&solos, 16), 8);
        check_evicting(&solos, &mut backend, evictions, 31);
    }
}

#[test]
fn models_with_wider_and_narrower_tokens_share_the_blocks_of_a_device() {
    emulation::provide();
    let shape = KvShape {
        tokens_per_block: 16,
        blocks_total: 4,
    };
    let models = [1, 4].map(|kv_heads| {
        let config = models::config(json!({"head_dim": 16, "num_key_value_heads": kv_heads}));
        models::load(&config, &models::tensors(&config, 3), Dtype::BF16)
    });
    let blocks = shape.blocks(kv_bytes_per_token(models[1].config()));
    let device = CudaDevice::new(0, blocks).unwrap();
    // Each has a block between two of the other's.
    let tables = [[0, 2], [1, 3]].map(|table| table.map(BlockId));
    let tokens: Vec<u32> = (1..30).collect();
    let together = models.iter().zip(&tables).map(|(model, blocks)| {
        let mut backend = CudaBackend::new(&device, Arc::clone(model.open()), shape).unwrap();
        backend.poison(blocks);
        (backend, blocks)
    });
    let mut together: Vec<_> = together.collect();
    let mut logits = Vec::new();
    for position in 0..tokens.len() {
        for (model, (backend, blocks)) in models.iter().zip(&mut together) {
            let chunk = Chunk {
                tokens: &tokens[position..=position],
                start: u32::try_from(position).unwrap(),
                blocks: &blocks[..],
                logits: Logits::Last,
            };
            backend.forward(&[chunk], &mut logits).unwrap();
            if position + 1 == tokens.len() {
                let alone = last_row(&mut self::backend(model, shape), &tokens);
                assert_eq!(logits, alone);
            }
        }
    }
}

#[test]
fn a_step_of_nothing_gives_nothing() {
    let shape = KvShape {
        tokens_per_block: 16,
        blocks_total: 2,
    };
    let mut backend = backend(&models::demo(), shape);
    let mut logits = vec![1.0];
    backend.forward(&[], &mut logits).unwrap();
    assert!(logits.is_empty());
    let chunk = Chunk {
        tokens: &[1, 2, 3],
        start: 0,
        blocks: &[BlockId(1)],
        logits: Logits::None,
    };
    backend.forward(&[chunk], &mut logits).unwrap();
    assert!(logits.is_empty());
}

#[test]
fn a_model_that_the_kernels_cannot_compute_is_refused_by_its_size() {
    emulation::provide();
    let config = models::config(json!({"head_dim": 12}));
    let model = models::load(&config, &models::tensors(&config, 0), Dtype::BF16);
    let shape = KvShape {
        tokens_per_block: 16,
        blocks_total: 2,
    };
    let device = CudaDevice::new(0, shape.blocks(1024)).unwrap();
    let refused = CudaBackend::new(&device, Arc::clone(model.open()), shape).unwrap_err();
    let expected = "a model whose head_dim is 12 is not for CUDA devices, whose kernels take multiples of \
                    8; serve it on the processors";
    assert_eq!(refused, DeviceError(expected.to_owned()));
}

#[test]
fn no_kernel_leaves_its_memory() {
    emulation::pass_sanitized(&[
        "logits_of_models_of_every_shape_are_those_of_the_processors",
        "sequences_under_any_schedule_give_the_rows_of_solo_runs",
    ]);
}

/// Runs a test that calls this once more, which fails there with these words: a kernel leaves its memory.
fn seen(test: &str, leave: fn(&Emulation), words: &str) {
    if emulation::is_sanitized() {
        leave(emulation::install());
        return;
    }
    let output = emulation::sanitized(&[test]).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(words), "{said}");
}

#[test]
fn a_kernel_that_leaves_its_memory_is_seen() {
    let own = "a_kernel_that_leaves_its_memory_is_seen";
    seen(own, Emulation::overrun, "heap-buffer-overflow");
}

#[test]
fn a_kernel_that_leaves_an_array_of_its_block_is_seen() {
    let own = "a_kernel_that_leaves_an_array_of_its_block_is_seen";
    let words = "index 32 out of bounds for type 'unsigned int [32]'";
    seen(own, Emulation::overrun_shared, words);
}

#[test]
fn the_ptx_has_every_kernel_with_parameters_that_can_be_passed() {
    let ptx = ptx().unwrap();
    for kernel in Kernel::ALL {
        let parameters = kernel.parameters(&ptx);
        assert!(
            parameters.is_some_and(|them| !them.is_empty()),
            "{kernel:?}"
        );
    }
}
