//! The memory that steps take on an emulated device, against what is told for them.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::sync::Arc;

use pointsman_cuda::emulation::{self, Alone};
use pointsman_cuda::{BLAS_BYTES, ComputedModel, CudaBackend, CudaDevices, Room, StepSize};
use pointsman_engine::backend::{Backend, Chunk, KvShape, Logits};
use pointsman_events::BlockId;
use pointsman_model::files::ModelFiles;
use pointsman_model::open::OpenModel;
use pointsman_model::test_util::fp8::{Fp8Model, Scaled};
use pointsman_model::test_util::models;
use safetensors::Dtype;
use serde_json::json;

/// The context of the models, in tokens.
const CONTEXT: u32 = 256;
const SHAPE: KvShape = KvShape {
    tokens_per_block: 16,
    blocks_total: CONTEXT / 16,
};
/// A step with more rows than are multiplied with FP8 as it is.
const LARGEST: StepSize = StepSize {
    tokens: 100,
    sequences: 6,
};
/// Tokens of a tile: two heads of queries share one of keys.
const TILE_TOKENS: u32 = 8;

fn open(files: &ModelFiles) -> Arc<OpenModel> {
    Arc::new(OpenModel::open(files).unwrap())
}

/// A small model, in bf16 and in FP8.
fn small() -> [Arc<OpenModel>; 2] {
    let config = models::config(json!({"head_dim": 16, "intermediate_size": 208}));
    let tensors = models::tensors(&config, 1);
    let fp8 = Fp8Model::of(&config, &tensors, |_| Scaled::Rows);
    let stored = models::safetensors(&tensors, Dtype::BF16);
    [
        open(&models::files(&config, stored)),
        open(&models::files(&fp8.config, fp8.safetensors())),
    ]
}

/// Makes the largest step of each kind: a prompt, and the ends of sequences as long as they may be.
fn make_largest(backend: &mut CudaBackend) {
    let tokens = [7; 100];
    let blocks: Vec<BlockId> = (0..SHAPE.blocks_total).map(BlockId).collect();
    let end = &tokens[..TILE_TOKENS as usize];
    for (tokens, sequences, start, logits) in [
        (&tokens[..], 1, 0, Logits::None),
        (end, 6, CONTEXT - TILE_TOKENS, Logits::Last),
        (end, 6, CONTEXT - TILE_TOKENS, Logits::Hidden),
    ] {
        let chunk = Chunk {
            tokens,
            start,
            blocks: &blocks,
            logits,
        };
        let chunks = vec![chunk; sequences];
        backend.forward(&chunks, &mut Vec::new()).unwrap();
    }
}

fn room(model: &OpenModel, executors: usize) -> Room {
    room_for(model, vec![LARGEST; executors])
}

fn room_for(model: &OpenModel, executors: Vec<StepSize>) -> Room {
    let models = [ComputedModel { model, executors }];
    CudaDevices::room(&[0], &models).unwrap()
}

/// Bytes that are told for steps of this size, and those that these steps take.
fn told_and_taken(
    emulated: &Alone,
    model: &Arc<OpenModel>,
    size: StepSize,
    make: impl FnOnce(&mut CudaBackend),
) -> (usize, usize) {
    let room = room_for(model, vec![size]);
    let told = usize::try_from(room.steps).unwrap() - BLAS_BYTES;
    let mut backend = CudaBackend::alone(model, SHAPE).unwrap();
    let loaded = emulated.allocated();
    make(&mut backend);
    (told, emulated.allocated() - loaded)
}

#[test]
fn steps_take_no_more_memory_than_is_told_for_them() {
    let emulated = emulation::alone();
    for model in small() {
        let (told, taken) = told_and_taken(&emulated, &model, LARGEST, make_largest);
        assert!(taken <= told, "{taken} of {told}");
        assert!(taken + (8 << 10) > told, "{taken} of {told}");
        assert_eq!(emulated.allocated(), 0);
    }
}

#[test]
fn a_step_that_is_filled_up_takes_no_more_memory_than_is_told_for_its_sequences() {
    let emulated = emulation::alone();
    let [model, _] = small();
    let sequences = 9;
    let size = StepSize {
        tokens: sequences,
        sequences,
    };
    let blocks: Vec<BlockId> = (0..SHAPE.blocks_total).map(BlockId).collect();
    let chunk = Chunk {
        tokens: &[7],
        start: CONTEXT - 2,
        blocks: &blocks,
        logits: Logits::Last,
    };
    let chunks = vec![chunk; sequences as usize];
    let (told, taken) = told_and_taken(&emulated, &model, size, |backend| {
        backend.forward(&chunks, &mut Vec::new()).unwrap();
    });
    assert!(taken <= told, "{taken} of {told}");
}

#[test]
fn each_executor_has_memory_of_its_own_for_steps_and_all_share_the_models() {
    let _emulated = emulation::alone();
    let [model, fp8] = small();
    let (one, two) = (room(&model, 1), room(&model, 2));
    assert_eq!((two.models, two.steps), (one.models, 2 * one.steps));
    // Weights on their way to a product.
    assert!(room(&fp8, 1).steps > one.steps);
}
