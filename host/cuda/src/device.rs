//! A device with its KV pool, and its lives.
//!
//! An error that CUDA calls sticky takes the whole context: memory, weights and pool. Each backend then
//! fails, lets go of the life it had, and the last one to go ends it; the next backend that is made
//! begins another. Any other error is its backend's alone, such as memory that is missing, or a link to another device
//! that fails.
//!
//! # Invariants
//! Held by `tests/lives.rs`.
//! 1. A life is lost only where the driver says so of its context
//!    (`an_error_that_leaves_the_device_as_it_was_is_of_one_backend_alone`).
//! 2. No backend computes anything on a life that is lost (`a_lost_device_begins_anew_once_all_have_let_go_of_it`).
//! 3. A backend lets go of its life after all else that it has in the context
//!    (`a_lost_device_begins_anew_on_another_thread_as_soon_as_it_is_let_go_of`).

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
    life: Mutex<LastLife>,
}

/// The last life of a device that was begun.
#[derive(Debug, Default)]
struct LastLife {
    life: Weak<ContextLife>,
    loss: Loss,
}

/// The loss of a life, if it is lost. It is apart from the life, so that a look at it does not keep the life: that ends only
/// while others are quiet.
#[derive(Clone, Debug, Default)]
struct Loss(Arc<AtomicBool>);

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
    loss: Loss,
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
        let mut last = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(life) = last.life.upgrade() {
            life.loss.check()?;
            return Ok(life);
        }
        let begun = Arc::new(ContextLife::begin(self.info.ordinal, self.blocks)?);
        *last = LastLife {
            life: Arc::downgrade(&begun),
            loss: begun.loss.clone(),
        };
        Ok(begun)
    }

    /// Checks that no life of the device is lost and kept by backends nevertheless.
    pub(crate) fn check_life(&self) -> Result<(), DeviceError> {
        let last = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        match last.life.strong_count() {
            0 => Ok(()),
            _ => last.loss.check(),
        }
    }
}

impl Loss {
    fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), DeviceError> {
        match self.0.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(DeviceError(
                "the device was lost, and an executor on it has not let go of it yet".to_owned(),
            )),
        }
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
            loss: Loss::default(),
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

    /// Has this thread use the context, unless it is lost.
    pub(crate) fn bind(&self) -> Result<(), DeviceError> {
        self.loss.check()?;
        self.context.bind_to_thread().map_err(failed)
    }

    /// Returns a result; where it is a failure, finds out first whether the context is lost with it.
    pub(crate) fn heard<T>(&self, done: Result<T, DeviceError>) -> Result<T, DeviceError> {
        done.inspect_err(|_| self.look())
    }

    /// Notes that the context is lost, if it is: no further backend gets it then. An error that CUDA calls sticky comes
    /// again whatever is asked, as often as it is; one that a destructor has left behind comes once.
    pub(crate) fn look(&self) {
        // Its stream has nothing to do, so that nobody is waited for.
        let stream = self.pool.stream();
        if stream.synchronize().is_err() && stream.synchronize().is_err() {
            self.loss.note();
        }
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
