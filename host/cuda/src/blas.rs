//! A handle of cuBLAS.
//!
//! It is made and ended here rather than by cudarc, which panics where a handle is not ended in order: cuBLAS waits for the
//! device then, which fails if that is lost, and whoever lets go of a lost device has more to let go of.

use std::sync::Arc;

use cudarc::cublas::{result, sys};
use cudarc::driver::CudaStream;
use pointsman_engine::backend::DeviceError;

use crate::{blas_failed, failed};

/// A handle of cuBLAS that has one stream compute.
#[derive(Debug)]
pub(crate) struct Blas {
    handle: sys::cublasHandle_t,
    /// The stream, which lives as long.
    _stream: Arc<CudaStream>,
}

// SAFETY: a handle belongs to a context, not to a thread, and its owner alone uses it.
unsafe impl Send for Blas {}

impl Blas {
    /// Begins cuBLAS on a stream, whose context is this thread's from then on.
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Result<Self, DeviceError> {
        stream.context().bind_to_thread().map_err(failed)?;
        let blas = Self {
            handle: result::create_handle().map_err(blas_failed)?,
            _stream: Arc::clone(stream),
        };
        // SAFETY: both are there, and the stream lives as long as the handle.
        let set = unsafe { result::set_stream(blas.handle, stream.cu_stream().cast()) };
        set.map_err(blas_failed)?;
        Ok(blas)
    }

    /// The handle, as cuBLAS's functions take it.
    pub(crate) fn handle(&self) -> sys::cublasHandle_t {
        self.handle
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: it was made by `new`, and nobody uses it afterwards. A device that is lost fails here, and was heard of
        // before.
        let _told = unsafe { sys::cublasDestroy_v2(self.handle) };
    }
}
