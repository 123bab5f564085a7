//! Memory on the device that grows with the steps.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr};
use pointsman_engine::backend::DeviceError;

use crate::failed;

/// Rows on the device, which stay where they are until they need more memory.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// Number of rows.
    pub(crate) count: usize,
    /// Number of times that memory was taken for them.
    pub(crate) taken: u64,
    memory: Option<CudaSlice<u8>>,
}

impl Rows {
    /// Gives the rows this size, and returns their address. What they held is lost.
    pub(crate) fn provide(
        &mut self,
        stream: &Arc<CudaStream>,
        count: usize,
        row_bytes: usize,
    ) -> Result<u64, DeviceError> {
        self.count = count;
        let bytes = (count * row_bytes).max(1);
        if self
            .memory
            .as_ref()
            .is_none_or(|memory| memory.len() < bytes)
        {
            self.memory = None;
            self.memory = Some(alloc(stream, room_for(bytes))?);
            self.taken += 1;
        }
        Ok(self.address(stream))
    }

    /// Their address; 0 where they have no memory yet.
    pub(crate) fn address(&self, stream: &CudaStream) -> u64 {
        self.memory
            .as_ref()
            .map_or(0, |memory| address(memory, stream))
    }

    /// Has the first of their numbers, of 32 bits each, copied to this machine once they are computed.
    pub(crate) fn read<T: DeviceRepr>(
        &self,
        stream: &Arc<CudaStream>,
        numbers: &mut [T],
    ) -> Result<(), DeviceError> {
        const { assert!(size_of::<T>() == 4) };
        let Some(memory) = self.memory.as_ref().filter(|_| !numbers.is_empty()) else {
            return Ok(());
        };
        // SAFETY: the view is as long as the numbers only where the memory has room for them, and any bits
        // are a number.
        let view = unsafe { memory.transmute::<T>(numbers.len()) };
        let view = view.ok_or_else(|| DeviceError("rows are missing".to_owned()))?;
        stream.memcpy_dtoh(&view, numbers).map_err(failed)
    }

    /// The first of their numbers, by the bits of bf16, once they are computed. The count is even.
    pub(crate) fn bits(
        &self,
        stream: &Arc<CudaStream>,
        count: usize,
    ) -> Result<impl Iterator<Item = u16> + use<>, DeviceError> {
        // Two of them have 32 bits.
        let mut pairs = vec![0_u32; count / 2];
        self.read(stream, &mut pairs)?;
        stream.synchronize().map_err(failed)?;
        let halves = |pair: u32| {
            let [a, b, c, d] = pair.to_le_bytes();
            [[a, b], [c, d]].map(u16::from_le_bytes)
        };
        Ok(pairs.into_iter().flat_map(halves))
    }
}

#[cfg(feature = "test-util")]
impl Rows {
    /// Rows of these numbers, by the bits of bf16, with no memory beside them.
    pub(crate) fn of_bits(
        stream: &Arc<CudaStream>,
        count: usize,
        bits: &[u16],
    ) -> Result<Self, DeviceError> {
        let mut memory = alloc::<u8>(stream, size_of_val(bits).max(1))?;
        if !bits.is_empty() {
            // SAFETY: the memory has room for so many numbers of 16 bits, and any bits are one.
            let view = unsafe { memory.transmute_mut::<u16>(bits.len()) };
            let mut view = view.ok_or_else(|| DeviceError("rows are missing".to_owned()))?;
            stream.memcpy_htod(bits, &mut view).map_err(failed)?;
        }
        Ok(Self {
            count,
            taken: 1,
            memory: Some(memory),
        })
    }
}

/// The room that is taken where so much is needed. A step is seldom as large as the one before, and memory is not to be
/// asked for in each.
pub(crate) fn room_for(needed: usize) -> usize {
    needed.next_power_of_two()
}

/// Takes memory, of whatever content.
pub(crate) fn alloc<T: DeviceRepr>(
    stream: &Arc<CudaStream>,
    len: usize,
) -> Result<CudaSlice<T>, DeviceError> {
    // SAFETY: numbers of any bits are valid, and each operation writes its output before another
    // reads it.
    unsafe { stream.alloc(len) }.map_err(failed)
}

/// The address of memory on the device. Work that uses it is ordered by streams, not by cudarc's
/// events, which are off.
pub(crate) fn address<T>(memory: &CudaSlice<T>, stream: &CudaStream) -> u64 {
    memory.device_ptr(stream).0
}
