//! Engines that die at a step that a test chooses.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pointsman_core::BlockCopy;
use pointsman_engine::cpu::CpuBackend;
use pointsman_engine::model::backend::{
    Backend, Chunk, DeviceError, SwapDirection, SwapTicket, SwapWait,
};
use pointsman_server::models::Backends;

/// The way in which an engine dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    DeviceError,
    Panic,
}

/// The times of death of engines: of whichever of a server's makes the last of these steps.
#[derive(Debug)]
pub struct Fate {
    death: Death,
    /// Steps and deaths. Engines count on threads of their own.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Steps before each death to come, counted from the one before it.
    steps: VecDeque<u32>,
    /// Executors whose engines died, in this order.
    died: Vec<String>,
}

struct Mortal {
    name: String,
    backend: CpuBackend,
    fate: Arc<Fate>,
}

// === impl Death ===

impl Death {
    /// Makes the error of a device, or panics.
    fn come(self) -> DeviceError {
        let why = "as the test says";
        match self {
            Self::DeviceError => DeviceError(why.to_owned()),
            Self::Panic => panic!("{why}"),
        }
    }
}

// === impl Fate ===

impl Fate {
    #[must_use]
    pub fn new(death: Death) -> Arc<Self> {
        let state = Mutex::default();
        Arc::new(Self { death, state })
    }

    /// Has an engine die after so many further steps.
    pub fn after(&self, steps: u32) {
        self.after_each(&[steps]);
    }

    /// Has an engine die after so many further steps, then another one after so many more, and so on.
    pub fn after_each(&self, steps: &[u32]) {
        self.state().steps = steps.iter().copied().collect();
    }

    /// Takes the names of the executors whose engines have died, in this order.
    #[must_use]
    pub fn died(&self) -> Vec<String> {
        std::mem::take(&mut self.state().died)
    }

    /// Backends whose steps are counted.
    #[must_use]
    pub fn backends(self: &Arc<Self>) -> Backends {
        let fate = Arc::clone(self);
        Backends::new(move |name, backend| {
            let fate = Arc::clone(&fate);
            let name = name.to_owned();
            Box::new(Mortal {
                name,
                backend,
                fate,
            })
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a step. True if it is the last one of the executor's engine.
    fn is_last(&self, name: &str) -> bool {
        let mut state = self.state();
        match state.steps.front_mut() {
            None => return false,
            Some(steps) if *steps > 0 => {
                *steps -= 1;
                return false;
            }
            Some(_) => {}
        }
        state.steps.pop_front();
        state.died.push(name.to_owned());
        true
    }
}

// === impl Mortal ===

impl Backend for Mortal {
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
        if !self.fate.is_last(&self.name) {
            return self.backend.forward(chunks, logits);
        }
        Err(self.fate.death.come())
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
