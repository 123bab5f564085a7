//! The engine's arithmetic on this machine's processors, and the reference for every other
//! device.
//!
//! A [`HostModel`] is loaded once, and several [`CpuBackend`]s may compute it. The backends of one
//! device share its [`Processors`], so that they never compute on more of them together, and its
//! [`KvMemory`]. A
//! row of logits is the same bit by bit whatever else is in the step, however its prompt was cut,
//! whichever blocks it has, and with any number of threads: scheduling can be tested by equality.
//! Between machines only the platform's sine, cosine and power, for positions, can differ.
//!
//! # Invariants
//! 1. Results do not depend on batch, chunks, blocks, threads or vector instructions
//!    (`tests/invariance.rs`).
//! 2. Results are those of transformers in f32, within 1e-4 (`tests/golden.rs`).
//! 3. A sequence reads positions of its own, through its block table, and no others
//!    (`tests/invariance.rs`, with blocks full of NaN).
//!
//! # Not here
//! The choice of a sequence's blocks (the core), and of the tokens in a step (the step loop).

mod cores;
mod input;
mod kernels;
mod kv;
mod memory;
mod ops;
mod processors;
mod simd;

use std::sync::Arc;

use pointsman_events::{BlockCopy, BlockId};
use rayon::ThreadPool;

pub use cores::{Cores, CoresError};
pub use memory::KvMemory;
pub use processors::Processors;

use self::input::{InputBatch, Places};
use self::kernels::Input;
use self::kv::{KvLayout, StepKv};
use self::ops::{CpuOps, PARALLEL_MIN};
#[cfg(target_arch = "x86_64")]
use self::simd::{Avx2, Avx512};
use self::simd::{Portable, Simd};
use crate::backend::{
    Backend, Chunk, DeviceError, KvShape, SwapDirection, SwapTicket, SwapWait, SwapsAtOnce,
};
use pointsman_model::config::LlamaConfig;
use pointsman_model::graph::{Activations, forward};
use pointsman_model::host::HostModel;

/// A model with a KV pool, computed by processors.
#[derive(Debug)]
pub struct CpuBackend {
    // Immutable.
    model: Arc<HostModel>,
    instructions: Instructions,
    processors: Processors,
    shape: KvShape,
    layout: KvLayout,
    /// The blocks, which other backends of the device have as well.
    memory: KvMemory,
    // Owned state.
    places: Places,
    activations: Activations<Vec<f32>>,
    /// Memory of the steps' products.
    packed: Input,
    swaps: SwapsAtOnce,
    /// True once the thread that computes is kept to the device's cores.
    is_held: bool,
}

#[derive(Clone, Copy, Debug)]
enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    Portable(Portable),
}

// === impl CpuBackend ===

impl CpuBackend {
    /// Makes a backend with an empty pool of its own, which computes on `processors`.
    #[must_use]
    pub fn new(model: Arc<HostModel>, shape: KvShape, processors: Processors) -> Self {
        let blocks = shape.blocks(kv_bytes_per_token(model.config()));
        Self::on(KvMemory::new(blocks), model, shape, processors)
    }

    /// Makes a backend whose keys and values are in `memory`, which computes on `processors`.
    ///
    /// # Panics
    /// If the memory has not as many blocks, or a block has no room for its tokens.
    #[must_use]
    pub fn on(
        memory: KvMemory,
        model: Arc<HostModel>,
        shape: KvShape,
        processors: Processors,
    ) -> Self {
        Self {
            instructions: Instructions::detect(),
            processors,
            shape,
            layout: KvLayout::new(shape, model.config(), &memory),
            memory,
            places: Places::new(shape),
            activations: Activations::default(),
            packed: Input::default(),
            swaps: SwapsAtOnce::default(),
            is_held: false,
            model,
        }
    }

    /// Makes the backend compute without vector instructions, with the same results.
    #[must_use]
    pub fn without_vector_instructions(self) -> Self {
        Self {
            instructions: Instructions::Portable(Portable),
            ..self
        }
    }

    /// Fills blocks with NaN, so that logits show if a position is read before it is written.
    pub fn poison(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            self.memory.fill(*block, f32::NAN);
        }
    }

    fn run<S: Simd>(&mut self, simd: S, chunks: &[Chunk<'_>]) {
        let (model, layout, memory) = (&*self.model, self.layout, &self.memory);
        let input = InputBatch::new(chunks, model, self.shape, &mut self.places);
        let work = input.rows.len() * matrix_size_max(model.config());
        let pool = self.processors.pool().filter(|_| work >= PARALLEL_MIN);
        let (activations, packed) = (&mut self.activations, &mut self.packed);
        let step = || {
            let mut ops = CpuOps {
                simd,
                config: model.config(),
                kv: StepKv::borrow(layout, memory, &input.blocks),
                input,
                threads: pool.map_or(1, ThreadPool::current_num_threads),
                packed,
            };
            forward(&mut ops, model.weights(), activations);
        };
        match pool {
            Some(pool) => pool.install(step),
            None => step(),
        }
    }
}

impl Backend for CpuBackend {
    fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
    }

    fn tokens_per_block(&self) -> u32 {
        self.shape.tokens_per_block
    }

    fn blocks_total(&self) -> u32 {
        self.shape.blocks_total
    }

    fn context_tokens(&self) -> u32 {
        self.model.config().context_tokens
    }

    fn forward(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        if !self.is_held {
            self.processors.hold_caller()?;
            self.is_held = true;
        }
        match self.instructions {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512(avx512) => self.run(avx512, chunks),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2(avx2) => self.run(avx2, chunks),
            Instructions::Portable(portable) => self.run(portable, chunks),
        }
        std::mem::swap(logits, &mut self.activations.logits);
        Ok(())
    }

    fn hidden_size(&self) -> usize {
        self.model.config().hidden_size
    }

    fn hidden(&mut self, hidden: &mut Vec<f32>) -> Result<(), DeviceError> {
        std::mem::swap(hidden, &mut self.activations.hidden_states);
        Ok(())
    }

    fn swap(
        &mut self,
        direction: SwapDirection,
        copies: &[BlockCopy],
    ) -> Result<SwapTicket, DeviceError> {
        self.memory.swap(direction, copies);
        Ok(self.swaps.count())
    }

    fn swapped(&mut self, _wait: SwapWait) -> Result<SwapTicket, DeviceError> {
        Ok(self.swaps.last())
    }
}

// === impl Instructions ===

impl Instructions {
    fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(avx512) = Avx512::detect() {
            return Self::Avx512(avx512);
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(avx2) = Avx2::detect() {
            return Self::Avx2(avx2);
        }
        #[cfg(target_arch = "x86_64")]
        tracing::warn!("no AVX2 and FMA on this machine: the engine will be slow");
        Self::Portable(Portable)
    }
}

/// Numbers in the largest matrix of a model.
fn matrix_size_max(config: &LlamaConfig) -> usize {
    config.hidden_size * config.vocab_size.max(2 * config.intermediate_size)
}

/// Bytes of memory that a token's keys and values take on processors.
#[must_use]
pub fn kv_bytes_per_token(config: &LlamaConfig) -> u64 {
    (config.kv_numbers_per_token() * size_of::<f32>()) as u64
}
