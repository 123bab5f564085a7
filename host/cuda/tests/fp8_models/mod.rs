//! Small models whose weights are in FP8, with their backends, and numbers for its kernels.

use std::sync::Arc;

use fastrand::Rng;
use half::bf16;
use pointsman_cuda::CudaBackend;
use pointsman_engine::backend::KvShape;
use pointsman_model::open::OpenModel;
use pointsman_model::test_util::fp8::{Fp8Model, Scaled};
use pointsman_model::test_util::models;
use serde_json::{Value, json};

pub(crate) const SHAPE: KvShape = KvShape {
    tokens_per_block: 16,
    blocks_total: 16,
};

pub(crate) fn open(model: &Fp8Model) -> Result<Arc<OpenModel>, String> {
    let files = models::files(&model.config, model.safetensors());
    let opened = OpenModel::open(&files).map_err(|error| error.to_string())?;
    Ok(Arc::new(opened))
}

pub(crate) fn backend(model: &Arc<OpenModel>) -> CudaBackend {
    CudaBackend::alone(model, SHAPE).unwrap()
}

pub(crate) fn config(changes: Value) -> Value {
    let mut config = models::config(json!({"head_dim": 16, "intermediate_size": 208}));
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// A small model, all of whose projections have scales of this kind.
pub(crate) fn small(scaled: Scaled) -> Fp8Model {
    Fp8Model::of(
        &config(json!({})),
        &models::tensors(&config(json!({})), 2),
        |_| scaled,
    )
}

/// Codes that look random, of no number that is none.
pub(crate) fn codes(rng: &mut Rng, count: usize) -> Vec<u8> {
    let codes = std::iter::repeat_with(|| rng.u8(..)).filter(|code| code & 0x7f != 0x7f);
    codes.take(count).collect()
}

/// Rows of numbers around 0, by their bits.
pub(crate) fn numbers(rng: &mut Rng, count: usize) -> Vec<u16> {
    let numbers = std::iter::repeat_with(|| bf16::from_f32(rng.f32() - 0.5).to_bits());
    numbers.take(count).collect()
}
