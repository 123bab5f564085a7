//! Models on an emulated device whose threads and blocks run in several orders: a result that depends on them is a race.
//! Steps that are filled up are in `graphs.rs`, choices of tokens in `choice.rs`; products with FP8 have tests of their own.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::ops::Range;
use std::sync::Arc;

use pointsman_cuda::CudaBackend;
use pointsman_cuda::emulation::{self, ThreadOrder};
use pointsman_engine::backend::{Backend as _, Chunk, KvShape, Logits};
use pointsman_engine::test_util::schedules::WithPoison as _;
use pointsman_events::BlockId;
use pointsman_model::host::HostModel;
use pointsman_model::test_util::models;
use safetensors::Dtype;
use serde_json::{Value, json};

const SHAPE: KvShape = KvShape {
    tokens_per_block: 16,
    blocks_total: 8,
};
/// Blocks of the longer one of two sequences.
const LONG_BLOCKS: usize = 7;

/// Models of which every kernel for numbers in bf16 computes something.
fn all_kinds() -> Vec<Arc<HostModel>> {
    let small = |changes: Value| {
        let config = models::config(changes);
        models::load(&config, &models::tensors(&config, 5), Dtype::BF16)
    };
    vec![
        models::demo(),
        // A norm is several warps' work.
        small(
            json!({"head_dim": 16, "hidden_size": 1024, "num_hidden_layers": 1,
            "attention_bias": true, "mlp_bias": true}),
        ),
        small(json!({"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64})),
        small(
            json!({"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 8,
            "num_key_value_heads": 1, "head_dim": 128}),
        ),
    ]
}

/// The bits of the logits of two steps: one with many tokens and few, and one with few alone.
fn steps(backend: &mut CudaBackend) -> Vec<u32> {
    let blocks: Vec<BlockId> = (0..SHAPE.blocks_total).map(BlockId).collect();
    // Nothing is left of the order before.
    backend.poison(&blocks);
    let (long, short) = blocks.split_at(LONG_BLOCKS);
    let tokens: Vec<u32> = (0..102).map(|place| place * 7 % 90).collect();
    let mut bits = Vec::new();
    // Attention to the longer sequence has several pieces in either.
    let parts: [[Range<usize>; 2]; 2] = [[0..100, 0..2], [100..102, 2..3]];
    for [of_long, of_short] in parts {
        let chunks = [(of_long, long), (of_short, short)].map(|(part, blocks)| Chunk {
            start: u32::try_from(part.start).unwrap(),
            tokens: &tokens[part],
            blocks,
            logits: Logits::Last,
        });
        let mut logits = Vec::new();
        backend.forward(&chunks, &mut logits).unwrap();
        assert!(logits.iter().all(|logit| logit.is_finite()));
        bits.extend(logits.iter().map(|logit| logit.to_bits()));
    }
    bits
}

#[test]
fn the_order_of_threads_and_blocks_changes_no_logits() {
    let emulated = emulation::alone();
    for model in all_kinds() {
        let mut backend = CudaBackend::alone(model.open(), SHAPE).unwrap();
        emulated.set_order(ThreadOrder::Forward);
        let forward = steps(&mut backend);
        for order in ThreadOrder::OTHERS {
            emulated.set_order(order);
            let is_same = steps(&mut backend) == forward;
            assert!(is_same, "{order:?}: {:?}", model.config());
        }
    }
}

#[test]
fn a_race_is_seen() {
    let emulated = emulation::alone();
    let forward = emulated.race();
    emulated.set_order(ThreadOrder::Backward);
    assert_ne!(emulated.race(), forward);
}
