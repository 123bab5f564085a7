//! Backends before each of whose steps a test is heard.

use pointsman_events::BlockCopy;

use crate::backend::{
    Backend, Chunk, DeviceError, SwapDirection, SwapTicket, SwapWait, TokenChooser,
};

/// Called before a step, which fails with its error.
type Before = dyn FnMut() -> Result<(), DeviceError> + Send;

/// A backend before each of whose steps something is called.
pub struct Stepped {
    backend: Box<dyn Backend>,
    before: Box<Before>,
}

impl Stepped {
    pub fn new(
        backend: Box<dyn Backend>,
        before: impl FnMut() -> Result<(), DeviceError> + Send + 'static,
    ) -> Self {
        let before = Box::new(before);
        Self { backend, before }
    }
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
        (self.before)()?;
        self.backend.forward(chunks, logits)
    }

    fn hidden_size(&self) -> usize {
        self.backend.hidden_size()
    }

    fn hidden(&mut self, hidden: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.backend.hidden(hidden)
    }

    fn chooser(&mut self) -> Option<&mut dyn TokenChooser> {
        self.backend.chooser()
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
