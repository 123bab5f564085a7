//! A model with its part of a device's KV pool, or a rank's part of a model.

mod rank;

use std::fmt;
use std::sync::Arc;

use cudarc::cublas::sys as blas;
#[cfg(feature = "test-util")]
use cudarc::driver::result::memset_d8_async;
use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use pointsman_engine::backend::{
    Backend, Chunk, DeviceError, KvShape, PossibleTokens, SwapDirection, SwapTicket, SwapWait,
    TokenChoice, TokenChooser,
};
#[cfg(feature = "test-util")]
use pointsman_engine::test_util::schedules::WithPoison;
use pointsman_events::BlockCopy;
#[cfg(feature = "test-util")]
use pointsman_events::BlockId;
use pointsman_model::config::LlamaConfig;
#[cfg(feature = "test-util")]
use pointsman_model::graph::Llama;
use pointsman_model::graph::{Activations, forward};
use pointsman_model::open::{LoadProgress, OpenModel};

use crate::blas::Blas;
use crate::buffer::{Rows, address, alloc};
use crate::choice::{Chooser, LogitRows};
use crate::comm::{Comm, Launching};
use crate::device::{ContextLife, CudaDevice};
use crate::graphs::{EndsQuietly, Graphs, StepGraph, StepShape, Way, quiet};
use crate::input::{DeviceNumbers, InputAt, InputBatch};
use crate::ops::{self, Attention, CudaOps};
use crate::swaps::Swaps;
use crate::weights::{self, DeviceModel};
use crate::{blas_failed, failed};

/// Bytes of device memory that each backend gives cuBLAS to work in. NVIDIA asks for 32 MiB on Hopper.
pub const BLAS_BYTES: usize = 32 << 20;

/// A model on a CUDA device, computed on a stream of its own.
pub struct CudaBackend {
    // Immutable.
    open: Arc<OpenModel>,
    shape: KvShape,
    /// Bytes of a block of the device.
    block_bytes: usize,
    model: Arc<DeviceModel>,
    stream: Arc<CudaStream>,
    /// Waits for the device when it ends.
    blas: EndsQuietly<Blas>,
    /// The memory of `blas`.
    _blas_memory: CudaSlice<u8>,
    // Owned state.
    input: DeviceNumbers,
    chooser: Chooser,
    attention: Attention,
    /// Weights on their way from FP8 to a product.
    widened: Rows,
    activations: Activations<Rows>,
    /// Number of hidden states that the last step was asked for.
    hidden: usize,
    graphs: Graphs,
    /// The way to the other ranks, if there are any. Behind the graphs, which end before it.
    comm: Option<Comm>,
    swaps: Swaps,
    // Lifecycle.
    /// Ends last, as fields end in their order: once nobody has a life the next one begins, and then nothing may be left in
    /// the context of this one.
    life: EndsQuietly<Arc<ContextLife>>,
}

/// Bytes of memory that a token's keys and values take on a device.
#[must_use]
pub fn kv_bytes_per_token(config: &LlamaConfig) -> u64 {
    (config.kv_numbers_per_token() * size_of::<u16>()) as u64
}

/// The parts of a backend that come before its model.
struct Begun {
    swaps: Swaps,
    stream: Arc<CudaStream>,
    life: Arc<ContextLife>,
}

impl Begun {
    fn on(device: &CudaDevice) -> Result<Self, DeviceError> {
        let _quiet = quiet();
        let life = device.life()?;
        let swaps = life.heard(Swaps::new(&life))?;
        let stream = life.heard(life.context.new_stream().map_err(failed))?;
        Ok(Self {
            swaps,
            stream,
            life,
        })
    }
}

/// Begins cuBLAS on a stream, with its memory.
fn begin_blas(stream: &Arc<CudaStream>) -> Result<(Blas, CudaSlice<u8>), DeviceError> {
    let handle = Blas::new(stream)?;
    let memory = alloc::<u8>(stream, BLAS_BYTES)?;
    let at = address(&memory, stream) as *mut _;
    // SAFETY: the memory has so many bytes, and lives as long as the handle.
    let given = unsafe { blas::cublasSetWorkspace_v2(handle.handle(), at, BLAS_BYTES) };
    given.result().map_err(blas_failed)?;
    Ok((handle, memory))
}

impl CudaBackend {
    /// Checks that a device and its kernels can compute a model.
    ///
    /// # Errors
    /// If they cannot; the error says why.
    pub fn check(device: &CudaDevice, model: &OpenModel) -> Result<(), DeviceError> {
        weights::check(model.config())?;
        match model.fp8() {
            None => Ok(()),
            Some(fp8) => weights::check_fp8(device.info(), model, fp8),
        }
    }

    /// [`Self::load`], told to nobody.
    ///
    /// # Errors
    /// As there.
    pub fn new(
        device: &CudaDevice,
        model: Arc<OpenModel>,
        shape: KvShape,
    ) -> Result<Self, DeviceError> {
        Self::load(device, model, shape, &mut |_| ())
    }

    /// Loads a model onto a device, unless another backend already has, and lays its keys and values out
    /// in the device's pool as `shape` says. `tell` is told how far loading is.
    ///
    /// # Errors
    /// If the device fails or has not enough memory, its kernels are not for this model, or the weights cannot
    /// be read.
    pub fn load(
        device: &CudaDevice,
        model: Arc<OpenModel>,
        shape: KvShape,
        tell: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, DeviceError> {
        let config = model.config();
        Self::check(device, &model)?;
        let block = u64::from(shape.tokens_per_block) * kv_bytes_per_token(config);
        let blocks = device.blocks();
        if block > blocks.bytes || shape.blocks_total > blocks.total {
            return Err(DeviceError(format!(
                "{} blocks of {block} bytes are more than the device's {} of {}",
                shape.blocks_total, blocks.total, blocks.bytes
            )));
        }
        let begun = EndsQuietly::new(Begun::on(device)?);
        // It may take long, and steps of others are recorded meanwhile.
        let on_device = begun.life.heard(begun.life.model(&model, tell))?;
        let quiet = quiet();
        // Should cuBLAS fail, it ends before the others may go on.
        let on_device = on_device;
        let Begun {
            life,
            stream,
            swaps,
        } = begun.into_inner(&quiet);
        let (handle, memory) = life.heard(begin_blas(&stream))?;
        Ok(Self {
            open: model,
            shape,
            block_bytes: usize::try_from(blocks.bytes).expect("a block is in memory"),
            model: on_device,
            stream,
            blas: EndsQuietly::new(handle),
            _blas_memory: memory,
            input: DeviceNumbers::default(),
            chooser: Chooser::default(),
            attention: Attention::default(),
            widened: Rows::default(),
            activations: Activations::default(),
            hidden: 0,
            graphs: Graphs::default(),
            comm: None,
            swaps,
            life: EndsQuietly::new(life),
        })
    }

    fn run(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        let input = self.lay_out(chunks);
        logits.clear();
        let (at, way) = self.begin(&input)?;
        if at.rows == 0 {
            return Ok(());
        }
        let quiet = way.quiet();
        self.launch(way, &input, &at)?;
        drop(quiet);
        self.finish(&input, logits)
    }

    /// Lays out a step, filled up if it is of decode.
    ///
    /// # Panics
    /// If a chunk is wrong.
    pub(crate) fn lay_out(&self, chunks: &[Chunk<'_>]) -> InputBatch {
        let config = self.open.config();
        let mut input = InputBatch::new(chunks, config, self.shape);
        input.fill_up(chunks, config, self.shape);
        input
    }

    /// Copies a step to the device, and finds out how it is to be made.
    pub(crate) fn begin(&mut self, input: &InputBatch) -> Result<(InputAt, Way), DeviceError> {
        self.life.bind()?;
        let at = InputAt::copy(&mut self.input, &self.stream, input)?;
        self.chooser.expect(input.kept());
        self.hidden = at.hidden;
        let shape = ops::shape(self.open.config(), input, &at);
        let way = shape.map(|shape| self.graphs.way(shape, self.taken()));
        Ok((at, way.unwrap_or(Way::EachAlone(None))))
    }

    /// Launches a step. Where it is recorded, others are kept quiet.
    fn launch(&mut self, way: Way, input: &InputBatch, at: &InputAt) -> Result<(), DeviceError> {
        match way {
            Way::Recorded(shape) => {
                let graph = self.graphs.recorded(shape, self.taken());
                let graph = graph.ok_or_else(|| {
                    DeviceError("the step was recorded by another rank only".to_owned())
                });
                graph?.launch()
            }
            Way::Record(shape) => self.record(shape, input, at),
            Way::EachAlone(shape) => {
                self.launch_each(input, at, Launching::Now)?;
                if let Some(shape) = shape {
                    self.graphs.remember(shape, self.taken(), None);
                }
                Ok(())
            }
        }
    }

    /// Records a step, and launches it.
    fn record(
        &mut self,
        shape: StepShape,
        input: &InputBatch,
        at: &InputAt,
    ) -> Result<(), DeviceError> {
        let stream = Arc::clone(&self.stream);
        let launches = || self.launch_each(input, at, Launching::Recorded);
        match StepGraph::record(&stream, launches) {
            Ok(graph) => {
                graph.launch()?;
                self.graphs.remember(shape, self.taken(), Some(graph));
                Ok(())
            }
            // Ranks record a step together, or none does.
            Err(error) if self.comm.is_some() => Err(error),
            // Somebody else had the driver wait for the whole device, or it is lost: the launches tell.
            Err(_) => self.launch_each(input, at, Launching::Now),
        }
    }

    /// Copies what a step is to give.
    pub(crate) fn finish(
        &self,
        input: &InputBatch,
        logits: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        logits.resize(input.copied() * self.open.config().vocab_size, 0.0);
        self.fetch(logits)?;
        self.life.context.check_err().map_err(failed)
    }

    /// Number of times that memory was taken for steps: all but weights and pool, which stay where they are.
    fn taken(&self) -> u64 {
        let Attention { sums, stats } = &self.attention;
        let rows = self.activations.all().into_iter();
        let rows = rows.chain([sums, stats, &self.widened]);
        rows.map(|rows| rows.taken).sum::<u64>() + self.input.taken
    }

    /// Launches a step, one operation after the other.
    fn launch_each(
        &mut self,
        input: &InputBatch,
        at: &InputAt,
        launching: Launching,
    ) -> Result<(), DeviceError> {
        let mut ops = CudaOps {
            config: self.open.config(),
            slots: self.shape.tokens_per_block,
            block_size: self.block_bytes / size_of::<bf16>(),
            module: &self.life.module,
            stream: &self.stream,
            blas: &self.blas,
            pool: address(&self.life.pool, &self.stream),
            angles: address(&self.model.angles, &self.stream),
            input,
            at: at.clone(),
            attention: &mut self.attention,
            widened: &mut self.widened,
            comm: self.comm.as_mut(),
            launching,
            failed: None,
        };
        forward(&mut ops, &self.model.weights, &mut self.activations);
        ops.failed.map_or(Ok(()), Err)
    }

    fn choose_now(
        &mut self,
        choices: &[TokenChoice<'_>],
        possible: PossibleTokens<'_>,
    ) -> Result<Vec<Option<u32>>, DeviceError> {
        self.life.bind()?;
        let rows = LogitRows {
            address: self.activations.logits.address(&self.stream),
            size: self.open.config().vocab_size,
        };
        let (module, stream) = (&self.life.module, &self.stream);
        let chosen = self
            .chooser
            .choose((module, stream), rows, choices, possible)?;
        self.life.context.check_err().map_err(failed)?;
        Ok(chosen)
    }

    fn fetch_hidden(&self, hidden: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.life.bind()?;
        // A row has an even number of numbers.
        let count = self.hidden * self.hidden_size();
        let bits = self.activations.hidden_states.bits(&self.stream, count)?;
        hidden.clear();
        hidden.extend(bits.map(|bits| bf16::from_bits(bits).to_f32()));
        self.life.context.check_err().map_err(failed)
    }

    /// Copies logits, and waits for the step then; without any, whoever comes next waits.
    fn fetch(&self, logits: &mut [f32]) -> Result<(), DeviceError> {
        self.activations.logits.read(&self.stream, logits)?;
        match self.chooser.is_expected() {
            true => Ok(()),
            false => self.stream.synchronize().map_err(failed),
        }
    }
}

#[cfg(feature = "test-util")]
impl CudaBackend {
    /// A backend of `model` that is alone on the first device, which has as many blocks as `shape` says.
    ///
    /// # Errors
    /// If the device cannot be used, or as [`Self::load`].
    pub fn alone(model: &Arc<OpenModel>, shape: KvShape) -> Result<Self, DeviceError> {
        let blocks = shape.blocks(kv_bytes_per_token(model.config()));
        let device = CudaDevice::new(0, blocks).map_err(|error| DeviceError(error.to_string()))?;
        Self::new(&device, Arc::clone(model), shape)
    }

    /// The weights on the device: matrices by the bits of bf16 or the codes of FP8, and vectors.
    ///
    /// # Errors
    /// If the device fails.
    pub fn weights(&self) -> Result<Llama<Vec<u16>, Vec<f32>>, DeviceError> {
        self.life.bind()?;
        let mut back = weights::CopyBack(&self.stream);
        self.model.weights.made(&mut back)
    }
}

#[cfg(feature = "test-util")]
impl WithPoison for CudaBackend {
    /// A real cuBLAS may add in another order for another number of rows, and numbers have 8 bits.
    fn deviation_max(&self) -> f32 {
        match crate::emulation::is_on_device() {
            true => 0.05,
            false => 0.0,
        }
    }

    fn poison(&mut self, blocks: &[BlockId]) {
        let len = self.block_bytes;
        let pool = address(&self.life.pool, &self.stream);
        for block in blocks {
            let at = pool + u64::from(block.0) * len as u64;
            let stream = self.stream.cu_stream();
            // SAFETY: the block is in the pool, and no other sequence's.
            let filled = unsafe { memset_d8_async(at, 0xff, len, stream) };
            filled.expect("memory can be filled");
        }
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        let _quiet = quiet();
        // A sum that waits for another rank ends with the way to it, and the stream goes on then.
        self.leave();
        // The weights and the pool, which are not the stream's, may go next. A context that is lost has nothing under
        // way, and says so.
        if self.stream.synchronize().is_err() {
            self.life.look();
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
        self.open.config().vocab_size
    }

    fn tokens_per_block(&self) -> u32 {
        self.shape.tokens_per_block
    }

    fn blocks_total(&self) -> u32 {
        self.shape.blocks_total
    }

    fn context_tokens(&self) -> u32 {
        self.open.config().context_tokens
    }

    fn forward(&mut self, chunks: &[Chunk<'_>], logits: &mut Vec<f32>) -> Result<(), DeviceError> {
        let done = self.run(chunks, logits);
        self.life.heard(done)
    }

    fn hidden_size(&self) -> usize {
        self.open.config().hidden_size
    }

    fn hidden(&mut self, hidden: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.life.heard(self.fetch_hidden(hidden))
    }

    fn chooser(&mut self) -> Option<&mut dyn TokenChooser> {
        Some(self)
    }

    fn swap(
        &mut self,
        direction: SwapDirection,
        copies: &[BlockCopy],
    ) -> Result<SwapTicket, DeviceError> {
        let begun = self.swaps.begin(&self.stream, (direction, copies));
        self.life.heard(begun)
    }

    fn swapped(&mut self, wait: SwapWait) -> Result<SwapTicket, DeviceError> {
        let done = self.swaps.done(wait);
        self.life.heard(done)
    }
}

impl TokenChooser for CudaBackend {
    fn choose(
        &mut self,
        choices: &[TokenChoice<'_>],
        possible: PossibleTokens<'_>,
    ) -> Result<Vec<Option<u32>>, DeviceError> {
        let chosen = self.choose_now(choices, possible);
        self.life.heard(chosen)
    }
}
