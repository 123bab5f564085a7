//! Pinned memory of this machine, from and to which a device copies by itself.

use std::ffi::c_void;
use std::ptr;
use std::slice;
use std::sync::Arc;

use cudarc::driver::result::{free_host, malloc_host};
use cudarc::driver::{CudaContext, DriverError, sys};

/// Pinned memory, given back when it is dropped. Whoever drops it has waited for what is copied.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    context: Arc<CudaContext>,
    /// Null where there is none.
    at: *mut c_void,
    bytes: usize,
}

// SAFETY: the memory belongs to its owner alone, and may be used on any thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: through a shared reference only its address is told.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Pins so many bytes, of whatever content.
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, DriverError> {
        let mut at = ptr::null_mut();
        if bytes > 0 {
            context.bind_to_thread()?;
            // SAFETY: any number of bytes may be asked for.
            at = unsafe { malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) }?;
        }
        Ok(Self {
            context: Arc::clone(context),
            at,
            bytes,
        })
    }

    /// The address of its first byte.
    pub(crate) fn address(&self) -> *mut u8 {
        self.at.cast()
    }

    /// Makes all of it zeros, so that it may be read.
    pub(crate) fn zeroed(self) -> Self {
        if !self.at.is_null() {
            // SAFETY: the memory has so many bytes, which nobody else uses.
            unsafe { ptr::write_bytes(self.address(), 0, self.bytes) };
        }
        self
    }

    /// The first of its bytes, which were [`Self::zeroed`].
    ///
    /// # Panics
    /// If it has not so many.
    pub(crate) fn first(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.bytes, "{bytes} bytes are more than there are");
        if self.at.is_null() {
            return &mut [];
        }
        // SAFETY: the memory has so many bytes, all of them written, and is borrowed for as long.
        unsafe { slice::from_raw_parts_mut(self.address(), bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if !self.at.is_null() && self.context.bind_to_thread().is_ok() {
            // SAFETY: it was pinned by `new`, and nobody uses it any more. A context that is lost has
            // lost the memory with it, and says so.
            let freed = unsafe { free_host(self.at) };
            self.context.record_err(freed);
        }
    }
}
