//! The host arena of a device: pinned memory, to which blocks of the pool are copied and back.

use std::slice;
use std::sync::Arc;

use cudarc::driver::result::{memcpy_dtoh_async, memcpy_htod_async};
use cudarc::driver::{CudaContext, CudaStream};
use pointsman_engine::backend::{DeviceError, KvBlocks, SwapDirection};
use pointsman_events::BlockCopy;

use crate::pinned::PinnedMemory;
use crate::{failed, in_words};

/// The host arena of a device. Which block is whose is the core's ledger's to know.
#[derive(Debug)]
pub(crate) struct PinnedArena {
    blocks: KvBlocks,
    memory: PinnedMemory,
}

impl PinnedArena {
    /// Pins memory for the host blocks of a device.
    pub(crate) fn new(context: &Arc<CudaContext>, blocks: KvBlocks) -> Result<Self, DeviceError> {
        let bytes = blocks.bytes * u64::from(blocks.host);
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let memory = PinnedMemory::new(context, len).map_err(|error| {
            DeviceError(format!(
                "its swap-memory of {bytes} bytes cannot be had ({}); give it less",
                in_words(error)
            ))
        })?;
        Ok(Self { blocks, memory })
    }

    /// Checks that both blocks of a copy are there.
    fn check(&self, copy: &BlockCopy) {
        let BlockCopy { host, block } = copy;
        let KvBlocks {
            total, host: hosts, ..
        } = self.blocks;
        assert!(block.0 < total, "block {block} is not in the pool");
        assert!(host.0 < hosts, "block {host} is not in the arena");
    }

    /// Has `stream` copy blocks between the pool at `pool` and the arena.
    ///
    /// # Panics
    /// If there is no such block.
    pub(crate) fn copy(
        &self,
        stream: &Arc<CudaStream>,
        pool: u64,
        (direction, copies): (SwapDirection, &[BlockCopy]),
    ) -> Result<(), DeviceError> {
        let bytes = self.blocks.bytes;
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        for copy in copies {
            self.check(copy);
            let on_device = pool + u64::from(copy.block.0) * bytes;
            let at = copy.host.0 as usize * len;
            // SAFETY: the block is in the arena, as checked above.
            let here = unsafe { self.memory.address().add(at) };
            // SAFETY: the memory has so many bytes, and the ledger gives a block to one sequence at a
            // time, whose engine waits for the stream before it tells that it has left or started.
            let here = unsafe { slice::from_raw_parts_mut(here, len) };
            let stream = stream.cu_stream();
            let copied = match direction {
                // SAFETY: both blocks are there, and live until the stream has come to its end.
                SwapDirection::Out => unsafe { memcpy_dtoh_async(here, on_device, stream) },
                // SAFETY: the same.
                SwapDirection::In => unsafe { memcpy_htod_async(on_device, here, stream) },
            };
            copied.map_err(failed)?;
        }
        Ok(())
    }
}
