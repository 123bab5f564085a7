//! The way of weights to a device: through two buffers of pinned memory, of which one is filled while the
//! other is copied, on a stream of its own.
//!
//! # Bounds
//! However large a model is, loading takes [`STAGING_BYTES`] of pinned memory twice, and what a piece of a
//! tensor takes that has to be converted.
//!
//! # Invariants
//! Held by `tests/loading.rs`.
//! 1. The weights on the device are, bit by bit, those that the processors have, rounded to bf16.
//! 2. A load that fails leaves nothing behind, pinned or on the device.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::result::memcpy_htod_async;
use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream};
use pointsman_engine::backend::DeviceError;
use pointsman_model::open::Loading;
use pointsman_model::weights::fp8::Fp8Tensor;
use pointsman_model::weights::{StoredTensor, WeightsError};

use crate::buffer::{address, alloc};
use crate::graphs::quiet;
use crate::pinned::PinnedMemory;
use crate::{failed, in_words};

/// Bytes of a buffer: more than a row of any matrix, and enough for a bus to be at its full speed.
pub(crate) const STAGING_BYTES: usize = 16 << 20;

/// A model on its way to a device.
pub(crate) struct Upload<'a> {
    stream: Arc<CudaStream>,
    /// The two buffers, the next one to fill first.
    buffers: Vec<Staging>,
    /// Memory for what has to be converted.
    scratch: Vec<u8>,
    loading: Loading<'a>,
}

/// A buffer of pinned memory.
struct Staging {
    memory: PinnedMemory,
    /// The end of the copy of what is in it; absent: nothing was.
    copied: Option<CudaEvent>,
}

/// The size of a tensor.
#[derive(Clone, Copy)]
struct TensorSize {
    rows: usize,
    /// Bytes of a row on the device.
    row_bytes: usize,
    /// Bytes of a row where it is stored.
    stored_bytes: usize,
}

impl<'a> Upload<'a> {
    /// Nothing is on its way yet.
    pub(crate) fn begin(
        context: &Arc<CudaContext>,
        loading: Loading<'a>,
    ) -> Result<Self, DeviceError> {
        let _quiet = quiet();
        let staging = || match PinnedMemory::new(context, STAGING_BYTES) {
            Ok(memory) => Ok(Staging {
                memory: memory.zeroed(),
                copied: None,
            }),
            Err(error) => Err(DeviceError(format!(
                "{STAGING_BYTES} bytes of pinned memory cannot be had ({}), through which they are copied",
                in_words(error)
            ))),
        };
        Ok(Self {
            stream: context.new_stream().map_err(failed)?,
            buffers: vec![staging()?, staging()?],
            scratch: Vec::new(),
            loading,
        })
    }

    /// Takes memory on the device, to which something is to be copied.
    pub(crate) fn room<T: cudarc::driver::DeviceRepr>(
        &self,
        count: usize,
    ) -> Result<(CudaSlice<T>, u64), DeviceError> {
        let memory = alloc(&self.stream, count)?;
        let at = address(&memory, &self.stream);
        Ok((memory, at))
    }

    /// Copies a tensor in bf16 to this address, and returns the address behind it.
    pub(crate) fn tensor(
        &mut self,
        tensor: &StoredTensor,
        cols: usize,
        at: u64,
    ) -> Result<u64, DeviceError> {
        let size = TensorSize {
            rows: tensor.rows(),
            row_bytes: cols * size_of::<u16>(),
            stored_bytes: tensor.row_bytes(),
        };
        self.rows(size, at, |rows, scratch, out| {
            tensor.read_bf16(rows, scratch, out)
        })
    }

    /// Copies the codes of a tensor in FP8 to this address, and returns the address behind it.
    pub(crate) fn codes(
        &mut self,
        tensor: &Fp8Tensor,
        cols: usize,
        at: u64,
    ) -> Result<u64, DeviceError> {
        let size = TensorSize {
            rows: tensor.rows(),
            row_bytes: cols,
            stored_bytes: cols,
        };
        self.rows(size, at, |rows, _, out| tensor.read_codes(rows, out))
    }

    fn rows(
        &mut self,
        size: TensorSize,
        mut at: u64,
        read: impl Fn(Range<usize>, &mut Vec<u8>, &mut [u8]) -> Result<(), WeightsError>,
    ) -> Result<u64, DeviceError> {
        let rows_at_once = STAGING_BYTES / size.row_bytes;
        for first in (0..size.rows).step_by(rows_at_once) {
            let rows = first..size.rows.min(first + rows_at_once);
            let bytes = rows.len() * size.row_bytes;
            let is_last = rows.end == size.rows;
            let stored = (rows.len() * size.stored_bytes) as u64;
            self.copy(at, bytes, |scratch, out| {
                read(rows, scratch, out).map_err(unread)
            })?;
            self.loading.advance(stored, usize::from(is_last));
            at += bytes as u64;
        }
        Ok(at)
    }

    /// Copies numbers to this address.
    pub(crate) fn numbers(&mut self, numbers: &[f32], mut at: u64) -> Result<(), DeviceError> {
        for part in numbers.chunks(STAGING_BYTES / size_of::<f32>()) {
            let bytes = size_of_val(part);
            self.copy(at, bytes, |_, out| {
                let (quads, _) = out.as_chunks_mut::<4>();
                for (out, number) in quads.iter_mut().zip(part) {
                    *out = number.to_le_bytes();
                }
                Ok(())
            })?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// Counts what came by [`Self::numbers`].
    pub(crate) fn count(&mut self, bytes: u64, tensors: usize) {
        self.loading.advance(bytes, tensors);
    }

    /// Waits until all is there.
    pub(crate) fn finish(self) -> Result<(), DeviceError> {
        self.stream.synchronize().map_err(failed)
    }

    /// Has the stream copy so many bytes to an address, once `fill` has put them into a buffer.
    fn copy(
        &mut self,
        at: u64,
        bytes: usize,
        fill: impl FnOnce(&mut Vec<u8>, &mut [u8]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let staging = &mut self.buffers[0];
        if let Some(copied) = staging.copied.take() {
            copied.synchronize().map_err(failed)?;
        }
        let buffer = staging.memory.first(bytes);
        fill(&mut self.scratch, buffer)?;
        // SAFETY: the memory on the device has room, and lives until the stream has come to its end, as does
        // the buffer: it is filled again after `copied`, and let go of by `drop`.
        let copied = unsafe { memcpy_htod_async(at, buffer, self.stream.cu_stream()) };
        copied.map_err(failed)?;
        staging.copied = Some(self.stream.record_event(None).map_err(failed)?);
        self.buffers.swap(0, 1);
        Ok(())
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        // What failed was told, and is nobody else's; a context that is lost has nothing under way, and says so.
        let _waited = self.stream.synchronize();
        let _quiet = quiet();
        self.buffers.clear();
    }
}

/// The error of a file.
pub(crate) fn unread(error: WeightsError) -> DeviceError {
    DeviceError(pointsman_notation::chain(&error))
}
