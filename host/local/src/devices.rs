//! The devices of this machine, on which models run.
//!
//! A device is a part of the processors with threads of its own, or a CUDA device, or several of these that compute
//! together, each with a part of every KV block. Its KV blocks are
//! shared by all its executors. A block is a fixed number of bytes: enough for 16 tokens of the model
//! with the most bytes per token. A block holds as many tokens of each other model as fit; where an
//! executor serves several models, as many as fit of the one with the most bytes per token.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, ensure};
use pointsman_core::rows::ExecutorKind;
use pointsman_core::{DeviceId, DeviceSpec, Input, KvSpec, Machine, Micros};
use pointsman_cuda::{ComputedModel, CudaDevices, Room, StepSize, probe};
use pointsman_driver::provider::ServeModelError;
use pointsman_engine::backend::{Backend, DeviceError, KvBlocks, KvShape};
use pointsman_engine::cpu;
use pointsman_engine::cpu::{Cores, CpuBackend, KvMemory, Processors};
use pointsman_model::config::LlamaConfig;
use pointsman_model::open::OpenModel;
use pointsman_model::split::Rank;
use tracing::info;

use crate::local_model::LocalModel;
use crate::settings::{DeviceConfig, Hardware};

/// Tokens in a block, of the model that takes the most memory per token.
const TOKENS_PER_BLOCK: u64 = 16;
/// Bytes that kernels read at once.
const READ_BYTES: u64 = 16;

/// An attached device.
#[derive(Clone, Debug)]
pub(crate) struct LocalDevice {
    pub(crate) name: String,
    pub(crate) id: DeviceId,
    blocks: KvBlocks,
    hardware: Hardware,
    compute: Compute,
}

/// A model that is to be computed on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComingModel<'a> {
    pub(crate) model: &'a OpenModel,
    /// The slots of each executor that serves it there.
    pub(crate) slots: &'a [u32],
}

/// The hardware of an attached device, at work.
#[derive(Clone, Debug)]
enum Compute {
    Processors(Processors, KvMemory),
    Cuda(Arc<CudaDevices>),
}

impl LocalDevice {
    /// Attaches a device whose blocks fit the widest of `models`, and starts its threads.
    ///
    /// # Errors
    /// If there is no such device, or it has no memory for `models`.
    pub(crate) fn attach(
        machine: &mut Machine,
        now: Micros,
        config: &DeviceConfig,
        models: &[ComingModel<'_>],
    ) -> Result<Self> {
        let name = &config.name;
        let widths = models
            .iter()
            .map(|coming| kv_bytes_per_token(&config.hardware, coming.model.config()));
        let widest = widths.max().context("no model is configured")?;
        let bytes = block_bytes(&config.hardware, widest);
        let kv_bytes = kv_bytes(config, models).with_context(|| format!("device {name}"))?;
        let total = u32::try_from(kv_bytes / bytes).unwrap_or(u32::MAX);
        ensure!(
            total > 0,
            "kv-memory of {kv_bytes} bytes, on device {name}, holds no block: one takes {bytes} \
             bytes"
        );
        let swap_bytes = config.swap_bytes;
        let host = u32::try_from(swap_bytes / bytes).unwrap_or(u32::MAX);
        ensure!(
            host > 0 || swap_bytes == 0,
            "swap-memory of {swap_bytes} bytes, on device {name}, holds no block: one takes {bytes} \
             bytes"
        );
        let blocks = KvBlocks { bytes, total, host };
        let compute = match &config.hardware {
            Hardware::Processors { threads, cores } => {
                let threads = NonZeroUsize::new(*threads).unwrap_or(NonZeroUsize::MIN);
                let processors = Processors::start(name, threads, cores.clone())?;
                Compute::Processors(processors, KvMemory::new(blocks))
            }
            Hardware::Cuda { ordinals } => {
                let (cuda, pool) = (listed(ordinals), bytes * u64::from(total));
                info!(device = name, cuda, kv_bytes = pool, "CUDA device");
                Compute::Cuda(Arc::new(CudaDevices::new(ordinals, blocks)?))
            }
        };
        let spec = DeviceSpec {
            name: name.clone(),
            kv: KvSpec::Owned {
                block_bytes: bytes,
                blocks_total: total,
                host_blocks: host,
            },
            tokens_per_step: Some(config.tokens_per_step),
        };
        Ok(Self {
            name: name.clone(),
            id: machine.handle(now, Input::DeviceAttached(spec)).device()?,
            blocks,
            hardware: config.hardware.clone(),
            compute,
        })
    }

    /// The kind of the device's executors.
    pub(crate) fn kind(&self) -> ExecutorKind {
        match self.compute {
            Compute::Processors(..) => ExecutorKind::Cpu,
            Compute::Cuda(_) => ExecutorKind::Cuda,
        }
    }

    /// Lays the KV cache of an executor's models out in the blocks of the device.
    pub(crate) fn shape(&self, models: &[&OpenModel]) -> Result<KvShape, ServeModelError> {
        let mut widest = 1;
        for model in models {
            let config = model.config();
            if let Compute::Cuda(devices) = &self.compute {
                devices
                    .check(model)
                    .map_err(|error| ServeModelError::DoesNotFit(error.to_string()))?;
            }
            widest = widest.max(kv_bytes_per_token(&self.hardware, config));
        }
        let tokens = u32::try_from(self.blocks.bytes / widest).unwrap_or(u32::MAX);
        if tokens == 0 {
            return Err(ServeModelError::DoesNotFit(format!(
                "a token takes {widest} bytes of KV cache, a block of device {} has {}; put the model \
                 into the configuration and start the host again",
                self.name, self.blocks.bytes
            )));
        }
        Ok(KvShape {
            tokens_per_block: tokens,
            blocks_total: self.blocks.total,
        })
    }

    /// True for a device that an executor may lose, which all there have to let go of then.
    pub(crate) fn may_be_lost(&self) -> bool {
        match &self.compute {
            Compute::Processors(..) => false,
            Compute::Cuda(_) => true,
        }
    }

    /// Checks that the device is not lost and kept by executors nevertheless. Processors are never lost.
    pub(crate) fn check_life(&self) -> Result<(), DeviceError> {
        match &self.compute {
            Compute::Processors(..) => Ok(()),
            Compute::Cuda(devices) => devices.check_lives(),
        }
    }

    /// Reads the weights of a model that the device's processors are going to compute, unless it was.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) fn prepare(&self, model: &LocalModel) -> Result<(), ServeModelError> {
        match &self.compute {
            Compute::Processors(..) => match model.in_memory() {
                Ok(_shared) => Ok(()),
                Err(error) => Err(ServeModelError::Files(pointsman_notation::chain(&error))),
            },
            Compute::Cuda(_) => Ok(()),
        }
    }

    /// Makes a backend of a model. One for processors is passed on by `make`.
    ///
    /// # Errors
    /// If the device fails, or the weights cannot be read.
    pub(crate) fn backend(
        &self,
        model: &LocalModel,
        shape: KvShape,
        make: impl FnOnce(CpuBackend) -> Box<dyn Backend>,
    ) -> Result<Box<dyn Backend>, DeviceError> {
        match &self.compute {
            Compute::Processors(processors, memory) => {
                let model = model.in_memory();
                let model =
                    model.map_err(|error| DeviceError(pointsman_notation::chain(&error)))?;
                let (memory, processors) = (memory.clone(), processors.clone());
                Ok(make(CpuBackend::on(memory, model, shape, processors)))
            }
            Compute::Cuda(devices) => {
                let files = Arc::clone(model.files());
                model.telling(&self.name, |tell| devices.load(files, shape, tell))
            }
        }
    }
}

/// Lists the devices of this machine, a line for each.
#[must_use]
pub fn list_devices() -> String {
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let cores = Cores::usable().map_or_else(String::new, |cores| format!(", cores {cores}"));
    let mut lines = format!("cpu: {processors} processors{cores}\n");
    match probe::devices() {
        Ok(devices) if devices.is_empty() => lines.push_str("cuda: the driver has no device\n"),
        Ok(devices) => {
            for device in devices {
                lines.push_str(&format!("cuda {device}\n"));
            }
        }
        Err(error) => lines.push_str(&format!("cuda: {error}\n")),
    }
    lines
}

/// Bytes of KV cache that a token of a model takes.
fn kv_bytes_per_token(hardware: &Hardware, config: &LlamaConfig) -> u64 {
    match hardware {
        Hardware::Processors { .. } => cpu::kv_bytes_per_token(config),
        Hardware::Cuda { .. } => pointsman_cuda::kv_bytes_per_token(config),
    }
}

/// Numbers of CUDA devices as the log has them.
fn listed(ordinals: &[usize]) -> String {
    let ordinals: Vec<String> = ordinals.iter().map(ToString::to_string).collect();
    ordinals.join(", ")
}

/// Bytes of a block with room for tokens of so many bytes. Of several CUDA devices each has a part of it, where kernels
/// read many bytes at once.
fn block_bytes(hardware: &Hardware, widest: u64) -> u64 {
    let bytes = widest * TOKENS_PER_BLOCK;
    match hardware {
        Hardware::Processors { .. } => bytes,
        Hardware::Cuda { ordinals } => bytes.next_multiple_of(READ_BYTES * ordinals.len() as u64),
    }
}

/// Bytes of KV cache on a device: as configured, or nine tenths of what `models` and the largest steps of their
/// executors leave of a CUDA device's. Of several together each has the same part, for which the fullest has room.
fn kv_bytes(config: &DeviceConfig, models: &[ComingModel<'_>]) -> Result<u64> {
    let Hardware::Cuda { ordinals } = &config.hardware else {
        return config.kv_bytes.context("kv-memory is missing");
    };
    // One that cannot be split over them has no executor here.
    let models = models
        .iter()
        .filter(|coming| can_be_split(coming.model, ordinals));
    let tokens = config.tokens_per_step;
    let models = models.map(|coming| ComputedModel {
        model: coming.model,
        executors: {
            let slots = coming.slots.iter().copied();
            let largest = slots.map(|sequences| StepSize { tokens, sequences });
            largest.collect()
        },
    });
    let room = CudaDevices::room(ordinals, &models.collect::<Vec<_>>())?;
    let devices = ordinals.len() as u64;
    let kv_bytes = config.kv_bytes.unwrap_or(room.left() / 10 * 9 * devices);
    let part = kv_bytes.div_ceil(devices);
    let Room {
        ordinal,
        free,
        models,
        steps,
    } = room;
    ensure!(
        part < room.left(),
        "its models take {models} bytes of CUDA device {ordinal}, steps of up to {tokens} tokens take {steps}, and its \
         kv-memory takes {part}, but only {free} bytes of that device's memory are free; give it less kv-memory, or a \
         smaller tokens-per-step"
    );
    Ok(kv_bytes)
}

fn can_be_split(model: &OpenModel, ordinals: &[usize]) -> bool {
    Rank::all(ordinals.len()).all(|rank| model.part(rank).is_ok())
}
