//! A model with its part of a device's KV pool.

use std::fmt;
use std::sync::Arc;

use cudarc::cublas::{CudaBlas, sys as blas};
#[cfg(feature = "test-util")]
use cudarc::driver::result::memset_d8_async;
use cudarc::driver::{CudaSlice, CudaStream};
use pointsman_engine::model::backend::{
    Backend, Chunk, DeviceError, KvShape, SwapDirection, SwapTicket, SwapWait, SwapsAtOnce,
};
use pointsman_engine::model::config::LlamaConfig;
use pointsman_engine::model::graph::{Activations, forward};
use pointsman_engine::model::host::HostModel;
#[cfg(feature = "test-util")]
use pointsman_engine::test_util::schedules::WithPoison;
use pointsman_events::BlockCopy;
#[cfg(feature = "test-util")]
use pointsman_events::BlockId;

use crate::buffer::{Rows, address, alloc};
use crate::device::{ContextLife, CudaDevice};
use crate::input::{DeviceInput, InputBatch};
use crate::ops::{Attention, CudaOps};
use crate::weights::{self, DeviceModel};
use crate::{blas_failed, failed};

/// Bytes of device memory that each backend gives cuBLAS to work in. NVIDIA asks for 32 MiB on Hopper.
pub const BLAS_BYTES: usize = 32 << 20;

/// A model on a CUDA device, computed on a stream of its own.
pub struct CudaBackend {
    // Immutable.
    host: Arc<HostModel>,
    shape: KvShape,
    life: Arc<ContextLife>,
    model: Arc<DeviceModel>,
    stream: Arc<CudaStream>,
    blas: CudaBlas,
    /// The memory of `blas`.
    _blas_memory: CudaSlice<u8>,
    // Owned state.
    input: DeviceInput,
    attention: Attention,
    activations: Activations<Rows>,
    swaps: SwapsAtOnce,
}

/// Bytes of memory that a token's keys and values take on a device.
#[must_use]
pub fn kv_bytes_per_token(config: &LlamaConfig) -> u64 {
    (config.kv_numbers_per_token() * size_of::<u16>()) as u64
}

impl CudaBackend {
    /// Checks that the kernels can compute a model of this architecture.
    ///
    /// # Errors
    /// If they cannot; the error says why.
    pub fn check(config: &LlamaConfig) -> Result<(), DeviceError> {
        weights::check(config)
    }

    /// Puts a model on a device, unless another backend already has, and lays its keys and values out
    /// in the device's pool as `shape` says.
    ///
    /// # Errors
    /// If the device fails or has not enough memory, or its kernels are not for this model.
    pub fn new(
        device: &CudaDevice,
        model: Arc<HostModel>,
        shape: KvShape,
    ) -> Result<Self, DeviceError> {
        let config = model.config();
        weights::check(config)?;
        let block = u64::from(shape.tokens_per_block) * kv_bytes_per_token(config);
        let blocks = device.blocks();
        if block > blocks.bytes || shape.blocks_total > blocks.total {
            return Err(DeviceError(format!(
                "{} blocks of {block} bytes are more than the device's {} of {}",
                shape.blocks_total, blocks.total, blocks.bytes
            )));
        }
        let life = device.life()?;
        let stream = life.context.new_stream().map_err(failed)?;
        let on_device = life.model(&stream, &model)?;
        let handle = CudaBlas::new(Arc::clone(&stream)).map_err(blas_failed)?;
        let memory = alloc::<u8>(&stream, BLAS_BYTES)?;
        let at = address(&memory, &stream) as *mut _;
        // SAFETY: the memory has so many bytes, and lives as long as the handle.
        let given = unsafe { blas::cublasSetWorkspace_v2(*handle.handle(), at, BLAS_BYTES) };
        given.result().map_err(blas_failed)?;
        Ok(Self {
            host: model,
            shape,
            life,
            model: on_device,
            stream,
            blas: handle,
            _blas_memory: memory,
            input: DeviceInput::default(),
            attention: Attention::default(),
            activations: Activations::default(),
            swaps: SwapsAtOnce::default(),
        })
    }

    fn run(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        let config = self.host.config();
        let input = InputBatch::new(chunks, config, self.shape);
        logits.clear();
        let context = &self.life.context;
        context.bind_to_thread().map_err(failed)?;
        let at = self.input.copy(&self.stream, &input)?;
        if at.rows == 0 {
            return Ok(());
        }
        logits.resize(at.wanted * config.vocab_size, 0.0);
        let mut ops = CudaOps {
            config,
            slots: self.shape.tokens_per_block,
            module: &self.life.module,
            stream: &self.stream,
            blas: &self.blas,
            pool: address(&self.life.pool, &self.stream),
            angles: address(&self.model.angles, &self.stream),
            input: &input,
            at,
            attention: &mut self.attention,
            failed: None,
        };
        forward(&mut ops, &self.model.weights, &mut self.activations);
        if let Some(error) = ops.failed {
            return Err(error);
        }
        self.fetch(logits)?;
        self.life.context.check_err().map_err(failed)
    }

    /// Copies blocks, and waits until that is done.
    fn copy(&mut self, direction: SwapDirection, copies: &[BlockCopy]) -> Result<(), DeviceError> {
        self.life.context.bind_to_thread().map_err(failed)?;
        let pool = address(&self.life.pool, &self.stream);
        let copies = (direction, copies);
        self.life.arena.copy(&self.stream, pool, copies)?;
        self.stream.synchronize().map_err(failed)
    }

    /// Waits for the step, and copies its logits.
    fn fetch(&mut self, logits: &mut [f32]) -> Result<(), DeviceError> {
        if let Some(memory) = self.activations.logits.memory()
            && !logits.is_empty()
        {
            // SAFETY: the memory has room for numbers of 32 bits, and any bits are one.
            let numbers = unsafe { memory.transmute::<f32>(logits.len()) };
            let numbers = numbers.ok_or_else(|| DeviceError("logits are missing".to_owned()))?;
            self.stream.memcpy_dtoh(&numbers, logits).map_err(failed)?;
        }
        self.stream.synchronize().map_err(failed)
    }
}

#[cfg(feature = "test-util")]
impl WithPoison for CudaBackend {
    fn poison(&mut self, blocks: &[BlockId]) {
        let token = kv_bytes_per_token(self.host.config());
        let bytes = token * u64::from(self.shape.tokens_per_block);
        let len = usize::try_from(bytes).expect("a block is in memory");
        let pool = address(&self.life.pool, &self.stream);
        for block in blocks {
            let at = pool + u64::from(block.0) * bytes;
            let stream = self.stream.cu_stream();
            // SAFETY: the block is in the pool, and no other sequence's.
            let filled = unsafe { memset_d8_async(at, 0xff, len, stream) };
            filled.expect("memory can be filled");
        }
    }
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBackend")
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl Backend for CudaBackend {
    fn vocab_size(&self) -> usize {
        self.host.config().vocab_size
    }

    fn tokens_per_block(&self) -> u32 {
        self.shape.tokens_per_block
    }

    fn blocks_total(&self) -> u32 {
        self.shape.blocks_total
    }

    fn context_tokens(&self) -> u32 {
        self.host.config().context_tokens
    }

    fn forward(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        let done = self.run(chunks, logits);
        if done.is_err() {
            self.life.lose();
        }
        done
    }

    fn swap(
        &mut self,
        direction: SwapDirection,
        copies: &[BlockCopy],
    ) -> Result<SwapTicket, DeviceError> {
        let done = self.copy(direction, copies);
        if done.is_err() {
            self.life.lose();
        }
        done.map(|()| self.swaps.count())
    }

    fn swapped(&mut self, _wait: SwapWait) -> Result<SwapTicket, DeviceError> {
        Ok(self.swaps.last())
    }
}
