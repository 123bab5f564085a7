//! Copies between the pool of a device and its arena, beside the steps: on a stream of their own.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream};
use pointsman_engine::backend::{DeviceError, SwapDirection, SwapTicket, SwapWait};
use pointsman_events::BlockCopy;

use crate::buffer::address;
use crate::device::ContextLife;
use crate::failed;

/// The swaps of a backend.
#[derive(Debug)]
pub(crate) struct Swaps {
    /// The life of the device, whose arena stays for as long as copies are under way.
    life: Arc<ContextLife>,
    stream: Arc<CudaStream>,
    /// The last swap that has come to its end.
    done: SwapTicket,
    /// Events at the ends of those after it, in order.
    under_way: VecDeque<CudaEvent>,
}

impl Swaps {
    /// No swaps yet.
    pub(crate) fn new(life: &Arc<ContextLife>) -> Result<Self, DeviceError> {
        Ok(Self {
            life: Arc::clone(life),
            stream: life.context.new_stream().map_err(failed)?,
            done: SwapTicket::default(),
            under_way: VecDeque::new(),
        })
    }

    /// Begins to copy blocks between the pool and the arena, as the `steps` before have left them.
    ///
    /// # Panics
    /// If there is no such block.
    pub(crate) fn begin(
        &mut self,
        steps: &CudaStream,
        copies: (SwapDirection, &[BlockCopy]),
    ) -> Result<SwapTicket, DeviceError> {
        self.life.bind()?;
        self.stream.join(steps).map_err(failed)?;
        let pool = address(&self.life.pool, &self.stream);
        self.life.arena.copy(&self.stream, pool, copies)?;
        let end = self.stream.record_event(None).map_err(failed)?;
        self.under_way.push_back(end);
        Ok(SwapTicket(self.done.0 + self.under_way.len() as u64))
    }

    /// The last swap that has come to its end.
    pub(crate) fn done(&mut self, wait: SwapWait) -> Result<SwapTicket, DeviceError> {
        self.life.bind()?;
        if let (SwapWait::ForNext, Some(next)) = (wait, self.under_way.front()) {
            next.synchronize().map_err(failed)?;
        }
        while let Some(next) = self.under_way.front()
            && next.try_is_complete().map_err(failed)?
        {
            self.under_way.pop_front();
            self.done.0 += 1;
        }
        Ok(self.done)
    }
}

impl Drop for Swaps {
    fn drop(&mut self) {
        // The arena may go next. A context that is lost has nothing under way, and says so.
        if self.stream.synchronize().is_err() {
            self.life.look();
        }
    }
}
