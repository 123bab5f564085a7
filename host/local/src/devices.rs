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
use pointsman_model::open::OpenModel;
use pointsman_model::split::Rank;
use tracing::info;

use crate::local_model::LocalModel;
use crate::settings::{DeviceConfig, Hardware};

/// Tokens in a block, of the model that takes the most memory per token.
const TOKENS_PER_BLOCK: u64 = 16;
/// The least KV cache of processors for which none is configured, in bytes.
pub(crate) const KV_BYTES_MIN: u64 = 64 << 20;
/// The part of the memory that is available which such a KV cache may take: one in so many.
const AVAILABLE_PART: u64 = 4;
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
    /// Bytes that a token takes of the widest model of these executors: its own tokens take as many there.
    pub(crate) width: u64,
}

/// The hardware of an attached device, at work.
#[derive(Clone, Debug)]
enum Compute {
    Processors(Processors, KvMemory),
    Cuda(Arc<CudaDevices>),
}

impl LocalDevice {
    /// Attaches a device whose blocks fit the widest of `models`, and starts its threads. So many bytes of memory are available
    /// to it where its KV cache is not configured.
    ///
    /// # Errors
    /// If there is no such device, or it has no memory for `models`.
    pub(crate) fn attach(
        machine: &mut Machine,
        now: Micros,
        config: &DeviceConfig,
        (models, available): (&[ComingModel<'_>], u64),
    ) -> Result<Self> {
        let name = &config.name;
        let kv_bytes = kv_bytes(config, models, available);
        let kv_bytes = kv_bytes.with_context(|| format!("device {name}"))?;
        let blocks = kv_blocks(config, models.iter().map(|coming| coming.model), kv_bytes)?;
        let KvBlocks { bytes, total, host } = blocks;
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
        for model in models {
            if let Compute::Cuda(devices) = &self.compute {
                devices
                    .check(model)
                    .map_err(|error| ServeModelError::DoesNotFit(error.to_string()))?;
            }
        }
        let shape = shape(&self.hardware, self.blocks, models);
        if shape.tokens_per_block == 0 {
            return Err(ServeModelError::DoesNotFit(format!(
                "a token takes {} bytes of KV cache, a block of device {} has {}; put the model \
                 into the configuration and start the host again",
                widest(&self.hardware, models.iter().copied()),
                self.name,
                self.blocks.bytes
            )));
        }
        Ok(shape)
    }

    /// Bytes of one of its KV blocks.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.blocks.bytes
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

/// Bytes of KV cache that a token takes of the model that needs most; at least 1.
pub(crate) fn widest<'a>(hardware: &Hardware, models: impl Iterator<Item = &'a OpenModel>) -> u64 {
    let configs = models.map(OpenModel::config);
    let bytes = configs.map(|config| match hardware {
        Hardware::Processors { .. } => cpu::kv_bytes_per_token(config),
        Hardware::Cuda { .. } => pointsman_cuda::kv_bytes_per_token(config),
    });
    bytes.max().unwrap_or(1).max(1)
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

/// Lays the KV cache of an executor's models out in the blocks of a device. No token in a block: one takes more than it has.
pub(crate) fn shape(hardware: &Hardware, blocks: KvBlocks, models: &[&OpenModel]) -> KvShape {
    let tokens = blocks.bytes / widest(hardware, models.iter().copied());
    KvShape {
        tokens_per_block: u32::try_from(tokens).unwrap_or(u32::MAX),
        blocks_total: blocks.total,
    }
}

/// The blocks of a device, each with room for tokens of the widest of `models`, in so many bytes of KV cache.
///
/// # Errors
/// If there is room for none.
fn kv_blocks<'a>(
    config: &DeviceConfig,
    models: impl Iterator<Item = &'a OpenModel>,
    kv_bytes: u64,
) -> Result<KvBlocks> {
    let (name, swap_bytes) = (&config.name, config.swap_bytes);
    let bytes = block_bytes(&config.hardware, widest(&config.hardware, models));
    let total = u32::try_from(kv_bytes / bytes).unwrap_or(u32::MAX);
    ensure!(
        total > 0,
        "kv-memory of {kv_bytes} bytes, on device {name}, holds no block: one takes {bytes} \
         bytes"
    );
    let host = u32::try_from(swap_bytes / bytes).unwrap_or(u32::MAX);
    ensure!(
        host > 0 || swap_bytes == 0,
        "swap-memory of {swap_bytes} bytes, on device {name}, holds no block: one takes {bytes} \
         bytes"
    );
    Ok(KvBlocks { bytes, total, host })
}

/// The blocks that a device would have for these models, as far as its configuration says; absent: it says nothing of its
/// KV cache. The memory of a CUDA device is not asked for: a server that runs may have it.
///
/// # Errors
/// If there is room for none.
pub(crate) fn configured_blocks<'a>(
    config: &DeviceConfig,
    models: impl Iterator<Item = &'a OpenModel>,
) -> Result<Option<KvBlocks>> {
    let blocks = kv_blocks(config, models, config.kv_bytes.unwrap_or(u64::MAX))?;
    Ok(config.kv_bytes.map(|_given| blocks))
}

/// Bytes of KV cache on a device: as configured, or on processors what [`unasked_kv_bytes`] says, or nine tenths of what
/// `models` and the largest steps of their executors leave of a CUDA device's. Of several together each has the same part,
/// for which the fullest has room.
fn kv_bytes(config: &DeviceConfig, models: &[ComingModel<'_>], available: u64) -> Result<u64> {
    let Hardware::Cuda { ordinals } = &config.hardware else {
        let longest = models.iter();
        let longest = longest.map(|coming| (coming.width, coming.model.config().context_tokens));
        let unasked = || unasked_kv_bytes(longest, available);
        return Ok(config.kv_bytes.unwrap_or_else(unasked));
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

/// Bytes of KV cache on processors for which none is configured, with so many bytes of memory available: one whole sequence of the
/// model that takes most, by the bytes of a token and the tokens of a context of each. Memory is taken from the system as blocks
/// are first written.
fn unasked_kv_bytes(longest: impl Iterator<Item = (u64, u32)> + Clone, available: u64) -> u64 {
    let widths = longest.clone().map(|(width, _)| width);
    let block = widths.max().unwrap_or(1).max(1) * TOKENS_PER_BLOCK;
    let blocks = longest.map(|(width, context)| u64::from(context).div_ceil(block / width.max(1)));
    let whole = blocks.max().unwrap_or(0) * block;
    whole
        .min(available / AVAILABLE_PART)
        .max(KV_BYTES_MIN)
        .max(block)
}

fn can_be_split(model: &OpenModel, ordinals: &[usize]) -> bool {
    Rank::all(ordinals.len()).all(|rank| model.part(rank).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_have_kv_cache_for_a_whole_sequence_within_a_part_of_the_memory() {
        const GIB: u64 = 1 << 30;
        let (demo, llama, huge) = ((3 << 10, 2048), (256 << 10, 131_072), (5 << 20, 4096));
        let (wide, long) = ((1 << 20, 4096), (112 << 10, 131_072));
        for (models, available, bytes) in [
            (vec![demo], 16 * GIB, KV_BYTES_MIN),
            (vec![demo, llama], 256 * GIB, 32 * GIB),
            (vec![llama], 16 * GIB, 4 * GIB),
            (vec![llama], 0, KV_BYTES_MIN),
            // A block takes more than that.
            (vec![huge], 0, 80 << 20),
            // 17 tokens take two blocks.
            (vec![(8 << 20, 17)], 16 * GIB, 256 << 20),
            // Of the long one 146 tokens are in a block, and 16 beside the wide one in an executor.
            (vec![wide, long], 256 * GIB, 898 * (16 << 20)),
            (vec![wide, (wide.0, long.1)], 1024 * GIB, 128 * GIB),
        ] {
            let unasked = unasked_kv_bytes(models.clone().into_iter(), available);
            assert_eq!(unasked, bytes, "{models:?} with {available}");
        }
    }
}
