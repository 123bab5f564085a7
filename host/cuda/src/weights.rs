//! Weights on the device: matrices in bf16, vectors in f32.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use half::slice::HalfFloatSliceExt as _;
use pointsman_engine::model::backend::DeviceError;
use pointsman_engine::model::config::{Head, LlamaConfig};
use pointsman_engine::model::graph::Llama;
use pointsman_engine::model::host::HostModel;
use pointsman_engine::model::weights::{Matrix, Values};

use crate::buffer::alloc;
use crate::failed;
use crate::ops::WIDTH_MAX;

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
    /// Copies a model to the device. Weights in f32 are rounded to bf16.
    pub(crate) fn copy(stream: &Arc<CudaStream>, model: &HostModel) -> Result<Self, DeviceError> {
        let weights = model.weights().on_device(
            &mut |matrix| DeviceMatrix::copy(stream, matrix),
            &mut |vector| copied(stream, vector),
        )?;
        let angles = copied(stream, &angles(model))?;
        stream.synchronize().map_err(failed)?;
        Ok(Self { weights, angles })
    }
}

impl DeviceMatrix {
    fn copy(stream: &Arc<CudaStream>, matrix: &Matrix) -> Result<Self, DeviceError> {
        use half::slice::HalfBitsSliceExt as _;
        let numbers = match &matrix.values {
            Values::Bf16(values) => copied(stream, values.reinterpret_cast())?,
            Values::F32(values) => {
                let mut bits = vec![0_u16; values.len()];
                bits.reinterpret_cast_mut::<bf16>()
                    .convert_from_f32_slice(values);
                copied(stream, &bits)?
            }
        };
        Ok(Self {
            rows: numbers.len() / matrix.cols,
            cols: matrix.cols,
            numbers,
        })
    }
}

fn copied<T: cudarc::driver::DeviceRepr>(
    stream: &Arc<CudaStream>,
    values: &[T],
) -> Result<CudaSlice<T>, DeviceError> {
    let mut memory = alloc(stream, values.len())?;
    stream.memcpy_htod(values, &mut memory).map_err(failed)?;
    Ok(memory)
}

/// The table of angles, as the processors compute them for each step.
fn angles(model: &HostModel) -> Vec<f32> {
    let mut angles = Vec::new();
    for position in 0..model.config().context_tokens {
        model.rotation().push(position, &mut angles);
    }
    angles
}
