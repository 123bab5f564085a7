//! Weights on the device: matrices in bf16 or FP8, vectors in f32.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice};
use half::bf16;
use pointsman_engine::backend::DeviceError;
use pointsman_model::config::LlamaConfig;
use pointsman_model::graph::{Llama, WeightsMaker};
use pointsman_model::open::{LoadProgress, Loading, OpenModel};
use pointsman_model::weights::fp8::{Fp8Tensor, StackedFp8};
use pointsman_model::weights::{Stacked, StoredMatrix};

use crate::ops::WIDTH_MAX;
use crate::probe::DeviceInfo;
use crate::upload::{STAGING_BYTES, Upload, unread};

/// The sizes of a model that the kernels take in steps of eight numbers.
const STEP: usize = 8;

/// Numbers that the kernels of FP8 take at once.
const FP8_STEP: usize = 16;
/// The oldest compute capability of devices that have FP8.
const FP8_CAPABILITY: (i32, i32) = (8, 9);

/// A matrix on the device, row by row.
#[derive(Debug)]
pub(crate) struct DeviceMatrix {
    pub(crate) rows: usize,
    /// Numbers in a row.
    pub(crate) cols: usize,
    pub(crate) numbers: Numbers,
}

/// The numbers of a matrix.
#[derive(Debug)]
pub(crate) enum Numbers {
    /// The bits of bf16.
    Bf16(CudaSlice<u16>),
    /// FP8, as in the file.
    Fp8(Fp8Numbers),
}

/// Numbers in FP8.
#[derive(Debug)]
pub(crate) struct Fp8Numbers {
    pub(crate) codes: CudaSlice<u8>,
    pub(crate) scales: CudaSlice<f32>,
    /// Rows for which a scale holds.
    pub(crate) rows_each: usize,
    /// Numbers of a row for which a scale holds.
    pub(crate) cols_each: usize,
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
pub fn weight_bytes(model: &OpenModel) -> u64 {
    let config = model.config();
    let matrices = model.weights().matrices().map(|matrix| match matrix {
        StoredMatrix::Numbers(stacked) => stacked.rows() * stacked.cols * size_of::<bf16>(),
        StoredMatrix::Fp8(stacked) => {
            let scales = stacked.scales().numbers;
            stacked.rows() * stacked.cols + size_of_val(&*scales)
        }
    });
    let angles = config.context_tokens as usize * config.head_dim * size_of::<f32>();
    (matrices.sum::<usize>() + angles) as u64
}

/// Checks that a device and its kernels can compute a model that has weights in FP8.
pub(crate) fn check_fp8(
    device: &DeviceInfo,
    model: &OpenModel,
    first: &StackedFp8,
) -> Result<(), DeviceError> {
    let tensor = first.tensors.first().map_or("", Fp8Tensor::name);
    if device.capability < FP8_CAPABILITY {
        let (major, minor) = device.capability;
        return Err(DeviceError(format!(
            "CUDA device {} ({}) has compute capability {major}.{minor}, and FP8 weights, of which {tensor} is \
             one, want 8.9 or newer; serve the model's weights in bf16 there",
            device.ordinal, device.name
        )));
    }
    let config = model.config();
    let sizes = [
        config.hidden_size,
        config.intermediate_size,
        config.q_size(),
    ];
    match sizes.iter().find(|size| !size.is_multiple_of(FP8_STEP)) {
        None => Ok(()),
        Some(size) => Err(DeviceError(format!(
            "a model with FP8 weights in rows of {size} numbers is not for CUDA devices, whose kernels take \
             multiples of {FP8_STEP} of them; serve its weights in bf16"
        ))),
    }
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

impl WeightsMaker<StoredMatrix, Stacked> for Upload<'_> {
    type Matrix = DeviceMatrix;
    type Vector = CudaSlice<f32>;
    type Error = DeviceError;

    fn matrix(&mut self, matrix: &StoredMatrix) -> Result<DeviceMatrix, DeviceError> {
        match matrix {
            StoredMatrix::Numbers(stacked) => load_numbers(self, stacked),
            StoredMatrix::Fp8(stacked) => load_fp8(self, stacked),
        }
    }

    fn vector(&mut self, vector: &Stacked) -> Result<CudaSlice<f32>, DeviceError> {
        let numbers = vector.vector().map_err(unread)?;
        let (memory, at) = self.room(numbers.len())?;
        self.numbers(&numbers, at)?;
        self.count(vector.bytes(), vector.tensors.len());
        Ok(memory)
    }
}

fn load_numbers(upload: &mut Upload<'_>, stacked: &Stacked) -> Result<DeviceMatrix, DeviceError> {
    let (rows, cols) = (stacked.rows(), stacked.cols);
    let (numbers, mut at) = upload.room(rows * cols)?;
    for tensor in &stacked.tensors {
        at = upload.tensor(tensor, cols, at)?;
    }
    Ok(DeviceMatrix {
        rows,
        cols,
        numbers: Numbers::Bf16(numbers),
    })
}

fn load_fp8(upload: &mut Upload<'_>, stacked: &StackedFp8) -> Result<DeviceMatrix, DeviceError> {
    let (rows, cols) = (stacked.rows(), stacked.cols);
    let (codes, mut at) = upload.room(rows * cols)?;
    for tensor in &stacked.tensors {
        at = upload.codes(tensor, cols, at)?;
    }
    let found = stacked.scales();
    let (scales, at) = upload.room(found.numbers.len())?;
    upload.numbers(&found.numbers, at)?;
    let numbers = Numbers::Fp8(Fp8Numbers {
        codes,
        scales,
        rows_each: found.rows_each,
        cols_each: found.cols_each,
    });
    Ok(DeviceMatrix {
        rows,
        cols,
        numbers,
    })
}

impl DeviceMatrix {
    /// Its numbers in bf16.
    pub(crate) fn bf16(&self) -> Result<&CudaSlice<u16>, DeviceError> {
        match &self.numbers {
            Numbers::Bf16(numbers) => Ok(numbers),
            Numbers::Fp8(_) => Err(DeviceError("a table of embeddings is FP8".to_owned())),
        }
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
    use cudarc::driver::{CudaStream, DeviceRepr};

    use super::*;
    use crate::failed;

    /// Copies weights back, for tests that look at them.
    pub(crate) struct CopyBack<'a>(pub(crate) &'a Arc<CudaStream>);

    impl WeightsMaker<DeviceMatrix, CudaSlice<f32>> for CopyBack<'_> {
        type Matrix = Vec<u16>;
        type Vector = Vec<f32>;
        type Error = DeviceError;

        fn matrix(&mut self, matrix: &DeviceMatrix) -> Result<Vec<u16>, DeviceError> {
            Ok(match &matrix.numbers {
                Numbers::Bf16(numbers) => self.copied(numbers)?,
                Numbers::Fp8(fp8) => {
                    let codes = self.copied(&fp8.codes)?;
                    codes.into_iter().map(u16::from).collect()
                }
            })
        }

        fn vector(&mut self, vector: &CudaSlice<f32>) -> Result<Vec<f32>, DeviceError> {
            self.copied(vector)
        }
    }

    impl CopyBack<'_> {
        fn copied<T: DeviceRepr + Default + Clone>(
            &self,
            memory: &CudaSlice<T>,
        ) -> Result<Vec<T>, DeviceError> {
            let mut numbers = vec![T::default(); memory.len()];
            self.0.memcpy_dtoh(memory, &mut numbers).map_err(failed)?;
            self.0.synchronize().map_err(failed)?;
            Ok(numbers)
        }
    }
}

#[cfg(feature = "test-util")]
pub(crate) use read::CopyBack;
