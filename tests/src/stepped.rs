//! Engines before each of whose steps a test is heard.

use std::sync::Arc;

use pointsman_core::BlockCopy;
use pointsman_engine::cpu::CpuBackend;
use pointsman_engine::model::backend::{
    Backend, Chunk, DeviceError, SwapDirection, SwapTicket, SwapWait,
};
use pointsman_server::models::Backends;

/// Called before a step, with the executor's name. The step fails with its error.
type Before = dyn Fn(&str) -> Result<(), DeviceError> + Send + Sync;

struct Stepped {
    name: String,
    backend: CpuBackend,
    before: Arc<Before>,
}

/// Backends that call `before` on the engine's thread before each of their steps.
pub(crate) fn backends(
    before: impl Fn(&str) -> Result<(), DeviceError> + Send + Sync + 'static,
) -> Backends {
    let before: Arc<Before> = Arc::new(before);
    Backends::new(move |name, backend| {
        Box::new(Stepped {
            name: name.to_owned(),
            backend,
            before: Arc::clone(&before),
        })
    })
}

impl Backend for Stepped {
    fn vocab_size(&self) -> usize {
        self.backend.vocab_size()
    }

    fn tokens_per_block(&self) -> u32 {
        self.backend.tokens_per_block()
    }

    fn blocks_total(&self) -> u32 {
        self.backend.blocks_total()
    }

    fn context_tokens(&self) -> u32 {
        self.backend.context_tokens()
    }

    fn forward(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        (self.before)(&self.name)?;
        self.backend.forward(chunks, logits)
    }

    fn hidden_size(&self) -> usize {
        self.backend.hidden_size()
    }

    fn hidden(&mut self, hidden: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.backend.hidden(hidden)
    }

    fn swap(
        &mut self,
        direction: SwapDirection,
        copies: &[BlockCopy],
    ) -> Result<SwapTicket, DeviceError> {
        self.backend.swap(direction, copies)
    }

    fn swapped(&mut self, wait: SwapWait) -> Result<SwapTicket, DeviceError> {
        self.backend.swapped(wait)
    }
}
