//! Engines that stand still while a test looks at them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use pointsman_core::BlockCopy;
use pointsman_engine::cpu::CpuBackend;
use pointsman_engine::model::backend::{
    Backend, Chunk, DeviceError, SwapDirection, SwapTicket, SwapWait,
};
use pointsman_server::models::Backends;

/// A gate in front of every step of a server's engines. It is open at first. To be opened before the
/// server is stopped.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// True while no step begins. Engines wait for it to be false.
    shut: Mutex<bool>,
    opened: Condvar,
}

struct Gated {
    backend: CpuBackend,
    gate: Gate,
}

impl Gate {
    /// Backends whose steps go through the gate.
    #[must_use]
    pub fn backends(&self) -> Backends {
        let gate = self.clone();
        Backends::new(move |_, backend| {
            let gate = gate.clone();
            Box::new(Gated { backend, gate })
        })
    }

    /// Lets no further step begin.
    pub fn shut(&self) {
        *self.0.shut.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Lets the engines go on.
    pub fn open(&self) {
        *self.0.shut.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.opened.notify_all();
    }

    fn pass(&self) {
        let shut = self.0.shut.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = self.0.opened.wait_while(shut, |shut| *shut);
        drop(opened);
    }
}

impl Backend for Gated {
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
        self.gate.pass();
        self.backend.forward(chunks, logits)
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
