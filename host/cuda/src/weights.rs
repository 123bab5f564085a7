//! Weights on the device: matrices in bf16, vectors in f32.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice};
use half::bf16;
use pointsman_engine::model::backend::DeviceError;
use pointsman_engine::model::config::{Head, LlamaConfig};
use pointsman_engine::model::graph::{Llama, WeightsMaker};
use pointsman_engine::model::open::{LoadProgress, Loading, OpenModel};
use pointsman_engine::model::weights::Stacked;

use crate::ops::WIDTH_MAX;
use crate::upload::{STAGING_BYTES, Upload, unread};

/// The sizes of a model that the kernels take in steps of eight numbers.
const STEP: usize = 8;

/// A matrix on the device, row by row.
#[derive(Debug)]
pub(crate) struct DeviceMatrix {
    pub(crate) rows: usize,
    /// Numbers in a row.
    pub(crate) cols: usize,
    /// The numbers, as the bits of bf16.
    pub(crate) numbers: CudaSlice<u16>,
}

/// A model on a device.
#[derive(Debug)]
pub(crate) struct DeviceModel {
    pub(crate) weights: Llama<DeviceMatrix, CudaSlice<f32>>,
    /// For each position the cosines of the angles by which it turns, then their sines.
    pub(crate) angles: CudaSlice<f32>,
}

/// Bytes of memory that a model's weights and angles take on a device.
#[must_use]
pub fn weight_bytes(config: &LlamaConfig) -> u64 {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let attention = hidden * (config.qkv_size() + config.q_size());
    let layer = attention + 3 * hidden * inner;
    let tables = match config.head {
        Head::Tied => 1,
        Head::Own => 2,
    };
    let numbers = config.layers * layer + tables * config.vocab_size * hidden;
    let angles = config.context_tokens as usize * config.head_dim * size_of::<f32>();
    (numbers * size_of::<bf16>() + angles) as u64
}

/// Checks that the kernels can compute a model.
pub(crate) fn check(config: &LlamaConfig) -> Result<(), DeviceError> {
    let sizes = [
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
        ("head_dim", config.head_dim),
    ];
    for (name, size) in sizes {
        if !size.is_multiple_of(STEP) {
            return Err(DeviceError(format!(
                "a model whose {name} is {size} is not for CUDA devices, whose kernels take multiples \
                 of {STEP}; serve it on the processors"
            )));
        }
    }
    let width = config.head_dim;
    if width > WIDTH_MAX {
        return Err(DeviceError(format!(
            "a model whose head_dim is {width} is not for CUDA devices, whose kernels have heads of up to \
             {WIDTH_MAX}; serve it on the processors"
        )));
    }
    Ok(())
}

impl DeviceModel {
    /// Loads a model onto the device, and tells how far that is. Weights in f32 are rounded to bf16.
    pub(crate) fn load(
        context: &Arc<CudaContext>,
        model: &OpenModel,
        tell: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, DeviceError> {
        let mut upload = Upload::begin(context, Loading::begin(model, tell))?;
        let weights = model.weights().made(&mut upload)?;
        let angles = load_angles(&mut upload, model)?;
        upload.finish()?;
        Ok(Self { weights, angles })
    }
}

impl WeightsMaker<Stacked, Stacked> for Upload<'_> {
    type Matrix = DeviceMatrix;
    type Vector = CudaSlice<f32>;
    type Error = DeviceError;

    fn matrix(&mut self, matrix: &Stacked) -> Result<DeviceMatrix, DeviceError> {
        let (rows, cols) = (matrix.rows(), matrix.cols);
        let (numbers, mut at) = self.room(rows * cols)?;
        for tensor in &matrix.tensors {
            at = self.tensor(tensor, cols, at)?;
        }
        Ok(DeviceMatrix {
            rows,
            cols,
            numbers,
        })
    }

    fn vector(&mut self, vector: &Stacked) -> Result<CudaSlice<f32>, DeviceError> {
        let numbers = vector.vector().map_err(unread)?;
        let (memory, at) = self.room(numbers.len())?;
        self.numbers(&numbers, at)?;
        self.count(vector.bytes(), vector.tensors.len());
        Ok(memory)
    }
}

/// Loads the table of angles, as the processors compute them for each step.
fn load_angles(upload: &mut Upload<'_>, model: &OpenModel) -> Result<CudaSlice<f32>, DeviceError> {
    let config = model.config();
    let width = config.head_dim;
    let (memory, mut at) = upload.room(config.context_tokens as usize * width)?;
    let positions_at_once = u32::try_from(STAGING_BYTES / (width * size_of::<f32>()));
    let positions_at_once = positions_at_once.unwrap_or(u32::MAX);
    let mut first = 0;
    while first < config.context_tokens {
        let end = config
            .context_tokens
            .min(first.saturating_add(positions_at_once));
        let angles = angles(model, first..end);
        upload.numbers(&angles, at)?;
        at += size_of_val(&*angles) as u64;
        first = end;
    }
    Ok(memory)
}

fn angles(model: &OpenModel, positions: Range<u32>) -> Vec<f32> {
    let mut angles = Vec::new();
    for position in positions {
        model.rotation().push(position, &mut angles);
    }
    angles
}

#[cfg(feature = "test-util")]
mod read {
    use cudarc::driver::CudaStream;

    use super::*;
    use crate::failed;

    /// Copies weights back, for tests that look at them.
    pub(crate) struct CopyBack<'a>(pub(crate) &'a Arc<CudaStream>);

    impl WeightsMaker<DeviceMatrix, CudaSlice<f32>> for CopyBack<'_> {
        type Matrix = Vec<u16>;
        type Vector = Vec<f32>;
        type Error = DeviceError;

        fn matrix(&mut self, matrix: &DeviceMatrix) -> Result<Vec<u16>, DeviceError> {
            let mut numbers = vec![0; matrix.numbers.len()];
            self.0
                .memcpy_dtoh(&matrix.numbers, &mut numbers)
                .map_err(failed)?;
            self.0.synchronize().map_err(failed)?;
            Ok(numbers)
        }

        fn vector(&mut self, vector: &CudaSlice<f32>) -> Result<Vec<f32>, DeviceError> {
            let mut numbers = vec![0.0; vector.len()];
            self.0.memcpy_dtoh(vector, &mut numbers).map_err(failed)?;
            self.0.synchronize().map_err(failed)?;
            Ok(numbers)
        }
    }
}

#[cfg(feature = "test-util")]
pub(crate) use read::CopyBack;
