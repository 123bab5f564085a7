//! The speed of a device's memory and of its matrix units, by which a benchmark judges.

use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use pointsman_engine::backend::DeviceError;

use crate::blas::Blas;
use crate::buffer::{Rows, address, alloc};
use crate::failed;
use crate::products::{Bf16Weights, Outputs, OutputsAt, multiply};

/// Numbers in the memory that is copied, and in the matrix that a row is multiplied with.
const MANY: usize = 1 << 30;
/// Rows and columns of the matrices that are multiplied.
const SIDE: usize = 8192;
/// Measurements, of which the best counts.
const REPEATS: usize = 5;

/// The most that was measured.
#[derive(Clone, Copy, Debug)]
pub struct Ceilings {
    /// Bytes per second that are copied within the device's memory, those read and those written together.
    pub copied: f64,
    /// Bytes per second of a matrix that cuBLAS multiplies with one row.
    pub read: f64,
    /// Operations per second of a product of two matrices in bf16 of 8192 rows and columns.
    pub operations: f64,
}

/// Measures a device.
///
/// # Errors
/// If it fails, or has no 5 GiB free.
pub fn measure(ordinal: usize) -> Result<Ceilings, DeviceError> {
    let context = CudaContext::new(ordinal).map_err(failed)?;
    let stream = context.new_stream().map_err(failed)?;
    let from: CudaSlice<u16> = alloc(&stream, MANY)?;
    let mut to: CudaSlice<u16> = alloc(&stream, MANY)?;
    let bytes = 2.0 * (MANY * size_of::<u16>()) as f64;
    let copy = || stream.memcpy_dtod(&from, &mut to).map_err(failed);
    let copied = bytes / best_seconds(&context, &stream, copy)?;
    drop((from, to));
    let blas = Blas::new(&stream)?;
    let tall = (MANY / SIDE, SIDE);
    let seconds = product_seconds(&context, &stream, &blas, tall, 1)?;
    let read = (MANY * size_of::<u16>()) as f64 / seconds;
    let seconds = product_seconds(&context, &stream, &blas, (SIDE, SIDE), SIDE)?;
    Ok(Ceilings {
        copied,
        read,
        operations: 2.0 * (SIDE as f64).powi(3) / seconds,
    })
}

/// Seconds in which a matrix of random numbers is multiplied with so many rows of such.
fn product_seconds(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    blas: &Blas,
    (rows, cols): (usize, usize),
    count: usize,
) -> Result<f64, DeviceError> {
    let numbers = random(stream, rows * cols)?;
    let weight = Bf16Weights {
        at: address(&numbers, stream),
        rows,
        cols,
    };
    let x = Rows::of_bits(stream, count, &pattern(count * cols))?;
    let mut outputs = Rows::default();
    let out = OutputsAt {
        at: outputs.provide(stream, count, rows * size_of::<u16>())?,
        cols: rows,
        kind: Outputs::Bf16,
    };
    best_seconds(context, stream, || {
        multiply((blas, stream), &x, weight, out)
    })
}

/// Numbers in bf16 between -1 and 1, by their bits.
fn pattern(count: usize) -> Vec<u16> {
    let mut place = 0_u32;
    let pattern = std::iter::repeat_with(|| {
        place = place.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let sign = (place >> 16) as u16 & 0x8000;
        sign | 0x3f00 | (place >> 24) as u16 & 0x7f
    });
    pattern.take(count).collect()
}

/// Such numbers on the device. Their pattern repeats: no cache is as large as it, and no two rows are the same.
fn random(stream: &Arc<CudaStream>, count: usize) -> Result<CudaSlice<u16>, DeviceError> {
    let pattern = pattern(count.min(SIDE * SIDE - 1));
    let mut memory = alloc(stream, count)?;
    for start in (0..count).step_by(pattern.len()) {
        let len = pattern.len().min(count - start);
        let mut part = memory.slice_mut(start..start + len);
        stream
            .memcpy_htod(&pattern[..len], &mut part)
            .map_err(failed)?;
    }
    Ok(memory)
}

/// Seconds that the device takes for something, at best.
fn best_seconds(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    mut does: impl FnMut() -> Result<(), DeviceError>,
) -> Result<f64, DeviceError> {
    let now = || {
        let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
        stream.record_event(flags).map_err(failed)
    };
    does()?;
    let mut best = f64::INFINITY;
    for _ in 0..REPEATS {
        let start = now()?;
        does()?;
        let milliseconds = start.elapsed_ms(&now()?).map_err(failed)?;
        best = best.min(f64::from(milliseconds) / 1e3);
    }
    stream.synchronize().map_err(failed)?;
    context.check_err().map_err(failed)?;
    Ok(best)
}
