//! A device with its KV pool, and its lives.
//!
//! An error that CUDA calls sticky takes the whole context: memory, weights and pool. Each backend then
//! fails, lets go of the life it had, and the last one to go ends it; the next backend that is made
//! begins another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaSlice};
use pointsman_engine::backend::{DeviceError, KvBlocks};
use pointsman_model::open::{LoadProgress, OpenModel};

use crate::arena::PinnedArena;
use crate::buffer::alloc;
use crate::failed;
use crate::module::Module;
use crate::probe::{self, DeviceInfo, NoDevice};
use crate::weights::{DeviceModel, weight_bytes};

/// A CUDA device with the KV pool that all its backends share. Which blocks are whose is the core's
/// ledger's to know.
#[derive(Debug)]
pub struct CudaDevice {
    info: DeviceInfo,
    blocks: KvBlocks,
    life: Mutex<Weak<ContextLife>>,
}

/// A context on the device, and what lives as long.
#[derive(Debug)]
pub(crate) struct ContextLife {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) module: Module,
    /// The KV pool.
    pub(crate) pool: CudaSlice<u8>,
    /// The host arena.
    pub(crate) arena: PinnedArena,
    /// The models on the device, by their open files. Held while one is loaded: others wait for that, so that
    /// no two are loaded at once, nor one twice.
    models: Mutex<Vec<(Weak<OpenModel>, Weak<DeviceModel>)>>,
    lost: AtomicBool,
}

impl CudaDevice {
    /// Returns the bytes of memory that are free on a device, once the kernels are loaded.
    ///
    /// # Errors
    /// If the device cannot be used.
    pub fn free_bytes(ordinal: usize) -> Result<u64, DeviceError> {
        let context = open(ordinal)?;
        let (free, _) = context.mem_get_info().map_err(failed)?;
        Ok(free as u64)
    }

    /// A device with so many KV blocks, for which memory is taken when the first backend is made.
    ///
    /// # Errors
    /// If the device cannot be used.
    pub fn new(ordinal: usize, blocks: KvBlocks) -> Result<Self, NoDevice> {
        Ok(Self {
            info: probe::device(ordinal)?,
            blocks,
            life: Mutex::default(),
        })
    }

    /// The device, as it was found.
    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The KV blocks of the device.
    pub(crate) fn blocks(&self) -> KvBlocks {
        self.blocks
    }

    /// The device's life, or a new one where none is left.
    pub(crate) fn life(&self) -> Result<Arc<ContextLife>, DeviceError> {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(life) = life.upgrade() {
            if life.lost.load(Ordering::Relaxed) {
                let still =
                    "the device was lost, and another executor on it has not let go of it yet";
                return Err(DeviceError(still.to_owned()));
            }
            return Ok(life);
        }
        let begun = Arc::new(ContextLife::begin(self.info.ordinal, self.blocks)?);
        *life = Arc::downgrade(&begun);
        Ok(begun)
    }
}

impl ContextLife {
    fn begin(ordinal: usize, blocks: KvBlocks) -> Result<Self, DeviceError> {
        let pool_bytes = blocks.bytes * u64::from(blocks.total);
        let context = open(ordinal)?;
        let module = Module::load(&context)?;
        let stream = context.new_stream().map_err(failed)?;
        let (free, _) = context.mem_get_info().map_err(failed)?;
        if pool_bytes > free as u64 {
            return Err(DeviceError(format!(
                "CUDA device {ordinal} has {free} bytes free, and its kv-memory is {pool_bytes}; \
                 give it less"
            )));
        }
        let len = usize::try_from(pool_bytes).unwrap_or(usize::MAX);
        let pool = alloc(&stream, len)?;
        stream.synchronize().map_err(failed)?;
        Ok(Self {
            arena: PinnedArena::new(&context, blocks)?,
            context,
            module,
            pool,
            models: Mutex::default(),
            lost: AtomicBool::new(false),
        })
    }

    /// The model on the device, loaded unless it is there already; then `tell` is told how far that is.
    /// Nobody may call this who keeps others quiet.
    pub(crate) fn model(
        &self,
        model: &Arc<OpenModel>,
        tell: &mut dyn FnMut(LoadProgress),
    ) -> Result<Arc<DeviceModel>, DeviceError> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        models.retain(|(_, there)| there.strong_count() > 0);
        let same = |(open, _): &&(Weak<OpenModel>, _)| open.as_ptr() == Arc::as_ptr(model);
        if let Some(there) = models
            .iter()
            .find(same)
            .and_then(|(_, there)| there.upgrade())
        {
            return Ok(there);
        }
        let loaded = DeviceModel::load(&self.context, model, tell).map_err(|error| {
            let bytes = weight_bytes(model);
            DeviceError(format!("weights of {bytes} bytes are not loaded: {error}"))
        });
        let there = Arc::new(loaded?);
        models.push((Arc::downgrade(model), Arc::downgrade(&there)));
        Ok(there)
    }

    /// Notes that the context is lost: no further backend gets it.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }
}

/// Opens a context on a device that can be used.
pub(crate) fn open(ordinal: usize) -> Result<Arc<CudaContext>, DeviceError> {
    probe::device(ordinal).map_err(|error| DeviceError(error.to_string()))?;
    let context = CudaContext::new(ordinal).map_err(failed)?;
    // SAFETY: nothing is allocated yet; all work on memory is on the stream of its backend, and what
    // several share is written before another stream is told of it.
    unsafe { context.disable_event_tracking() };
    Ok(context)
}
